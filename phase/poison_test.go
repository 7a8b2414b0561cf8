package phase_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestAStepThatTheDatabaseRefuses is not repeated for ever: that its commit is refused, here by a deferred key, is a
// failure of the step, not of the store.
func TestAStepThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	onTransactions(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", func(ctx context.Context, _ *order) error {
			for _, statement := range []string{
				`CREATE TABLE parent (number INTEGER PRIMARY KEY)`,
				`CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`,
			} {
				if _, err := onceward.Tx(ctx).ExecContext(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		}), b.local("confirm", func(ctx context.Context, _ *order) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO child VALUES (1)`)
			return err
		}))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		if got := b.resume(o); got.Unknown != 1 {
			t.Errorf("the resumer reports %+v, want one that became unknown", got)
		}
		if rec := b.record("k"); rec.State != store.StateUnknown || !strings.Contains(rec.LastError, "given up after 4 tries: onceward: the database refused the work") {
			t.Errorf("the record is %s: %s", rec.State, rec.LastError)
		}
		b.wantTrace("seat confirm confirm confirm confirm")
	})
}

// TestAStepThatNobodySurvives is not taken over for ever: the attempts that were not heard of again are counted. Here
// they hang; one that kills its process looks the same to those that come after it.
func TestAStepThatNobodySurvives(t *testing.T) {
	t.Parallel()
	s := &deafStore{Store: memory.New()}
	s.deaf.Store(true)
	b := newBench(t, s)
	const tries = 3
	arrived, never := make(chan struct{}, 2+tries), make(chan struct{})
	o, err := phase.New(phase.Definition[order]{
		Name: "POST /orders", MinBackoff: quickly, MaxAttempts: tries,
		Steps: []phase.Step[order]{b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error {
			arrived <- struct{}{}
			select {
			case <-never:
			case <-time.After(patience): // it is one attempt too many, or the test has failed
			}
			return errDown
		})},
		Answer:  func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
		Options: []onceward.Option{onceward.Lease(100 * time.Millisecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 1+tries)
	for range 1 + tries { // the first attempt, and as many that take over
		go func() {
			b.post(o, "k")
			ended <- struct{}{}
		}()
		await(t, "the call of the last step", arrived)
		b.await(b.record("k").LeaseUntil)
	}
	b.want(b.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
	rec := b.record("k")
	if rec.State != store.StateUnknown || !strings.Contains(rec.LastError, "given up after 3 attempts that were lost behind \"seat\"") {
		t.Errorf("the record is %s: %s", rec.State, rec.LastError)
	}
	b.wantTrace("seat confirm confirm confirm confirm")
	s.deaf.Store(false) // so that the late ones are told at once
	close(never)
	for range 1 + tries {
		await(t, "the end of an attempt", ended)
	}
}
