package storetest

import (
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testExpiry checks what happens at the exact moment at which a lease or a retention ends, and that time ends nothing
// else.
func testExpiry(t *testing.T, h Harness) {
	h.test(t, "completed at its expiry", func(e *env) {
		c := e.own(id("key"), retain(e.brief()))
		expires := e.complete(c, "stored")
		last := e.atBoundary(c.ID, expires, store.DecisionReplay)
		e.wantRecreated(c, last)
	})
	h.test(t, "retryable at its expiry", func(e *env) {
		// The next request has another payload: it is a mismatch as long as the record counts, and a new operation
		// after that.
		c := e.own(id("key"), retain(e.brief()))
		e.must(e.Store.Release(e.ctx, c, "no stock"))
		other := fingerprints(fingerprint("other"))
		last := e.atBoundary(c.ID, e.get(c.ID).ExpiresAt, store.DecisionMismatch, other)
		e.wantRecreated(c, last)
	})
	h.test(t, "lease at its end, reconcile", func(e *env) {
		c := e.own(id("key"), lease(e.brief()))
		last := e.atBoundary(c.ID, e.get(c.ID).LeaseUntil, store.DecisionInProgress)
		if last.Decision != store.DecisionUnknown {
			e.Errorf("section 4: a lost owner makes the operation unknown, got %s", last.Decision)
		}
	})
	h.test(t, "lease at its end, resume", func(e *env) {
		c := e.own(id("key"), resume, lease(e.brief()))
		last := e.atBoundary(c.ID, e.get(c.ID).LeaseUntil, store.DecisionInProgress, resume)
		if last.Origin != store.OriginResumed || last.Record.Attempt <= c.Attempt {
			e.Errorf("section 4: got (%s, attempt %d), want resumed after attempt %d", last.Origin,
				last.Record.Attempt, c.Attempt)
		}
	})
	h.test(t, "lease counts from the last heartbeat", leaseFromHeartbeat)
	h.test(t, "expiry is set again by each settlement", expirySetAgain)
	h.test(t, "retention of a completion", retentionOfCompletion)
	h.test(t, "not settled, not removed", notSettledNotRemoved)
	h.test(t, "an expired record stays readable", func(e *env) {
		e.until(e.complete(e.own(id("key"), retain(e.brief())), "stored"))
		e.wantState(id("key"), store.StateCompleted, "Get returns records past their expiry until they are reaped")
	})
}

// atBoundary reserves until the store's clock has reached a moment, and returns the first verdict from then on. All
// verdicts before it must have the given decision. With a clock that stands still, it reserves once at the last moment
// before.
func (e *env) atBoundary(id store.ID, boundary time.Time, before store.Decision, options ...option) store.Verdict {
	e.Helper()
	if e.Advance != nil {
		e.until(boundary.Add(-e.resolution()))
		if now := e.now(); !now.Before(boundary) {
			e.Fatalf("the clock of the store does not stand still: it says %s, want just before %s", now, boundary)
		}
	}
	for {
		v := e.reserve(request(id, options...))
		if v.Now.Before(boundary) != (v.Decision == before) {
			e.Fatalf("section 4: at %s, with the end at %s, a reservation got %s", v.Now, boundary, v.Decision)
		}
		if v.Decision != before {
			return v
		}
		e.pass(e.resolution())
	}
}

func (e *env) wantRecreated(old store.Claim, v store.Verdict) {
	e.Helper()
	if v.Decision != store.DecisionExecute || v.Origin != store.OriginRecreated {
		e.Errorf("section 4: an expired record got (%s, %s), want (execute, recreated)", v.Decision, v.Origin)
	}
	if v.Record.Attempt <= old.Attempt {
		e.Errorf("S7: a recreated record got attempt %d after %d", v.Record.Attempt, old.Attempt)
	}
	if len(v.Record.Response.Body) > 0 || v.Record.Response.Status != 0 || v.Record.Point != "" {
		e.Errorf("section 4: a recreated record is as if absent before, but holds %+v", v.Record)
	}
}

func leaseFromHeartbeat(e *env) {
	c := e.own(id("key"), lease(calm))
	from := e.now()
	e.must(e.Store.Extend(e.ctx, c, e.brief()))
	to := e.now()
	until := e.get(c.ID).LeaseUntil
	if until.Before(from.Add(e.brief()-e.resolution())) || until.After(to.Add(e.brief()+e.resolution())) {
		e.Errorf("S5: extended by %s between %s and %s, the lease ends at %s", e.brief(), from, to, until)
	}
	e.until(until)
	e.wantDecision(request(c.ID), store.DecisionUnknown, "section 4: the lease is over")
}

func expirySetAgain(e *env) {
	target := id("key")
	e.must(e.Store.Release(e.ctx, e.own(target, retain(calm)), "no stock"))
	first := e.get(target)
	e.wantExpiry(first, calm)
	e.pass(e.brief())
	c := e.own(target, retain(calm))
	if rec := e.get(target); !rec.ExpiresAt.IsZero() || !rec.SettledAt.IsZero() {
		e.Errorf("S2: a record in progress does not expire, but is settled %s, expires %s", rec.SettledAt,
			rec.ExpiresAt)
	}
	e.must(e.Store.Abandon(e.ctx, c, "timeout"))
	if rec := e.get(target); !rec.ExpiresAt.IsZero() {
		e.Errorf("S2: an unknown record does not expire, but expires %s", rec.ExpiresAt)
	}
	e.complete(c, "late")
	second := e.get(target)
	e.wantExpiry(second, calm)
	if !second.ExpiresAt.After(first.ExpiresAt) {
		e.Errorf("S2: settled again %s later, the record expires at %s, before at %s", e.brief(), second.ExpiresAt,
			first.ExpiresAt)
	}
	if !second.CreatedAt.Equal(first.CreatedAt) {
		e.Errorf("section 11: a retry changed the creation time from %s to %s", first.CreatedAt, second.CreatedAt)
	}
}

// wantExpiry checks that a record expires one retention after it was settled.
func (e *env) wantExpiry(rec store.Record, retention time.Duration) {
	e.Helper()
	if rec.SettledAt.IsZero() || !near(rec.ExpiresAt, rec.SettledAt.Add(retention), e.resolution()-time.Microsecond) {
		e.Errorf("S2: settled at %s with a retention of %s, the record expires at %s", rec.SettledAt, retention,
			rec.ExpiresAt)
	}
}

func retentionOfCompletion(e *env) {
	longer, shorter := answer("stored"), answer("stored")
	longer.Retention, shorter.Retention = 3*calm, calm/2
	for key, want := range map[string]struct {
		done      *store.Completion
		retention time.Duration
	}{"longer": {longer, 3 * calm}, "shorter": {shorter, calm}, "none": {answer("stored"), calm}} {
		expires, err := e.Store.Complete(e.ctx, e.own(id(key), retain(calm)), want.done)
		e.must(err)
		rec := e.get(id(key))
		e.wantExpiry(rec, want.retention)
		if !expires.Equal(rec.ExpiresAt) {
			e.Errorf("complete returned the expiry %s, but the record expires at %s", expires, rec.ExpiresAt)
		}
	}
}

// notSettledNotRemoved lets years pass, or on a real clock many leases, for records whose outcome is open.
func notSettledNotRemoved(e *env) {
	running := e.own(id("running"), resume, lease(e.brief()), retain(e.brief()))
	lost := e.lose(id("lost"), lease(e.brief()), retain(e.brief()))
	e.pass(3 * e.brief())
	if e.Advance != nil {
		e.Advance(10 * 365 * 24 * time.Hour)
	}
	if has[store.Reaper](e.Instance) {
		for _, soft := range []bool{true, false} {
			if reaped := e.reap(everything, soft); reaped != 0 {
				e.Errorf("S2: the reaper removed %d records whose outcome is open", reaped)
			}
		}
	}
	e.wantState(running.ID, store.StateInProgress, "S2: in_progress is never removed by time alone")
	e.wantState(lost.ID, store.StateUnknown, "S2: unknown is never removed by time alone")
	e.wantDecision(request(lost.ID), store.DecisionUnknown, "S2: however old")
	e.complete(running, "late")
	e.complete(lost, "late")
}
