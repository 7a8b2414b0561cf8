package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// byHeader returns the caller's name.
var byHeader = onceward.AuditExecutions(func(r *http.Request) string { return r.Header.Get("X-User") })

// auditedAs are the audited requests of a store, oldest first: who, what was decided, and where a grant came from.
func auditedAs(t testing.TB, s store.ExecutionAuditor) (found []string) {
	t.Helper()
	entries, err := s.ListExecutions(t.Context(), store.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Backward(entries) {
		if e.Attempt == 0 && e.Decision != store.DecisionRefused || e.Operation == "" || e.Key == "" {
			t.Errorf("L7: an entry is %+v", e)
		}
		found = append(found,
			strings.TrimSpace(fmt.Sprint(e.Actor, " ", e.Decision, " ", strings.TrimPrefix(e.Origin.String(), "none"))))
	}
	return found
}

func wantAudited(t testing.TB, s store.ExecutionAuditor, want ...string) {
	t.Helper()
	if got := auditedAs(t, s); !slices.Equal(got, want) {
		t.Errorf("L7: audited are %q, want %q", got, want)
	}
}

// TestAuditExecutions: each decision is written, with who called, and a route without the option writes nothing (L7).
func TestAuditExecutions(t *testing.T) {
	t.Parallel()
	s := memory.New()
	g := newGuard(t, s)
	fail := true
	h := routed(g.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Fail") != "" && fail {
			fail = false
			onceward.FromContext(r.Context()).NotExecuted()
		}
		w.WriteHeader(http.StatusCreated)
	}, reserved, byHeader))
	by := func(user string) edit { return withHeader("X-User", user) }
	post(h, "key-1", `{}`, by("ann"))
	post(h, "key-1", `{}`, by("ben"))
	post(h, "key-1", `{"other":1}`, by("cid"))
	post(h, "key-2", `{}`, by("dan"), withHeader("X-Fail", "1"))
	post(h, "key-2", `{}`, by("eve"), withHeader("X-Fail", "1"))
	wantAudited(t, s, "ann execute created", "ben replay", "cid mismatch", "dan execute created", "eve execute retried")
	post(routed(g.Handler(&counted{}, reserved)), "key-3", `{}`, by("fay"))
	wantAudited(t, s, "ann execute created", "ben replay", "cid mismatch", "dan execute created", "eve execute retried")
	_, err := g.Do(t.Context(), onceward.Call{Scope: "s", Key: "job", Operation: "job", Actor: "queue"},
		func(context.Context) ([]byte, error) { return nil, nil }, reserved, onceward.AuditExecutions(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := auditedAs(t, s); got[len(got)-1] != "queue execute created" {
		t.Errorf("L7: a call of Do is audited as %q", got)
	}
}

// TestAuditedActorIsBounded: callers who influence their names neither fill the audit nor put invalid text into it.
func TestAuditedActorIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ actor, want string }{
		"as long as may be":     {strings.Repeat("é", 127) + "x", strings.Repeat("é", 127) + "x"},
		"a megabyte":            {strings.Repeat("x", 1<<20), strings.Repeat("x", 252) + "…"},
		"cut between bytes":     {"x" + strings.Repeat("é", 200), "x" + strings.Repeat("é", 125) + "…"},
		"no text":               {"a\xff\xfeb", "a?b"},
		"much that is no text":  {strings.Repeat("\xff", 1000), "?"},
		"no start of character": {"alice" + strings.Repeat("\x80", 1000), "alice?"},
	} {
		s := memory.New()
		h := routed(newGuard(t, s).Handler(&counted{}, reserved,
			onceward.AuditExecutions(func(*http.Request) string { return test.actor })))
		post(h, "key-1", `{}`)
		if got := auditedAs(t, s); len(got) != 1 || got[0] != test.want+" execute created" {
			t.Errorf("L7: %s: audited is %q, want %q", name, got, test.want)
		}
	}
}

// TestAuditExecutionsOfAWait: a duplicate that waits is written as in progress once, and then with what it gets.
func TestAuditExecutionsOfAWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		running, finish, asked := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1000)
		h := routed(newGuard(t, plain{s, asked}).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(running)
			<-finish
			w.WriteHeader(http.StatusCreated)
		}, reserved, onceward.AuditExecutions(func(*http.Request) string { return "ann" }),
			onceward.InFlightWait(30*time.Second)))
		first := make(chan answer, 1)
		go func() { first <- post(h, "key-1", `{}`) }()
		await.Value(t, "the handler", running)
		second := make(chan answer, 1)
		go func() { second <- post(h, "key-1", `{}`) }()
		for range 4 { // by the first, by the second, and by that again and again
			await.Value(t, "another reservation", asked)
		}
		close(finish)
		await.Value(t, "the first answer", first).want(t, "E1", http.StatusCreated, false)
		await.Value(t, "the second answer", second).want(t, "E1", http.StatusCreated, true)
		wantAudited(t, s, "ann execute created", "ann in_progress", "ann replay")
	})
}

// plain is a store that cannot notify, and signals when Reserve is called.
type plain struct {
	s     *memory.Store
	asked chan<- struct{}
}

func (p plain) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	p.asked <- struct{}{}
	return p.s.Reserve(ctx, r)
}

func (p plain) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	return p.s.Extend(ctx, c, lease)
}

func (p plain) Checkpoint(ctx context.Context, c store.Claim, at store.Checkpoint) error {
	return p.s.Checkpoint(ctx, c, at)
}

func (p plain) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	return p.s.Complete(ctx, c, done)
}

func (p plain) Release(ctx context.Context, c store.Claim, reason string) error {
	return p.s.Release(ctx, c, reason)
}

func (p plain) Abandon(ctx context.Context, c store.Claim, reason string) error {
	return p.s.Abandon(ctx, c, reason)
}
func (p plain) Reject(ctx context.Context, c store.Claim) error { return p.s.Reject(ctx, c) }
func (p plain) Get(ctx context.Context, id store.ID) (store.Record, error) {
	return p.s.Get(ctx, id)
}

func (p plain) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	return p.s.AddExecution(ctx, e)
}

func (p plain) ListExecutions(ctx context.Context, f store.AuditFilter) ([]store.ExecutionEntry, error) {
	return p.s.ListExecutions(ctx, f)
}

func (p plain) PurgeExecutions(ctx context.Context, age time.Duration, limit int) (int, error) {
	return p.s.PurgeExecutions(ctx, age, limit)
}

// unwritable cannot write its audit of executions while fails is set.
type unwritable struct {
	*memory.Store
	fails atomic.Bool
}

func (f *unwritable) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	if f.fails.Load() {
		return fmt.Errorf("%w: the test forgets", store.ErrUnavailable)
	}
	return f.Store.AddExecution(ctx, e)
}

// TestNotAudited: what cannot be written is neither executed nor replayed, and the key is free for the next attempt.
func TestNotAudited(t *testing.T) {
	t.Parallel()
	s := &unwritable{Store: memory.New()}
	handler := &counted{}
	h := routed(newGuard(t, s).Handler(handler, reserved, byHeader))
	s.fails.Store(true)
	post(h, "key-1", `{}`).wantProblem(t, "L7", http.StatusServiceUnavailable, "store-unavailable")
	handler.wantRuns(t, "L7", 0)
	wantState(t, "L7: the grant is released", s, "key-1", store.StateRetryable)
	s.fails.Store(false)
	post(h, "key-1", `{}`).want(t, "L7", http.StatusCreated, false)
	handler.wantRuns(t, "L7", 1)
	s.fails.Store(true)
	post(h, "key-1", `{}`).wantProblem(t, "L7: a replay", http.StatusServiceUnavailable, "store-unavailable")
	s.fails.Store(false)
	post(h, "key-1", `{}`).want(t, "L7", http.StatusCreated, true)
	handler.wantRuns(t, "L7", 1)
}

// TestAuditNeedsAStore: a route that asks for what its store cannot do does not come into being.
func TestAuditNeedsAStore(t *testing.T) {
	t.Parallel()
	if _, err := newGuard(t, struct{ store.Store }{memory.New()}).Route(reserved, byHeader); err == nil ||
		!strings.Contains(err.Error(), "store.ExecutionAuditor") {
		t.Errorf("a store without an audit: %v", err)
	}
	if _, err := newGuard(t, memory.New()).Route(reserved, onceward.AuditExecutions(nil)); err == nil ||
		!strings.Contains(err.Error(), "the caller's name") {
		t.Errorf("nobody who says who calls: %v", err)
	}
}

// TestAuditOfAResume: an attempt that continues without its caller is written too.
func TestAuditOfAResume(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := memory.New(memory.WithClock(func() time.Time { return now }))
	g := newGuard(t, s)
	options := []onceward.Option{reserved, onceward.OnLost(onceward.LostResume), onceward.AuditExecutions(nil)}
	call := onceward.Call{Scope: "s", Key: "job", Operation: "job", Actor: "queue"}
	_, err := g.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
		onceward.FromContext(ctx).Suspend(time.Microsecond)
		return nil, nil
	}, options...)
	if !errors.Is(err, onceward.ErrInProgress) {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	rec, err := s.Get(t.Context(), store.ID{Scope: "s", Key: "job"})
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(context.Context) ([]byte, error) { return nil, nil }
	if _, err := g.Resume(t.Context(), &rec, nothing, options...); err != nil {
		t.Fatal(err)
	}
	wantAudited(t, s, "queue execute created", onceward.ResumeActor+" execute resumed")
}
