package sqlite_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/onceward/onceward"
)

// TestSeenInFlight: while a handler runs, the process sees its key at once, in both modes, and never waits for the writer.
func TestSeenInFlight(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	flying := func(want bool, rule string) {
		t.Helper()
		if store.InFlight(idOf("key")) != want {
			t.Errorf("%s: in flight is %t, want %t", rule, !want, want)
		}
	}
	flying(false, "before")
	waited := make(chan error, 1)
	transacted(t, store, reservation("key"), func(ctx context.Context, v onceward.Verdict) onceward.Settlement {
		if err := insert(ctx, "row"); err != nil {
			t.Error(err)
		}
		flying(true, "E1")
		within(t, "a duplicate in flight", func() {
			transacted(t, store, reservation("key"), never(t, "I1"), onceward.DecisionInProgress, "E1: a duplicate")
			changed := reservation("key")
			changed.Fingerprints[0].Sum = [32]byte{2}
			transacted(t, store, changed, never(t, "I8"), onceward.DecisionInProgress, "S4: nothing is visible before the commit")
			if v, err := store.Reserve(t.Context(), reservation("key")); err != nil || v.Decision != onceward.DecisionInProgress {
				t.Errorf("E1: the same key in reserved mode got (%s, %v)", v.Decision, err)
			}
			wantState(t, store, "key", onceward.StateNone, "E1: before the commit")
			wantRows(t, store, "row", 0, "E1: before the commit")
			if store.InFlight(idOf("other")) {
				t.Error("another key is in flight")
			}
		})
		brief, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if err := store.Wait(brief, idOf("key"), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for what goes on got %v", err)
		}
		go func() { waited <- store.Wait(context.Background(), idOf("key"), 0) }()
		return settled(onceward.Commit, "done")
	}, onceward.DecisionExecute, "E1")
	flying(false, "after")
	within(t, "the wait for a transaction that ended", func() {
		if err := errors.Join(<-waited, store.Wait(t.Context(), idOf("key"), 0)); err != nil {
			t.Error(err)
		}
	})
	transacted(t, store, reservation("key"), never(t, "I1"), onceward.DecisionReplay, "I3")
}

// TestReservedMeetsTransactional: a record in progress in reserved mode is in progress for a transaction too.
func TestReservedMeetsTransactional(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	grant, err := store.Reserve(t.Context(), reservation("key"))
	if err != nil {
		t.Fatal(err)
	}
	transacted(t, store, reservation("key"), never(t, "I1"), onceward.DecisionInProgress, "E1")
	if store.InFlight(idOf("key")) {
		t.Error("a reservation is not a transaction")
	}
	claim := onceward.Claim{ID: idOf("key"), Attempt: grant.Record.Attempt}
	if err := store.Release(t.Context(), claim, "no stock"); err != nil {
		t.Fatal(err)
	}
	transacted(t, store, reservation("key"), inserting("row"), onceward.DecisionExecute, "section 4")
	if err := store.Extend(t.Context(), claim, time.Minute); !errors.Is(err, onceward.ErrFenced) {
		t.Errorf("I6: the earlier owner got %v, want to be fenced", err)
	}
}

// TestStatusInFlight: the status of a transaction that is under way, for the policy that answers 202.
func TestStatusInFlight(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	guard := newGuard(t, store)
	mux := http.NewServeMux()
	mux.Handle("GET /operations/{key}", guard.StatusHandler())
	status := func() answer {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/operations/key", nil))
		return answer{status: w.Code, header: w.Result().Header, body: w.Body.String()}
	}
	handler := paying()
	inner := handler.then
	var h http.Handler
	handler.then = func(w http.ResponseWriter, r *http.Request, run int64) {
		within(t, "the status of a transaction in flight", func() {
			if a := status(); a.status != http.StatusOK {
				t.Errorf("section 6: the status in flight is %d %s", a.status, a.body)
			}
			duplicate := post(h, "key")
			if duplicate.status != http.StatusAccepted || duplicate.header.Get("Location") == "" || duplicate.header.Get("Retry-After") == "" {
				t.Errorf("section 6: a duplicate got %d %v", duplicate.status, duplicate.header)
			}
		})
		inner(w, r, run)
	}
	h = guard.Handler(handler, onceward.Transactional(), onceward.Accepted("/operations/"))
	if a := status(); a.status != http.StatusNotFound {
		t.Errorf("section 6: the status of no key is %d", a.status)
	}
	post(h, "key").want(t, http.StatusCreated, false, "E1")
	if a := status(); a.status != http.StatusOK {
		t.Errorf("section 6: the status afterwards is %d %s", a.status, a.body)
	}
	handler.wantRuns(t, 1, "I1")
}
