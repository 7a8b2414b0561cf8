package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(watchdog.Over(m).Run()) }

// TestConformance: with a breaker around it a store is as good as before.
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Harness{Open: func(t testing.TB) storetest.Instance {
		var clock atomic.Int64
		clock.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
		inside := memory.New(memory.WithClock(func() time.Time { return time.UnixMicro(clock.Load()).UTC() }))
		s, err := breaker.New(inside, breaker.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return storetest.Instance{Store: s, Advance: func(d time.Duration) { clock.Add(d.Microseconds()) }}
	}})
}

// sick is a store in memory whose calls can be made to fail, and which pretends to have transactions.
type sick struct {
	*memory.Store
	calls   atomic.Int64
	running atomic.Int64
	most    atomic.Int64 // calls at once
	fault   func(ctx context.Context) error
	before  time.Duration // how long a transaction takes to begin
	after   time.Duration // and to commit
}

func newSick() *sick { return &sick{Store: memory.New()} }

func (s *sick) enter(ctx context.Context) error {
	s.calls.Add(1)
	now := s.running.Add(1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	defer s.running.Add(-1)
	if s.fault == nil {
		return nil
	}
	return s.fault(ctx)
}

func (s *sick) Get(ctx context.Context, id store.ID) (store.Record, error) {
	if err := s.enter(ctx); err != nil {
		return store.Record{}, err
	}
	return s.Store.Get(ctx, id)
}

func (s *sick) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	if err := s.enter(ctx); err != nil {
		return store.Verdict{}, err
	}
	return s.Store.Reserve(ctx, r)
}

func (s *sick) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	if err := s.enter(ctx); err != nil {
		return time.Time{}, err
	}
	return s.Store.Complete(ctx, c, done)
}

func (s *sick) Wait(ctx context.Context, _ store.ID, _ int64) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
}

func (s *sick) Transact(
	ctx context.Context, _ *store.Reservation, work func(ctx context.Context, v store.Verdict) store.Settlement,
) (v store.Verdict, err error) {
	if err := s.enter(ctx); err != nil {
		return v, err
	}
	time.Sleep(s.before)
	work(ctx, v)
	time.Sleep(s.after)
	return v, s.enter(ctx)
}

func (s *sick) LongestWork(time.Duration) time.Duration { return 0 }

func (s *sick) InFlight(store.ID) bool { return false }

var (
	errDown = fmt.Errorf("%w: the test has cut it off", store.ErrUnavailable)
	someID  = store.ID{Scope: "alice", Key: "k"}
)

// changes keeps what a breaker tells.
type changes struct {
	mu     sync.Mutex
	events []string
	log    strings.Builder
}

func (c *changes) Observe(_ context.Context, e onceward.ObserverEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := e.(breaker.ChangedEvent)
	c.events = append(c.events, fmt.Sprintf("%s>%s", changed.From, changed.To))
	if (changed.Err != nil) != (changed.To == breaker.StateOpen) {
		c.events = append(c.events, fmt.Sprintf("with the error %v", changed.Err))
	}
}

func (c *changes) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(p)
}

func (c *changes) want(t *testing.T, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := strings.Join(c.events, " "); got != strings.Join(want, " ") {
		t.Errorf("the observer was told %q, want %q", got, want)
	}
	if lines := strings.Count(c.log.String(), "\n"); lines != len(want) {
		t.Errorf("the log has %d lines, want one for each of %d changes:\n%s", lines, len(want), c.log.String())
	}
}

// around puts a breaker around a store.
func around(t *testing.T, inside store.Store, config breaker.Config) (*breaker.Store, *changes) {
	t.Helper()
	told := &changes{}
	config.Observer, config.Logger = told, slog.New(slog.NewTextHandler(told, nil))
	s, err := breaker.New(inside, config)
	if err != nil {
		t.Fatal(err)
	}
	return s, told
}

// get asks the store for a record that is not there.
func get(t *testing.T, s store.Store) error {
	t.Helper()
	_, err := s.Get(t.Context(), someID)
	return err
}

// wantOpen checks that a call is refused at once, with the time that is left.
func wantOpen(t *testing.T, s *breaker.Store, inside *sick, left time.Duration) {
	t.Helper()
	before, started := inside.calls.Load(), time.Now()
	err := get(t, s)
	var open *breaker.OpenError
	if !errors.As(err, &open) || !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, store.ErrNotSent) {
		t.Fatalf("L2: the breaker in state %s let a call through, or answered %v", s.State(), err)
	}
	if open.RetryAfter() != left || time.Since(started) != 0 || inside.calls.Load() != before {
		t.Errorf("L2: refused after %s with %d calls, to come again in %s, want %s",
			time.Since(started), inside.calls.Load()-before, open.RetryAfter(), left)
	}
}

func TestOpensOnErrorsAndClosesByOneProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newSick()
		s, told := around(t, inside, breaker.Config{})
		inside.fault = func(context.Context) error { return errDown }
		for range 5 {
			if err := get(t, s); errors.Is(err, store.ErrNotSent) {
				t.Fatal("L2: the breaker opened too early")
			}
		}
		wantOpen(t, s, inside, 5*time.Second)
		time.Sleep(2 * time.Second)
		wantOpen(t, s, inside, 3*time.Second)
		time.Sleep(4 * time.Second)

		// Half open: one probe at a time, and while it is under way everyone else is refused.
		inside.fault = func(context.Context) error { time.Sleep(time.Second / 2); return errDown }
		probes := inside.calls.Load()
		inside.most.Store(0)
		var crowd sync.WaitGroup
		for range 50 {
			crowd.Go(func() { _ = get(t, s) })
		}
		crowd.Wait()
		if n, most := inside.calls.Load()-probes, inside.most.Load(); n != 1 || most != 1 {
			t.Errorf("L2: %d probes, %d at once, want one", n, most)
		}
		wantOpen(t, s, inside, 5*time.Second)

		inside.fault = nil
		time.Sleep(6 * time.Second)
		if state := s.State(); state != breaker.StateHalfOpen {
			t.Errorf("L2: the state is %s before the probe", state)
		}
		for range 100 {
			if err := get(t, s); !errors.Is(err, store.ErrNotFound) {
				t.Fatalf("L2: the store is back, and the breaker answers %v", err)
			}
		}
		told.want(t, "closed>open", "open>half_open", "half_open>open", "open>half_open", "half_open>closed")
	})
}

func TestOpensOnAShareOfFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newSick()
		s, told := around(t, inside, breaker.Config{})
		inside.fault = func(context.Context) error {
			if inside.calls.Load()%2 == 0 {
				return errDown
			}
			return nil
		}
		for range 19 {
			_ = get(t, s)
		}
		told.want(t)
		// What is older than the window counts no more.
		time.Sleep(11 * time.Second)
		_ = get(t, s)
		told.want(t)
		for range 20 {
			_ = get(t, s)
		}
		told.want(t, "closed>open")
	})
}

// TestOpensOnSlowness: a call counts as failed as soon as it takes too long, and its result is used all the same.
func TestOpensOnSlowness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newSick()
		s, told := around(t, inside, breaker.Config{SlowCall: time.Second})
		inside.fault = func(context.Context) error { time.Sleep(3 * time.Second); return nil }
		var crowd sync.WaitGroup
		for range 5 {
			crowd.Go(func() {
				if err := get(t, s); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("L2: a slow answer was not used: %v", err)
				}
			})
		}
		time.Sleep(time.Second + time.Millisecond)
		wantOpen(t, s, inside, 5*time.Second-time.Millisecond)
		crowd.Wait()
		told.want(t, "closed>open")
	})
}

// TestWhatSaysNothingAboutTheStore does not open the breaker.
func TestWhatSaysNothingAboutTheStore(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"not found": store.ErrNotFound, "fenced": &store.FencedError{}, "unreadable": &store.UnreadableError{},
		"invalid": store.ErrInvalidEvent, "work refused": fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrWorkRefused),
		"deadline of the work": fmt.Errorf("%w: %w", store.ErrDeadline, context.DeadlineExceeded),
		"transaction ended":    errors.Join(store.ErrOutcomeUnknown, store.ErrTxOwned), "an application's": errors.New("no"),
		"a busy operation": store.ErrBusy,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside := newSick()
			s, told := around(t, inside, breaker.Config{})
			inside.fault = func(context.Context) error { return err }
			for range 30 {
				if got := get(t, s); !errors.Is(got, err) {
					t.Fatalf("the error became %v", got)
				}
			}
			told.want(t)
		})
	}
	t.Run("cancellation", func(t *testing.T) {
		t.Parallel()
		inside := newSick()
		s, told := around(t, inside, breaker.Config{})
		inside.fault = func(ctx context.Context) error { return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err()) }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 30 {
			_, _ = s.Get(ctx, someID)
		}
		told.want(t)
	})
	t.Run("waiting", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s, told := around(t, newSick(), breaker.Config{})
			for range 30 {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				_ = s.Wait(ctx, someID, 1)
				cancel()
			}
			told.want(t)
		})
	})
}

// TestWhatIsLikeUnavailable opens the breaker.
func TestWhatIsLikeUnavailable(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"unavailable": errDown, "timeout": context.DeadlineExceeded, "outcome unknown": store.ErrOutcomeUnknown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside := newSick()
			s, told := around(t, inside, breaker.Config{ConsecutiveFailures: 2})
			inside.fault = func(context.Context) error { return err }
			for range 3 {
				_ = get(t, s)
			}
			told.want(t, "closed>open")
		})
	}
}

// TestOwnersGoThrough: what runs when the breaker opens is settled all the same.
func TestOwnersGoThrough(t *testing.T) {
	t.Parallel()
	inside := newSick()
	s, told := around(t, inside, breaker.Config{ConsecutiveFailures: 1})
	v, err := s.Reserve(t.Context(), &store.Reservation{
		ID: someID, Operation: "test", Fingerprints: make([]store.Fingerprint, 1), Nonce: store.Nonce{1}, Lease: time.Hour,
		Retention: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	inside.fault = func(context.Context) error { return errDown }
	_ = get(t, s)
	told.want(t, "closed>open")
	inside.fault = nil
	claim := store.Claim{ID: someID, Attempt: v.Record.Attempt}
	if err := s.Extend(t.Context(), claim, time.Hour); err != nil {
		t.Errorf("L2: extend while the breaker is open: %v", err)
	}
	if err := s.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "p"}); err != nil {
		t.Errorf("L2: checkpoint while the breaker is open: %v", err)
	}
	done := &store.Completion{Response: store.Response{Status: 200}}
	if _, err := s.Complete(t.Context(), claim, done); err != nil {
		t.Errorf("L2: complete while the breaker is open: %v", err)
	}
	// What a worker or a poller has learned. That there is nothing to settle is the store's word.
	for name, err := range map[string]error{
		"resolve completed":    s.ResolveCompleted(t.Context(), claim, done),
		"resolve not executed": s.ResolveNotExecuted(t.Context(), claim, "it was not"),
		"resolve step":         s.ResolveStep(t.Context(), claim, store.Checkpoint{Point: "p"}),
		"add audit":            s.AddAudit(t.Context(), store.AuditEntry{ID: someID, Actor: "a", Action: "b", Reason: "c"}),
	} {
		if errors.Is(err, store.ErrNotSent) {
			t.Errorf("L2: %s while the breaker is open: %v", name, err)
		}
	}
	if err := get(t, s); !errors.Is(err, store.ErrNotSent) {
		t.Errorf("L2: a look-up while the breaker is open: %v", err)
	}
	told.want(t, "closed>open")
}

// TestTransactionIsTwoCalls: the work between them is not the store's doing, and a probe has ended when it begins.
func TestTransactionIsTwoCalls(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, store.Verdict) store.Settlement { return store.Settlement{} }
	slowly := func(context.Context, store.Verdict) store.Settlement {
		time.Sleep(time.Minute)
		return store.Settlement{}
	}
	synctest.Test(t, func(t *testing.T) {
		inside := newSick()
		s, told := around(t, inside, breaker.Config{ConsecutiveFailures: 1})
		transact := func(work func(context.Context, store.Verdict) store.Settlement) error {
			_, err := s.Transact(t.Context(), &store.Reservation{}, work)
			return err
		}
		if err := transact(slowly); err != nil {
			t.Error(err)
		}
		told.want(t)
		inside.after = 2 * time.Second // a slow commit
		if err := transact(nothing); err != nil {
			t.Error(err)
		}
		told.want(t, "closed>open")

		// The probe: closed as soon as the work begins, although that takes a minute.
		inside.after = 0
		time.Sleep(6 * time.Second)
		go func() { _ = transact(slowly) }()
		synctest.Wait()
		if state := s.State(); state != breaker.StateClosed {
			t.Errorf("L2: while the work of a probe is under way the breaker is %s", state)
		}

		// A commit goes through an open breaker.
		inside.fault = func(context.Context) error { return errDown }
		_ = get(t, s)
		if err := transact(nothing); !errors.Is(err, store.ErrNotSent) {
			t.Errorf("L2: a transaction while the breaker is open: %v", err)
		}
		before := inside.calls.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls := inside.calls.Load() - before; calls != 1 {
			t.Errorf("L2: %d calls at the end of a transaction that was under way, want the commit", calls)
		}
	})
}

// TestPanicEndsTheProbe: otherwise no other one would follow.
func TestPanicEndsTheProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newSick()
		s, _ := around(t, inside, breaker.Config{ConsecutiveFailures: 1})
		inside.fault = func(context.Context) error { return errDown }
		_ = get(t, s)
		time.Sleep(6 * time.Second)
		inside.fault = func(context.Context) error { panic("a store with a bug") }
		func() {
			defer func() { _ = recover() }()
			_ = get(t, s)
		}()
		inside.fault = nil
		if err := get(t, s); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("L2: after a probe that panicked: %v", err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]breaker.Config{
		"a negative time":   {OpenFor: -1},
		"a negative number": {MinCalls: -1},
		"more than all":     {FailureRatio: 1.5},
		"no window":         {Window: 1},
	} {
		if _, err := breaker.New(memory.New(), config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := breaker.New(nil, breaker.Config{}); err == nil {
		t.Error("no store: no error")
	}
}
