package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testLister checks the lists and the statistics of a store.
func testLister(t *testing.T, h Harness) {
	h.test(t, "empty", func(e *env) {
		if found := e.list(store.Filter{}); len(found) != 0 {
			e.Errorf("an empty store lists %d records", len(found))
		}
		stats := e.stats()
		if stats.DeadLetters != 0 || stats.LostOwners != 0 || !stats.OldestUnknown.IsZero() || !stats.OldestLostOwner.IsZero() {
			e.Errorf("an empty store has the statistics %+v", stats)
		}
	})
	h.test(t, "pages", func(e *env) {
		// The test reads few pages: on some stores each page is a scan of all keys of the database, including keys of
		// other tests.
		for _, id := range ids(3) {
			e.own(id)
		}
		e.wantListed(e.pages(store.Filter{Limit: 1}), ids(3), "pages of 1")
		for _, id := range ids(20)[3:] {
			e.own(id)
		}
		for _, limit := range []int{7, 10, 20, 21} {
			e.wantListed(e.pages(store.Filter{Limit: limit}), ids(20), fmt.Sprint("pages of ", limit))
		}
	})
	h.test(t, "pages of the largest size", largestPages)
	h.test(t, "filters", filters)
	h.test(t, "operations", operations)
	h.test(t, "due", dueByTheStore)
	h.test(t, "all but bodies", func(e *env) {
		for _, f := range fixtures(h.probe) {
			f.build(e, []store.ID{id(f.name)})
		}
		for _, got := range e.list(store.Filter{}) {
			want := e.get(got.ID)
			want.Data, want.Response.Body = nil, nil
			if diff := diffRecords(got, want, 0); diff != "" {
				e.Errorf("the list shows a record without its body and data, but as it is: %s", diff)
			}
		}
	})
	h.test(t, "statistics", statistics)
	h.test(t, "lost owners", lostOwners)
}

func (e *env) list(f store.Filter) []store.Record {
	e.Helper()
	found, err := e.Store.(store.Lister).List(e.ctx, f)
	e.must(err)
	return found
}

func (e *env) stats() store.Stats {
	e.Helper()
	stats, err := e.Store.(store.Lister).Stats(e.ctx)
	e.must(err)
	return stats
}

// pages lists all records that a filter selects, page by page.
func (e *env) pages(f store.Filter) []store.Record {
	e.Helper()
	var all []store.Record
	for {
		page := e.list(f)
		if len(page) > f.Limit {
			e.Fatalf("a page of at most %d has %d records", f.Limit, len(page))
		}
		all = append(all, page...)
		if len(page) < f.Limit {
			return all
		}
		if f.After == page[len(page)-1].ID {
			e.Fatalf("the page after %q ends with it again", f.After.Key)
		}
		f.After = page[len(page)-1].ID
	}
}

// wantListed checks that a list has each record once, in any stable order.
func (e *env) wantListed(got []store.Record, want []store.ID, what string) {
	e.Helper()
	seen := make(map[store.ID]int)
	for _, rec := range got {
		seen[rec.ID]++
	}
	for _, id := range want {
		if seen[id] != 1 {
			e.Errorf("%s: record %q in %q is listed %d times, want once", what, id.Key, id.Scope, seen[id])
		}
	}
	if len(got) != len(want) {
		e.Errorf("%s: %d records are listed, want %d", what, len(got), len(want))
	}
}

func largestPages(e *env) {
	targets := ids(store.MaxPage + 100)
	errs := make([]error, crowd)
	together(crowd, func(i int) {
		for n := i; n < len(targets); n += crowd {
			_, err := e.Store.Reserve(e.ctx, request(targets[n]))
			errs[i] = errors.Join(errs[i], err)
		}
	})
	e.must(errors.Join(errs...))
	first := e.list(store.Filter{})
	if len(first) != store.MaxPage {
		e.Fatalf("without a limit %d records are listed, want MaxPage", len(first))
	}
	if n := len(e.list(store.Filter{Limit: 5 * store.MaxPage})); n != store.MaxPage {
		e.Errorf("with a limit past MaxPage %d records are listed, want MaxPage", n)
	}
	rest := e.list(store.Filter{After: first[len(first)-1].ID})
	e.wantListed(slices.Concat(first, rest), targets, "two pages of the largest size")
}

// filtered is a filter with the records that it should select.
type filtered struct {
	what   string
	filter store.Filter
	want   []store.ID
}

// wantFiltered lists all records that a filter selects, at once and in pages.
func (e *env) wantFiltered(all []filtered) {
	e.Helper()
	for _, f := range all {
		e.wantListed(e.list(f.filter), f.want, f.what)
		f.filter.Limit = 2
		e.wantListed(e.pages(f.filter), f.want, f.what+", in pages")
	}
}

// inA and inB return IDs in two scopes.
func inA(key string) store.ID { return store.ID{Scope: "a", Key: key} }
func inB(key string) store.ID { return store.ID{Scope: "b", Key: key} }

// filters lists by scope and state, each alone and together.
func filters(e *env) {
	e.own(inA("one"))
	e.own(inA("two"))
	e.own(inB("one"))
	e.complete(e.own(inA("completed")), "stored")
	e.complete(e.own(inB("completed")), "stored")
	e.must(e.Store.Release(e.ctx, e.own(inB("retryable")), "no stock"))
	e.lose(inA("unknown"))
	e.wantFiltered([]filtered{
		{"a scope", store.Filter{Scope: "b"}, []store.ID{inB("one"), inB("completed"), inB("retryable")}},
		{"a scope that is part of another", store.Filter{Scope: "A"}, nil},
		{"a state", store.Filter{State: store.StateInProgress}, []store.ID{inA("one"), inA("two"), inB("one")}},
		{"unknown", store.Filter{State: store.StateUnknown}, []store.ID{inA("unknown")}},
		{"expired", store.Filter{State: store.StateExpired}, nil},
		{"a scope and a state", store.Filter{Scope: "a", State: store.StateCompleted}, []store.ID{inA("completed")}},
	})
}

// operations lists by operation, beside operations whose names contain its name, and records that contain it in other
// fields.
func operations(e *env) {
	long := "POST /" + strings.Repeat("long/", 300)
	of := func(name string) option {
		return func(r *store.Reservation) { r.Operation = name }
	}
	in := store.OperationInBinary("POST /payments")
	names := []string{"POST /payments", "POST /payments/refunds", "OST /payments", long, "Zahlung ü"}
	for i, name := range names {
		e.own(inA(fmt.Sprint("running ", i)), of(name))
		e.complete(e.own(inB(fmt.Sprint("completed ", i)), of(name)), "stored "+string(in))
		e.lose(inA(fmt.Sprint("unknown ", i)), of(name))
	}
	for i := range 9 {
		e.complete(e.own(inB(fmt.Sprintf("%s %d", in, i)), of("POST /others")), string(in))
	}
	for i, name := range names {
		e.wantFiltered([]filtered{
			{
				"an operation",
				store.Filter{Operation: name},
				[]store.ID{inA(fmt.Sprint("running ", i)), inB(fmt.Sprint("completed ", i)), inA(fmt.Sprint("unknown ", i))},
			},
			{
				"an operation in a state",
				store.Filter{Operation: name, State: store.StateUnknown},
				[]store.ID{inA(fmt.Sprint("unknown ", i))},
			},
			{
				"an operation in a scope",
				store.Filter{Operation: name, Scope: "b"},
				[]store.ID{inB(fmt.Sprint("completed ", i))},
			},
		})
	}
	e.wantFiltered([]filtered{{"an operation that nobody calls", store.Filter{Operation: "/payments"}, nil}})
}

// dueByTheStore lists due records by the store's clock, and by no other (S3): records whose lease or retention is over,
// and unknown records that are not postponed. A clock that the suite moves is far behind the clock of the machine, by
// which all records would be due.
func dueByTheStore(e *env) {
	e.own(inA("soon"), lease(e.brief()))
	e.own(inA("later"), lease(calm))
	e.own(inB("soon"), lease(e.brief()))
	e.complete(e.own(inA("completed"), retain(e.brief())), "stored")
	e.complete(e.own(inB("completed"), retain(calm)), "stored")
	e.lose(inA("unknown"))
	if has[store.Reconciler](e.Instance) {
		e.postpone(e.lose(inB("postponed")), 0)
	}
	e.wantFiltered([]filtered{
		{"S3: unknown and due at once", store.Filter{Due: true, State: store.StateUnknown}, []store.ID{inA("unknown")}},
	})
	if e.Advance != nil {
		e.pass(e.brief() - e.resolution())
		e.wantFiltered([]filtered{{
			"S3: just before a lease is over",
			store.Filter{Due: true},
			[]store.ID{inA("unknown")},
		}})
		e.pass(e.resolution())
	} else {
		lapse(e)
	}
	e.wantFiltered([]filtered{
		{"S3: due", store.Filter{Due: true}, []store.ID{inA("soon"), inB("soon"), inA("completed"), inA("unknown")}},
		{
			"S3: due and in progress",
			store.Filter{Due: true, State: store.StateInProgress},
			[]store.ID{inA("soon"), inB("soon")},
		},
		{"S3: due and completed", store.Filter{Due: true, State: store.StateCompleted}, []store.ID{inA("completed")}},
		{"S3: due and unknown", store.Filter{Due: true, State: store.StateUnknown}, []store.ID{inA("unknown")}},
		{"S3: due in a scope", store.Filter{Due: true, Scope: "b"}, []store.ID{inB("soon")}},
	})
}

func statistics(e *env) {
	younger := e.own(id("made first, lost last"))
	oldest := e.lose(id("oldest"))
	e.pass(e.brief())
	want := map[store.State]int64{
		store.StateInProgress: 2, store.StateCompleted: 1, store.StateRetryable: 3, store.StateUnknown: 2,
	}
	e.must(e.Store.Abandon(e.ctx, younger, "connection reset"))
	e.own(id("running 1"))
	e.own(id("running 2"))
	e.complete(e.own(id("completed")), "stored")
	for i := range 3 {
		e.must(e.Store.Release(e.ctx, e.own(id(fmt.Sprint("retryable ", i))), "no stock"))
	}
	stats := e.stats()
	for state := store.StateInProgress; state <= store.StateExpired; state++ {
		if stats.Records[state] != want[state] {
			e.Errorf("M1: %d records are counted as %s, want %d", stats.Records[state], state, want[state])
		}
	}
	e.wantUnknown("two are lost", 0, e.get(oldest.ID).SettledAt)
	if has[store.Reconciler](e.Instance) {
		unknownAge(e, oldest, younger)
	}
}

// unknownAge follows two unknown records through reconciliation. The age of an unknown record counts from when it
// became unknown, however often its outcome was queried, until it is a dead letter, which waits for a person.
func unknownAge(e *env, oldest, younger store.Claim) {
	first, second := e.get(oldest.ID).SettledAt, e.get(younger.ID).SettledAt
	e.postpone(oldest, 0)
	e.wantUnknown("the oldest is postponed", 0, first)
	e.postpone(oldest, 1)
	e.wantUnknown("the oldest is a dead letter", 1, second)
	e.postpone(younger, 1)
	e.wantUnknown("both are dead letters", 2, time.Time{})
	e.must(e.resolver().Requeue(e.ctx, oldest, "the provider answers again"))
	e.wantUnknown("the oldest is requeued", 1, first)
	e.resolveNotExecuted(oldest)
	e.wantUnknown("the oldest is settled", 1, time.Time{})
}

// wantUnknown checks the statistics of unknown records.
func (e *env) wantUnknown(when string, dead int64, oldest time.Time) {
	e.Helper()
	if stats := e.stats(); stats.DeadLetters != dead || !stats.OldestUnknown.Equal(oldest) {
		e.Errorf("M4: %s: %d dead letters and the oldest unknown outcome of %s, want %d and %s", when,
			stats.DeadLetters, stats.OldestUnknown, dead, oldest)
	}
}

// lostOwners counts the records whose lease has ended (B1). The owner may be dead, and no sweeper or resumer may run:
// until a sweeper, a resumer or the owner acts, only the statistics and the list of due records show these records.
func lostOwners(e *env) {
	later := 2 * e.brief()
	if e.Advance != nil {
		later = calm
	}
	waited := e.own(id("swept, lost first"), lease(e.brief()))
	resumed := e.own(id("resumed, lost later"), lease(later), resume)
	e.own(id("held"), lease(2*calm))
	e.complete(e.own(id("completed"), lease(e.brief())), "stored")
	e.must(e.Store.Abandon(e.ctx, e.own(id("unknown"), lease(e.brief())), "connection reset"))
	first, second := e.get(waited.ID).LeaseUntil, e.get(resumed.ID).LeaseUntil
	if e.Advance != nil {
		e.wantLostOwners("no lease has ended", 0, time.Time{})
		e.until(first)
		e.wantLostOwners("one lease has ended", 1, first)
	}
	e.until(second)
	e.wantLostOwners("two leases have ended", 2, first)
	if stats := e.stats(); stats.Records[store.StateInProgress] != 3 {
		e.Errorf("M1: %d records are in progress, want 3, lost or not", stats.Records[store.StateInProgress])
	}
	e.own(resumed.ID, resume, resumeOnly)
	e.wantLostOwners("a resumer has come", 1, first)
	if has[store.Sweeper](e.Instance) {
		e.sweep(crowd)
		e.wantLostOwners("a sweeper has come", 0, time.Time{})
	}
}

// wantLostOwners checks the statistics of lost owners.
func (e *env) wantLostOwners(when string, lost int64, oldest time.Time) {
	e.Helper()
	if stats := e.stats(); stats.LostOwners != lost || !stats.OldestLostOwner.Equal(oldest) {
		e.Errorf("B1: %s: %d lost owners, the oldest since %s, want %d since %s", when, stats.LostOwners,
			stats.OldestLostOwner, lost, oldest)
	}
}
