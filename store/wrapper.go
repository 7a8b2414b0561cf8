package store

import "context"

// Wrapper is a store around another one, such as a circuit breaker. It has the methods of every capability, because
// what the store inside can do is not known when it is compiled: [As] tells which of them count.
type Wrapper interface {
	Store
	// Unwrap returns the store inside.
	Unwrap() Store
}

// As returns s as a T, a capability such as [Transactor], and reports whether it has it. A [Wrapper] has the
// capabilities that it shares with the store inside. This is how capabilities are found: a type assertion alone would
// take a wrapper at its word.
func As[T any](s any) (T, bool) {
	able, ok := s.(T)
	for inside := s; ok; {
		wrapper, wraps := inside.(Wrapper)
		if !wraps {
			return able, true
		}
		inside = wrapper.Unwrap()
		_, ok = inside.(T)
	}
	var none T
	return none, false
}

// Find returns the outermost T among s and the stores inside of it. It is for what belongs to one type of store, such
// as a transaction of its driver.
func Find[T any](s any) (T, bool) {
	for {
		if found, ok := s.(T); ok {
			return found, true
		}
		wrapper, ok := s.(Wrapper)
		if !ok {
			var none T
			return none, false
		}
		s = wrapper.Unwrap()
	}
}

type pastFrontKey struct{}

// PastFront returns a context for a reservation that the durable store itself is to answer, and not a cache in front of
// it: for those who got an answer that they cannot use.
func PastFront(ctx context.Context) context.Context {
	return context.WithValue(ctx, pastFrontKey{}, true)
}

// IsPastFront reports whether a context is of [PastFront].
func IsPastFront(ctx context.Context) bool { return ctx.Value(pastFrontKey{}) != nil }
