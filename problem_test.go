package onceward_test

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func TestMismatchByProfile(t *testing.T) {
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
			h := guard.Handler(handler, reserved)
			post(h, "k", `{"amount":1}`)
			if p := post(h, "k", `{"amount":2}`).wantProblem(t, "section 6", test.status, "mismatch"); p.Retryable {
				t.Error("A1: a mismatch must not be sent again")
			}
			handler.wantRuns(t, "I8", 1)
		})
	}
}

// answers are the rows of section 6 that do not depend on the profile, each made to happen.
var answers = map[string]struct {
	status     int
	code       string
	retryable  bool
	retryAfter bool
	happen     func(t *testing.T, profile func(*onceward.Config)) answer
}{
	"in flight": {http.StatusConflict, "in-progress", true, true, func(t *testing.T, profile func(*onceward.Config)) answer {
		var duplicate answer
		var h http.Handler
		handler := &counted{then: func(http.ResponseWriter, *http.Request) { duplicate = post(h, "k", `{}`) }}
		h = newGuard(t, memory.New(), profile).Handler(handler, reserved)
		post(h, "k", `{}`)
		handler.wantRuns(t, "section 6", 1)
		return duplicate
	}},
	"missing key": {http.StatusBadRequest, "missing-key", false, false, func(t *testing.T, profile func(*onceward.Config)) answer {
		return post(newGuard(t, memory.New(), profile).Handler(new(counted), reserved), "", `{}`)
	}},
	"bad key": {http.StatusBadRequest, "invalid-key", false, false, func(t *testing.T, profile func(*onceward.Config)) answer {
		return post(newGuard(t, memory.New(), profile).Handler(new(counted), reserved), "a,b", `{}`)
	}},
	"outcome unknown, on a retry": {http.StatusConflict, "outcome-unknown", true, true, func(t *testing.T, profile func(*onceward.Config)) answer {
		handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Unknown()
		}}
		h := newGuard(t, memory.New(), profile).Handler(handler, reserved)
		post(h, "k", `{}`)
		defer handler.wantRuns(t, "section 6", 1)
		return post(h, "k", `{}`)
	}},
	"outcome became unknown": {http.StatusInternalServerError, "outcome-unknown", true, true, func(t *testing.T, profile func(*onceward.Config)) answer {
		handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Unknown()
		}}
		return post(newGuard(t, memory.New(), profile).Handler(handler, reserved), "k", `{}`)
	}},
	"unreadable": {http.StatusInternalServerError, "record-unreadable", false, false, func(t *testing.T, profile func(*onceward.Config)) answer {
		store, handler := memory.New(), new(counted)
		post(newGuard(t, store, withSecrets(oldSecret)).Handler(handler, reserved), "k", `{}`)
		defer handler.wantRuns(t, "section 6", 1)
		return post(newGuard(t, store, profile).Handler(handler, reserved), "k", `{}`)
	}},
	"store unavailable": {http.StatusServiceUnavailable, "store-unavailable", true, true, func(t *testing.T, profile func(*onceward.Config)) answer {
		store, handler := newFaultyStore(), new(counted)
		store.reserve = brokenReserve
		guard := newGuard(t, store, profile)
		a := post(guard.Handler(handler, reserved), "k", `{}`)
		time.Sleep(time.Minute) // the search for a lost grant ends
		handler.wantRuns(t, "L2", 0)
		return a
	}},
	"new keys refused": {http.StatusTooManyRequests, "new-keys-refused", true, true, func(t *testing.T, profile func(*onceward.Config)) answer {
		store, handler := newFaultyStore(), new(counted)
		store.reserve = refusingReserve(store)
		defer handler.wantRuns(t, "S9", 0)
		return post(newGuard(t, store, profile).Handler(handler, reserved), "k", `{}`)
	}},
	"body over the limit": {http.StatusRequestEntityTooLarge, "body-too-large", false, false, func(t *testing.T, profile func(*onceward.Config)) answer {
		h := newGuard(t, memory.New(), profile).Handler(new(counted), reserved, onceward.BodyLimit(1))
		return post(h, "k", `{}`)
	}},
	"response not stored": {http.StatusConflict, "response-not-stored", false, false, func(t *testing.T, profile func(*onceward.Config)) answer {
		handler := new(counted)
		h := newGuard(t, memory.New(), profile).Handler(handler, reserved, onceward.ResponseLimit(1))
		post(h, "k", `{}`).want(t, "A4", http.StatusCreated, false)
		defer handler.wantRuns(t, "section 6", 1)
		return post(h, "k", `{}`)
	}},
	"status of no key": {http.StatusNotFound, "key-not-found", false, false, func(t *testing.T, profile func(*onceward.Config)) answer {
		return serve(newGuard(t, memory.New(), profile).StatusHandler(),
			newRequest(http.MethodGet, "/operations/none", "", ""))
	}},
}

func TestAnswersOfSection6(t *testing.T) {
	t.Parallel()
	for name, row := range answers {
		for _, profile := range []onceward.Profile{onceward.ProfileIETF, onceward.ProfileStripe} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					a := row.happen(t, func(c *onceward.Config) { c.Profile = profile })
					p := a.wantProblem(t, "section 6", row.status, row.code)
					if p.Retryable != row.retryable {
						t.Errorf("A1: retryable is %t, want %t", p.Retryable, row.retryable)
					}
					if got := a.header.Get("Retry-After"); row.retryAfter != (got != "") || got == "0" {
						t.Errorf("section 6: Retry-After is %q, want it present: %t, and at least 1", got, row.retryAfter)
					}
				})
			})
		}
	}
}

func TestProblemsTellNothingThatIsStored(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/payments/hidden")
		w.Header().Set("X-Hidden", "hidden")
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte("hidden"))
	}}
	h := newGuard(t, memory.New()).Handler(handler, reserved)
	post(h, "k", `{"hidden":1}`)
	a := post(h, "k", `{"other":1}`)
	a.wantProblem(t, "A1", http.StatusUnprocessableEntity, "mismatch")
	for name, values := range a.header {
		if strings.Contains(name+strings.Join(values, ""), "hidden") || name == "Location" ||
			name == "Idempotency-Key-Expires" {
			t.Errorf("A1: a mismatch carries %s: %q", name, values)
		}
	}
	if strings.Contains(a.body, "hidden") || regexp.MustCompile(`[0-9a-f]{32}`).MatchString(a.body) {
		t.Errorf("A1: a mismatch carries stored data: %s", a.body)
	}
}

func TestEveryProblemIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("problem.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`= (?:problem|retryable)\(.*?"([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(codes) < 20 {
		t.Fatalf("found only %d codes", len(codes))
	}
	for _, code := range codes {
		if !strings.Contains(string(page), "\n### "+code[1]+"\n") {
			t.Errorf("A1: docs/problems.md has no heading for %s", code[1])
		}
	}
}

func TestProblemsAreErrors(t *testing.T) {
	t.Parallel()
	short := &onceward.Problem{Title: "It broke"}
	long := &onceward.Problem{Title: "It broke", Detail: "badly"}
	if short.Error() != "onceward: It broke" || long.Error() != "onceward: It broke: badly" {
		t.Errorf("Error() = %q and %q", short.Error(), long.Error())
	}
}
