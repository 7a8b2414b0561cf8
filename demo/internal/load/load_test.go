package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
)

// shop is a payments API in a few lines, which remembers keys.
type shop struct {
	mu     sync.Mutex
	seen   map[string]int
	bodies map[string]string
	// answer is asked for the status of the nth request with a key.
	answer func(key string, n int) int
}

// ServeHTTP implements [http.Handler].
func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		fmt.Fprint(w, `{"state":"charged"}`)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it was cut off
	}
	key := r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[key]++
	if before, ok := s.bodies[key]; ok && before != string(body) || !json.Valid(body) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	s.bodies[key] = string(body)
	w.Header().Set("Location", "/payments/"+key)
	w.WriteHeader(s.answer(key, s.seen[key]))
	fmt.Fprint(w, key)
}

func run(t *testing.T, plan []Order, answer func(key string, n int) int) ([]Note, *Load) {
	t.Helper()
	s := httptest.NewServer(&shop{seen: make(map[string]int), bodies: make(map[string]string), answer: answer})
	t.Cleanup(s.Close)
	l := New(Config{Plan: plan, Seed: 1, Targets: func() []string { return []string{s.URL} }, Every: time.Microsecond, AtOnce: 16})
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	return l.Run(ctx), l
}

func TestPlanFollowsItsSeed(t *testing.T) {
	t.Parallel()
	one, again, other := Plan("run-a", 1, 500), Plan("run-a", 1, 500), Plan("run-a", 2, 500)
	if !reflect.DeepEqual(one, again) || reflect.DeepEqual(one, other) {
		t.Error("the plan does not follow from its seed")
	}
	asked := Asked(one)
	if asked[Payment] != 500 || asked[Booking] != 30 || asked[Refund] == 0 {
		t.Errorf("asked for %v", asked)
	}
	keys := make(map[string]bool)
	for _, o := range one {
		if keys[o.Key] || !strings.HasPrefix(o.Key, "run-a-") {
			t.Errorf("the key %s is not of its own", o.Key)
		}
		keys[o.Key] = true
	}
}

// TestClientsInsist: whatever happens on the way, each client ends with the answer, and has asked for the same all
// along.
func TestClientsInsist(t *testing.T) {
	t.Parallel()
	plan := Plan("run-a", 1, 150)
	refusals := []int{0, 409, 503, 202, 500, 429}
	notes, l := run(t, plan, func(key string, n int) int {
		if n == 1 && refusals[len(key)%len(refusals)] > 0 {
			return refusals[len(key)%len(refusals)]
		}
		return http.StatusCreated
	})
	p := l.Progress()
	if len(notes) != p.Total || p.Answered != p.Total || p.Sent <= p.Total {
		t.Errorf("%d notes, and %+v", len(notes), p)
	}
	for _, n := range notes {
		if !n.Succeeded() || len(n.Answers) != 1 || n.Answers[0].Body != n.Key {
			t.Errorf("note %+v", n)
		}
	}
	for _, fault := range []Fault{LeaveEarly, CutAnswer, CutRequest, Overlap, AskAgain} {
		if p.Faults[fault] == 0 {
			t.Errorf("no client was %s", fault)
		}
	}
}

// TestDifferingAnswersAreNoted: a shop that forgets what it said is found out.
func TestDifferingAnswersAreNoted(t *testing.T) {
	t.Parallel()
	notes, _ := run(t, Plan("run-a", 1, 150), func(_ string, n int) int {
		if n%2 == 0 {
			return http.StatusGone
		}
		return http.StatusCreated
	})
	differing := 0
	for _, n := range notes {
		if len(n.Answers) > 1 {
			differing++
		}
	}
	if differing == 0 {
		t.Error("it was not noticed")
	}
}

// TestUnansweredIsNoted: a client that gets no answer says what it saw last.
func TestUnansweredIsNoted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(s.Close)
	l := New(Config{
		Plan: Plan("run-a", 1, 50), Seed: 1, Targets: func() []string { return []string{s.URL} }, Every: time.Microsecond, AtOnce: 8,
	})
	time.AfterFunc(200*time.Millisecond, cancel)
	notes := l.Run(ctx)
	if want := l.Progress().Total; len(notes) != want {
		t.Errorf("%d notes, want one for each of %d orders", len(notes), want)
	}
	for _, n := range notes {
		if n.Answered() || n.LastSeen == "" {
			t.Errorf("note %+v", n)
		}
	}
}
