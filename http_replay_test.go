package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestEveryReplayIsOfItsKey: however many replays there are at once, each has the answer to its own key.
func TestEveryReplayIsOfItsKey(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/payments/"+r.Header.Get("Idempotency-Key"))
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "the answer to "+r.Header.Get("Idempotency-Key"))
	}}
	h := newGuard(t, memory.New()).Handler(handler, reserved)
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			for i := range 500 {
				key := fmt.Sprint("key-", (i*7+caller)%20)
				a := post(h, key, `{}`)
				if a.status == http.StatusConflict {
					continue // its first request is in progress
				}
				if a.body != "the answer to "+key || a.header.Get("Location") != "/payments/"+key {
					t.Errorf("I9: the replay of %s is %d %q at %q", key, a.status, a.body, a.header.Get("Location"))
				}
			}
		})
	}
	callers.Wait()
	handler.wantRuns(t, "S1", 20)
}

func TestReplayIsByteForByte(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		media  string
		body   string
	}{
		"created":            {http.StatusCreated, "application/json", `{"id": 1}` + "\n"},
		"binary":             {http.StatusOK, "application/octet-stream", "\x00\xff\r\n\x1b"},
		"empty":              {http.StatusOK, "", ""},
		"no content":         {http.StatusNoContent, "", ""},
		"not modified":       {http.StatusNotModified, "", ""},
		"redirect":           {http.StatusSeeOther, "text/html", "see there"},
		"client's error":     {http.StatusConflict, "text/plain", "no"},
		"an unusual status":  {299, "text/plain", "what"},
		"a sniffed type":     {http.StatusOK, "", "<html>hello"},
		"net/http chunks it": {http.StatusOK, "text/plain", strings.Repeat("0123456789", 1000)},
		"1 MiB":              {http.StatusOK, "text/plain", strings.Repeat("x", 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
				if test.media != "" {
					w.Header().Set("Content-Type", test.media)
				}
				w.WriteHeader(test.status)
				io.WriteString(w, test.body)
			}}
			server := startServer(t, newGuard(t, memory.New()).Handler(handler, reserved))
			noRedirects(server.Client())
			first := send(t, server, "k", `{}`)
			first.want(t, "section 6", test.status, false)
			if first.body != test.body {
				t.Errorf("section 6: the first answer has %d bytes, want the %d that the handler wrote",
					len(first.body), len(test.body))
			}
			expires, err := http.ParseTime(first.header.Get("Idempotency-Key-Expires"))
			if err != nil || time.Until(expires) < 23*time.Hour || time.Until(expires) > 24*time.Hour {
				t.Errorf("section 6: Idempotency-Key-Expires is %q, want an HTTP date in 24 hours",
					first.header.Get("Idempotency-Key-Expires"))
			}
			second := send(t, server, "k", `{}`)
			second.want(t, "section 6", test.status, true)
			second.header.Del("Idempotent-Replayed")
			first.header.Del("Date")
			second.header.Del("Date")
			if second.body != first.body || fmt.Sprint(second.header) != fmt.Sprint(first.header) {
				t.Errorf("section 6, A2: replayed %d bytes with %v, first were %d bytes with %v", len(second.body),
					second.header, len(first.body), first.header)
			}
			if length := fmt.Sprint(len(test.body)); len(test.body) > 2048 &&
				first.header.Get("Content-Length") != length {
				t.Errorf("A2: the first answer is not framed with its length %s: %v", length, first.header)
			}
			if test.body == "" && test.status != http.StatusOK && second.header.Get("Content-Length") != "" {
				t.Errorf("A3: %d with Content-Length %q", test.status, second.header.Get("Content-Length"))
			}
			handler.wantRuns(t, "section 6", 1)
		})
	}
}

func noRedirects(client *http.Client) {
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
}

func TestTheReplayedHeaderHasAName(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.ReplayedHeader = "x-was-replayed" })
	h := guard.Handler(new(counted), reserved)
	if got := post(h, "k", `{}`).header.Get("X-Was-Replayed"); got != "" {
		t.Errorf("section 6: the first answer says %q", got)
	}
	again := post(h, "k", `{}`)
	if got := again.header.Get("X-Was-Replayed"); got != "true" || again.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("section 6: the replay's header is %v", again.header)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			if d, err := time.ParseDuration(r.URL.Query().Get("retain")); err == nil {
				onceward.FromContext(r.Context()).Retain(d)
			}
		}}
		h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.Retain(2*time.Hour))
		at := func(key, target string) answer { return serve(h, newRequest(http.MethodPost, target, key, `{}`)) }
		until := func(a answer) time.Duration {
			expires, err := http.ParseTime(a.header.Get("Idempotency-Key-Expires"))
			if err != nil {
				t.Fatal(err)
			}
			return time.Until(expires)
		}
		if got := until(at("plain", "/p")); got != 2*time.Hour {
			t.Errorf("section 6: the answer is kept for %s, want 2h", got)
		}
		if got := until(at("longer", "/p?retain=5h")); got != 5*time.Hour {
			t.Errorf("section 11: the record is kept for %s, want the 5h that the handler asked for", got)
		}
		if got := until(at("shorter", "/p?retain=1m")); got != 2*time.Hour {
			t.Errorf("section 11: the record is kept for %s, want the route's 2h", got)
		}
		time.Sleep(2*time.Hour - time.Second)
		at("plain", "/p").want(t, "S2: just before the expiry", http.StatusOK, true)
		handler.wantRuns(t, "S2", 3)
		time.Sleep(time.Second)
		at("plain", "/p").want(t, "section 4: past its expiry, as if absent", http.StatusOK, false)
		at("longer", "/p?retain=5h").want(t, "section 11: kept longer", http.StatusOK, true)
		handler.wantRuns(t, "section 4", 4)
	})
}

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
			h := guard.Handler(handler, reserved, onceward.BindSession(sessionOf))
			first := post(h, "k", `{}`, inSession("one"))
			first.want(t, "L4", http.StatusCreated, false)
			post(h, "k", `{}`, inSession("one")).wantSame(t, "L4: the same session", first)

			other := post(h, "k", `{}`, inSession("two"))
			other.wantProblem(t, "D2: another session is a mismatch", test.status, "mismatch")
			if strings.Contains(other.body, "execution") || other.header.Get("Location") != "" {
				t.Errorf("D2: another session sees stored data: %v %s", other.header, other.body)
			}
			mismatch := post(h, "k", `{"other":1}`, inSession("one"))
			mismatch.withoutInstance().wantSame(t, "D2: the two cannot be told apart", other.withoutInstance())
			handler.wantRuns(t, "L4", 1)
		})
	}
}

func TestNoSession(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	h := newGuard(t, store).Handler(handler, reserved, onceward.BindSession(sessionOf))
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
			h = newGuard(t, memory.New()).Handler(handler, reserved, onceward.BindSession(sessionOf), option)
			post(h, "k", `{}`, inSession("one")).want(t, "D2", http.StatusOK, false)
			handler.wantRuns(t, "D2", 1)
		})
	}
}

func TestTheSameSessionInAnotherScope(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	h := newGuard(t, s).Handler(handler, reserved, onceward.BindSession(sessionOf))
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
	before := guard.Handler(handler, reserved)
	after := guard.Handler(handler, reserved, onceward.BindSession(sessionOf))
	post(before, "old", `{}`)
	post(after, "old", `{}`, inSession("one")).
		want(t, "D2: a record from before carries no session", http.StatusCreated, true)
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
		return guard.Handler(handler, reserved, bind), guard.StatusHandler(bind)
	}
	old, _ := build(withSecrets(oldSecret))
	post(old, "k", `{}`, inSession("one"))
	rotated, statuses := build(withSecrets(newSecret, oldSecret))
	post(rotated, "k", `{}`, inSession("one")).want(t, "F1, L4", http.StatusCreated, true)
	post(rotated, "k", `{}`, inSession("two")).wantProblem(t, "F1, L4", http.StatusUnprocessableEntity, "mismatch")
	ask(statuses, "/operations/k", inSession("one")).want(t, "F1, L4", http.StatusOK, false)
	ask(statuses, "/operations/k", inSession("two")).wantProblem(t, "F1, L4", http.StatusNotFound, "key-not-found")
	_, lost := build(withSecrets(newSecret))
	ask(lost, "/operations/k", inSession("one")).
		wantProblem(t, "D6: it cannot be said whose it is", http.StatusNotFound, "key-not-found")
	handler.wantRuns(t, "F1", 1)
}
