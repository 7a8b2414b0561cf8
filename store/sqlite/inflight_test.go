package sqlite_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// TestSeenInFlight: while a handler runs, the process sees its key at once, in both modes, and never waits for the writer.
func TestSeenInFlight(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	flying := func(want bool, rule string) {
		t.Helper()
		if s.InFlight(idOf("key")) != want {
			t.Errorf("%s: in flight is %t, want %t", rule, !want, want)
		}
	}
	flying(false, "before")
	waited := make(chan error, 1)
	transacted(t, s, reservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
		if err := insert(ctx, "row"); err != nil {
			t.Error(err)
		}
		flying(true, "E1")
		within(t, "a duplicate in flight", func() {
			transacted(t, s, reservation("key"), never(t, "I1"), store.DecisionInProgress, "E1: a duplicate")
			changed := reservation("key")
			changed.Fingerprints[0].Sum = [32]byte{2}
			transacted(t, s, changed, never(t, "I8"), store.DecisionInProgress, "S4: nothing is visible before the commit")
			if v, err := s.Reserve(t.Context(), reservation("key")); err != nil || v.Decision != store.DecisionInProgress {
				t.Errorf("E1: the same key in reserved mode got (%s, %v)", v.Decision, err)
			}
			wantState(t, s, "key", store.StateNone, "E1: before the commit")
			wantRows(t, s, "row", 0, "E1: before the commit")
			if s.InFlight(idOf("other")) {
				t.Error("another key is in flight")
			}
		})
		brief, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if err := s.Wait(brief, idOf("key"), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for what goes on got %v", err)
		}
		go func() { waited <- s.Wait(context.Background(), idOf("key"), 0) }()
		return settled(store.TxCommit, "done")
	}, store.DecisionExecute, "E1")
	flying(false, "after")
	within(t, "the wait for a transaction that ended", func() {
		if err := errors.Join(<-waited, s.Wait(t.Context(), idOf("key"), 0)); err != nil {
			t.Error(err)
		}
	})
	transacted(t, s, reservation("key"), never(t, "I1"), store.DecisionReplay, "I3")
}

// TestReservedMeetsTransactional: a record in progress in reserved mode is in progress for a transaction too.
func TestReservedMeetsTransactional(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	grant, err := s.Reserve(t.Context(), reservation("key"))
	if err != nil {
		t.Fatal(err)
	}
	transacted(t, s, reservation("key"), never(t, "I1"), store.DecisionInProgress, "E1")
	if s.InFlight(idOf("key")) {
		t.Error("a reservation is not a transaction")
	}
	claim := store.Claim{ID: idOf("key"), Attempt: grant.Record.Attempt}
	if err := s.Release(t.Context(), claim, "no stock"); err != nil {
		t.Fatal(err)
	}
	transacted(t, s, reservation("key"), inserting("row"), store.DecisionExecute, "section 4")
	if err := s.Extend(t.Context(), claim, time.Minute); !errors.Is(err, store.ErrFenced) {
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
	h = guard.Handler(handler, onceward.Transactional(), onceward.InFlightAccepted("/operations/"))
	if a := status(); a.status != http.StatusNotFound {
		t.Errorf("section 6: the status of no key is %d", a.status)
	}
	post(h, "key").want(t, http.StatusCreated, false, "E1")
	if a := status(); a.status != http.StatusOK {
		t.Errorf("section 6: the status afterwards is %d %s", a.status, a.body)
	}
	handler.wantRuns(t, 1, "I1")
}
