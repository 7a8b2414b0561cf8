// Package backoff is the exponential backoff of all retry loops.
package backoff

import (
	"context"
	"math/bits"
	"math/rand/v2"
	"time"
)

// Exponential returns the wait after a number of consecutive failures: minimum after the first, twice as long
// after each further failure, and at most maximum. Fewer than one failure count as one. It is for a single caller.
func Exponential(minimum, maximum time.Duration, failures int) time.Duration {
	// If doublings exceed the leading zero bits of minimum, not counting the sign bit, the shift overflows.
	if doublings := max(failures, 1) - 1; doublings < bits.LeadingZeros64(uint64(minimum)) {
		return min(maximum, minimum<<doublings)
	}
	return maximum
}

// Jittered is like [Exponential], but shortens the wait by up to half at
// random, so that callers which failed together do not retry together.
func Jittered(minimum, maximum time.Duration, failures int) time.Duration {
	full := Exponential(minimum, maximum, failures)
	return full/2 + rand.N(full/2+1)
}

// Around returns a random time between half of an interval and one and a half
// of it. Nodes that were started together, and repeat something, drift apart.
func Around(interval time.Duration) time.Duration { return interval/2 + rand.N(interval+1) }

// Sleep waits for d or until the context ends, and reports whether the context still lasts.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
