package onceward_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
)

// refusals are answers that say nothing about the payment itself. Each is made to happen to a request that is in order otherwise.
var refusals = map[string]struct {
	status int
	code   string
	spoil  func(r *http.Request, store *faultyStore)
}{
	"nobody knows the caller": {http.StatusUnauthorized, "unauthenticated", func(r *http.Request, _ *faultyStore) {
		r.Header.Del("Authorization")
	}},
	"the caller cannot be looked up": {http.StatusServiceUnavailable, "store-unavailable", func(r *http.Request, _ *faultyStore) {
		r.Header.Set("Authorization", "Bearer down")
	}},
	"a body that is too large": {http.StatusRequestEntityTooLarge, "body-too-large", func(r *http.Request, _ *faultyStore) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat(" ", 101))), -1
	}},
	"a body that is cut off": {http.StatusBadRequest, "body-incomplete", func(r *http.Request, _ *faultyStore) {
		r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
	}},
	"a clock that is wrong": {http.StatusPreconditionFailed, "first-sent-too-old", func(r *http.Request, _ *faultyStore) {
		r.Header.Set(onceward.FirstSentHeader, time.Now().Add(-48*time.Hour).UTC().Format(http.TimeFormat))
	}},
	"an upgrade": {http.StatusBadRequest, "upgrade-refused", func(r *http.Request, _ *faultyStore) {
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Connection", "Upgrade")
	}},
	"the store is down": {http.StatusServiceUnavailable, "store-unavailable", func(_ *http.Request, s *faultyStore) {
		s.reserve = brokenReserve
	}},
	"new keys are not taken": {http.StatusTooManyRequests, "new-keys-refused", func(_ *http.Request, s *faultyStore) {
		s.reserve = refusingReserve(s)
	}},
}

// TestRefusalsAreNotCached: a key that was refused before the handler is free. The first request that is in order executes, and
// gets its own answer; and no cache on the way may keep the refusal (A1, by wantProblem).
func TestRefusalsAreNotCached(t *testing.T) {
	t.Parallel()
	for name, refusal := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, handler := newFaultyStore(), new(counted)
				guard := newGuard(t, store, giveUpSoon, func(c *onceward.Config) { c.Scope = scopeOrDown })
				h := guard.Handler(handler, onceward.Reserved(onceward.FailureStore), onceward.BodyLimit(100), onceward.CheckFirstSent(0))
				a := post(h, "k", `{"amount":1}`, func(r *http.Request) { refusal.spoil(r, store) })
				a.wantProblem(t, "A7", refusal.status, refusal.code)
				time.Sleep(time.Minute)
				synctest.Wait() // what looks for lost grants in the background has ended
				handler.wantRuns(t, "A7", 0)
				wantNothingStored(t, "A7", store)
				store.reserve = nil
				post(h, "k", `{"amount":1}`).want(t, "A7: the key is free", http.StatusCreated, false)
				post(h, "k", `{"amount":1}`).want(t, "A7", http.StatusCreated, true)
				handler.wantRuns(t, "A7", 1)
			})
		})
	}
}

// scopeOrDown is byToken with a directory that cannot be asked about one caller.
func scopeOrDown(r *http.Request) (string, error) {
	scope, err := byToken(r)
	if scope == "down" {
		return "", errors.New("the directory does not answer")
	}
	return scope, err
}
