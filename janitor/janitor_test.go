package janitor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

const (
	lease     = 30 * time.Second
	retention = 24 * time.Hour
)

var errDown = fmt.Errorf("%w: the test pulled the plug", store.ErrUnavailable)

// journal collects an observer's events.
type journal struct {
	mu     sync.Mutex
	events []onceward.ObserverEvent
	turns  []onceward.WorkerEvent
}

func (j *journal) Observe(_ context.Context, e onceward.ObserverEvent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if turn, ok := e.(onceward.WorkerEvent); ok {
		j.turns = append(j.turns, turn)
		return
	}
	j.events = append(j.events, e)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprintf("%+v", j.events)
}

// quiet is a config that logs nothing.
func quiet(config janitor.Config) janitor.Config {
	config.Logger = slog.New(slog.DiscardHandler)
	return config
}

func idOf(i int) store.ID { return store.ID{Scope: "tenant", Key: fmt.Sprint("key ", i)} }

// reserve makes n records in progress, with the claims of their owners.
func reserve(t *testing.T, s store.Store, n int) []store.Claim {
	t.Helper()
	claims := make([]store.Claim, n)
	for i := range claims {
		v, err := s.Reserve(t.Context(), &store.Reservation{
			ID: idOf(i), Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
			Lease: lease, Retention: retention,
		})
		if err != nil || v.Decision != store.DecisionExecute {
			t.Fatal(v.Decision, err)
		}
		claims[i] = store.Claim{ID: idOf(i), Attempt: v.Record.Attempt}
	}
	return claims
}

// complete makes n completed records.
func complete(t *testing.T, store store.Store, n int) {
	t.Helper()
	for _, claim := range reserve(t, store, n) {
		answer(t, store, claim)
	}
}

func answer(t *testing.T, s store.Store, claim store.Claim) {
	t.Helper()
	if _, err := s.Complete(t.Context(), claim, &store.Completion{Response: store.Response{Status: 201}}); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, store *memory.Store, state store.State) int64 {
	t.Helper()
	stats, err := store.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stats.Records[state]
}

func TestSweeperSweepsInBatches(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ records, batch, batches int }{{0, 2, 1}, {1, 2, 1}, {2, 2, 2}, {5, 2, 3}, {5, 0, 1}} {
		synctest.Test(t, func(t *testing.T) {
			s, told := memory.New(), &journal{}
			reserve(t, s, test.records)
			time.Sleep(lease)
			sweeper, err := janitor.NewSweeper(s, quiet(janitor.Config{Batch: test.batch, Observer: told}))
			if err != nil {
				t.Fatal(err)
			}
			report, err := sweeper.RunOnce(t.Context())
			if want := (janitor.Report{Count: test.records, Batches: test.batches}); report != want || err != nil {
				t.Errorf("%+v, %v; want %+v", report, err, want)
			}
			if n := count(t, s, store.StateUnknown); n != int64(test.records) {
				t.Errorf("%d are unknown, want %d", n, test.records)
			}
			if want := fmt.Sprintf("[{Count:%d}]", test.records); told.String() != want {
				t.Errorf("the observer was told %s, want %s", told, want)
			}
		})
	}
}

func TestReaperReapsInBatches(t *testing.T) {
	t.Parallel()
	for _, soft := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, told := memory.New(), &journal{}
			complete(t, store, 5)
			reaper, err := janitor.NewReaper(store, quiet(janitor.Config{Batch: 2, Soft: soft, Observer: told}))
			if err != nil {
				t.Fatal(err)
			}
			var reports []janitor.Report
			for range 3 {
				report, err := reaper.RunOnce(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				reports = append(reports, report)
				time.Sleep(retention)
			}
			want := []janitor.Report{{0, 1}, {5, 3}, {0, 1}}
			if soft {
				want[2] = janitor.Report{Count: 5, Batches: 3}
			}
			if fmt.Sprint(reports) != fmt.Sprint(want) {
				t.Errorf("soft %t: %v, want %v", soft, reports, want)
			}
			if want := fmt.Sprintf("[{Count:0} {Count:5} {Count:%d}]", want[2].Count); told.String() != want {
				t.Errorf("the observer was told %s, want %s", told, want)
			}
		})
	}
}

// TestReaperLeavesWhatIsNotSettled is S2, seen from the worker.
func TestReaperLeavesWhatIsNotSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		reserve(t, store, 3)
		time.Sleep(100 * retention)
		reaper, err := janitor.NewReaper(store, quiet(janitor.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		if report, err := reaper.RunOnce(t.Context()); report.Count != 0 || err != nil {
			t.Errorf("%+v, %v", report, err)
		}
	})
}

// endless is a store that always finds a full batch, until it fails.
type endless struct {
	*memory.Store
	calls  int
	failAt int
	cancel context.CancelFunc
}

func (e *endless) Sweep(_ context.Context, limit int) (int, error) {
	e.calls++
	if e.calls == e.failAt {
		if e.cancel == nil {
			return 1, errDown
		}
		e.cancel()
	}
	return limit, nil
}

func (e *endless) Reap(ctx context.Context, limit int, _ bool) (int, error) {
	return e.Sweep(ctx, limit)
}

// TestRunOnceEndsHalfWay: with the store's failure or with the context, and what was done is still reported.
func TestRunOnceEndsHalfWay(t *testing.T) {
	t.Parallel()
	type worker interface {
		RunOnce(context.Context) (janitor.Report, error)
	}
	workers := map[string]func(store.Store, janitor.Config) (worker, error){
		"sweeper": func(s store.Store, c janitor.Config) (worker, error) { return janitor.NewSweeper(s, c) },
		"reaper":  func(s store.Store, c janitor.Config) (worker, error) { return janitor.NewReaper(s, c) },
	}
	for name, build := range workers {
		for _, cancels := range []bool{false, true} {
			t.Run(fmt.Sprint(name, cancels), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				store, told := &endless{Store: memory.New(), failAt: 3}, &journal{}
				wantErr, want := errDown, janitor.Report{Count: 21, Batches: 3}
				if cancels {
					store.cancel = cancel
					wantErr, want = context.Canceled, janitor.Report{Count: 30, Batches: 3}
				}
				w, err := build(store, quiet(janitor.Config{Batch: 10, Observer: told}))
				if err != nil {
					t.Fatal(err)
				}
				report, err := w.RunOnce(ctx)
				if report != want || !errors.Is(err, wantErr) {
					t.Errorf("%+v, %v; want %+v, %v", report, err, want, wantErr)
				}
				if told.String() != fmt.Sprintf("[{Count:%d}]", want.Count) {
					t.Errorf("the observer was told %s", told)
				}
			})
		}
	}
}

// plain is a store that can do nothing beyond what it must.
type plain struct{ store.Store }

func TestStoreMustBeAble(t *testing.T) {
	t.Parallel()
	_, err := janitor.New(plain{memory.New()}, janitor.Config{})
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Fatal(err)
	}
	for _, want := range []string{"janitor_test.plain cannot sweep", "store.Sweeper", "cannot reap", "store.Reaper"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

// selfReaper is a store whose server removes what has expired, or does not.
type selfReaper struct {
	store.Store
	store.Sweeper
	reaps bool
}

func (s selfReaper) ReapsItself() bool { return s.reaps }

func TestSelfReaperIsSweptAlone(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	if _, err := janitor.New(selfReaper{inside, inside, false}, janitor.Config{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a store that neither reaps itself nor can be reaped: %v", err)
	}
	j, err := janitor.New(selfReaper{inside, inside, true}, janitor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	inBackground(t, j)()
	if _, err := janitor.New(struct {
		store.Store
		store.SelfReaper
	}{inside, selfReaper{reaps: true}}, janitor.Config{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a store that cannot be swept: %v", err)
	}
}

func TestConfigMustMakeSense(t *testing.T) {
	t.Parallel()
	for _, config := range []janitor.Config{{Interval: -1}, {Batch: -1}} {
		if _, err := janitor.New(memory.New(), config); err == nil ||
			!strings.Contains(err.Error(), "negative") {
			t.Errorf("%+v: %v", config, err)
		}
	}
}

// This file is about the loops: when they run, what they do about failures, and how they end.

// inBackground runs something until the returned function is called.
func inBackground(t *testing.T, w onceward.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
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
			j, err := janitor.New(s, quiet(janitor.Config{}))
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, inBackground(t, j))
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
		sweeper, err := janitor.NewSweeper(s,
			janitor.Config{Interval: interval, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		if err != nil {
			t.Fatal(err)
		}
		reserve(t, s, 1)
		stop := inBackground(t, sweeper)
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
		stop := inBackground(t, sweeper)
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
		config := janitor.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}
		j, err := janitor.New(memory.New(), config)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Run(ctx); err != nil {
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

// TestNoAnswerDoesNotStopALoop: a step that the store does not answer is given up, and the loop continues.
func TestNoAnswerDoesNotStopALoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &silent{Store: memory.New()}
		sweeper, err := janitor.NewSweeper(s, quiet(janitor.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		reserve(t, s, 1)
		stop := inBackground(t, sweeper)
		defer stop()
		time.Sleep(lease + 10*time.Minute)
		synctest.Wait()
		if n := count(t, s.Store, store.StateUnknown); n != 1 {
			t.Errorf("%d are unknown after %d sweeps, want 1", n, s.asked.Load())
		}
	})
}

// TestWorkersReport: each run is reported, with its failure, after which the backlog is not known. The reaper's is
// never known: the store may have scanned a part of its table.
func TestWorkersReport(t *testing.T) {
	t.Parallel()
	told := &journal{}
	config := quiet(janitor.Config{Observer: told})
	sweeper, sweeperErr := janitor.NewSweeper(memory.New(), config)
	reaper, reaperErr := janitor.NewReaper(memory.New(), config)
	purger, purgerErr := janitor.NewPurger(memory.New(), config)
	if err := errors.Join(sweeperErr, reaperErr, purgerErr); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for name, worker := range map[string]interface {
		RunOnce(ctx context.Context) (janitor.Report, error)
	}{"sweeper": sweeper, "reaper": reaper, "purger": purger} {
		left := 0
		if name == "reaper" {
			left = -1
		}
		told.turns = nil
		if _, err := worker.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := worker.RunOnce(ended); err == nil {
			t.Fatal("it ran after its end")
		}
		if len(told.turns) != 2 || told.turns[0].Worker != name || told.turns[0].Err != nil || told.turns[0].Backlog != left ||
			!errors.Is(told.turns[1].Err, context.Canceled) || told.turns[1].Backlog >= 0 {
			t.Errorf("%s told %+v", name, told.turns)
		}
	}
}

// TestAPanicDoesNotEndTheJanitor: it is a failure that is logged, and all jobs continue.
func TestAPanicDoesNotEndTheJanitor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		told := &journal{}
		var sweeps, reaps, purges int // of the first of each the observer panics
		config := janitor.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		config.Observer = onceward.ObserverFunc(func(ctx context.Context, e onceward.ObserverEvent) {
			var runs *int
			switch e.(type) {
			case janitor.SweptEvent:
				runs = &sweeps
			case janitor.ReapedEvent:
				runs = &reaps
			case janitor.PurgedEvent:
				runs = &purges
			default:
				return
			}
			if *runs++; *runs == 1 {
				panic("a bug")
			}
			told.Observe(ctx, e)
		})
		j, err := janitor.New(memory.New(), config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := j.Run(ctx); err != nil {
			t.Error(err)
		}
		for _, job := range []string{"cannot sweep", "cannot reap", "cannot purge executions"} {
			if !strings.Contains(log.String(), job) || !strings.Contains(log.String(), "panic: a bug") {
				t.Errorf("the log does not tell of %q:\n%s", job, &log)
			}
		}
		if sweeps < 2 || reaps < 2 || purges < 2 {
			t.Errorf("it swept %d times, reaped %d times and purged %d times", sweeps, reaps, purges)
		}
	})
}

// TestPurger: entries of the audit of executions are removed when they are older than configured, and not before (L7).
func TestPurger(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := memory.New(memory.WithClock(func() time.Time { return now }))
	for i := range 5 {
		now = now.Add(24 * time.Hour)
		if err := s.AddExecution(t.Context(), store.ExecutionEntry{ID: idOf(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		config janitor.Config
		purged int
	}{
		{janitor.Config{}, 0},
		{janitor.Config{KeepExecutions: 50 * time.Hour, Batch: 1}, 2},
		{janitor.Config{KeepExecutions: time.Minute}, 2},
	} {
		purger, err := janitor.NewPurger(s, quiet(test.config))
		if err != nil {
			t.Fatal(err)
		}
		report, err := purger.RunOnce(t.Context())
		if err != nil || report.Count != test.purged {
			t.Errorf("L7: keeping for %s purged %d (%v), want %d", test.config.KeepExecutions, report.Count, err, test.purged)
		}
	}
	if _, err := janitor.New(s, janitor.Config{KeepExecutions: -1}); err == nil {
		t.Error("a negative age is accepted")
	}
}
