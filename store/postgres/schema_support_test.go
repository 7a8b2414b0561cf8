package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// This file does everything with a store that can be done, for tests that ask where or as whom it is done.

// exercise uses each part of a store once. The keys begin with a word of the caller's.
func exercise(t *testing.T, store *postgres.Store, word string) {
	t.Helper()
	exerciseOwner(t, store, word)
	exerciseTransactions(t, store, word)
	exerciseWaiting(t, store, word)
	exerciseBackground(t, store, word)
	exerciseReconciler(t, store, word)
	exerciseEvidence(t, store, word)
	exerciseLister(t, store)
}

func exerciseOwner(t *testing.T, s *postgres.Store, word string) {
	t.Helper()
	c := own(t, s, reservation(word+" owned"))
	must(t, s.Extend(t.Context(), c, time.Hour))
	must(t, s.Checkpoint(t.Context(), c, store.Checkpoint{Point: "charged", Data: []byte("data")}))
	must(t, s.Release(t.Context(), c, "no stock"))
	c = own(t, s, reservation(c.Key))
	complete(t, s, c, "done")
	wantReplay(t, s, c.Key, "done", "I3")
	wantState(t, s, c.Key, store.StateCompleted, "E2")
}

func exerciseTransactions(t *testing.T, s *postgres.Store, word string) {
	t.Helper()
	transacted(t, s, word+" committed", nothing)
	wantReplay(t, s, word+" committed", word+" committed", "I3")
	for key, ending := range map[string]store.TxAction{"rolled back": store.TxRollback, "answered": store.TxCommitAnswer} {
		v, err := s.Transact(t.Context(), reservation(word+" "+key), func(context.Context, store.Verdict) store.Settlement {
			return store.Settlement{Action: ending, Completion: *answer(key)}
		})
		if err != nil || v.Decision != store.DecisionExecute {
			t.Errorf("E1: a transaction that is %s got (%s, %v)", key, v.Decision, err)
		}
	}
	wantState(t, s, word+" rolled back", store.StateNone, "E1")
	wantReplay(t, s, word+" answered", "answered", "E1")
	released := own(t, s, reservation(word+" released"))
	must(t, s.Release(t.Context(), released, ""))
	transacted(t, s, released.Key, nothing)
}

func exerciseWaiting(t *testing.T, store *postgres.Store, word string) {
	t.Helper()
	c := own(t, store, reservation(word+" awaited"))
	ended := crowd(t.Context(), 1, func(ctx context.Context, _ int) {
		if err := store.Wait(ctx, c.ID, c.Attempt); err != nil {
			t.Errorf("a wait ended with %v", err)
		}
	})
	complete(t, store, c, "done")
	ended()
}

func exerciseBackground(t *testing.T, s *postgres.Store, word string) {
	t.Helper()
	r := reservation(word + " lost")
	r.Lease = time.Microsecond
	own(t, s, r)
	if n, err := s.Sweep(t.Context(), 10); err != nil || n != 1 {
		t.Errorf("section 7: swept (%d, %v), want 1", n, err)
	}
	wantState(t, s, r.Key, store.StateUnknown, "section 7")
	for _, soft := range []bool{false, true} {
		r := reservation(word + " expired")
		r.Retention = 2 * time.Microsecond
		complete(t, s, own(t, s, r), "done")
		if n, err := s.Reap(t.Context(), 10, soft); err != nil || n == 0 {
			t.Errorf("section 7: reaped (%d, %v)", n, err)
		}
	}
	if rec, err := s.Get(t.Context(), idOf(word+" expired")); err == nil && rec.State != store.StateExpired {
		t.Errorf("section 7: what was reaped is %s", rec.State)
	}
}

func exerciseReconciler(t *testing.T, s *postgres.Store, word string) {
	t.Helper()
	var claims []store.Claim
	for _, key := range keys(word+" unknown", 3) {
		c := own(t, s, reservation(key))
		must(t, s.Abandon(t.Context(), c, "the connection was lost"))
		must(t, s.BeginReconcile(t.Context(), c, 0, time.Minute))
		must(t, s.Postpone(t.Context(), c,
			store.Postponement{Count: 1, Wait: time.Minute, MaxAttempts: 1, Reason: "not found yet"}))
		must(t, s.Requeue(t.Context(), c, "ask again"))
		claims = append(claims, c)
	}
	must(t, s.ResolveCompleted(t.Context(), claims[0], answer("learned")))
	wantReplay(t, s, claims[0].Key, "learned", "section 7")
	must(t, s.ResolveNotExecuted(t.Context(), claims[1], "never arrived"))
	must(t, s.Bust(t.Context(), claims[1].ID, false))
	must(t, s.Bust(t.Context(), claims[2].ID, true))
}

func exerciseEvidence(t *testing.T, s *postgres.Store, word string) {
	t.Helper()
	c := store.Claim{ID: idOf(word + " evident"), Attempt: 7}
	late := store.LateCompletion{
		Claim: c, Response: answer("late").Response, At: time.Now().UTC().Truncate(time.Microsecond),
	}
	must(t, s.AddLateCompletion(t.Context(), late))
	found, err := s.LateCompletions(t.Context(), c.ID)
	if err != nil || len(found) != 1 || string(found[0].Response.Body) != "late" {
		t.Errorf("S6: late completions are (%v, %v)", found, err)
	}
	event := store.ExternalEvent{
		Source: "psp", Scope: "tenant", EventID: word, Subject: c.Key, At: time.Now(), Body: []byte("paid"),
	}
	for _, want := range []bool{true, false} {
		if added, err := s.AddExternalEvent(t.Context(), event); err != nil || added != want {
			t.Errorf("B3: an external event was added (%t, %v), want %t", added, err, want)
		}
	}
	events, err := s.ExternalEvents(t.Context(), aboutCharge(c.Key))
	if err != nil || len(events) != 1 || string(events[0].Body) != "paid" {
		t.Errorf("B3: external events are (%v, %v)", events, err)
	}
	must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: c.ID, Attempt: c.Attempt, Actor: "ops"}))
	entries, err := s.Audit(t.Context(), c.ID)
	if err != nil || len(entries) != 1 || entries[0].Actor != "ops" {
		t.Errorf("L7: the acts are (%v, %v)", entries, err)
	}
	for name, purge := range map[string]func(context.Context, time.Duration, int) (int, error){
		"external events": s.PurgeExternalEvents, "acts": s.PurgeAudit,
	} {
		if n, err := purge(t.Context(), -time.Second, 10); err != nil || n != 1 {
			t.Errorf("L7: purging %s removed (%d, %v), want 1", name, n, err)
		}
	}
}

func exerciseLister(t *testing.T, s *postgres.Store) {
	t.Helper()
	stats, err := s.Stats(t.Context())
	must(t, err)
	page, err := s.List(t.Context(), store.Filter{State: store.StateCompleted})
	if err != nil || len(page) == 0 || int64(len(page)) != stats.Records[store.StateCompleted] {
		t.Errorf("section 11: the list has %d completed records (%v), the counts say %v", len(page), err, stats.Records)
	}
}

// wantUnavailable checks that each call fails closed, and says what is wrong.
func wantUnavailable(t *testing.T, s *postgres.Store, says func(err error) bool, rule string) {
	t.Helper()
	for name, f := range calls(s) {
		err := f(t.Context())
		if !errors.Is(err, store.ErrUnavailable) || !says(err) {
			t.Errorf("%s: %s got %v", rule, name, err)
		}
	}
}
