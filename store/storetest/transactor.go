package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/onceward/onceward"
)

// work is what is done inside a transaction.
type work = func(ctx context.Context, v onceward.Verdict) onceward.Settlement

// ending is work that does nothing but to end.
func ending(end onceward.Ending, body string) work {
	return func(context.Context, onceward.Verdict) onceward.Settlement {
		return onceward.Settlement{Ending: end, Completion: *answer(body)}
	}
}

func committing(body string) work { return ending(onceward.Commit, body) }

// inserting adds a row to the business table and goes on; if the row is refused the work is undone.
func (e *env) inserting(value string, then work) work {
	return func(ctx context.Context, v onceward.Verdict) onceward.Settlement {
		if err := e.Business.Insert(ctx, value); err != nil {
			return onceward.Settlement{Ending: onceward.Rollback}
		}
		return then(ctx, v)
	}
}

// refusing is work that must not be called.
func (e *env) refusing(rule string) work {
	return func(context.Context, onceward.Verdict) onceward.Settlement {
		e.Errorf("%s: the work was executed", rule)
		return onceward.Settlement{Ending: onceward.Rollback}
	}
}

func (e *env) transact(r *onceward.Reservation, w work) (onceward.Verdict, error) {
	return e.Store.(onceward.Transactor).Transact(e.ctx, r, w)
}

// transacted runs a transaction that has to be decided in the given way.
func (e *env) transacted(r *onceward.Reservation, w work, want onceward.Decision, rule string) onceward.Verdict {
	e.Helper()
	v, err := e.transact(r, w)
	if err != nil || v.Decision != want {
		e.Fatalf("%s: transact of %q got (%s, %v), want %s", rule, r.Key, v.Decision, err, want)
	}
	return v
}

// wantRows counts the committed rows.
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
		e.transacted(request(id("key")), e.inserting("row", ending(onceward.CommitAnswer, "declined")), onceward.DecisionExecute, "E1")
		e.wantRows("row", 0, "E1: a 4xx undoes the work")
		v := e.transacted(request(id("key")), e.refusing("E1: a stored 4xx"), onceward.DecisionReplay, "E1: a 4xx is stored")
		e.sameResponse("the replay", v.Record.Response, answer("declined").Response)
	})
	h.test(t, "rollback leaves no trace", func(e *env) {
		for range 3 {
			e.transacted(request(id("key")), e.inserting("row", ending(onceward.Rollback, "")), onceward.DecisionExecute, "E1: after a rollback the retry runs afresh")
			e.wantRows("row", 0, "E1: a 5xx undoes everything")
			e.wantState(id("key"), onceward.StateNone, "E1: a 5xx leaves nothing behind")
		}
		e.transacted(request(id("key")), e.inserting("row", committing("done")), onceward.DecisionExecute, "E1")
		e.wantRows("row", 1, "E1: the retry that succeeded")
	})
	h.test(t, "a failed statement and a stored answer", func(e *env) {
		failing := e.inserting("row", func(ctx context.Context, _ onceward.Verdict) onceward.Settlement {
			if _, err := onceward.Tx(ctx).ExecContext(ctx, "INSERT INTO no_such_table_anywhere VALUES (1)"); err == nil {
				e.Error("a statement on a table that does not exist went through")
			}
			return onceward.Settlement{Ending: onceward.CommitAnswer, Completion: *answer("conflict")}
		})
		e.transacted(request(id("key")), failing, onceward.DecisionExecute, "E1: a handler that ran into a failed statement and answers 409 works")
		e.wantRows("row", 0, "E1: a 4xx undoes the work")
		e.wantState(id("key"), onceward.StateCompleted, "E1: a 4xx is stored")
	})
	h.test(t, "content", func(e *env) {
		e.transacted(request(id("key"), session(3)), func(context.Context, onceward.Verdict) onceward.Settlement {
			return onceward.Settlement{Ending: onceward.Commit, Completion: *rich()}
		}, onceward.DecisionExecute, "E1")
		rec := e.get(id("key"))
		e.sameResponse("the record", rec.Response, rich().Response)
		e.wantExpiry(rec, rich().Retention)
		if rec.ProviderID != rich().ProviderID || rec.Operation == "" || rec.TraceID == "" || rec.Version != onceward.RecordVersion ||
			rec.Fingerprint.Session != [16]byte{3} || rec.CreatedAt.IsZero() || rec.Attempt <= 0 || !rec.LeaseUntil.IsZero() {
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
		if d := e.Store.(onceward.Transactor).LongestWork(calm); d < 0 || d > calm {
			e.Errorf("E1: with a lease of %s the work may take %s", calm, d)
		}
	})
	if h.Features.Waits {
		h.test(t, "waiting for a transaction", transactWaits)
	}
}

func transactCommits(e *env) {
	var given onceward.Verdict
	told := e.transacted(request(id("key")), e.inserting("row", func(_ context.Context, v onceward.Verdict) onceward.Settlement {
		given = v
		return onceward.Settlement{Ending: onceward.Commit, Completion: *answer("done")}
	}), onceward.DecisionExecute, "E1")
	if given.Decision != onceward.DecisionExecute || given.Origin != onceward.OriginCreated || given.Now.IsZero() {
		e.Errorf("E1: the work was told (%s, %s, %s), want (execute, created, now)", given.Decision, given.Origin, given.Now)
	}
	e.wantRows("row", 1, "E1: a 2xx commits the work")
	e.wantState(id("key"), onceward.StateCompleted, "E1: a 2xx commits the answer")
	e.wantExpiry(e.get(id("key")), calm)
	if diff := diffRecords(told.Record, e.get(id("key")), 0); diff != "" {
		e.Errorf("section 6: the caller is told the record that was committed, with its expiry, but got %s", diff)
	}
	again := e.refusing("S1: a retry after the commit")
	v := e.transacted(request(id("key")), again, onceward.DecisionReplay, "S6")
	e.sameResponse("the replay", v.Record.Response, answer("done").Response)
	v = e.wantDecision(request(id("key")), onceward.DecisionReplay, "E1: the same key in reserved mode meets the same record")
	e.sameResponse("the replay in reserved mode", v.Record.Response, answer("done").Response)
	_, err := e.Store.Complete(e.ctx, onceward.Claim{ID: id("key"), Attempt: v.Record.Attempt}, answer("other"))
	e.wantFenced(err, "S6: another answer after the commit")
	e.transacted(request(id("key"), fingerprints(fingerprint("other"))), e.refusing("S4: a mismatch"), onceward.DecisionMismatch, "S4")
}

// transactDecides checks every decision that is not to execute, on records made in reserved mode.
func transactDecides(e *env) {
	for _, f := range fixtures(e.features) {
		if f.absent || f.want == onceward.StateRetryable {
			continue // these execute
		}
		target := id(f.name)
		f.build(e, []onceward.ID{target})
		want := map[onceward.State]onceward.Decision{
			onceward.StateInProgress: onceward.DecisionInProgress,
			onceward.StateCompleted:  onceward.DecisionReplay,
			onceward.StateUnknown:    onceward.DecisionUnknown,
		}[f.want]
		rec := e.get(target)
		if f.want == onceward.StateInProgress && !e.now().Before(rec.LeaseUntil) {
			want = onceward.DecisionUnknown
		}
		bound := session(rec.Fingerprint.Session[0])
		never := e.refusing("section 4: transact of what is " + f.name)
		e.transacted(request(target, fingerprints(fingerprint("other"))), never, onceward.DecisionMismatch, "S4: "+f.name)
		v := e.transacted(request(target, bound), never, want, "section 4: "+f.name)
		if v.Record.State != onceward.StateNone && v.Record.Attempt != rec.Attempt {
			e.Errorf("section 4: transact of what is %s returned attempt %d, want %d", f.name, v.Record.Attempt, rec.Attempt)
		}
		if _, err := e.transact(request(target, fingerprints(onceward.Fingerprint{Secret: 99})), never); !errors.Is(err, onceward.ErrUnreadable) {
			e.Errorf("S8: transact with a secret that is gone got %v, want ErrUnreadable", err)
		}
	}
	e.transacted(request(id("nobody"), noCreate), e.refusing("S9: not to create"), onceward.DecisionRefused, "S9")
	e.wantState(id("nobody"), onceward.StateNone, "S9: a refused reservation leaves no trace")
	if _, err := e.transact(request(id("nobody"), fingerprints()), e.refusing("an invalid reservation")); !errors.Is(err, onceward.ErrInvalidEvent) {
		e.Errorf("transact without a fingerprint got %v, want ErrInvalidEvent", err)
	}
}

func transactRetries(e *env) {
	c := e.own(id("key"))
	e.must(e.Store.Release(e.ctx, c, "no stock"))
	before := e.get(c.ID)
	e.transacted(request(c.ID), e.inserting("row", ending(onceward.Rollback, "")), onceward.DecisionExecute, "section 4: a retryable record")
	if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
		e.Errorf("E1: a rollback leaves the record as it was: %s", diff)
	}
	e.transacted(request(c.ID, fingerprints(fingerprint("other"))), e.refusing("S4: a mismatch"), onceward.DecisionMismatch, "S4: a retryable record")
	var origin onceward.Origin
	e.transacted(request(c.ID), e.inserting("row", func(_ context.Context, v onceward.Verdict) onceward.Settlement {
		origin = v.Origin
		return onceward.Settlement{Ending: onceward.Commit, Completion: *answer("done")}
	}), onceward.DecisionExecute, "section 4: a retryable record")
	e.wantRows("row", 1, "E1: the retry that succeeded")
	rec := e.get(c.ID)
	if origin != onceward.OriginRetried || rec.Attempt <= c.Attempt || !rec.CreatedAt.Equal(before.CreatedAt) || rec.LastError != "" {
		e.Errorf("section 4: %s as attempt %d after %d, created %s, before %s", origin, rec.Attempt, c.Attempt, rec.CreatedAt, before.CreatedAt)
	}
}

func transactRecreates(e *env) {
	target := id("key")
	last := int64(0)
	for range 3 {
		e.transacted(request(target, retain(e.brief())), e.inserting("row", committing("done")), onceward.DecisionExecute, "section 4: an expired record")
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

// transactKeepsSecret checks that the work and its record have the same secret of downstream keys, that of the first attempt (B6):
// what the work sends through the outbox carries keys of it.
func transactKeepsSecret(e *env) {
	first := request(id("retryable"))
	v, err := e.Store.Reserve(e.ctx, first)
	e.must(err)
	e.must(e.Store.Release(e.ctx, onceward.Claim{ID: first.ID, Attempt: v.Record.Attempt}, "nothing was done"))
	short := request(id("expired"), retain(e.brief()))
	e.transacted(short, committing("once"), onceward.DecisionExecute, "E1")
	e.pass(2 * e.brief())
	for _, test := range []struct {
		name string
		end  onceward.Ending
		want *onceward.Reservation
	}{
		{"committed", onceward.Commit, nil},
		{"answered", onceward.CommitAnswer, nil},
		{"retryable", onceward.Commit, first},
		{"expired", onceward.Commit, nil},
	} {
		r := request(id(test.name))
		want := r.DownstreamSecret
		if test.want != nil {
			want = test.want.DownstreamSecret
		}
		e.transacted(r, func(_ context.Context, v onceward.Verdict) onceward.Settlement {
			if v.Record.DownstreamSecret != want {
				e.Errorf("B6: the work of what is %s has secret %d, want %d", test.name, v.Record.DownstreamSecret, want)
			}
			return onceward.Settlement{Ending: test.end, Completion: *answer("done")}
		}, onceward.DecisionExecute, "E1: "+test.name)
		if got := e.get(r.ID).DownstreamSecret; got != want {
			e.Errorf("B6: the record of what is %s keeps secret %d, want %d", test.name, got, want)
		}
	}
}
