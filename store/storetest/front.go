package storetest

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// FrontInstance is a front that was opened for one test.
type FrontInstance struct {
	// Front is the front.
	Front tiered.Front
	// Advance moves the clock of this front forward; between its calls the clock stands still. It is nil if the front
	// uses the clock of a real server: the suite then waits.
	Advance func(time.Duration)
}

// RunFront tests that a front keeps the promises of [tiered.Front]. Open opens a fresh, empty front for one test and
// closes it by t.Cleanup. RunFront returns when all tests have ended.
func RunFront(t *testing.T, open func(t testing.TB) FrontInstance) {
	t.Helper()
	tests := []struct {
		name string
		run  func(e *frontEnv)
	}{
		{"holds nothing", func(e *frontEnv) { e.want(id("key"), "", "a front that is empty") }},
		{"keeps bytes", frontKeepsBytes},
		{"the first value stays", frontFirstStays},
		{"ends", frontEnds},
		{"what comes late is not kept", frontLate},
		{"a tombstone keeps out", frontTombstone},
		{"a tombstone is replaced", frontTombstoneAgain},
		{"a longer tombstone stays", frontLongerTombstone},
		{"IDs are apart", frontIdentity},
		{"the clock goes on", frontClock},
		{"races", frontRaces},
		{"callers leave", frontCancelled},
	}
	t.Run("front", func(t *testing.T) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				t.Cleanup(cancel)
				test.run(&frontEnv{T: t, FrontInstance: open(t), ctx: ctx})
			})
		}
	})
}

// frontEnv is one test of a front.
type frontEnv struct {
	*testing.T
	FrontInstance
	ctx context.Context
}

func (e *frontEnv) add(id store.ID, value string, lasting time.Duration) {
	e.Helper()
	if err := e.Front.Add(e.ctx, id, []byte(value), e.Front.Now().Add(lasting)); err != nil {
		e.Fatalf("add: %v", err)
	}
}

func (e *frontEnv) invalidate(id store.ID, lasting time.Duration) {
	e.Helper()
	if err := e.Front.Invalidate(e.ctx, id, lasting); err != nil {
		e.Fatalf("invalidate: %v", err)
	}
}

func (e *frontEnv) get(id store.ID) string {
	e.Helper()
	value, err := e.Front.Get(e.ctx, id)
	if err != nil {
		e.Fatalf("get: %v", err)
	}
	return string(value)
}

func (e *frontEnv) want(id store.ID, want, when string) {
	e.Helper()
	if got := e.get(id); got != want {
		e.Errorf("%s: got %d bytes, %.20q, want %d, %.20q", when, len(got), got, len(want), want)
	}
}

// pass lets time pass on the front's clock.
func (e *frontEnv) pass(d time.Duration) {
	e.Helper()
	if e.Advance != nil {
		e.Advance(d)
		return
	}
	for end := e.Front.Now().Add(d); e.Front.Now().Before(end); time.Sleep(d / 10) {
		if e.ctx.Err() != nil {
			e.Fatalf("the clock of the front did not come to %s within %s", end, patience)
		}
	}
}

// shortly is a time that is meant to run out.
const shortly = 50 * time.Millisecond

func frontKeepsBytes(e *frontEnv) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for i, value := range []string{string(every), "\x00", strings.Repeat("a", 1<<18)} {
		e.add(ids(3)[i], value, calm)
		e.want(ids(3)[i], value, "what was added")
	}
}

func frontFirstStays(e *frontEnv) {
	e.add(id("key"), "first", calm)
	e.add(id("key"), "second", calm)
	e.want(id("key"), "first", "where there is a value none is added")
}

func frontEnds(e *frontEnv) {
	e.add(id("key"), "short", shortly)
	e.add(id("other"), "long", calm)
	e.pass(shortly)
	e.want(id("key"), "", "at its end")
	e.want(id("other"), "long", "before its end")
	e.add(id("key"), "next", calm)
	e.want(id("key"), "next", "behind one that has ended")
}

func frontLate(e *frontEnv) {
	e.add(id("key"), "late", -calm)
	e.want(id("key"), "", "an hour behind its end")
	e.add(id("key"), "just late", 0)
	e.want(id("key"), "", "at its end, which is when the front's clock has come to it")
	e.add(id("key"), "in time", calm)
	e.want(id("key"), "in time", "behind those that came late")
}

func frontTombstone(e *frontEnv) {
	e.add(id("key"), "old", calm)
	e.add(id("other"), "other", calm)
	e.invalidate(id("key"), calm)
	e.want(id("key"), "", "behind its invalidation")
	e.add(id("key"), "late", calm)
	e.want(id("key"), "", "added behind a tombstone")
	e.want(id("other"), "other", "beside a tombstone")

	e.invalidate(id("third"), shortly)
	e.pass(shortly)
	for tries := 0; e.get(id("third")) == ""; tries++ {
		if tries == 1000 {
			e.Fatalf("a tombstone that was to last %s does not end", shortly)
		}
		e.add(id("third"), "new", calm)
		e.pass(shortly / 5)
	}
}

func frontTombstoneAgain(e *frontEnv) {
	e.invalidate(id("key"), shortly)
	e.invalidate(id("key"), calm)
	e.pass(2 * shortly)
	e.add(id("key"), "late", calm)
	e.want(id("key"), "", "behind a tombstone that was left again, for longer")
}

func frontLongerTombstone(e *frontEnv) {
	e.invalidate(id("key"), calm)
	e.invalidate(id("key"), shortly)
	e.pass(2 * shortly)
	e.add(id("key"), "late", calm)
	e.want(id("key"), "", "behind a tombstone that was left again, for a shorter time")

	e.add(id("other"), "old", calm)
	e.invalidate(id("other"), shortly)
	e.want(id("other"), "", "behind a tombstone that ends before the value would")
}

func frontIdentity(e *frontEnv) {
	alike := []store.ID{
		{Scope: "a", Key: "bc"},
		{Scope: "ab", Key: "c"},
		{Scope: "", Key: "abc"},
		{Scope: "abc", Key: ""},
		{Scope: "A", Key: "bc"},
		{Scope: "a", Key: "bc "},
		{Scope: "a", Key: "{x}bc"},
		{Scope: "a", Key: "{x}bd"},
		{Scope: "a", Key: "bc\x00"},
		{Scope: "a\x00", Key: "bc"},
		{Scope: "a", Key: strings.Repeat("k", 300)},
		{Scope: "a", Key: strings.Repeat("k", 301)},
		{Scope: "a", Key: "0190b5f2-7c3a-7def-8abc-0123456789ab"},
		{Scope: "a", Key: "0190B5F2-7C3A-7DEF-8ABC-0123456789AB"},
	}
	for i, each := range alike {
		e.add(each, string(rune('a'+i)), calm)
	}
	e.invalidate(alike[0], calm)
	for i, each := range alike[1:] {
		e.want(each, string(rune('a'+i+1)), "one of IDs that are alike")
	}
}

func frontClock(e *frontEnv) {
	before := e.Front.Now()
	if before.IsZero() {
		e.Fatal("the clock of the front is not known: nothing would ever be filled")
	}
	e.pass(shortly)
	if gone := e.Front.Now().Sub(before); gone < shortly {
		e.Errorf("the clock went on by %s, want %s at least", gone, shortly)
	}
}

// frontRaces keeps adding old values during invalidations: after an invalidation has returned, no old value is visible.
func frontRaces(e *frontEnv) {
	stop := make(chan struct{})
	var adders sync.WaitGroup
	targets := ids(8)
	for range 4 {
		adders.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					_ = e.Front.Add(e.ctx, targets[i%len(targets)], []byte("old"), e.Front.Now().Add(calm))
				}
			}
		})
	}
	defer adders.Wait()
	defer close(stop)
	for _, target := range targets {
		for e.get(target) == "" && e.ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		e.invalidate(target, calm)
		for range 20 {
			e.want(target, "", "while old values arrive behind an invalidation")
		}
	}
}

// frontCancelled checks that calls with a cancelled context return.
func frontCancelled(e *frontEnv) {
	e.add(id("key"), "value", calm)
	gone, cancel := context.WithCancel(e.ctx)
	cancel()
	if value, err := e.Front.Get(gone, id("key")); err == nil && !bytes.Equal(value, []byte("value")) {
		e.Errorf("get for a caller who has left got %q without an error", value)
	}
	_ = e.Front.Add(gone, id("other"), []byte("value"), e.Front.Now().Add(calm))
	_ = e.Front.Invalidate(gone, id("other"), calm)
	e.want(id("key"), "value", "behind callers who have left")
}
