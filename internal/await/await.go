// Package await waits, in tests, for what has to happen. Every wait has the same generous bound, so that no test fails
// because the machine is slow: a wait that reaches it is a fault. Time in memory does not need this package, but
// testing/synctest.
package await

import (
	"testing"
	"time"
)

const (
	// Limit is how long a test waits for an event, whatever the event is.
	Limit = 2 * time.Minute
	// pause is the time between two looks at a condition.
	pause = 10 * time.Millisecond
)

// That looks again and again until a condition holds, and fails the test if it does not.
func That(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Limit); !holds(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain until %s", Limit, what)
		}
	}
}

// Success tries again and again until there is no error, and fails the test with the last error if there always is one.
func Success(t testing.TB, what string, try func() error) {
	t.Helper()
	var last error
	for end := time.Now().Add(Limit); ; time.Sleep(pause) {
		if last = try(); last == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain until %s: %v", Limit, what, last)
		}
	}
}

// Value returns the next value of a channel, or the zero value of a closed one, and fails the test if there is none.
func Value[T any](t testing.TB, what string, from <-chan T) (value T) {
	t.Helper()
	limit := time.NewTimer(Limit)
	defer limit.Stop()
	select {
	case value = <-from:
	case <-limit.C:
		t.Fatalf("waited %s in vain for %s", Limit, what)
	}
	return value
}

// Return calls a function and waits until it returns, and fails the test if it does not.
func Return(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	Value(t, what, done)
}
