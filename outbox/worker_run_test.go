package outbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestTarget: of what is delivered quickly a worker leases many, of what is slow no more than can be under way.
func TestTarget(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		took time.Duration // zero for a worker that has delivered nothing
		want int
	}{
		{"nothing is known", 0, 10},
		{"as quick as can be", 1, 160},
		{"quick", time.Millisecond, 160},
		{"in between", 100 * time.Millisecond, 20},
		{"just within the horizon", 250 * time.Millisecond, 10},
		{"slow", time.Minute, 10},
	} {
		r := &routeState{Route: Route{Concurrency: 10}}
		if test.took > 0 {
			r.took(test.took)
		}
		if got := r.target(); got != test.want {
			t.Errorf("%s: %d leased, want %d", test.name, got, test.want)
		}
	}
}

// TestTargetAdapts: a receiver that becomes slow, or quick again, is noticed after some deliveries, and not because of
// one.
func TestTargetAdapts(t *testing.T) {
	t.Parallel()
	r := &routeState{Route: Route{Concurrency: 10}}
	deliver := func(n int, each time.Duration) {
		for range n {
			r.took(each)
		}
	}
	want := func(when string, want int) {
		t.Helper()
		if got := r.target(); got != want {
			t.Errorf("%s: %d leased, want %d", when, got, want)
		}
	}
	deliver(10, time.Millisecond)
	want("quick", 160)
	deliver(1, 100*time.Millisecond)
	want("one was slow", 160)
	deliver(30, time.Second)
	want("all are slow", 10)
	deliver(1, time.Millisecond)
	want("one was quick", 10)
	deliver(60, time.Millisecond)
	want("all are quick", 160)
	deliver(60, 0)
	want("no time at all", 160)
}

// TestPauseBounds: whatever is configured, a pause is never longer than it may be, nor negative.
func TestPauseBounds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pause, longest time.Duration
		tries          int
		want           time.Duration
	}{
		{time.Second, time.Minute, 1, time.Second},
		{time.Second, time.Minute, 3, 4 * time.Second},
		{time.Second, time.Minute, 1 << 30, time.Minute},
		{time.Minute, time.Second, 1, time.Second},
		{1, 1, 5, 1},
	} {
		r := &Route{MinBackoff: test.pause, MaxBackoff: test.longest}
		for range 100 {
			if got := r.backoff(test.tries); got < test.want/2 || got > test.want {
				t.Fatalf("after %d tries the pause is %s, want it between half of %s and that", test.tries, got, test.want)
			}
		}
	}
}

// TestLostBeforeItBegan: a lease that was lost just before the delivery began ends the delivery too.
func TestLostBeforeItBegan(t *testing.T) {
	t.Parallel()
	l := &heldLease{until: time.Now().Add(time.Hour)}
	if err := l.alive(); err != nil {
		t.Fatal(err)
	}
	l.lose()
	ctx, cancel := l.begin(t.Context(), time.Hour)
	defer cancel()
	if cause := context.Cause(ctx); !errors.Is(cause, ErrFenced) {
		t.Errorf("the context of the delivery ended with %v", cause)
	}
	if err := l.alive(); !errors.Is(err, ErrFenced) {
		t.Errorf("the lease is alive: %v", err)
	}
}

// TestIDs: they are UUIDs of version 7, and one of a later millisecond is larger.
func TestIDs(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(0x0123456789ab)
	last, seen := "", make(map[string]bool)
	for i := range 1000 {
		id := newID(now.Add(time.Duration(i) * time.Millisecond))
		if id <= last || len(id) != 36 || id[14] != '7' || !strings.ContainsRune("89ab", rune(id[19])) {
			t.Fatalf("%s follows %s", id, last)
		}
		last = id
		same := newID(now)
		if !strings.HasPrefix(same, "01234567-89ab-7") || seen[same] {
			t.Fatalf("%s is not that of its time, or is not new", same)
		}
		seen[same] = true
	}
}
