package store

import "context"

// Wrapper is a store around another store, such as a circuit breaker. It has the methods of every capability, because
// the capabilities of the inner store are not known when it is compiled: [As] determines which capabilities the store
// has.
type Wrapper interface {
	Store
	// Unwrap returns the inner store.
	Unwrap() Store
}

// As returns s as a T, a capability such as [Transactor], and reports whether s has it. A [Wrapper] has a capability
// only if the inner store has it too. Use As instead of a type assertion, which a wrapper always satisfies.
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

// Find returns the outermost T among s and the stores inside it. It is for features of one type of store, such as a
// transaction of its driver.
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

// PastFront returns a context for a reservation that the durable store itself must answer, not a cache in front of it,
// because the cache's answer could not be used.
func PastFront(ctx context.Context) context.Context {
	return context.WithValue(ctx, pastFrontKey{}, true)
}

// IsPastFront reports whether a context comes from [PastFront].
func IsPastFront(ctx context.Context) bool { return ctx.Value(pastFrontKey{}) != nil }
