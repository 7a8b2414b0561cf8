package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward"
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

func exerciseOwner(t *testing.T, store *postgres.Store, word string) {
	t.Helper()
	c := own(t, store, reservation(word+" owned"))
	must(t, store.Extend(t.Context(), c, time.Hour))
	must(t, store.Checkpoint(t.Context(), c, onceward.Checkpoint{Point: "charged", Data: []byte("data")}))
	must(t, store.Release(t.Context(), c, "no stock"))
	c = own(t, store, reservation(c.Key))
	complete(t, store, c, "done")
	wantReplay(t, store, c.Key, "done", "I3")
	wantState(t, store, c.Key, onceward.StateCompleted, "E2")
}

func exerciseTransactions(t *testing.T, store *postgres.Store, word string) {
	t.Helper()
	transacted(t, store, word+" committed", nothing)
	wantReplay(t, store, word+" committed", word+" committed", "I3")
	for key, ending := range map[string]onceward.Ending{"rolled back": onceward.Rollback, "answered": onceward.CommitAnswer} {
		v, err := store.Transact(t.Context(), reservation(word+" "+key), func(context.Context, onceward.Verdict) onceward.Settlement {
			return onceward.Settlement{Ending: ending, Completion: *answer(key)}
		})
		if err != nil || v.Decision != onceward.DecisionExecute {
			t.Errorf("E1: a transaction that is %s got (%s, %v)", key, v.Decision, err)
		}
	}
	wantState(t, store, word+" rolled back", onceward.StateNone, "E1")
	wantReplay(t, store, word+" answered", "answered", "E1")
	released := own(t, store, reservation(word+" released"))
	must(t, store.Release(t.Context(), released, ""))
	transacted(t, store, released.Key, nothing)
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

func exerciseBackground(t *testing.T, store *postgres.Store, word string) {
	t.Helper()
	r := reservation(word + " lost")
	r.Lease = time.Microsecond
	own(t, store, r)
	if n, err := store.Sweep(t.Context(), 10); err != nil || n != 1 {
		t.Errorf("section 7: swept (%d, %v), want 1", n, err)
	}
	wantState(t, store, r.Key, onceward.StateUnknown, "section 7")
	for _, soft := range []bool{false, true} {
		r := reservation(word + " expired")
		r.Retention = 2 * time.Microsecond
		complete(t, store, own(t, store, r), "done")
		if n, err := store.Reap(t.Context(), 10, soft); err != nil || n == 0 {
			t.Errorf("section 7: reaped (%d, %v)", n, err)
		}
	}
	if rec, err := store.Get(t.Context(), idOf(word+" expired")); err == nil && rec.State != onceward.StateExpired {
		t.Errorf("section 7: what was reaped is %s", rec.State)
	}
}

func exerciseReconciler(t *testing.T, store *postgres.Store, word string) {
	t.Helper()
	var claims []onceward.Claim
	for _, key := range keys(word+" unknown", 3) {
		c := own(t, store, reservation(key))
		must(t, store.Abandon(t.Context(), c, "the connection was lost"))
		must(t, store.BeginReconcile(t.Context(), c, 0, time.Minute))
		must(t, store.Postpone(t.Context(), c, onceward.Postponement{Count: 1, Wait: time.Minute, Limit: 1, Reason: "not found yet"}))
		must(t, store.Requeue(t.Context(), c, "ask again"))
		claims = append(claims, c)
	}
	must(t, store.ResolveCompleted(t.Context(), claims[0], answer("learned")))
	wantReplay(t, store, claims[0].Key, "learned", "section 7")
	must(t, store.ResolveNotExecuted(t.Context(), claims[1], "never arrived"))
	must(t, store.Bust(t.Context(), claims[1].ID, false))
	must(t, store.Bust(t.Context(), claims[2].ID, true))
}

func exerciseEvidence(t *testing.T, store *postgres.Store, word string) {
	t.Helper()
	c := onceward.Claim{ID: idOf(word + " evident"), Attempt: 7}
	finding := onceward.Finding{Claim: c, Response: answer("late").Response, At: time.Now().UTC().Truncate(time.Microsecond)}
	must(t, store.AddFinding(t.Context(), finding))
	found, err := store.Findings(t.Context(), c.ID)
	if err != nil || len(found) != 1 || string(found[0].Response.Body) != "late" {
		t.Errorf("S6: findings are (%v, %v)", found, err)
	}
	notice := onceward.Notice{Source: "psp", EventID: word, Subject: c.Key, At: time.Now(), Body: []byte("paid")}
	for _, want := range []bool{true, false} {
		if added, err := store.AddNotice(t.Context(), notice); err != nil || added != want {
			t.Errorf("B3: a notice was added (%t, %v), want %t", added, err, want)
		}
	}
	notices, err := store.Notices(t.Context(), "psp", c.Key)
	if err != nil || len(notices) != 1 || string(notices[0].Body) != "paid" {
		t.Errorf("B3: notices are (%v, %v)", notices, err)
	}
	must(t, store.AddAudit(t.Context(), onceward.AuditEntry{ID: c.ID, Attempt: c.Attempt, Actor: "ops"}))
	entries, err := store.Audit(t.Context(), c.ID)
	if err != nil || len(entries) != 1 || entries[0].Actor != "ops" {
		t.Errorf("L7: the acts are (%v, %v)", entries, err)
	}
	for name, purge := range map[string]func(context.Context, time.Duration, int) (int, error){
		"notices": store.PurgeNotices, "acts": store.PurgeAudit,
	} {
		if n, err := purge(t.Context(), -time.Second, 10); err != nil || n != 1 {
			t.Errorf("L7: purging %s removed (%d, %v), want 1", name, n, err)
		}
	}
}

func exerciseLister(t *testing.T, store *postgres.Store) {
	t.Helper()
	stats, err := store.Stats(t.Context())
	must(t, err)
	page, err := store.List(t.Context(), onceward.Filter{State: onceward.StateCompleted})
	if err != nil || len(page) == 0 || int64(len(page)) != stats.Records[onceward.StateCompleted] {
		t.Errorf("section 11: the list has %d completed records (%v), the counts say %v", len(page), err, stats.Records)
	}
}

// wantUnavailable checks that each call fails closed, and says what is wrong.
func wantUnavailable(t *testing.T, store *postgres.Store, says func(err error) bool, rule string) {
	t.Helper()
	for name, f := range calls(store) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := f(ctx)
		cancel()
		if !errors.Is(err, onceward.ErrUnavailable) || !says(err) {
			t.Errorf("%s: %s got %v", rule, name, err)
		}
	}
}
