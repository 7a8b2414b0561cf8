package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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

func brokenReserve(context.Context, *store.Reservation) (store.Verdict, error) {
	return store.Verdict{}, errDown
}

// refusingReserve is what the limits of section 9 do: no new keys.
func refusingReserve(s *faultyStore) func(context.Context, *store.Reservation) (store.Verdict, error) {
	return func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
		r.NoCreate = true
		return s.Store.Reserve(ctx, r)
	}
}

// tryOnce lets the guard try a write that settles an operation once, for as long as a slow machine may take.
func tryOnce(c *onceward.Config) {
	c.StoreTimeout, c.SettleTimeout = await.Limit, time.Nanosecond
}

func TestReserveThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, handler, events := newFaultyStore(), new(counted), new(journal)
		store.reserve = brokenReserve
		h := newGuard(t, store, observedBy(events)).Handler(handler, reserved)
		a := post(h, "k", `{}`)
		if p := a.wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable"); !p.Retryable {
			t.Error("A1: nothing was executed, so the request may be sent again")
		}
		if a.header.Get("Retry-After") == "" {
			t.Error("section 6: 503 without Retry-After")
		}
		handler.wantRuns(t, "L2: fail closed", 0)
		if failed := observed[onceward.StoreFailedEvent](events); len(failed) == 0 || failed[0].Call != "reserve" {
			t.Errorf("M1: the failures seen are %+v", failed)
		}
		time.Sleep(time.Minute)
		synctest.Wait() // what was started in the background has ended
		store.reserve = nil
		post(h, "k", `{}`).want(t, "L2: the store is back", http.StatusCreated, false)
		handler.wantRuns(t, "L2", 1)
	})
}

func TestReserveThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		s.reserve = func(ctx context.Context, _ *store.Reservation) (store.Verdict, error) {
			<-ctx.Done()
			return store.Verdict{}, ctx.Err()
		}
		guard := newGuard(t, s, func(c *onceward.Config) { c.StoreTimeout = 3 * time.Second })
		h := guard.Handler(handler, reserved)
		started := time.Now()
		post(h, "k", `{}`).wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
		if took := time.Since(started); took != 3*time.Second {
			t.Errorf("L2: the client waited %s, want the store timeout of 3s", took)
		}
		handler.wantRuns(t, "L2", 0)
		time.Sleep(time.Minute)
	})
}

func TestReserveWhoseReplyIsLostOnce(t *testing.T) {
	t.Parallel()
	s, handler := newFaultyStore(), new(counted)
	var calls atomic.Int64
	var nonces [2]store.Nonce
	s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
		n := calls.Add(1)
		nonces[n-1] = r.Nonce
		v, err := s.Store.Reserve(ctx, r)
		if n == 1 {
			return store.Verdict{}, errDown
		}
		return v, err
	}
	h := newGuard(t, s).Handler(handler, reserved)
	post(h, "k", `{}`).want(t, "S9", http.StatusCreated, false)
	if calls.Load() != 2 || nonces[0] != nonces[1] || nonces[0] == (store.Nonce{}) {
		t.Errorf("S9: %d reservations with the nonces %x; want two with the same", calls.Load(), nonces)
	}
	handler.wantRuns(t, "S9: the same nonce gets the same grant", 1)
	s.reserve = nil
	post(h, "k", `{}`).want(t, "S9", http.StatusCreated, true)
	handler.wantRuns(t, "S9", 1)
}

func TestReserveWhoseRepliesAreLostForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		var up atomic.Bool
		s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
			v, err := s.Store.Reserve(ctx, r)
			if !up.Load() {
				return store.Verdict{}, errDown
			}
			return v, err
		}
		s.get = func(ctx context.Context, id store.ID) (store.Record, error) {
			if !up.Load() {
				return store.Record{}, errDown
			}
			return s.Store.Get(ctx, id)
		}
		h := newGuard(t, s).Handler(handler, reserved)
		post(h, "k", `{}`).wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
		wantState(t, "S9: the store holds a grant that was not taken", s.Store, "k", store.StateInProgress)
		post(h, "k", `{}`).wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
		up.Store(true)
		time.Sleep(5 * time.Second)
		wantState(t, "S9: a grant that is not taken is released", s, "k", store.StateRetryable)
		post(h, "k", `{}`).want(t, "S9: a later retry executes", http.StatusCreated, false)
		handler.wantRuns(t, "S9", 1)
		time.Sleep(time.Minute)
	})
}

func TestTheSearchForAnOrphanTakesNoOtherGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		var up atomic.Bool
		s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
			if !up.Load() {
				return store.Verdict{}, errDown
			}
			return s.Store.Reserve(ctx, r)
		}
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second) // long enough for the search to meet this execution
			w.WriteHeader(http.StatusCreated)
		}}
		h := newGuard(t, s).Handler(handler, reserved)
		post(h, "k", `{}`).wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
		up.Store(true)
		post(h, "k", `{}`).want(t, "S9", http.StatusCreated, false)
		wantState(t, "S9: the record belongs to the second request", s, "k", store.StateCompleted)
		handler.wantRuns(t, "S9", 1)
		time.Sleep(time.Minute)
	})
}

func TestTheSearchForAnOrphanMakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		var reserves, looks, releases atomic.Int64
		s.reserve = func(context.Context, *store.Reservation) (store.Verdict, error) {
			reserves.Add(1)
			return store.Verdict{}, errDown // never applied
		}
		s.get = func(ctx context.Context, id store.ID) (store.Record, error) {
			looks.Add(1)
			return s.Store.Get(ctx, id)
		}
		s.release = func(ctx context.Context, c store.Claim, reason string) error {
			releases.Add(1)
			return s.Store.Release(ctx, c, reason)
		}
		h := newGuard(t, s).Handler(handler, reserved)
		refused := func() {
			t.Helper()
			reserves.Store(0)
			looks.Store(0)
			post(h, "k", `{}`).wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
			time.Sleep(time.Minute)
			if reserves.Load() != 2 || looks.Load() != 1 {
				t.Errorf("S9: %d reservations and %d looks, want two of the request and one for an orphan",
					reserves.Load(), looks.Load())
			}
		}
		refused()
		wantNothingStored(t, "S9: the search finds, it does not make", s)

		foreign := reservation(t, s.Store, "k")
		refused()
		if releases.Load() != 0 {
			t.Error("S9: the grant of another call was released")
		}
		if err := s.Store.Release(t.Context(), foreign, "nothing was done"); err != nil {
			t.Fatal(err)
		}
		refused()
		wantState(t, "S9: what was released is left to its callers", s, "k", store.StateRetryable)
		handler.wantRuns(t, "L2", 0)
	})
}

// reservation takes the key for a caller of its own, past the guard.
func reservation(t *testing.T, s store.Store, key string) store.Claim {
	t.Helper()
	v, err := s.Reserve(t.Context(), &store.Reservation{
		ID: aliceID(key), Operation: "POST /payments", Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1}},
		Nonce: store.Nonce{1}, Lease: time.Hour, Retention: time.Hour,
	})
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("%s (%v), want a grant", v.Decision, err)
	}
	return store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
}

// lies are answers that a store cannot rightly give.
var lies = map[string]func(v *store.Verdict){
	"a foreign scope":         func(v *store.Verdict) { v.Record.Scope = "bob" },
	"a foreign key":           func(v *store.Verdict) { v.Record.Key = "other" },
	"no record":               func(v *store.Verdict) { v.Record = store.Record{} },
	"a grant of another call": func(v *store.Verdict) { v.Record.Nonce[0]++ },
	"a grant without a token": func(v *store.Verdict) { v.Record.Attempt = 0 },
	"a grant of what is done": func(v *store.Verdict) { v.Record.State = store.StateCompleted },
	"no decision":             func(v *store.Verdict) { v.Decision = 0 },
	"a decision that is none": func(v *store.Verdict) { v.Decision = store.DecisionRefused + 1 },
	"a replay of nothing":     func(v *store.Verdict) { v.Decision = store.DecisionReplay },
	"a replay of another's":   func(v *store.Verdict) { replayOf(v).Scope = "bob" },
	"a replay of another request": func(v *store.Verdict) {
		replayOf(v).Fingerprint.Sum[0]++
	},
	"a replay under another secret": func(v *store.Verdict) { replayOf(v).Fingerprint.Secret++ },
	"a replay of a newer version":   func(v *store.Verdict) { replayOf(v).Version = store.RecordVersion + 1 },
	"in progress, foreign": func(v *store.Verdict) {
		v.Decision, v.Record.Scope = store.DecisionInProgress, "bob"
	},
	"unknown, foreign": func(v *store.Verdict) {
		v.Decision, v.Record.State, v.Record.Scope = store.DecisionUnknown, store.StateUnknown, "bob"
	},
	"mismatch, foreign": func(v *store.Verdict) { v.Decision, v.Record.Scope = store.DecisionMismatch, "bob" },
}

func replayOf(v *store.Verdict) *store.Record {
	v.Decision, v.Record.State = store.DecisionReplay, store.StateCompleted
	v.Record.Response = store.Response{Status: http.StatusOK, Body: []byte("another's secret")}
	return &v.Record
}

func TestAStoreThatLies(t *testing.T) {
	t.Parallel()
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, handler := newFaultyStore(), new(counted)
			s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
				v, err := s.Store.Reserve(ctx, r)
				lie(&v)
				return v, err
			}
			h := newGuard(t, s).Handler(handler, reserved)
			a := post(h, "k", `{}`)
			a.wantProblem(t, "I9: assert and refuse", http.StatusInternalServerError, "record-unreadable")
			handler.wantRuns(t, "I9", 0)
		})
	}
}

func TestARecordOfAnUnknownVersion(t *testing.T) {
	t.Parallel()
	s, handler := newFaultyStore(), new(counted)
	h := newGuard(t, s).Handler(handler, reserved)
	post(h, "k", `{}`)
	s.reserve = func(_ context.Context, r *store.Reservation) (store.Verdict, error) {
		rec, err := s.Store.Get(context.Background(), r.ID)
		if err != nil {
			return store.Verdict{}, err
		}
		rec.Version = store.RecordVersion + 1
		rec, outcome, err := store.Step(rec, store.Event{Kind: store.EventReserve, Reservation: r}, time.Now())
		return store.Verdict{Decision: outcome.Decision, Record: rec}, err
	}
	p := post(h, "k", `{}`).wantProblem(t, "S8", http.StatusInternalServerError, "record-unreadable")
	if p.Retryable {
		t.Error("A1: an older program cannot read the record the second time either")
	}
	handler.wantRuns(t, "S8: neither replayed nor executed", 1)
}

func TestStatusOfAStoreThatFails(t *testing.T) {
	t.Parallel()
	foreign := func(context.Context, store.ID) (store.Record, error) {
		return store.Record{ID: store.ID{Scope: "bob", Key: "k"}, State: store.StateCompleted, Operation: "hidden"}, nil
	}
	unreadable := func(context.Context, store.ID) (store.Record, error) {
		return store.Record{}, &store.UnreadableError{Version: 9, Reason: "hidden"}
	}
	for name, test := range map[string]struct {
		get    func(context.Context, store.ID) (store.Record, error)
		status int
		code   string
	}{
		"down":       {func(context.Context, store.ID) (store.Record, error) { return store.Record{}, errDown }, http.StatusServiceUnavailable, "store-unavailable"},
		"foreign":    {foreign, http.StatusInternalServerError, "record-unreadable"},
		"unreadable": {unreadable, http.StatusInternalServerError, "record-unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &faultyStore{Store: memory.New(), get: test.get}
			a := serve(newGuard(t, store).StatusHandler(), newRequest(http.MethodGet, "/operations/k", "", ""))
			p := a.wantProblem(t, "section 6", test.status, test.code)
			if said := p.Title + ": " + p.Detail; strings.Contains(said, "executed") {
				t.Errorf("section 6: a question after an operation of which nothing is known is answered with %q", said)
			}
		})
	}
}

func TestAVerdictWithoutAResponse(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, http.StatusContinue, http.StatusSwitchingProtocols, 199} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s, handler := newFaultyStore(), new(counted)
			s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
				v, err := s.Store.Reserve(ctx, r)
				replayOf(&v).Response = store.Response{Status: status}
				return v, err
			}
			h := newGuard(t, s).Handler(handler, reserved)
			post(h, "k", `{}`).
				wantProblem(t, "I9: assert and refuse", http.StatusInternalServerError, "record-unreadable")
			handler.wantRuns(t, "I9", 0)
		})
	}
}

// idleTransactor grants an execution and does not call it.
type idleTransactor struct{ scriptedTransactor }

func (s *idleTransactor) Transact(
	ctx context.Context, r *store.Reservation, _ func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	return s.Reserve(ctx, r)
}

func TestATransactorThatDoesNotCallTheWork(t *testing.T) {
	t.Parallel()
	s, handler := &idleTransactor{scriptedTransactor{Store: memory.New()}}, new(counted)
	guard := newGuard(t, s)
	h := guard.Handler(handler, onceward.Transactional())
	post(h, "k", `{}`).wantProblem(t, "I9: assert and refuse", http.StatusInternalServerError, "record-unreadable")
	handler.wantRuns(t, "I9", 0)

	w := new(work)
	if _, err := guard.Do(t.Context(), someCall, w.do, onceward.Transactional()); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("I9, E4: %v, want ErrUnreadable", err)
	}
	w.wantRuns(t, "I9, E4", 0)
}

// TestGrantOfSealedData: a program without the key ring returns a grant that it cannot use, so that nothing becomes
// unknown and programs with the ring continue immediately (L3).
func TestGrantOfSealedData(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		onLost    store.LostPolicy
		replyLost bool
		want      store.State
	}{
		"retried":           {store.LostReconcile, false, store.StateRetryable},
		"retried, repeated": {store.LostReconcile, true, store.StateRetryable},
		"resumed":           {store.LostResume, false, store.StateInProgress},
		"resumed, repeated": {store.LostResume, true, store.StateInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newFaultyStore()
				handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
					op := onceward.FromContext(r.Context())
					data := []byte(store.SealedPrefix + "sealed elsewhere")
					if err := op.Checkpoint(store.Checkpoint{Point: "charged", Data: data}); err != nil {
						t.Error(err)
					}
					op.NotExecuted()
					if c.onLost == store.LostResume {
						panic(http.ErrAbortHandler)
					}
				}}
				h := newGuard(t, s).Handler(handler, reserved, onceward.OnLost(c.onLost))
				// As if the process of one that is to be resumed had died.
				s.abandon = func(context.Context, store.Claim, string) error { return errDown }
				if c.onLost == store.LostResume {
					s.release = s.abandon
				}
				panicOf(func() { post(h, "k", `{}`) })
				s.abandon, s.release = nil, nil
				time.Sleep(time.Hour)
				if c.replyLost {
					s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
						s.reserve = nil
						_, _ = s.Store.Reserve(ctx, r)
						return store.Verdict{}, errDown
					}
				}
				post(h, "k", `{}`).want(t, "L3: without the ring", http.StatusInternalServerError, false)
				time.Sleep(time.Second) // less than a lease
				rec, err := s.Get(t.Context(), aliceID("k"))
				if err != nil || rec.State != c.want || rec.Point != "charged" || !store.IsSealed(rec.Data) ||
					rec.LeaseUntil.After(time.Now()) {
					t.Errorf("L3: the record is %+v, %v", rec, err)
				}
				handler.wantRuns(t, "L3", 1)
			})
		})
	}
}
