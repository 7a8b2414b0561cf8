// Package backoff is the one exponential backoff of all loops that try again.
package backoff

import (
	"context"
	"math/bits"
	"math/rand/v2"
	"time"
)

// Exponential is how long to wait after a number of failures in a row: minimum after the first, twice as long after
// each further one, and never longer than maximum. Fewer than one failure count as one. It is for a caller who waits
// alone.
func Exponential(minimum, maximum time.Duration, failures int) time.Duration {
	// More doublings than minimum has leading zero bits, without that of the sign, would overflow.
	if doublings := max(failures, 1) - 1; doublings < bits.LeadingZeros64(uint64(minimum)) {
		return min(maximum, minimum<<doublings)
	}
	return maximum
}

// Jittered is [Exponential] with up to half of it left out at random, so that callers who failed together do not come
// back together.
func Jittered(minimum, maximum time.Duration, failures int) time.Duration {
	full := Exponential(minimum, maximum, failures)
	return full/2 + rand.N(full/2+1)
}

// Around is a random time between half of an interval and one and a half of it. Nodes that were started together and
// repeat something in an interval drift apart by it.
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
