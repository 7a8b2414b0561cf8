package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testAudit checks the list of acts on records: it only grows, and outlives what it is about (L7).
func testAudit(t *testing.T, h Harness) {
	h.test(t, "kept in order", func(e *env) {
		var want []store.AuditEntry
		for i := range 5 {
			before := entry(id("key"), int64(i+1))
			after := before
			after.Outcome = fmt.Sprint("done ", i)
			want = append(want, before, after)
			e.audit(before)
			e.audit(after)
		}
		e.wantAudit(id("key"), want...)
	})
	h.test(t, "written at the store's moment", func(e *env) {
		one := entry(id("key"), 1)
		one.At = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC) // which is the store's to say
		from := e.now()
		e.audit(one)
		to := e.now()
		if at := e.audited(id("key"))[0].At; at.Before(from.Add(-e.resolution())) || at.After(to) {
			e.Errorf("L7: an entry that was written between %s and %s is from %s", from, to, at)
		}
	})
	h.test(t, "each ID its own", func(e *env) {
		for i, target := range []store.ID{{Scope: "a", Key: "bc"}, {Scope: "ab", Key: "c"}, {Scope: "a", Key: "BC"}} {
			one := entry(target, int64(i+1))
			e.audit(one)
			e.wantAudit(target, one)
		}
		e.wantAudit(id("nobody"))
	})
	h.test(t, "any text", func(e *env) {
		for name, text := range oddTexts() {
			one := store.AuditEntry{ID: id(name), Attempt: -1, Actor: text, Action: text, Reason: text, Outcome: text}
			e.audit(one)
			e.wantAudit(id(name), one)
		}
	})
	h.test(t, "written by many at once", func(e *env) {
		errs := make([]error, witnesses)
		together(witnesses, func(i int) { errs[i] = e.auditor().AddAudit(e.ctx, entry(id("key"), int64(i))) })
		e.must(errors.Join(errs...))
		var attempts []int64
		for _, one := range e.audited(id("key")) {
			attempts = append(attempts, one.Attempt)
		}
		slices.Sort(attempts)
		if len(slices.Compact(attempts)) != witnesses {
			e.Errorf("L7: of %d entries that were written at once %v are there", witnesses, attempts)
		}
	})
	h.test(t, "outlives the record", auditOutlives)
	h.test(t, "purged by age", func(e *env) {
		e.purgedByAge(
			func(i int) { e.audit(entry(id("key"), int64(i))) },
			e.auditor().PurgeAudit,
			func() (left []string) {
				for _, one := range e.audited(id("key")) {
					left = append(left, fmt.Sprint("evt-", one.Attempt))
				}
				return left
			})
	})
}

// entry is one act on a record.
func entry(id store.ID, attempt int64) store.AuditEntry {
	return store.AuditEntry{
		ID: id, Attempt: attempt, Actor: "ops@example.com", Action: "resolve completed", Reason: fmt.Sprint("ticket ", attempt),
	}
}

// auditor returns the store as one that keeps acts.
func (e *env) auditor() store.Auditor { return e.Store.(store.Auditor) }

func (e *env) audit(one store.AuditEntry) {
	e.Helper()
	e.must(e.auditor().AddAudit(e.ctx, one))
}

func (e *env) audited(id store.ID) []store.AuditEntry {
	e.Helper()
	found, err := e.auditor().Audit(e.ctx, id)
	e.must(err)
	return found
}

// wantAudit checks what was done to a record, in its order. When that was is the store's to say.
func (e *env) wantAudit(id store.ID, want ...store.AuditEntry) {
	e.Helper()
	got := e.audited(id)
	if len(got) != len(want) {
		e.Fatalf("L7: %d entries are kept about %q, want %d", len(got), id.Key, len(want))
	}
	for i := range want {
		if got[i].At.IsZero() || i > 0 && e.Advance != nil && got[i].At.Before(got[i-1].At) {
			e.Errorf("L7: entry %d is from %s", i, got[i].At)
		}
		want[i].At = got[i].At
		if got[i] != want[i] {
			e.Errorf("L7: entry %d is %.200v, want %.200v", i, got[i], want[i])
		}
	}
}

// auditOutlives removes records in each way that there is.
func auditOutlives(e *env) {
	if has[store.Buster](e.Instance) {
		settled, open := e.own(id("settled")), e.own(id("open"))
		e.complete(settled, "stored")
		for _, c := range []store.Claim{settled, open} {
			e.audit(entry(c.ID, c.Attempt))
			e.bust(c.ID, true)
			e.wantAudit(c.ID, entry(c.ID, c.Attempt))
		}
	}
	if has[store.Reaper](e.Instance) {
		c := e.own(id("expired"), retain(e.brief()))
		e.complete(c, "stored")
		e.audit(entry(c.ID, c.Attempt))
		lapse(e)
		e.reap(everything, false)
		e.wantState(c.ID, store.StateNone, "B2: a record that was reaped")
		e.wantAudit(c.ID, entry(c.ID, c.Attempt))
	}
}

// purgedByAge adds five pieces of evidence, called evt-0 to evt-4, and removes them by their age.
func (e *env) purgedByAge(add func(i int), purge func(ctx context.Context, age time.Duration, limit int) (int, error), left func() []string) {
	e.Helper()
	work := func(age time.Duration, limit, want int, rest ...string) {
		e.Helper()
		purged, err := purge(e.ctx, age, limit)
		e.must(err)
		if now := left(); purged != want || !slices.Equal(now, rest) {
			e.Errorf("L7: purging what is older than %s, at most %d, removed %d and left %v, want %d and %v", age, limit, purged, now, want, rest)
		}
	}
	names := []string{"evt-0", "evt-1", "evt-2", "evt-3", "evt-4"}
	started := e.now()
	for i := range names {
		if i > 0 {
			e.pass(e.brief() / 10)
		}
		add(i)
	}
	work(24*time.Hour, everything, 0, names...)
	e.pass(e.resolution())
	work(0, 0, 0, names...)
	work(0, -1, 0, names...)
	work(0, 2, 2, names[2:]...)
	if e.Advance != nil {
		third := e.now().Sub(started.Add(2 * (e.brief() / 10)))
		work(third, everything, 0, names[2:]...)
		work(third-e.resolution(), everything, 1, names[3:]...)
	}
	work(0, everything, len(left()))
	work(0, everything, 0)
}
