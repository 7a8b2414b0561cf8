package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// allowance is a limiter with so much left. It counts what it was asked for.
type allowance struct {
	mu                        sync.Mutex
	keys, mismatches, lookups int
	taken, returned, undone   int
}

func (a *allowance) TakeKey(_ context.Context, _ string, retention time.Duration) *onceward.LimitError {
	a.mu.Lock()
	defer a.mu.Unlock()
	if retention != 24*time.Hour {
		panic(fmt.Sprint("a retention of ", retention))
	}
	if a.keys == 0 {
		return &onceward.LimitError{
			Name: onceward.LimitNewKeys, Limit: 100, Window: time.Minute, After: 11200 * time.Millisecond,
		}
	}
	a.keys--
	a.taken++
	return nil
}

func (a *allowance) ReturnKey(_ string, _ time.Duration, ran bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ran {
		a.undone++
		return
	}
	a.keys++
	a.returned++
}

func (a *allowance) Mismatch(context.Context, string) *onceward.LimitError {
	return a.count(&a.mismatches, onceward.LimitMismatches)
}

func (a *allowance) Lookup(context.Context, string) *onceward.LimitError {
	return a.count(&a.lookups, onceward.LimitLookups)
}

func (a *allowance) count(left *int, name string) *onceward.LimitError {
	a.mu.Lock()
	defer a.mu.Unlock()
	if *left == 0 {
		return &onceward.LimitError{Name: name, Limit: 10, Window: time.Second}
	}
	*left--
	return nil
}

func (a *allowance) wantLeft(t *testing.T, rule string, keys int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keys != keys {
		t.Errorf("%s: allowance for %d keys is left, want %d (%d taken, %d returned)", rule, a.keys, keys, a.taken,
			a.returned)
	}
}

func limitedBy(a *allowance) func(*onceward.Config) {
	return func(c *onceward.Config) { c.Limiter = a }
}

// modes are the ways to execute, each over a store of its own.
var modes = map[string]struct {
	open   func() store.Store
	option onceward.Option
}{
	"reserved":      {func() store.Store { return memory.New() }, onceward.Reserved(onceward.FailureRetry)},
	"transactional": {func() store.Store { return &scriptedTransactor{Store: memory.New()} }, onceward.Transactional()},
}

// TestLimitRefusesNewKeysAlone: over its limit a scope still gets its replays, mismatches and retries.
func TestLimitRefusesNewKeysAlone(t *testing.T) {
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside, limit := mode.open(), &allowance{keys: 2, mismatches: 1}
			fail := false
			handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
				if fail {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}}
			h := newGuard(t, inside, limitedBy(limit)).Handler(handler, mode.option)
			post(h, "first", `{}`).want(t, "L1", http.StatusOK, false)
			limit.wantLeft(t, "L1", 1)
			fail = true
			post(h, "failed", `{}`).want(t, "E5", http.StatusServiceUnavailable, false)
			fail = false
			limit.mu.Lock()
			limit.keys = 0
			limit.mu.Unlock()

			a := post(h, "second", `{}`)
			a.wantProblem(t, "L1", http.StatusTooManyRequests, "new-keys-refused")
			for name, want := range map[string]string{
				"Retry-After": "12", "RateLimit-Policy": `"new-keys";q=100;w=60`, "RateLimit": `"new-keys";r=0;t=12`,
			} {
				if got := a.header.Get(name); got != want {
					t.Errorf("L1: %s is %q, want %q", name, got, want)
				}
			}
			if _, err := inside.Get(t.Context(), aliceID("second")); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("L1: a refused key is stored: %v", err)
			}
			post(h, "first", `{}`).want(t, "A6", http.StatusOK, true)
			post(h, "first", `{"other":1}`).wantProblem(t, "S4", http.StatusUnprocessableEntity, "mismatch")
			post(h, "first", `{"other":1}`).wantProblem(t, "L1", http.StatusTooManyRequests, "mismatches-refused")
			post(h, "failed", `{}`).want(t, "L1: a retry is no new key", http.StatusOK, false)
			limit.wantLeft(t, "L1", 0)
		})
	}
}

// TestAllowanceIsGivenBack where no new key was made.
func TestAllowanceIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := &allowance{keys: 10, mismatches: 10}
			handler := new(counted)
			h := newGuard(t, mode.open(), limitedBy(limit)).Handler(handler, mode.option)
			post(h, "k", `{}`)
			limit.wantLeft(t, "L1", 9)
			for range 3 {
				post(h, "k", `{}`).want(t, "A6", http.StatusCreated, true)
				post(h, "k", `{"other":1}`)
			}
			limit.wantLeft(t, "A6: replays and mismatches", 9)
		})
	}
	// A rejected key stays in the store for its token: keys that no handler accepts must not fill it without bound.
	t.Run("rejected requests", func(t *testing.T) {
		t.Parallel()
		limit := &allowance{keys: 10}
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Reject()
			w.WriteHeader(http.StatusUnprocessableEntity)
		}}
		h := newGuard(t, memory.New(), limitedBy(limit)).Handler(handler, reserved)
		for _, key := range []string{"a", "b", "c"} {
			post(h, key, `{"amount":-1}`).want(t, "E5", http.StatusUnprocessableEntity, false)
		}
		limit.wantLeft(t, "L1", 7)
	})
	t.Run("a transaction whose end is unknown", func(t *testing.T) {
		t.Parallel()
		limit := &allowance{keys: 10}
		inside := &scriptedTransactor{Store: memory.New(), failure: store.ErrOutcomeUnknown}
		h := newGuard(t, inside, limitedBy(limit)).Handler(new(counted), onceward.Transactional())
		post(h, "k", `{}`)
		limit.wantLeft(t, "L1", 9)
	})
	// A client repeats its request for as long as an outage lasts: that must not use up what its scope may have.
	for name, test := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"a store that was not asked":     {fmt.Errorf("open: %w", store.ErrNotSent), 503, "store-unavailable"},
		"a store that may have heard it": {errDown, 503, "store-unavailable"},
		"a record that cannot be read":   {&store.UnreadableError{Reason: "its key is gone"}, 500, "record-unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limit, inside := &allowance{keys: 10}, newFaultyStore()
				inside.reserve = func(context.Context, *store.Reservation) (store.Verdict, error) {
					return store.Verdict{}, test.err
				}
				h := newGuard(t, inside, limitedBy(limit)).Handler(new(counted), reserved)
				post(h, "k", `{}`).wantProblem(t, "L2", test.status, test.code)
				limit.wantLeft(t, "L1", 10)
				time.Sleep(time.Minute) // the search for a lost grant ends
			})
		})
	}
}

// TestRunsThatAreUndoneAreLimited: a transaction that is rolled back leaves no key, but its handler ran. Otherwise a
// scope could have handlers run without bound.
func TestRunsThatAreUndoneAreLimited(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]http.HandlerFunc{
		"rejected": func(w http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Reject()
			w.WriteHeader(http.StatusUnprocessableEntity)
		},
		"500":               func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"503":               func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"too large to keep": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 101)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit, handler := &allowance{keys: 3}, &counted{then: then}
			guard := newGuard(t, &scriptedTransactor{Store: memory.New(), reruns: 1}, limitedBy(limit))
			h := guard.Handler(handler, onceward.Transactional(), onceward.ResponseLimit(100))
			for _, key := range []string{"a", "b", "c"} {
				post(h, key, `{}`)
			}
			post(h, "d", `{}`).wantProblem(t, "L1", http.StatusTooManyRequests, "new-keys-refused")
			handler.wantRuns(t, "L1: each transaction ran twice", 6)
			limit.wantLeft(t, "L1", 0)
			if limit.undone != 3 {
				t.Errorf("L1: %d keys are said to have left nothing, want 3", limit.undone)
			}
		})
	}
	t.Run("a caller that left before", func(t *testing.T) {
		t.Parallel()
		limit, handler := &allowance{keys: 3}, new(counted)
		h := newGuard(t, &scriptedTransactor{Store: memory.New()}, limitedBy(limit)).
			Handler(handler, onceward.Transactional())
		ctx, leave := context.WithCancel(t.Context())
		leave()
		post(h, "k", `{}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
		handler.wantRuns(t, "L1", 0)
		limit.wantLeft(t, "L1", 3)
	})
}

// TestLimitOfLookups: a status is refused before the store is asked.
func TestLimitOfLookups(t *testing.T) {
	t.Parallel()
	asked := 0
	inside := newFaultyStore()
	inside.get = func(context.Context, store.ID) (store.Record, error) {
		asked++
		return store.Record{}, store.ErrNotFound
	}
	status := newGuard(t, inside, limitedBy(&allowance{lookups: 1})).StatusHandler()
	ask := func() answer { return serve(status, newRequest(http.MethodGet, "/operations/k", "", "")) }
	ask().wantProblem(t, "L1", http.StatusNotFound, "key-not-found")
	a := ask()
	a.wantProblem(t, "L1", http.StatusTooManyRequests, "lookups-refused")
	if got := a.header.Get("RateLimit-Policy"); got != `"lookups";q=10;w=1` || a.header.Get("Retry-After") != "1" {
		t.Errorf("L1: RateLimit-Policy is %q, Retry-After %q", got, a.header.Get("Retry-After"))
	}
	if asked != 1 {
		t.Errorf("L1: the store was asked %d times, want once", asked)
	}
}

func TestLimitOfAFunction(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New(), limitedBy(&allowance{keys: 1}))
	do := func(key, payload string) error {
		_, err := guard.Do(t.Context(), onceward.Call{Scope: "s", Key: key, Operation: "o", Payload: []byte(payload)},
			func(context.Context) ([]byte, error) { return nil, nil }, reserved)
		return err
	}
	if err := do("k", ""); err != nil {
		t.Fatal(err)
	}
	var limit *onceward.LimitError
	if err := do("other", ""); !errors.Is(err, onceward.ErrRefused) || !errors.As(err, &limit) ||
		errors.Is(err, onceward.ErrMismatch) || limit.RetryAfter() != 11200*time.Millisecond {
		t.Errorf("L1: a new key over the limit: %v", err)
	}
	if err := do("k", ""); err != nil {
		t.Errorf("A6: a replay over the limit: %v", err)
	}
	if err := do("k", "other"); !errors.Is(err, onceward.ErrRefused) || !errors.As(err, &limit) ||
		limit.Name != onceward.LimitMismatches {
		t.Errorf("L1: a mismatch over the limit: %v", err)
	}
}

// TestActiveKeysHaveNoWindow: the field without a window, and a limiter's own name.
func TestActiveKeysHaveNoWindow(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New(), func(c *onceward.Config) {
		c.Limiter = refusing{&onceward.LimitError{Name: onceward.LimitActiveKeys, Limit: 5, After: time.Hour}}
	})
	a := post(guard.Handler(new(counted), reserved), "k", `{}`)
	a.wantProblem(t, "L1", http.StatusTooManyRequests, "new-keys-refused")
	if policy, left := a.header.Get("RateLimit-Policy"), a.header.Get("RateLimit"); policy != `"active-keys";q=5` ||
		left != `"active-keys";r=0;t=3600` {
		t.Errorf("L1: RateLimit-Policy is %q, RateLimit is %q", policy, left)
	}
}

// refusing is a limiter without any allowance.
type refusing struct{ err *onceward.LimitError }

func (r refusing) TakeKey(context.Context, string, time.Duration) *onceward.LimitError { return r.err }

func (r refusing) ReturnKey(string, time.Duration, bool) { panic("nothing was taken") }

func (r refusing) Mismatch(context.Context, string) *onceward.LimitError { return r.err }

func (r refusing) Lookup(context.Context, string) *onceward.LimitError { return r.err }
