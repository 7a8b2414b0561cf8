package storetest

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// transactInFlight looks at a transaction from outside while its work runs.
func transactInFlight(e *env) {
	target := id("key")
	flying := func() bool { return e.Store.(store.Transactor).InFlight(target) }
	e.transacted(request(target), e.inserting("row", func(context.Context, store.Verdict) store.Settlement {
		e.wantConflict(target, "request")
		e.wantConflict(target, "other")
		if !flying() {
			e.Error("A5: InFlight does not see the transaction of this process")
		}
		if rec, err := e.find(target); err != nil || rec.State != store.StateNone {
			e.Errorf("E1: before the commit Get returned (%s, %v), want no record", describe(rec), err)
		}
		if n := e.Business.Count("row"); n != 0 {
			e.Errorf("E1: before the commit %d rows of the work are visible", n)
		}
		return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
	}), store.DecisionExecute, "E1")
	if flying() {
		e.Error("InFlight sees a transaction that has ended")
	}
	e.wantRows("row", 1, "E1: after the commit")
	e.transacted(request(target), e.refusing("S1: a retry"), store.DecisionReplay, "S6")
}

// wantConflict sends a duplicate while the first transaction is held open. It runs in the work, which is where it would
// hang if it waited for the row lock.
func (e *env) wantConflict(target store.ID, payload string) {
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
	defer cancel()
	v, err := e.Store.(store.Transactor).Transact(ctx, request(target, fingerprints(fingerprint(payload))), e.refusing("S1: a duplicate in flight"))
	if err != nil || v.Decision != store.DecisionInProgress {
		e.Errorf("E1: a duplicate in flight (payload %q) got (%s, %v), want in_progress at once", payload, v.Decision, err)
	}
}

// reserveInFlight sends a duplicate in reserved mode while a transaction is held open. A store may say so at once, or find
// out at the end; it may not let both of them execute.
func reserveInFlight(e *env) {
	for _, target := range ids(rounds) {
		type result struct {
			verdict store.Verdict
			err     error
		}
		duplicate := make(chan result, 1)
		v, err := e.transact(request(target), e.inserting(target.Key, func(context.Context, store.Verdict) store.Settlement {
			answered := make(chan struct{})
			go func() {
				v, err := e.Store.Reserve(e.ctx, request(target))
				duplicate <- result{v, err}
				close(answered)
			}()
			select {
			case <-answered:
			case <-time.After(200 * time.Millisecond): // it waits for the end
			}
			return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
		}))
		e.must(err)
		second := await(e, "the decision about the duplicate", duplicate)
		e.must(second.err)
		e.onlyWinner([]store.Verdict{v, second.verdict})
		want := 0
		if v.Decision == store.DecisionExecute {
			want = 1
		}
		e.wantRows(target.Key, want, "S1: a transaction met the same key in reserved mode")
	}
}

// transactWaits lets duplicates wait for the end of a transaction, in each way that it can end.
func transactWaits(e *env) {
	for i, end := range []store.TxAction{store.TxCommit, store.TxCommitAnswer, store.TxRollback} {
		target := ids(i + 1)[i]
		ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
		defer cancel()
		const waiters = 8
		waited := make(chan error, waiters)
		e.transacted(request(target), func(context.Context, store.Verdict) store.Settlement {
			var started sync.WaitGroup
			started.Add(waiters)
			for range waiters {
				go func() {
					started.Done()
					waited <- e.wait(ctx, store.Claim{ID: target})
				}()
			}
			started.Wait()
			return store.Settlement{Action: end, Completion: *answer("done")}
		}, store.DecisionExecute, "E1")
		for range waiters {
			if err := await(e, "the end of a wait", waited); err != nil {
				e.Fatalf("section 6: a duplicate that waits for a transaction got %v, want to be woken by its end", err)
			}
		}
	}
}
