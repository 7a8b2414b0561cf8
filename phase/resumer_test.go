package phase_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// resumer makes one for an operation.
func (b *bench) resumer(config phase.ResumerConfig, operations ...phase.Resumable) *phase.Resumer {
	b.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	config.Operations = operations
	r, err := phase.NewResumer(b.guard, b.store, config)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// once runs a resumer once.
func (b *bench) once(r *phase.Resumer) phase.Report {
	b.Helper()
	report, err := r.RunOnce(b.Context())
	if err != nil {
		b.Error(err)
	}
	return report
}

// losing is an operation whose second step fails once for each key, and then runs normally.
func (b *bench) losing(then func(key string)) *phase.Operation[order] {
	var failed sync.Map
	return b.define(b.local("seat", takeSeat), phase.Local("confirm", func(ctx context.Context, _ *order) error {
		key := onceward.FromContext(ctx).Key()
		if _, again := failed.LoadOrStore(key, true); !again {
			return errDown
		}
		b.did("confirm-" + key)
		then(key)
		return nil
	}))
}

// loses starts an operation n times, and waits until all can be taken over.
func (b *bench) loses(o *phase.Operation[order], n int) {
	b.Helper()
	for i := range n {
		b.want(b.post(o, fmt.Sprint("k", i)), http.StatusConflict, "in-progress")
	}
	time.Sleep(time.Second)
}

// wantAll checks that each of n operations is finished and was confirmed once.
func (b *bench) wantAll(n int) {
	b.Helper()
	b.mu.Lock()
	trace := " " + strings.Join(b.trace, " ") + " "
	b.mu.Unlock()
	for i := range n {
		key := fmt.Sprint("k", i)
		if rec := b.record(key); rec.State != store.StateCompleted || strings.Count(trace, " confirm-"+key+" ") != 1 {
			b.Errorf("%s is %s, and the steps did %s", key, rec.State, trace)
		}
	}
}

// TestRun: the loop finds what is lost, without its caller, until its context ends.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.losing(func(string) {})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.resumer(phase.ResumerConfig{}, o).Run(ctx)
		}()
		for i := range 3 {
			b.want(b.post(o, fmt.Sprint("k", i)), http.StatusConflict, "in-progress")
			time.Sleep(10 * time.Second) // more than one and a half of the default interval
			b.wantAll(i + 1)
		}
		stop()
		<-ended
		b.want(b.post(o, "late"), http.StatusConflict, "in-progress")
		time.Sleep(time.Minute)
		if rec := b.record("late"); rec.State != store.StateInProgress {
			t.Errorf("what came after the end is %s", rec.State)
		}
	})
}

// TestRunGoesOnAfterAFailure: a store that is down for a moment does not end the loop, and is logged.
func TestRunGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &listStore{Store: memory.New()}
		b := newBench(t, s)
		o := b.losing(func(string) {})
		b.loses(o, 1)
		s.list = func([]store.Record) ([]store.Record, error) {
			s.list = nil
			return nil, errDown
		}
		var log lockedBuffer
		ctx, stop := context.WithCancel(t.Context())
		go b.resumer(phase.ResumerConfig{Interval: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))}, o).Run(ctx)
		time.Sleep(5 * time.Second)
		stop()
		b.wantAll(1)
		if !strings.Contains(log.String(), "resuming failed") || !strings.Contains(log.String(), errDown.Error()) {
			t.Errorf("the log is %q", log.String())
		}
	})
}

// TestConcurrency is how many operations are driven at one time, and no more: of one scope half of what its operation
// gets.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	for _, bound := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, memory.New())
			var running, most atomic.Int64
			o := b.losing(func(string) {
				n := running.Add(1)
				defer running.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(time.Second)
			})
			b.loses(o, 9)
			started := time.Now()
			r := b.resumer(phase.ResumerConfig{Concurrency: 2 * bound, PerOperation: 2 * bound}, o)
			if got := b.once(r); got.Finished != 9 {
				t.Errorf("the resumer reports %+v", got)
			}
			if took := time.Since(started); most.Load() != int64(bound) || took != time.Duration(9/bound)*time.Second {
				t.Errorf("%d were driven at one time, in %s, want %d", most.Load(), took, bound)
			}
			b.wantAll(9)
		})
	}
}

// TestTwoResumers drive each operation once, while callers retry.
func TestTwoResumers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 40
		b := newBench(t, memory.New())
		o := b.losing(func(string) { time.Sleep(time.Second) })
		b.loses(o, n)
		var all sync.WaitGroup
		var finished atomic.Int64
		for _, node := range []*bench{b, newBench(t, b.store)} {
			r := node.resumer(phase.ResumerConfig{Concurrency: 8}, o)
			all.Go(func() { finished.Add(int64(node.once(r).Finished)) })
		}
		all.Go(func() { b.post(o, "k7") })
		all.Wait()
		b.wantAll(n)
		if finished.Load() < n-1 {
			t.Errorf("the two finished %d", finished.Load())
		}
	})
}

// TestAuditOfPhasedExecutions: of a phased operation the request, its resumption and a retry are audited, each once
// (L7).
func TestAuditOfPhasedExecutions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		b := newBench(t, s)
		var down atomic.Bool
		down.Store(true)
		o, err := phase.New(phase.Definition[order]{
			Name: "POST /orders", MinBackoff: quickly,
			Answer: func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
			Steps: []phase.Step[order]{b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error {
				if down.Swap(false) {
					return errDown
				}
				return nil
			})},
			Options: []onceward.Option{onceward.AuditExecutions(func(*http.Request) string { return "ann" })},
		})
		if err != nil {
			t.Fatal(err)
		}
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		b.resume(o)
		b.want(b.post(o, "k"), http.StatusCreated, "a book")
		entries, err := s.ListExecutions(t.Context(), store.AuditFilter{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range slices.Backward(entries) {
			got = append(got, fmt.Sprint(e.Actor, " ", e.Operation, " ", e.Decision, " ", e.Origin))
		}
		want := []string{
			"ann POST /orders execute created", onceward.ResumeActor + " POST /orders execute resumed",
			"ann POST /orders replay none",
		}
		if !slices.Equal(got, want) {
			t.Errorf("L7: audited are %q, want %q", got, want)
		}
	})
}

// TestAPanicUnderTheResumer is settled and logged, and does not keep it from the rest.
func TestAPanicUnderTheResumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		panicking := true
		o := b.losing(func(key string) {
			if key == "k0" && panicking {
				panicking = false
				panic("a nil map")
			}
		})
		b.loses(o, 3)
		var log lockedBuffer
		r := b.resumer(phase.ResumerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, o)
		if got := b.once(r); got != (phase.Report{Finished: 2, Waiting: 1}) {
			t.Errorf("the resumer reports %+v", got)
		}
		if !strings.Contains(log.String(), "a nil map") {
			t.Errorf("the log is %q", log.String())
		}
		time.Sleep(time.Minute)
		if got := b.once(r); got != (phase.Report{Finished: 1}) {
			t.Errorf("then it reports %+v", got)
		}
		if rec := b.record("k0"); rec.State != store.StateCompleted {
			t.Errorf("the record is %s", rec.State)
		}
	})
}

// losingAs is an operation of that name whose second step fails once for each key, and then runs normally.
func (b *bench) losingAs(name string, then func(ctx context.Context, scope string)) *phase.Operation[order] {
	b.Helper()
	var failed sync.Map
	confirm := phase.Local("confirm", func(ctx context.Context, _ *order) error {
		op := onceward.FromContext(ctx)
		if _, again := failed.LoadOrStore(op.Scope()+op.Key(), true); !again {
			return errDown
		}
		then(ctx, op.Scope())
		return ctx.Err()
	})
	return phase.Must(phase.New(phase.Definition[order]{
		Name: name, MinBackoff: quickly, Answer: func(*order) phase.Answer { return phase.Answer{} },
		Options: []onceward.Option{onceward.Lease(2 * time.Second)},
		Steps:   []phase.Step[order]{b.local("seat", takeSeat), confirm},
	}))
}

// lose starts an operation that is lost in its second step.
func (b *bench) lose(o *phase.Operation[order], scope, key string) {
	b.Helper()
	_, err := o.Do(b.Context(), b.guard, onceward.Call{Scope: scope, Key: key}, order{})
	if !errors.Is(err, onceward.ErrInProgress) {
		b.Fatalf("%s of %s: %v", key, scope, err)
	}
}

// runs starts a resumer that is stopped by the function it returns.
func (b *bench) runs(r *phase.Resumer) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-ended
	}
}

// TestOneOperationHangs: an operation whose steps hang delays its own alone, those that are found with it and those
// that are lost later (B6).
func TestOneOperationHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		letGo := make(chan struct{})
		hanging := b.losingAs("POST /hanging", func(context.Context, string) { <-letGo })
		sound := b.losingAs("POST /sound", func(context.Context, string) {})
		for i := range 60 {
			b.lose(hanging, "shop", fmt.Sprint("a", i))
		}
		b.lose(sound, "shop", "b")
		time.Sleep(time.Second)
		stop := b.runs(b.resumer(phase.ResumerConfig{Interval: time.Second}, hanging, sound))
		if rec := b.record("b"); rec.State != store.StateCompleted {
			t.Errorf("at once, what is behind those that hang is %s", rec.State)
		}
		for i := range 5 {
			later := fmt.Sprint("later", i)
			b.lose(sound, "shop", later)
			time.Sleep(quickly + 1500*time.Millisecond)
			synctest.Wait()
			if rec := b.record(later); rec.State != store.StateCompleted {
				t.Errorf("%s is %s", later, rec.State)
			}
		}
		close(letGo)
		stop()
	})
}

// TestOneScopeHangs: a scope with a thousand operations that hang does not starve the others.
func TestOneScopeHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.losingAs("POST /orders", func(ctx context.Context, scope string) {
			if scope != "shop" {
				<-ctx.Done()
			}
		})
		for i := range 1000 {
			b.lose(o, "bad", fmt.Sprint("a", i))
		}
		b.lose(o, "shop", "b")
		time.Sleep(time.Second)
		stop := b.runs(b.resumer(phase.ResumerConfig{}, o))
		if rec := b.record("b"); rec.State != store.StateCompleted {
			t.Errorf("what is behind those that hang is %s", rec.State)
		}
		stop()
	})
}

// TestAStepThatNeverReturns is logged and counted. No run waits for it, and others continue.
func TestAStepThatNeverReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		letGo := make(chan struct{})
		stuck := b.losingAs("POST /stuck", func(context.Context, string) { <-letGo })
		sound := b.losingAs("POST /sound", func(context.Context, string) {})
		for i := range 6 {
			b.lose(stuck, "shop", fmt.Sprint("a", i))
		}
		b.lose(sound, "shop", "b")
		time.Sleep(time.Second)
		var log lockedBuffer
		r := b.resumer(phase.ResumerConfig{
			Overdue: 2 * time.Minute, PerOperation: 4, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}, stuck, sound)
		began := time.Now()
		if got := b.once(r); got != (phase.Report{Finished: 1, Hanging: 2}) || time.Since(began) != 2*time.Minute {
			t.Errorf("after %s the resumer reports %+v", time.Since(began), got)
		}
		if n := strings.Count(log.String(), "hangs in a step"); n != 2 || strings.Contains(log.String(), "=a0") {
			t.Errorf("the log is %s", log.String())
		}
		b.lose(sound, "shop", "c")
		time.Sleep(time.Second)
		if got := b.once(r); got != (phase.Report{Finished: 1, Hanging: 2}) {
			t.Errorf("beside those that hang the resumer reports %+v", got)
		}
		close(letGo)
		synctest.Wait()
		time.Sleep(time.Minute)
		if got := b.once(r); got.Hanging != 0 || strings.Count(log.String(), "has returned") != 2 {
			t.Errorf("when they have returned the resumer reports %+v, and logs %s", got, log.String())
		}
	})
}

// TestAResumerOfAnotherNamespace: it cannot derive the downstream keys, leaves the operation alone, and logs why, once.
func TestAResumerOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.define(b.call("charge", func(context.Context, string, *order) error { return errDown }).Repeat())
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		b.reconfigure(func(c *onceward.Config) { c.Namespace = "renamed" })
		var log lockedBuffer
		r := b.resumer(phase.ResumerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, o)
		for range 2 {
			time.Sleep(time.Minute)
			if _, err := r.RunOnce(t.Context()); !errors.Is(err, store.ErrUnreadable) {
				t.Errorf("B6: resuming without the namespace of the record gets %v", err)
			}
		}
		named := `operation="POST /orders" key_hash=` + b.record("k").Hash()
		if strings.Count(log.String(), named) != 1 || !strings.Contains(log.String(), "the Namespace as it was") {
			t.Errorf("M3: the log is %s", log.String())
		}
		b.wantTrace("charge")
	})
}

// TestRunChecksTheNamesOfOperations: the operations of routes are known by their definition, and one that is only run
// by Do has to be declared.
func TestRunChecksTheNamesOfOperations(t *testing.T) {
	t.Parallel()
	b := newBench(t, memory.New())
	routed := b.define(b.local("one", nil))
	routed.Handler(b.guard, start)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := b.resumer(phase.ResumerConfig{}, routed).Run(ctx); err != nil {
		t.Errorf("section 1: a resumer whose context ended returns %v", err)
	}
	other, err := phase.New(phase.Definition[order]{
		Name: "POST /order", Steps: []phase.Step[order]{b.local("one", nil)},
		Answer: func(*order) phase.Answer { return phase.JSON(http.StatusCreated, nil) },
	})
	if err != nil {
		t.Fatal(err)
	}
	err = b.resumer(phase.ResumerConfig{Logger: slog.New(slog.DiscardHandler)}, routed, other).Run(ctx)
	if !errors.Is(err, onceward.ErrMisconfigured) || !strings.Contains(err.Error(), `"POST /order" (the nearest is "POST /orders")`) {
		t.Errorf("section 1: a resumer of an operation that no route has returns %v", err)
	}
}
