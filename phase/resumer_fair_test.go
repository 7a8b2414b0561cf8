package phase_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// losingAs is an operation of that name whose second step fails once for each key, and then does as it is told.
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

// TestAStepThatNeverReturns is told of and counted. No run waits for it, and others go on.
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
		if got := b.once(r); got != (phase.Resumed{Finished: 1, Hanging: 2}) || time.Since(began) != 2*time.Minute {
			t.Errorf("after %s the resumer reports %+v", time.Since(began), got)
		}
		if n := strings.Count(log.String(), "hangs in a step"); n != 2 || strings.Contains(log.String(), "a0") {
			t.Errorf("the log is %s", log.String())
		}
		b.lose(sound, "shop", "c")
		time.Sleep(time.Second)
		if got := b.once(r); got != (phase.Resumed{Finished: 1, Hanging: 2}) {
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
