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

// testAuditLister checks that the audit of all records can be listed, the newest act first (L7).
func testAuditLister(t *testing.T, h Harness) {
	h.test(t, "newest first", func(e *env) {
		e.newestFirst(
			func(id store.ID, i int) { e.audit(entry(id, int64(i))) },
			func(f store.AuditFilter) []string {
				found, err := e.Store.(store.AuditLister).ListAudit(e.ctx, f)
				e.must(err)
				return listed(found, func(one store.AuditEntry) (store.ID, int64) { return one.ID, one.Attempt })
			},
			func(id store.ID) []time.Time {
				var times []time.Time
				for _, one := range e.audited(id) {
					times = append(times, one.At)
				}
				return times
			})
	})
	h.test(t, "whole", func(e *env) {
		for name, text := range oddTexts() {
			one := store.AuditEntry{ID: id(name), Attempt: 7, Actor: text, Action: text, Reason: text, Outcome: text}
			e.audit(one)
			found, err := e.Store.(store.AuditLister).ListAudit(e.ctx, store.AuditFilter{ID: one.ID})
			e.must(err)
			if len(found) != 1 {
				e.Fatalf("L7: %d entries are listed about %q, want 1", len(found), name)
			}
			if one.At = found[0].At; found[0] != one || one.At.IsZero() {
				e.Errorf("L7: the entry is listed as %.200v, want %.200v", found[0], one)
			}
		}
	})
}

// testExecutions checks the list of audited requests: it only grows, and is separate from the list of acts (L7).
func testExecutions(t *testing.T, h Harness) {
	h.test(t, "newest first", func(e *env) {
		add := func(id store.ID, i int) { e.addExecution(requested(id, int64(i))) }
		list := func(f store.AuditFilter) []string {
			return listed(e.executions(f), func(one store.ExecutionEntry) (store.ID, int64) { return one.ID, one.Attempt })
		}
		e.newestFirst(add, list, func(id store.ID) (times []time.Time) {
			for _, one := range slices.Backward(e.executions(store.AuditFilter{ID: id})) {
				times = append(times, one.At)
			}
			return times
		})
	})
	h.test(t, "whole", func(e *env) {
		for name, text := range oddTexts() {
			for decision := store.DecisionExecute; decision <= store.DecisionRefused; decision++ {
				one := requested(id(name), int64(decision))
				one.Actor, one.Operation, one.Decision = text, text, decision
				if decision != store.DecisionExecute {
					one.Origin = 0
				}
				e.addExecution(one)
				found := e.executions(store.AuditFilter{ID: one.ID, Limit: 1})
				if len(found) != 1 {
					e.Fatalf("L7: %d requests are listed about %q, want 1", len(found), name)
				}
				if one.At = found[0].At; found[0] != one || one.At.IsZero() {
					e.Errorf("L7: the request is listed as %.200v, want %.200v", found[0], one)
				}
			}
		}
	})
	h.test(t, "written at the store's moment", func(e *env) {
		one := requested(id("key"), 1)
		one.At = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC) // the store sets the time
		from := e.now()
		e.addExecution(one)
		to := e.now()
		if at := e.executions(store.AuditFilter{})[0].At; at.Before(from.Add(-e.resolution())) || at.After(to) {
			e.Errorf("L7: a request that was written between %s and %s is from %s", from, to, at)
		}
	})
	h.test(t, "written by many at once", func(e *env) {
		errs := make([]error, witnesses)
		together(witnesses, func(i int) {
			errs[i] = e.executionAuditor().AddExecution(e.ctx, requested(id("key"), int64(i)))
		})
		e.must(errors.Join(errs...))
		if n := len(e.executions(store.AuditFilter{ID: id("key")})); n != witnesses {
			e.Errorf("L7: of %d requests that were written at once %d are there", witnesses, n)
		}
	})
	h.test(t, "apart from acts", func(e *env) {
		e.addExecution(requested(id("key"), 1))
		if has[store.Auditor](e.Instance) {
			e.wantAudit(id("key"))
			e.audit(entry(id("key"), 1))
		}
		if n := len(e.executions(store.AuditFilter{})); n != 1 {
			e.Errorf("L7: %d requests are listed, want 1", n)
		}
	})
	if has[store.Transactor](h.probe) {
		h.test(t, "in a transaction", executionsInTransaction)
	}
	h.test(t, "purged by age", func(e *env) {
		e.purgedByAge(
			func(i int) { e.addExecution(requested(id("key"), int64(i))) },
			e.executionAuditor().PurgeExecutions,
			func() (left []string) {
				for _, one := range slices.Backward(e.executions(store.AuditFilter{})) {
					left = append(left, fmt.Sprint("evt-", one.Attempt))
				}
				return left
			})
	})
}

// executionsInTransaction writes entries with the context of a transaction: they stay whether it is committed or not.
func executionsInTransaction(e *env) {
	for i, action := range []store.TxAction{store.TxCommit, store.TxCommitAnswer, store.TxRollback} {
		target := id(fmt.Sprint("key ", i))
		_, err := e.transact(request(target), func(ctx context.Context, v store.Verdict) store.Settlement {
			if err := e.executionAuditor().AddExecution(ctx, requested(target, 1)); err != nil {
				e.Errorf("L7: in a transaction: %v", err)
			}
			return store.Settlement{Action: action, Completion: *answer("done")}
		})
		e.must(err)
		if n := len(e.executions(store.AuditFilter{ID: target})); n != 1 {
			e.Errorf("L7: after a transaction that ended in %v, %d requests are listed, want 1", action, n)
		}
	}
}

// requested is one audited request.
func requested(id store.ID, attempt int64) store.ExecutionEntry {
	return store.ExecutionEntry{
		ID: id, Operation: "POST /payments", Actor: "alice@example.com", Decision: store.DecisionExecute,
		Origin: store.OriginCreated, Attempt: attempt,
	}
}

// executionAuditor returns the store as an [store.ExecutionAuditor].
func (e *env) executionAuditor() store.ExecutionAuditor { return e.Store.(store.ExecutionAuditor) }

func (e *env) addExecution(one store.ExecutionEntry) {
	e.Helper()
	e.must(e.executionAuditor().AddExecution(e.ctx, one))
}

func (e *env) executions(f store.AuditFilter) []store.ExecutionEntry {
	e.Helper()
	found, err := e.executionAuditor().ListExecutions(e.ctx, f)
	e.must(err)
	return found
}

// listed returns the key and the attempt of each entry.
func listed[T any](found []T, about func(T) (store.ID, int64)) (names []string) {
	for _, one := range found {
		id, attempt := about(one)
		names = append(names, fmt.Sprint(id.Key, " ", attempt))
	}
	return names
}

// newestFirst adds entries about three IDs, one after the other, and lists them by each field of the filter. times
// returns the times of an ID's entries, the oldest first.
func (e *env) newestFirst(
	add func(id store.ID, i int), list func(f store.AuditFilter) []string, times func(id store.ID) []time.Time,
) {
	e.Helper()
	want := func(f store.AuditFilter, names ...string) {
		e.Helper()
		if got := list(f); !slices.Equal(got, names) {
			e.Errorf("L7: listed by %+v are %v, want %v", f, got, names)
		}
	}
	want(store.AuditFilter{})
	ids := []store.ID{{Scope: "a", Key: "bc"}, {Scope: "ab", Key: "c"}, {Scope: "a", Key: "BC"}}
	for i := range 6 {
		add(ids[i%3], i)
		e.pass(max(e.resolution(), e.brief()/100))
	}
	want(store.AuditFilter{}, "BC 5", "c 4", "bc 3", "BC 2", "c 1", "bc 0")
	want(store.AuditFilter{Limit: 2}, "BC 5", "c 4")
	want(store.AuditFilter{ID: ids[1]}, "c 4", "c 1")
	want(store.AuditFilter{ID: ids[1], Limit: 1}, "c 4")
	want(store.AuditFilter{ID: store.ID{Scope: "a", Key: "none"}})
	first, last := times(ids[1])[0], times(ids[1])[1]
	want(store.AuditFilter{Since: first, Until: last}, "bc 3", "BC 2", "c 1")
	want(store.AuditFilter{ID: ids[1], Since: first.Add(store.ClockStep)}, "c 4")
	want(store.AuditFilter{Since: last}, "BC 5", "c 4")
	want(store.AuditFilter{Until: first}, "bc 0")
}
