package postgres_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// Scenarios 1 and 2: an owner that is stopped, and comes back when it is the owner no more.

// TestStoppedOwnerCompletesLate stops an owner between its effect and its answer.
func TestStoppedOwnerCompletesLate(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	owner, other := startTeller(t, s), startTeller(t, s)
	first := owner.starts(t, "/reserved", "key", "after")
	must(t, owner.Pause())
	mustSend(t, other.url+"/reserved", "key").wantProblem(t, http.StatusConflict, "in-progress", "the lease lasts")
	eventually(t, "the outcome is unknown", 10*time.Second, func() bool {
		return mustSend(t, other.url+"/reserved", "key").code() == "outcome-unknown"
	})
	mustSend(t, other.url+"/reserved", "key").wantProblem(t, http.StatusConflict, "outcome-unknown", "scenario 1")
	must(t, owner.Resume())
	owner.Tell("go on")
	late := await(t, "the owner's answer", first)
	late.want(t, http.StatusCreated, false, "section 4: the same attempt, finishing late")
	again := mustSend(t, other.url+"/reserved", "key")
	again.want(t, http.StatusCreated, true, "section 4: the same attempt, finishing late")
	if again.body != late.body {
		t.Errorf("I3: the owner was told %q, the retry %q", late.body, again.body)
	}
	s.wantRows(t, "key", 1, "I1")
}

// TestStoppedOwnerMakesNoEffect stops an owner between its intent and its effect.
func TestStoppedOwnerMakesNoEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	owner, other := startTeller(t, s), startTeller(t, s)
	first := owner.starts(t, "/reserved", "key", "before")
	must(t, owner.Pause())
	eventually(t, "the outcome is unknown", 10*time.Second, func() bool {
		return mustSend(t, other.url+"/reserved", "key").code() == "outcome-unknown"
	})
	owner.Tell("go on")
	must(t, owner.Resume())
	if late := await(t, "the owner's answer", first); late.status != http.StatusInternalServerError || late.replayed() {
		t.Errorf("scenario 2: the owner was answered %d %q", late.status, late.body)
	}
	mustSend(t, other.url+"/reserved", "key").wantProblem(t, http.StatusConflict, "outcome-unknown", "E2: a lost lease")
	s.wantRows(t, "key", 0, "S5: the handler asked before its effect")
}

// TestStoppedTransactionLosesItsLock stops an owner in mid-transaction. The server puts it out after a bounded time, and that
// takes six seconds with the lease of a teller.
func TestStoppedTransactionLosesItsLock(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	owner, other := startTeller(t, s), startTeller(t, s)
	first := owner.starts(t, "/transactional", "key", "after")
	must(t, owner.Pause())
	mustSend(t, other.url+"/transactional", "key").wantProblem(t, http.StatusConflict, "in-progress", "the lock is held")
	var retry httpReply
	eventually(t, "the lock is free", 20*time.Second, func() bool {
		retry = mustSend(t, other.url+"/transactional", "key")
		return retry.code() != "in-progress"
	})
	retry.want(t, http.StatusCreated, false, "E1: a node that stops loses its lock")
	owner.Tell("go on")
	must(t, owner.Resume())
	late := await(t, "the owner's answer", first)
	// Its connection is gone, and its time is over: whichever it external events first.
	if code := late.code(); late.status != http.StatusServiceUnavailable || code != "store-unavailable" && code != "deadline-exceeded" {
		t.Errorf("E1: its transaction was undone: got %d %q, want 503", late.status, late.body)
	}
	again := mustSend(t, owner.url+"/transactional", "key")
	again.want(t, http.StatusCreated, true, "I3")
	if again.body != retry.body {
		t.Errorf("I3: the retry was told %q, and then %q", retry.body, again.body)
	}
	s.wantRows(t, "key", 1, "I1")
	st := s.store(t, pgxHandle, s.url)
	wantStateOf(t, st, "key", store.StateCompleted, "I2")
}
