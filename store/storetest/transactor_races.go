package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testTransactorRaces makes many transactions race.
func testTransactorRaces(t *testing.T, h Harness) {
	h.test(t, "one key", func(e *env) {
		for _, id := range ids(rounds) {
			e.contestTransactions(id, crowd)
		}
	})
	h.test(t, "one key, both modes", func(e *env) {
		for _, id := range ids(rounds) {
			e.contestTransactions(id, crowd/2)
		}
	})
	h.test(t, "one retryable record", func(e *env) {
		for _, id := range ids(rounds) {
			e.must(e.Store.Release(e.ctx, e.own(id), "no stock"))
			e.contestTransactions(id, crowd/2)
		}
	})
	h.test(t, "many keys", func(e *env) { e.neighbours(func(int) store.TxAction { return store.TxCommit }) })
	h.test(t, "many keys, some roll back", func(e *env) {
		e.neighbours(func(i int) store.TxAction { return store.TxAction(i % 3) })
	})
	h.test(t, "the caller leaves", transactCancelled)
	h.test(t, "the caller leaves during the work", transactCancelledInWork)
	h.test(t, "callers leave beside neighbours", transactCancelledBesideNeighbours)
	if has[store.Reaper](h.probe) {
		h.test(t, "against the reaper", transactAgainstReaper)
	}
}

// contestTransactions makes a crowd race for one key; some callers use transactions and the others reserved mode.
func (e *env) contestTransactions(target store.ID, transactional int) {
	e.Helper()
	verdicts := make([]store.Verdict, crowd)
	errs := make([]error, crowd)
	together(crowd, func(i int) {
		if i < transactional {
			verdicts[i], errs[i] = e.transact(request(target), e.inserting(target.Key, committing("done")))
			return
		}
		verdicts[i], errs[i] = e.Store.Reserve(e.ctx, request(target))
	})
	e.must(errors.Join(errs...))
	winners := 0
	for i, v := range verdicts {
		switch v.Decision {
		case store.DecisionExecute:
			winners++
			if rows := e.Business.Count(target.Key); (rows == 1) != (i < transactional) {
				e.Errorf("S1: caller %d of %d transactional ones won, and %d rows are there", i, transactional, rows)
			}
		case store.DecisionInProgress, store.DecisionReplay:
		default:
			e.Errorf("S1: a caller that lost got %s", v.Decision)
		}
	}
	if winners != 1 {
		e.Errorf("S1: %d of %d callers executed the same operation at once, want 1", winners, crowd)
	}
}

// neighbours runs transactions on many keys at once, each with its own outcome.
func (e *env) neighbours(end func(i int) store.TxAction) {
	e.Helper()
	targets := ids(crowd)
	errs := make([]error, crowd)
	together(crowd, func(i int) {
		v, err := e.transact(request(targets[i]), e.inserting(targets[i].Key, settling(end(i), targets[i].Key)))
		if err == nil && v.Decision != store.DecisionExecute {
			err = fmt.Errorf("a new key got %s", v.Decision)
		}
		errs[i] = err
	})
	e.must(errors.Join(errs...))
	for i, target := range targets {
		e.checkAtomic(target, target.Key, end(i), nil)
	}
}

// checkAtomic checks that the work and its answer are both there or both absent, and that the caller's result matches.
func (e *env) checkAtomic(target store.ID, row string, end store.TxAction, err error) {
	e.Helper()
	rows, rec := e.Business.Count(row), e.get(target)
	wantRows, wantState := 0, store.StateNone
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		if rows > 0 && rec.State != store.StateUnknown && rec.State != store.StateCompleted {
			e.Errorf("E7: the outcome is unknown and the work is there, but the record is %s", describe(rec))
		}
		return
	case err != nil: // after any other error nothing was executed
	case end == store.TxCommit:
		wantRows, wantState = 1, store.StateCompleted
	case end == store.TxCommitAnswer:
		wantState = store.StateCompleted
	}
	if rows != wantRows || rec.State != wantState {
		e.Errorf("E1: action %d, error %v: %d rows of the work and the record is %s, want %d rows and %s",
			end, err, rows, describe(rec), wantRows, wantState)
	}
}

// transactCancelled cancels transactions at every moment. After the work is done, a cancelled caller changes nothing
// (E6).
func transactCancelled(e *env) {
	typical := e.duration()
	moments := cuts(typical)
	for i, target := range ids(moments) {
		ended := store.TxRollback
		w := e.inserting(target.Key, func(context.Context, store.Verdict) store.Settlement {
			ended = store.TxCommit
			return store.Settlement{Action: ended, Completion: *answer("done")}
		})
		var err error
		e.interrupted(2*typical*time.Duration(i)/time.Duration(moments), func(ctx context.Context) {
			_, err = e.Store.(store.Transactor).Transact(ctx, request(target), w)
		})
		e.checkAtomic(target, target.Key, ended, err)
		e.retryOnce(target)
	}
}

// transactCancelledInWork cancels the caller while the work runs: the context bounds only the wait before it (E6).
func transactCancelledInWork(e *env) {
	for i, target := range ids(3 * rounds) {
		ctx, cancel := context.WithCancel(e.ctx)
		end := store.TxAction(i % 3)
		v, err := e.Store.(store.Transactor).Transact(ctx, request(target), e.inserting(target.Key,
			func(context.Context, store.Verdict) store.Settlement {
				cancel()
				return store.Settlement{Action: end, Completion: *answer("done")}
			}))
		cancel()
		if err != nil || v.Decision != store.DecisionExecute {
			e.Errorf("E6: the caller left while the work ran, and transact got (%s, %v), want the work to count",
				v.Decision, err)
		}
		e.checkAtomic(target, target.Key, end, err)
	}
}

// retryOnce sends the operation again, as a client does, and checks that it took effect at most once.
func (e *env) retryOnce(target store.ID) {
	e.Helper()
	v, err := e.transact(request(target), e.inserting(target.Key, committing("done")))
	if err != nil {
		e.Errorf("E1: a retry got %v", err)
	}
	if rows := e.Business.Count(target.Key); rows > 1 || rows == 0 && v.Decision != store.DecisionUnknown {
		e.Errorf("S1: after a retry that got %s the operation took effect %d times", v.Decision, rows)
	}
}

func transactCancelledBesideNeighbours(e *env) {
	typical := e.duration()
	targets := ids(crowd)
	errs := make([]error, crowd)
	together(crowd, func(i int) {
		w := e.inserting(targets[i].Key, committing("done"))
		if i%2 == 1 {
			_, errs[i] = e.transact(request(targets[i]), w)
			return
		}
		e.interrupted(typical*time.Duration(i)/8, func(ctx context.Context) {
			_, errs[i] = e.Store.(store.Transactor).Transact(ctx, request(targets[i]), w)
		})
	})
	for i, target := range targets {
		if i%2 == 1 && errs[i] != nil {
			e.Errorf("E6: a caller who stayed got an error because others left: %v", errs[i])
		}
		if i%2 == 1 || errs[i] != nil {
			e.checkAtomic(target, target.Key, store.TxCommit, errs[i])
		}
		e.retryOnce(target)
	}
}

// transactAgainstReaper runs transactions over expired records while they are being reaped (S10).
func transactAgainstReaper(e *env) {
	targets := ids(herd)
	for _, target := range targets {
		e.complete(e.own(target, retain(e.brief())), "old")
	}
	lapse(e)
	errs := make([]error, herd+1)
	together(herd+1, func(i int) {
		if i == herd {
			errs[i] = e.reapAll(false)
			return
		}
		_, errs[i] = e.transact(request(targets[i]), e.inserting(targets[i].Key, committing("new")))
	})
	e.must(errors.Join(errs...))
	for _, target := range targets {
		e.wantRows(target.Key, 1, "section 4: an expired record is as if absent")
		if rec := e.get(target); string(rec.Response.Body) != "new" {
			e.Errorf("S10: a record made again while the reaper ran is %s with %q", describe(rec), rec.Response.Body)
		}
	}
}
