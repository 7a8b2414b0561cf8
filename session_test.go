package onceward_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func sessionOf(r *http.Request) string { return r.Header.Get("Session") }

func inSession(name string) edit { return withHeader("Session", name) }

func TestAKeyBelongsToItsSession(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		profile onceward.Profile
		status  int
	}{
		"IETF": {onceward.ProfileIETF, http.StatusUnprocessableEntity}, "Stripe": {onceward.ProfileStripe, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := new(counted)
			guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.Profile = test.profile })
			h := guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.BindSession(sessionOf))
			first := post(h, "k", `{}`, inSession("one"))
			first.want(t, "L4", http.StatusCreated, false)
			post(h, "k", `{}`, inSession("one")).wantSame(t, "L4: the same session", first)

			other := post(h, "k", `{}`, inSession("two"))
			other.wantProblem(t, "D2: another session is a mismatch", test.status, "mismatch")
			if strings.Contains(other.body, "execution") || other.header.Get("Location") != "" {
				t.Errorf("D2: another session sees stored data: %v %s", other.header, other.body)
			}
			mismatch := post(h, "k", `{"other":1}`, inSession("one"))
			mismatch.wantSame(t, "D2: nobody can tell the two apart", other)
			handler.wantRuns(t, "L4", 1)
		})
	}
}

func TestNoSession(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	h := newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.BindSession(sessionOf))
	post(h, "k", `{}`).wantProblem(t, "D2", http.StatusUnauthorized, "unauthenticated")
	handler.wantRuns(t, "D2", 0)
	wantNothingStored(t, "A7", store)
}

func TestAnotherSessionInFlight(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]onceward.Option{
		"conflict": onceward.InFlightConflict(), "accepted": onceward.InFlightAccepted("/operations/"),
	} {
		t.Run(name, func(t *testing.T) {
			var h http.Handler
			handler := &counted{then: func(http.ResponseWriter, *http.Request) {
				a := post(h, "k", `{}`, inSession("two"))
				a.wantProblem(t, "D2: in flight or not", http.StatusUnprocessableEntity, "mismatch")
			}}
			h = newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.BindSession(sessionOf), option)
			post(h, "k", `{}`, inSession("one")).want(t, "D2", http.StatusOK, false)
			handler.wantRuns(t, "D2", 1)
		})
	}
}

func TestTheSameSessionInAnotherScope(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.BindSession(sessionOf))
	post(h, "k", `{}`, inSession("one"), as("alice"))
	post(h, "k", `{}`, inSession("one"), as("bob")).want(t, "section 1", http.StatusCreated, false)
	handler.wantRuns(t, "section 1", 2)
	alice, errAlice := s.Get(context.Background(), aliceID("k"))
	bob, errBob := s.Get(context.Background(), store.ID{Scope: "bob", Key: "k"})
	if err := errors.Join(errAlice, errBob); err != nil {
		t.Fatal(err)
	}
	if alice.Fingerprint.Session == bob.Fingerprint.Session || alice.Fingerprint.Session == [16]byte{} {
		t.Error("F1: the same session can be recognised in two scopes")
	}
}

func TestARouteStartsToBindKeys(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	guard := newGuard(t, store)
	before := guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	after := guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.BindSession(sessionOf))
	post(before, "old", `{}`)
	post(after, "old", `{}`, inSession("one")).want(t, "D2: a record from before carries no session", http.StatusCreated, true)
	post(after, "new", `{}`, inSession("one"))
	post(before, "new", `{}`).wantProblem(t, "D2: a bound key stays bound", http.StatusUnprocessableEntity, "mismatch")
	handler.wantRuns(t, "D2", 2)
}

func TestSessionsSurviveASecretRotation(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	build := func(config func(*onceward.Config)) (http.Handler, http.Handler) {
		guard := newGuard(t, store, config)
		bind := onceward.BindSession(sessionOf)
		return guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown), bind), guard.StatusHandler(bind)
	}
	old, _ := build(withSecrets(oldSecret))
	post(old, "k", `{}`, inSession("one"))
	rotated, statuses := build(withSecrets(newSecret, oldSecret))
	post(rotated, "k", `{}`, inSession("one")).want(t, "F1, L4", http.StatusCreated, true)
	post(rotated, "k", `{}`, inSession("two")).wantProblem(t, "F1, L4", http.StatusUnprocessableEntity, "mismatch")
	ask(statuses, "/operations/k", inSession("one")).want(t, "F1, L4", http.StatusOK, false)
	ask(statuses, "/operations/k", inSession("two")).wantProblem(t, "F1, L4", http.StatusNotFound, "key-not-found")
	_, lost := build(withSecrets(newSecret))
	ask(lost, "/operations/k", inSession("one")).wantProblem(t, "D6: nobody can say whose it is", http.StatusNotFound, "key-not-found")
	handler.wantRuns(t, "F1", 1)
}
