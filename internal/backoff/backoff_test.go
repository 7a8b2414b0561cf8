package backoff_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// However large the numbers, the time neither shrinks nor exceeds its bounds.
func TestGrowth(t *testing.T) {
	t.Parallel()
	const longest = time.Duration(math.MaxInt64)
	for _, each := range []struct {
		minimum, maximum time.Duration
		failures         int
		full             time.Duration
	}{
		{time.Second, time.Minute, math.MinInt, time.Second},
		{time.Second, time.Minute, 0, time.Second},
		{time.Second, time.Minute, 1, time.Second},
		{time.Second, time.Minute, 4, 8 * time.Second},
		{time.Second, time.Minute, 7, time.Minute},
		{time.Second, time.Minute, 31, time.Minute},
		{time.Second, time.Minute, 35, time.Minute},
		{time.Second, time.Minute, math.MaxInt, time.Minute},
		{10 * time.Minute, time.Hour, 30, time.Hour},
		{24 * time.Hour, longest, 17, 24 * time.Hour << 16},
		{24 * time.Hour, longest, 18, longest},
		{1000 * time.Hour, 2000 * time.Hour, 13, 2000 * time.Hour},
		{longest, longest, 2, longest},
		{1, longest, 63, 1 << 62},
		{1, longest, 64, longest},
		{time.Minute, time.Second, 1, time.Second},
		{0, 0, 6, 0},
	} {
		if got := backoff.Exponential(each.minimum, each.maximum, each.failures); got != each.full {
			t.Errorf("%+v: %v", each, got)
		}
		for range 100 {
			got := backoff.Jittered(each.minimum, each.maximum, each.failures)
			if got < each.full/2 || got > each.full {
				t.Errorf("%+v: %v", each, got)
			}
		}
	}
}

func TestJitter(t *testing.T) {
	t.Parallel()
	seen := make(map[time.Duration]bool)
	for range 10 {
		seen[backoff.Jittered(time.Hour, time.Hour, 1)] = true
	}
	if len(seen) < 5 {
		t.Errorf("ten times are only %d different ones", len(seen))
	}
}

func TestAround(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{0, 1, time.Second} {
		for range 100 {
			if got := backoff.Around(interval); got < interval/2 || got > interval/2+interval {
				t.Errorf("%v around %v", got, interval)
			}
		}
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if !backoff.Sleep(ctx, 400*time.Millisecond) || time.Since(begun) != 400*time.Millisecond {
			t.Errorf("it did not sleep for its time, but for %v", time.Since(begun))
		}
		if backoff.Sleep(ctx, time.Hour) || time.Since(begun) != time.Second {
			t.Errorf("the end of the context did not wake it, after %v", time.Since(begun))
		}
		if backoff.Sleep(ctx, 0) {
			t.Error("a context that has ended is reported to last")
		}
	})
}
