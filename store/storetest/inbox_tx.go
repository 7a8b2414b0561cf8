package storetest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/inbox"
)

// testInboxTransactions checks that an event is remembered together with its effects, or not at all (O5).
func testInboxTransactions(t *testing.T, h Harness) {
	h.test(t, "rolled back", func(e *env) {
		var first bool
		for range 3 {
			e.rolledBack(e.remembering("mailer", "evt", &first))
			if !first {
				e.Error("O5: an event whose transaction was rolled back comes again, and is the first then")
			}
			e.wantConsumers("evt", "O5: an event whose transaction was rolled back")
		}
		e.remember("mailer", "evt", true, "O5: after rollbacks")
		e.rolledBack(e.remembering("mailer", "evt", &first))
		if first {
			e.Error("O5: an event that was had is the first in a transaction that is rolled back")
		}
		e.remember("mailer", "evt", false, "O5: a rollback does not undo what another transaction committed")
	})
	h.test(t, "the work's error", func(e *env) {
		if err := e.inTx(func(context.Context) error { return errDeclined }); !errors.Is(err, errDeclined) {
			e.Errorf("InTx: the error of work came back as %v", err)
		}
	})
	h.test(t, "a panic undoes it", func(e *env) {
		var first bool
		err := panicked(func() error {
			return e.inTx(func(ctx context.Context) error {
				panic(errors.Join(e.remembering("mailer", "evt", &first)(ctx), errDeclined))
			})
		})
		if !errors.Is(err, errDeclined) {
			e.Errorf("InTx: work panicked, and what came back is %v", err)
		}
		e.remember("mailer", "evt", true, "O5: after work that panicked")
	})
	h.test(t, "a caller who has left", func(e *env) {
		gone, cancel := context.WithCancel(e.ctx)
		cancel()
		err := e.Store.(inTxer).InTx(gone, func(ctx context.Context) error {
			var first bool
			return e.remembering("mailer", "evt", &first)(ctx)
		})
		if err == nil {
			e.Error("InTx for a caller who has left went through")
		}
		e.remember("mailer", "evt", true, "O5: after a caller who had left")
	})
	h.test(t, "applied once", appliedOnce)
	h.test(t, "delivered to many at once", func(e *env) { e.deliveredToMany(16) })
	if h.Features.ConcurrentTx {
		h.test(t, "not before the commit", func(e *env) {
			var first bool
			end := e.begin(e.remembering("mailer", "evt", &first))
			e.wantConsumers("evt", "O5: before the commit")
			e.remember("ledger", "evt", true, "O5: another consumer does not wait")
			e.must(end(nil))
			e.wantConsumers("evt", "O5: after the commit", "ledger", "mailer")
		})
	}
	if h.Features.ConcurrentTx && !h.Features.Certifies {
		h.test(t, "the same event at once, committed", func(e *env) { eventWaits(e, nil) })
		h.test(t, "the same event at once, undone", func(e *env) { eventWaits(e, errUndone) })
	}
}

// appliedOnce uses the inbox as consumers do.
func appliedOnce(e *env) {
	box := inbox.New(e.events())
	runs := 0
	for i, fail := range []error{errDeclined, nil, nil} {
		var applied bool
		err := e.inTx(func(ctx context.Context) (err error) {
			applied, err = box.Do(ctx, e.tx(ctx), "mailer", "evt", func(context.Context) error {
				runs++
				return fail
			})
			return err
		})
		if !errors.Is(err, fail) || applied != (i < 2) {
			e.Errorf("O5: delivery %d was applied: %t (%v), want %t (%v)", i+1, applied, err, i < 2, fail)
		}
	}
	if runs != 2 {
		e.Errorf("O5: an event was applied %d times, want once and once more after a failure", runs)
	}
	for _, want := range []bool{true, false} {
		applied, err := box.Handle(e.ctx, "mailer", "evt2", func(context.Context) error { return nil })
		if err != nil || applied != want {
			e.Errorf("O5: Handle applied: %t (%v), want %t", applied, err, want)
		}
	}
}

// deliveredToMany makes many transactions record the same event at once. Some are undone; of the others one is the
// first.
func (e *env) deliveredToMany(n int) {
	e.Helper()
	var firsts atomic.Int32
	errs := make([]error, n)
	together(n, func(i int) {
		var first bool
		errs[i] = e.inTx(func(ctx context.Context) error {
			err := e.remembering("mailer", "evt", &first)(ctx)
			if i%4 == 0 {
				err = errors.Join(err, errUndone)
			}
			return err
		})
		if first && errs[i] == nil {
			firsts.Add(1)
		}
	})
	for i, err := range errs {
		if err != nil && (i%4 != 0 || !errors.Is(err, errUndone)) {
			e.Error(err)
		}
	}
	if firsts.Load() != 1 {
		e.Errorf("O5: of %d deliveries at once %d were the first, want one", n, firsts.Load())
	}
}

// eventWaits makes a second delivery arrive while the first one is being applied, which then ends with verdict.
func eventWaits(e *env, verdict error) {
	var first, second bool
	end := e.begin(e.remembering("mailer", "evt", &first))
	err := e.waits("O5: two transactions that note the same event", e.remembering("mailer", "evt", &second),
		func() error { return end(verdict) })
	e.must(err)
	if !first || second != (verdict != nil) {
		e.Errorf("O5: two deliveries at once, of which the first ended with %v, were the first (%t, %t)", verdict, first,
			second)
	}
}
