package janitor_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// This file is about the loops: when they run, what they do about failures, and how they end.

// inBackground runs something until the returned function is called.
func inBackground(t *testing.T, run func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// TestRunDoesBoth runs the janitors of three nodes for a day.
func TestRunDoesBoth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		claims := reserve(t, s, 3)
		for _, claim := range claims[1:] {
			answer(t, s, claim)
		}
		var stops []func()
		for range 3 {
			stops = append(stops, inBackground(t, func(ctx context.Context) {
				if err := janitor.Run(ctx, s, quiet(janitor.Config{})); err != nil {
					t.Error(err)
				}
			}))
		}
		time.Sleep(lease + janitor.DefaultInterval)
		if n := count(t, s, store.StateUnknown); n != 1 {
			t.Errorf("%d are unknown, want 1", n)
		}
		time.Sleep(retention)
		if n := count(t, s, store.StateCompleted); n != 0 {
			t.Errorf("%d are still completed", n)
		}
		for _, stop := range stops {
			stop()
		}
	})
}

// flaky is a store whose sweeps fail for as long as it is down. It notes when it was asked.
type flaky struct {
	*memory.Store
	mu    sync.Mutex
	down  bool
	asked []time.Time
}

func (f *flaky) Sweep(ctx context.Context, limit int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, time.Now())
	if f.down {
		return 0, errDown
	}
	return f.Store.Sweep(ctx, limit)
}

// pauses are the times between the calls so far, which are then forgotten.
func (f *flaky) pauses(down bool) (pauses []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := 1; i < len(f.asked); i++ {
		pauses = append(pauses, f.asked[i].Sub(f.asked[i-1]))
	}
	f.asked, f.down = nil, down
	return pauses
}

func TestRunGoesOnAfterFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const interval = 32 * time.Second
		var logged bytes.Buffer
		s := &flaky{Store: memory.New(), down: true}
		sweeper, err := janitor.NewSweeper(s, janitor.Config{Interval: interval, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		if err != nil {
			t.Fatal(err)
		}
		reserve(t, s, 1)
		stop := inBackground(t, sweeper.Run)
		defer stop()

		time.Sleep(10 * interval)
		synctest.Wait()
		// The first pauses are short and double; none is longer than the interval.
		requirePauses(t, s.pauses(false), interval/16, interval/8, interval/4, interval/2, interval, interval)

		time.Sleep(10 * interval)
		synctest.Wait()
		requirePauses(t, s.pauses(false), interval, interval)
		if n := count(t, s.Store, store.StateUnknown); n != 1 {
			t.Errorf("after the failures %d are unknown, want 1", n)
		}
		for _, want := range []string{"cannot sweep", "pulled the plug", "leases ran out"} {
			if !strings.Contains(logged.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, &logged)
			}
		}
	})
}

// requirePauses compares the first pauses, and holds the rest to the last. A fifth may be left out.
func requirePauses(t *testing.T, pauses []time.Duration, want ...time.Duration) {
	t.Helper()
	if len(pauses) < len(want) {
		t.Fatalf("only %d pauses: %v", len(pauses), pauses)
	}
	for i, pause := range pauses {
		longest := want[min(i, len(want)-1)]
		if pause > longest || pause < longest-longest/5 {
			t.Errorf("pause %d is %s, want at most %s and at least four fifths of it", i, pause, longest)
		}
	}
}

func TestRunIsNotInStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &flaky{Store: memory.New()}
		sweeper, err := janitor.NewSweeper(store, quiet(janitor.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		stop := inBackground(t, sweeper.Run)
		time.Sleep(100 * janitor.DefaultInterval)
		stop()
		different := make(map[time.Duration]bool)
		for _, pause := range store.pauses(false) {
			different[pause] = true
		}
		if len(different) < 50 {
			t.Errorf("a hundred pauses have only %d lengths", len(different))
		}
	})
}

// TestCancellationIsNoFailure: a node that stops does not log errors, and stops at once.
func TestCancellationIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		cfg := janitor.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}
		if err := janitor.Run(ctx, memory.New(), cfg); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != 0 || logged.Len() > 0 {
			t.Errorf("it took %s and logged %q", waited, &logged)
		}
	})
}

// silent is a store whose machine vanishes without a word: the first sweep gets no answer.
type silent struct {
	*memory.Store
	asked atomic.Int64
}

func (s *silent) Sweep(ctx context.Context, limit int) (int, error) {
	if s.asked.Add(1) == 1 {
		<-ctx.Done()
		return 0, errDown
	}
	return s.Store.Sweep(ctx, limit)
}

// TestNoAnswerDoesNotStopALoop: a step that the store does not answer is given up, and the loop goes on.
func TestNoAnswerDoesNotStopALoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &silent{Store: memory.New()}
		sweeper, err := janitor.NewSweeper(s, quiet(janitor.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		reserve(t, s, 1)
		stop := inBackground(t, sweeper.Run)
		defer stop()
		time.Sleep(lease + 10*time.Minute)
		synctest.Wait()
		if n := count(t, s.Store, store.StateUnknown); n != 1 {
			t.Errorf("%d are unknown after %d sweeps, want 1", n, s.asked.Load())
		}
	})
}
