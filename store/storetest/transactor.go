package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// work is the work inside a transaction.
type work = func(ctx context.Context, v store.Verdict) store.Settlement

// settling returns work that only settles.
func settling(end store.TxAction, body string) work {
	return func(context.Context, store.Verdict) store.Settlement {
		return store.Settlement{Action: end, Completion: *answer(body)}
	}
}

func committing(body string) work { return settling(store.TxCommit, body) }

// inserting returns work that adds a row to the business table and continues with then; if the row is refused, the work
// is undone.
func (e *env) inserting(value string, then work) work {
	return func(ctx context.Context, v store.Verdict) store.Settlement {
		if err := e.Business.Insert(ctx, value); err != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return then(ctx, v)
	}
}

// refusing returns work that must not be called.
func (e *env) refusing(rule string) work {
	return func(context.Context, store.Verdict) store.Settlement {
		e.Errorf("%s: the work was executed", rule)
		return store.Settlement{Action: store.TxRollback}
	}
}

func (e *env) transact(r *store.Reservation, w work) (store.Verdict, error) {
	return e.Store.(store.Transactor).Transact(e.ctx, r, w)
}

// transacted runs a transaction that must get the given decision.
func (e *env) transacted(r *store.Reservation, w work, want store.Decision, rule string) store.Verdict {
	e.Helper()
	v, err := e.transact(r, w)
	if err != nil || v.Decision != want {
		e.Fatalf("%s: transact of %q got (%s, %v), want %s", rule, r.Key, v.Decision, err, want)
	}
	return v
}

// wantRows checks the number of committed rows.
func (e *env) wantRows(value string, want int, rule string) {
	e.Helper()
	if got := e.Business.Count(value); got != want {
		e.Errorf("%s: %d rows of the work are there, want %d", rule, got, want)
	}
}

// testTransactor checks the transactional mode (E1).
func testTransactor(t *testing.T, h Harness) {
	h.test(t, "commit keeps work and answer", transactCommits)
	h.test(t, "commit answer undoes the work", func(e *env) {
		e.transacted(request(id("key")), e.inserting("row", settling(store.TxCommitAnswer, "declined")),
			store.DecisionExecute, "E1")
		e.wantRows("row", 0, "E1: a 4xx undoes the work")
		v := e.transacted(request(id("key")), e.refusing("E1: a stored 4xx"), store.DecisionReplay,
			"E1: a 4xx is stored")
		e.sameResponse("the replay", v.Record.Response, answer("declined").Response)
	})
	h.test(t, "rollback leaves no trace", func(e *env) {
		for range 3 {
			e.transacted(request(id("key")), e.inserting("row", settling(store.TxRollback, "")),
				store.DecisionExecute, "E1: after a rollback the retry executes from the beginning")
			e.wantRows("row", 0, "E1: a 5xx undoes everything")
			e.wantState(id("key"), store.StateNone, "E1: a 5xx leaves nothing behind")
		}
		e.transacted(request(id("key")), e.inserting("row", committing("done")), store.DecisionExecute, "E1")
		e.wantRows("row", 1, "E1: the retry that succeeded")
	})
	if h.probe.Business.Collects {
		h.test(t, "no *sql.Tx", func(e *env) {
			e.transacted(request(id("key")), func(ctx context.Context, _ store.Verdict) store.Settlement {
				if _, ok := onceward.LookupTx(ctx); ok {
					e.Error("the store says that work collects its writes, and gives it a *sql.Tx")
				}
				return store.Settlement{Action: store.TxRollback}
			}, store.DecisionExecute, "E1")
		})
	} else {
		h.test(t, "a failed statement and a stored answer", transactFailedStatement)
	}
	h.test(t, "content", func(e *env) {
		e.transacted(request(id("key"), session(3)), func(context.Context, store.Verdict) store.Settlement {
			return store.Settlement{Action: store.TxCommit, Completion: *rich()}
		}, store.DecisionExecute, "E1")
		rec := e.get(id("key"))
		e.sameResponse("the record", rec.Response, rich().Response)
		e.wantExpiry(rec, rich().Retention)
		if rec.ProviderID != rich().ProviderID || rec.Operation == "" || rec.TraceID == "" ||
			rec.Version != store.RecordVersion ||
			rec.Fingerprint.Session != [16]byte{3} || rec.CreatedAt.IsZero() || rec.Attempt <= 0 ||
			!rec.LeaseUntil.IsZero() {
			e.Errorf("E1: a record of a transaction holds the same as any other, but is %+v", rec)
		}
	})
	h.test(t, "decided like reserve", transactDecides)
	h.test(t, "the secret of downstream keys", transactKeepsSecret)
	h.test(t, "over a retryable record", transactRetries)
	h.test(t, "over an expired record", transactRecreates)
	h.test(t, "in flight", transactInFlight)
	h.test(t, "in flight, reserved mode", reserveInFlight)
	h.test(t, "work that never returns", transactNeverReturns)
	h.test(t, "longest work", func(e *env) {
		if d := e.Store.(store.Transactor).LongestWork(calm); d < 0 || d > calm {
			e.Errorf("E1: with a lease of %s the work may take %s", calm, d)
		}
	})
	if has[store.Waiter](h.probe) {
		h.test(t, "waiting for a transaction", transactWaits)
	}
}

// transactFailedStatement answers with a 409 after a statement that failed (E1).
func transactFailedStatement(e *env) {
	failing := e.inserting("row", func(ctx context.Context, _ store.Verdict) store.Settlement {
		if _, err := onceward.Tx(ctx).ExecContext(ctx,
			"INSERT INTO no_such_table_anywhere VALUES (1)"); err == nil {
			e.Error("a statement on a table that does not exist went through")
		}
		return store.Settlement{Action: store.TxCommitAnswer, Completion: *answer("conflict")}
	})
	e.transacted(request(id("key")), failing, store.DecisionExecute,
		"E1: a handler that ran into a failed statement and answers 409 works")
	e.wantRows("row", 0, "E1: a 4xx undoes the work")
	e.wantState(id("key"), store.StateCompleted, "E1: a 4xx is stored")
}

func transactCommits(e *env) {
	var given store.Verdict
	told := e.transacted(request(id("key")),
		e.inserting("row", func(_ context.Context, v store.Verdict) store.Settlement {
			given = v
			return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
		}), store.DecisionExecute, "E1")
	if given.Decision != store.DecisionExecute || given.Origin != store.OriginCreated || given.Now.IsZero() {
		e.Errorf("E1: the work was told (%s, %s, %s), want (execute, created, now)", given.Decision, given.Origin,
			given.Now)
	}
	e.wantRows("row", 1, "E1: a 2xx commits the work")
	e.wantState(id("key"), store.StateCompleted, "E1: a 2xx commits the answer")
	e.wantExpiry(e.get(id("key")), calm)
	if diff := diffRecords(told.Record, e.get(id("key")), 0); diff != "" {
		e.Errorf("section 6: the caller is told the record that was committed, with its expiry, but got %s", diff)
	}
	again := e.refusing("S1: a retry after the commit")
	v := e.transacted(request(id("key")), again, store.DecisionReplay, "S6")
	e.sameResponse("the replay", v.Record.Response, answer("done").Response)
	v = e.wantDecision(request(id("key")), store.DecisionReplay,
		"E1: the same key in reserved mode meets the same record")
	e.sameResponse("the replay in reserved mode", v.Record.Response, answer("done").Response)
	_, err := e.Store.Complete(e.ctx, store.Claim{ID: id("key"), Attempt: v.Record.Attempt}, answer("other"))
	e.wantFenced(err, "S6: another answer after the commit")
	e.transacted(request(id("key"), fingerprints(fingerprint("other"))), e.refusing("S4: a mismatch"),
		store.DecisionMismatch, "S4")
}

// transactDecides checks every decision except execute, on records made in reserved mode.
func transactDecides(e *env) {
	for _, f := range fixtures(e.Instance) {
		if f.absent || f.want == store.StateRetryable {
			continue // these execute
		}
		target := id(f.name)
		f.build(e, []store.ID{target})
		want := map[store.State]store.Decision{
			store.StateInProgress: store.DecisionInProgress,
			store.StateCompleted:  store.DecisionReplay,
			store.StateUnknown:    store.DecisionUnknown,
		}[f.want]
		rec := e.get(target)
		if f.want == store.StateInProgress && !e.now().Before(rec.LeaseUntil) {
			want = store.DecisionUnknown
		}
		bound := session(rec.Fingerprint.Session[0])
		never := e.refusing("section 4: transact of what is " + f.name)
		e.transacted(request(target, fingerprints(fingerprint("other"))), never, store.DecisionMismatch, "S4: "+f.name)
		v := e.transacted(request(target, bound), never, want, "section 4: "+f.name)
		if v.Record.State != store.StateNone && v.Record.Attempt != rec.Attempt {
			e.Errorf("section 4: transact of what is %s returned attempt %d, want %d", f.name, v.Record.Attempt,
				rec.Attempt)
		}
		if _, err := e.transact(request(target, fingerprints(store.Fingerprint{Secret: 99})), never); !errors.Is(err,
			store.ErrUnreadable) {
			e.Errorf("S8: transact with a secret that is gone got %v, want ErrUnreadable", err)
		}
	}
	e.transacted(request(id("nobody"), noCreate), e.refusing("S9: not to create"), store.DecisionRefused, "S9")
	e.wantState(id("nobody"), store.StateNone, "S9: a refused reservation leaves no trace")
	if _, err := e.transact(request(id("nobody"), fingerprints()),
		e.refusing("an invalid reservation")); !errors.Is(err, store.ErrInvalidEvent) {
		e.Errorf("transact without a fingerprint got %v, want ErrInvalidEvent", err)
	}
}

func transactRetries(e *env) {
	c := e.own(id("key"))
	e.must(e.Store.Release(e.ctx, c, "no stock"))
	before := e.get(c.ID)
	e.transacted(request(c.ID), e.inserting("row", settling(store.TxRollback, "")), store.DecisionExecute,
		"section 4: a retryable record")
	if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
		e.Errorf("E1: a rollback leaves the record as it was: %s", diff)
	}
	e.transacted(request(c.ID, fingerprints(fingerprint("other"))), e.refusing("S4: a mismatch"),
		store.DecisionMismatch, "S4: a retryable record")
	var origin store.Origin
	e.transacted(request(c.ID), e.inserting("row", func(_ context.Context, v store.Verdict) store.Settlement {
		origin = v.Origin
		return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
	}), store.DecisionExecute, "section 4: a retryable record")
	e.wantRows("row", 1, "E1: the retry that succeeded")
	rec := e.get(c.ID)
	if origin != store.OriginRetried || rec.Attempt <= c.Attempt || !rec.CreatedAt.Equal(before.CreatedAt) ||
		rec.LastError != "" {
		e.Errorf("section 4: %s as attempt %d after %d, created %s, before %s", origin, rec.Attempt, c.Attempt,
			rec.CreatedAt, before.CreatedAt)
	}
}

func transactRecreates(e *env) {
	target := id("key")
	last := int64(0)
	for range 3 {
		e.transacted(request(target, retain(e.brief())), e.inserting("row", committing("done")),
			store.DecisionExecute, "section 4: an expired record")
		rec := e.get(target)
		if rec.Attempt <= last {
			e.Errorf("S7: attempt %d was granted after attempt %d", rec.Attempt, last)
		}
		last = rec.Attempt
		e.until(rec.ExpiresAt)
	}
	e.wantRows("row", 3, "section 4: one row for each time the key was new")
	next := e.own(target)
	if next.Attempt <= last {
		e.Errorf("S7: in reserved mode attempt %d was granted after attempt %d", next.Attempt, last)
	}
}

// transactKeepsSecret checks that the work and its record have the same secret of downstream keys, which is the secret
// of the first attempt (B6), and the same token (S7): messages of the work in the outbox carry both.
func transactKeepsSecret(e *env) {
	first := request(id("retryable"))
	v, err := e.Store.Reserve(e.ctx, first)
	e.must(err)
	e.must(e.Store.Release(e.ctx, store.Claim{ID: first.ID, Attempt: v.Record.Attempt}, "nothing was done"))
	short := request(id("expired"), retain(e.brief()))
	e.transacted(short, committing("once"), store.DecisionExecute, "E1")
	e.pass(2 * e.brief())
	for _, test := range []struct {
		name string
		end  store.TxAction
		want *store.Reservation
	}{
		{"committed", store.TxCommit, nil},
		{"answered", store.TxCommitAnswer, nil},
		{"retryable", store.TxCommit, first},
		{"expired", store.TxCommit, nil},
	} {
		r := request(id(test.name))
		want := r.DownstreamSecret
		if test.want != nil {
			want = test.want.DownstreamSecret
		}
		given := int64(0)
		told := e.transacted(r, func(_ context.Context, v store.Verdict) store.Settlement {
			given = v.Record.Attempt
			if v.Record.DownstreamSecret != want {
				e.Errorf("B6: the work of what is %s has secret %d, want %d", test.name, v.Record.DownstreamSecret,
					want)
			}
			return store.Settlement{Action: test.end, Completion: *answer("done")}
		}, store.DecisionExecute, "E1: "+test.name)
		if got := e.get(r.ID).DownstreamSecret; got != want {
			e.Errorf("B6: the record of what is %s keeps secret %d, want %d", test.name, got, want)
		}
		if got := e.get(r.ID).Attempt; got != given || told.Record.Attempt != given {
			e.Errorf("S7: the work of what is %s had token %d, the caller got %d, and %d is stored", test.name, given,
				told.Record.Attempt, got)
		}
	}
}

// transactInFlight reads a transaction from outside while its work runs.
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
	other := fingerprints(fingerprint("other"))
	e.transacted(request(target, other), e.refusing("S4: another payload"), store.DecisionMismatch, "S4: after the commit")

	// The fingerprint of the key was not recorded before: after a rollback the key is free, and the other payload may
	// have it.
	target = id("undone")
	e.transacted(request(target), func(context.Context, store.Verdict) store.Settlement {
		e.wantConflict(target, "other")
		return store.Settlement{Action: store.TxRollback}
	}, store.DecisionExecute, "E1")
	e.transacted(request(target, other), e.inserting("other", func(context.Context, store.Verdict) store.Settlement {
		return store.Settlement{Action: store.TxCommit, Completion: *answer("other")}
	}), store.DecisionExecute, "S4: another payload after a rollback")
}

// wantConflict sends a duplicate while the first transaction is open. It runs in the work, where it would hang if it
// waited for the row lock.
func (e *env) wantConflict(target store.ID, payload string) {
	v, err := e.Store.(store.Transactor).Transact(e.ctx, request(target, fingerprints(fingerprint(payload))),
		e.refusing("S1: a duplicate in flight"))
	if err != nil || v.Decision != store.DecisionInProgress {
		e.Errorf("E1: a duplicate in flight (payload %q) got (%s, %v), want in_progress at once", payload, v.Decision,
			err)
	}
}

// reserveInFlight sends a duplicate in reserved mode while a transaction is open. A store may report the conflict at
// once, or find it at the end; it must not let both execute.
func reserveInFlight(e *env) {
	for _, target := range ids(rounds) {
		type result struct {
			verdict store.Verdict
			err     error
		}
		duplicate := make(chan result, 1)
		v, err := e.transact(request(target),
			e.inserting(target.Key, func(context.Context, store.Verdict) store.Settlement {
				answered := make(chan struct{})
				go func() {
					v, err := e.Store.Reserve(e.ctx, request(target))
					duplicate <- result{v, err}
					close(answered)
				}()
				select {
				case <-answered:
				case <-time.After(glance): // the reservation waits for the end
				}
				return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
			}))
		e.must(err)
		second := await.Value(e, "the decision about the duplicate", duplicate)
		e.must(second.err)
		e.onlyWinner([]store.Verdict{v, second.verdict})
		want := 0
		if v.Decision == store.DecisionExecute {
			want = 1
		}
		e.wantRows(target.Key, want, "S1: a transaction met the same key in reserved mode")
	}
}

// transactWaits makes duplicates wait for the end of a transaction, in each way that it can end.
func transactWaits(e *env) {
	for i, end := range []store.TxAction{store.TxCommit, store.TxCommitAnswer, store.TxRollback} {
		target := ids(i + 1)[i]
		const waiters = 8
		waited := make(chan error, waiters)
		e.transacted(request(target), func(context.Context, store.Verdict) store.Settlement {
			var started sync.WaitGroup
			started.Add(waiters)
			for range waiters {
				go func() {
					started.Done()
					waited <- e.wait(e.ctx, store.Claim{ID: target})
				}()
			}
			started.Wait()
			return store.Settlement{Action: end, Completion: *answer("done")}
		}, store.DecisionExecute, "E1")
		for range waiters {
			if err := await.Value(e, "the end of a wait", waited); err != nil {
				e.Fatalf("section 6: a duplicate that waits for a transaction got %v, want to be woken by its end", err)
			}
		}
	}
}
