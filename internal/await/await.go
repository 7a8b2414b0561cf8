// Package await waits in tests for conditions that must become true. Every wait has the
// same generous limit, so that no test fails because the machine is slow: a wait that
// reaches the limit is a fault. For time within one process, use testing/synctest instead.
package await

import (
	"testing"
	"time"
)

const (
	// Limit is the longest wait for any event.
	Limit = 2 * time.Minute
	// pause is the time between two checks of a condition.
	pause = 10 * time.Millisecond
)

// That waits until a condition holds, and fails the test if it does not.
func That(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Limit); !holds(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain until %s", Limit, what)
		}
	}
}

// Success repeats try until it returns no error. If it always fails, Success fails the test with the last error.
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

// Value returns the next value of a channel, or the zero value
// of a closed channel. It fails the test if there is no value.
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

// Return calls a function, and fails the test if the function does not return.
func Return(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	Value(t, what, done)
}
