package client_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// slow is a handler that takes its time.
func slow(d time.Duration) *counted {
	return &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(d)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":1}`))
	}}
}

var reserved = onceward.Reserved(onceward.FailureUnknown)

// want compares the parts of a reply that callers depend on.
func (r *reply) want(t *testing.T, status int, outcome client.Outcome, replayed bool) {
	t.Helper()
	got := r.header.Get(client.ProfileIETF().ReplayedHeader) == "true"
	if r.err != nil || r.status != status || r.outcome != outcome || got != replayed || r.key == "" {
		t.Errorf("got %+v, want %d, %v, replayed %v", r, status, outcome, replayed)
	}
}

// TestInFlight sends one operation from ten callers at once, under each policy for duplicates: it is executed once, and
// all get its answer.
func TestInFlight(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]onceward.Option{
		"conflict": onceward.InFlightConflict(),
		"wait":     onceward.InFlightWait(4 * time.Second),
		"accepted": onceward.InFlightAccepted("/operations/"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				handler, seen := slow(20*time.Second), &events{}
				base := serve(t, newWire(), guarded(t, memory.New(), handler, reserved, policy))
				c := newClient(t, client.Config{Base: base, Observer: seen, MaxAttempts: 1})
				ctx := client.WithKey(t.Context(), "order-1")
				replies := make([]reply, 10)
				var all sync.WaitGroup
				for i := range replies {
					all.Go(func() { replies[i] = post(ctx, c) })
				}
				all.Wait()
				first := 0
				for i := range replies {
					if replayed := replies[i].header.Get(client.ProfileIETF().ReplayedHeader) == "true"; !replayed {
						first++
					} else {
						replies[i].want(t, http.StatusCreated, client.OutcomeAnswered, true)
					}
					if replies[i].body != `{"id":1}` || replies[i].key != "order-1" {
						t.Errorf("got %+v", replies[i])
					}
				}
				if runs := handler.runs.Load(); runs != 1 || first != 1 {
					t.Errorf("%d executions, and %d answers that are no replays", runs, first)
				}
				polls := 0
				for _, e := range eventsOf[client.AttemptEvent](seen) {
					if e.Polled {
						polls++
					}
				}
				if (name == "accepted") != (polls > 0) {
					t.Errorf("the status was asked for %d times", polls)
				}
			})
		})
	}
}

// TestUnknownThatEnds waits for an operation that became unknown until it is settled, with the same key; and returns
// it as unknown when the time is over.
func TestUnknownThatEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Unknown()
		}}
		s := memory.New()
		c := newClient(t, client.Config{Base: serve(t, newWire(), guarded(t, s, handler, reserved))})
		never := post(t.Context(), c)
		never.want(t, http.StatusConflict, client.OutcomeUnknown, false)
		go func() {
			time.Sleep(30 * time.Second)
			resolve(t, s, store.ID{Scope: "alice", Key: "order-1"})
		}()
		settled := post(client.WithKey(t.Context(), "order-1"), c)
		settled.want(t, http.StatusCreated, client.OutcomeAnswered, true)
		if runs := handler.runs.Load(); runs != 2 {
			t.Errorf("the two operations were executed %d times", runs)
		}
	})
}

// resolve settles an unknown operation as done.
func resolve(t *testing.T, s *memory.Store, id store.ID) {
	rec, err := s.Get(t.Context(), id)
	if err != nil {
		t.Error(err)
		return
	}
	err = s.ResolveCompleted(t.Context(), store.Claim{ID: id, Attempt: rec.Attempt}, &store.Completion{
		Response: store.Response{Status: http.StatusCreated, Body: []byte(`{"id":1}`)},
	})
	if err != nil {
		t.Error(err)
	}
}

// failingStore is a store that can be down.
type failingStore struct {
	store.Store
	down atomic.Bool
}

func (f *failingStore) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	if f.down.Load() {
		return store.Verdict{}, errors.New("the store is down")
	}
	return f.Store.Reserve(ctx, r)
}

// TestStoreDown retries while the store of the service is down. If it stays down, nothing was executed, and that is
// what the caller is told.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &failingStore{Store: memory.New()}
		handler := &counted{}
		c := newClient(t, client.Config{Base: serve(t, newWire(), guarded(t, s, handler, reserved))})
		s.down.Store(true)
		down := post(t.Context(), c)
		down.want(t, http.StatusServiceUnavailable, client.OutcomeNotExecuted, false)
		go func() {
			time.Sleep(1500 * time.Millisecond)
			s.down.Store(false)
		}()
		up := post(t.Context(), c)
		up.want(t, http.StatusCreated, client.OutcomeAnswered, false)
		if handler.runs.Load() != 1 {
			t.Errorf("%d executions", handler.runs.Load())
		}
	})
}

// TestLostAtEveryByte cuts the connection of the first attempt after each number of bytes, of the request and of the
// answer: the operation is executed once, and its caller gets the whole answer.
func TestLostAtEveryByte(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := &counted{}
		w := newWire()
		base := serve(t, w, guarded(t, memory.New(), handler, reserved))
		c := newClient(t, client.Config{Base: base})
		for _, direction := range []string{"request", "answer"} {
			for n, more := 0, true; more && n < 2000; n++ {
				base.CloseIdleConnections()
				next := cut{request: -1, answer: -1}
				if direction == "request" {
					next.request = n
				} else {
					next.answer = n
				}
				w.mu.Lock()
				w.cuts = []cut{next}
				w.mu.Unlock()
				dials, runs := w.dials.Load(), handler.runs.Load()
				got := post(t.Context(), c)
				if got.err != nil || got.status != http.StatusCreated || got.body != `{"id":1}` ||
					got.outcome != client.OutcomeAnswered {
					t.Fatalf("the %s was cut after %d bytes: %+v", direction, n, got)
				}
				if ran := handler.runs.Load() - runs; ran != 1 {
					t.Fatalf("the %s was cut after %d bytes, and it was executed %d times", direction, n, ran)
				}
				more = w.dials.Load()-dials > 1
				if !more && n < 150 {
					t.Fatalf("the %s was not cut after %d bytes", direction, n)
				}
			}
		}
	})
}

// TestCancelled ends an operation with its context: at once, and as unknown where it may have been executed.
func TestCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := slow(20 * time.Second)
		c := newClient(t, client.Config{Base: serve(t, newWire(), guarded(t, memory.New(), handler, reserved))})
		ctx, cancel := context.WithCancel(client.WithKey(t.Context(), "order-1"))
		time.AfterFunc(3*time.Second, cancel)
		got := post(ctx, c)
		unfinished := (*client.UnfinishedError)(nil)
		if !errors.Is(got.err, context.Canceled) || !errors.As(got.err, &unfinished) || !unfinished.MayHaveExecuted ||
			unfinished.Key != "order-1" || got.outcome != client.OutcomeUnknown || got.took != 3*time.Second {
			t.Errorf("got %+v", got)
		}
		never := post(ctx, c)
		if !errors.As(never.err, &unfinished) || unfinished.MayHaveExecuted || unfinished.Attempts != 0 {
			t.Errorf("got %+v", never)
		}
		waiting, cancel := context.WithCancel(client.WithKey(t.Context(), "order-1"))
		time.AfterFunc(3500*time.Millisecond, cancel) // between two attempts
		got = post(waiting, c)
		if !errors.Is(got.err, context.Canceled) || got.outcome != client.OutcomeUnknown {
			t.Errorf("got %+v", got)
		}
		time.Sleep(time.Minute)
		got = post(client.WithKey(t.Context(), "order-1"), c)
		got.want(t, http.StatusCreated, client.OutcomeAnswered, true)
	})
}

// TestRefusals returns the guard's final refusals after one attempt.
func TestRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen := &events{}
		handler := &counted{}
		h := guarded(t, memory.New(), handler, reserved)
		c := newClient(t, client.Config{Base: serve(t, newWire(), h), Observer: seen})
		ctx := client.WithKey(t.Context(), "order-1")
		first := post(ctx, c)
		first.want(t, http.StatusCreated, client.OutcomeAnswered, false)
		other := post(ctx, c, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") })
		other.want(t, http.StatusUnprocessableEntity, client.OutcomeAnswered, false)
		if n := len(eventsOf[client.AttemptEvent](seen)); n != 2 {
			t.Errorf("%d attempts", n)
		}
	})
}

// TestARefusalAfterALostAnswer: the service's own refusal is the answer, because the guard found nothing done. That of
// a gateway says nothing about the attempt before.
func TestARefusalAfterALostAnswer(t *testing.T) {
	t.Parallel()
	refuse := func(w http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).Reject()
		w.WriteHeader(http.StatusBadRequest)
	}
	gateway := func(h http.Handler) http.Handler {
		attempts := 0
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if attempts++; attempts > 1 {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	for name, each := range map[string]struct {
		front func(http.Handler) http.Handler
		want  client.Outcome
	}{
		"by the service": {func(h http.Handler) http.Handler { return h }, client.OutcomeAnswered},
		"by a gateway":   {gateway, client.OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, handler := newWire(), &counted{then: refuse}
				w.cuts = []cut{{request: -1, answer: 0}}
				c := newClient(t, client.Config{Base: serve(t, w, each.front(guarded(t, memory.New(), handler, reserved)))})
				got := post(t.Context(), c)
				got.want(t, http.StatusBadRequest, each.want, false)
			})
		})
	}
}
