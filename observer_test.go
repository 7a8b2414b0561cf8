package onceward_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// summary describes in one word each what an observer saw.
func (j *journal) summary() (words []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, event := range j.events {
		switch e := event.(type) {
		case onceward.StoreCalledEvent:
		case onceward.DecidedEvent:
			words = append(words, fmt.Sprint("decided ", e.Decision, " ", e.Origin))
		case onceward.ExecutedEvent:
			words = append(words, fmt.Sprint("executed ", e.Status))
			if e.Panicked {
				words = append(words, "panicked")
			}
		case onceward.SettledEvent:
			words = append(words, fmt.Sprint("settled ", e.State))
		case onceward.RejectedEvent:
			words = append(words, "rejected "+e.Code)
		case onceward.ProblemEvent:
			words = append(words, "problem "+e.Code)
		case onceward.UnprotectedEvent:
			words = append(words, "unprotected")
		default:
			words = append(words, fmt.Sprintf("%T", e))
		}
	}
	j.events = nil
	return words
}

func TestObserverSeesWhatHappens(t *testing.T) {
	t.Parallel()
	events := new(journal)
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Do") {
		case "fail":
			w.WriteHeader(http.StatusBadGateway)
		case "panic":
			panic("the handler's panic")
		default:
			w.WriteHeader(http.StatusCreated)
		}
	}}
	h := newGuard(t, memory.New(), observedBy(events)).Handler(handler, onceward.Reserved(onceward.FailureRetry))
	doing := func(what string) edit { return withHeader("X-Do", what) }
	steps := []struct {
		act  func()
		want []string
	}{
		{func() { post(h, "k", `{}`, doing("fail")) }, []string{"decided execute created", "settled failed_retryable", "executed 502"}},
		{func() { panicOf(func() { post(h, "k", `{}`, doing("panic")) }) }, []string{"decided execute retried", "settled failed_retryable", "executed 0", "panicked"}},
		{func() { post(h, "k", `{}`) }, []string{"decided execute retried", "settled completed", "executed 201"}},
		{func() { post(h, "k", `{}`) }, []string{"decided replay none"}},
		{func() { post(h, "k", `{"x":1}`) }, []string{"decided mismatch none", "problem mismatch"}},
		{func() { post(h, "", `{}`) }, []string{"rejected missing-key"}},
		{func() { post(h, "l", strings.Repeat("x", 1<<20+1)) }, []string{"rejected body-too-large"}},
		{func() { post(h, "l", strings.Repeat("x", 1<<20+1), chunked(strings.Repeat("x", 1<<20+1))) }, []string{"rejected body-too-large"}},
		{func() { serve(h, newRequest(http.MethodGet, "/payments", "k", "")) }, nil},
	}
	for i, step := range steps {
		step.act()
		if got := events.summary(); !slices.Equal(got, step.want) {
			t.Errorf("M1: step %d was seen as %q, want %q", i+1, got, step.want)
		}
	}
}

func TestEventsCarryWhatTheyAreAbout(t *testing.T) {
	t.Parallel()
	events := new(journal)
	h := newGuard(t, memory.New(), observedBy(events)).Handler(new(counted), onceward.Reserved(onceward.FailureRetry))
	post(h, "k", `{}`)
	decided := observed[onceward.DecidedEvent](events)
	executed := observed[onceward.ExecutedEvent](events)
	settled := observed[onceward.SettledEvent](events)
	if len(decided) != 1 || len(executed) != 1 || len(settled) != 1 {
		t.Fatalf("M1: %d decided, %d executed, %d settled; want one each", len(decided), len(executed), len(settled))
	}
	if decided[0].ID != aliceID("k") || executed[0].ID != aliceID("k") || settled[0].ID != aliceID("k") {
		t.Errorf("M1: the events are about %v, %v and %v", decided[0].ID, executed[0].ID, settled[0].ID)
	}
	if decided[0].Attempt == 0 || executed[0].Attempt != decided[0].Attempt ||
		settled[0].Attempt != decided[0].Attempt {
		t.Errorf("M1: the attempts are %d, %d and %d", decided[0].Attempt, executed[0].Attempt, settled[0].Attempt)
	}
	for _, operation := range []string{decided[0].Operation, executed[0].Operation, settled[0].Operation} {
		if operation != "POST /" {
			t.Errorf("M1: the operation is %q", operation)
		}
	}
}

// TestAnOwnerThatGaveUpIsNotLost, not even for a retry at the same moment: it has reported itself.
func TestAnOwnerThatGaveUpIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := new(journal)
		h := newGuard(t, memory.New(), observedBy(events)).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Unknown()
		}, reserved)
		post(h, "k", `{}`).wantProblem(t, "E7", http.StatusInternalServerError, "outcome-unknown")
		post(h, "k", `{}`).wantProblem(t, "section 4", http.StatusConflict, "outcome-unknown")
		if settled := observed[onceward.SettledEvent](events); len(settled) != 1 {
			t.Errorf("M1: the observer is told %+v, want one unknown", settled)
		}
	})
}

// TestALostOwnerIsToldOfOnce: the retry that finds it logs and reports it, later ones do not.
func TestALostOwnerIsToldOfOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s, events := newFaultyStore(), new(journal)
		h := newGuard(t, s, loggedTo(&log), observedBy(events)).Handler(new(counted), reserved)
		s.reserve = func(ctx context.Context, r *store.Reservation) (v store.Verdict, _ error) {
			_, err := s.Store.Reserve(ctx, r)
			return v, errors.Join(err, store.ErrUnreadable) // the process dies
		}
		post(h, "k", `{}`)
		s.reserve = nil
		for range 3 {
			time.Sleep(time.Minute)
			post(h, "k", `{}`).wantProblem(t, "section 4", http.StatusConflict, "outcome-unknown")
		}
		settled, lost := observed[onceward.SettledEvent](events), recordOf(t, s, "k").Attempt
		if len(settled) != 1 || settled[0].ID != aliceID("k") || settled[0].Operation != "POST /" ||
			settled[0].Attempt != lost || settled[0].State != store.StateUnknown || settled[0].Err == nil {
			t.Errorf("M1: the observer is told %+v, want one unknown", settled)
		}
		line := fmt.Sprintf(`msg="onceward: outcome unknown" operation="POST /" key_hash=%s attempt=%d`,
			aliceID("k").Hash(), lost)
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("M3: the log is %s, want %s once", log.String(), line)
		}
	})
}

func TestTheLogTellsNoKeysAndNoBodies(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newFaultyStore()
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		claim := store.Claim{ID: aliceID("private-key"), Attempt: onceward.FromContext(r.Context()).Attempt()}
		if err := s.Bust(r.Context(), claim.ID, true); err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, "private-answer")
	}}
	guard := newGuard(t, s, func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	h := guard.Handler(handler, reserved, onceward.Retain(2*time.Hour))
	post(h, "private-key", `{"private-body":1}`)
	if !strings.Contains(log.String(), "write refused") {
		t.Errorf("M3: the operator is not told of a refused write: %s", log.String())
	}
	if !strings.Contains(log.String(), "less than a day") {
		t.Errorf("section 11: no warning of a short retention: %s", log.String())
	}
	if strings.Contains(log.String(), "private") {
		t.Errorf("M3: the log tells a key or a body: %s", log.String())
	}
}

func TestTheContextOfEventsOutlivesTheCaller(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(context.Background())
	handler := &counted{then: func(http.ResponseWriter, *http.Request) { leave() }}
	var ended error
	guard := newGuard(t, memory.New(), func(c *onceward.Config) {
		c.Observer = onceward.ObserverFunc(func(ctx context.Context, e onceward.ObserverEvent) {
			if _, ok := e.(onceward.SettledEvent); ok {
				ended = ctx.Err()
			}
		})
	})
	h := guard.Handler(handler, reserved)
	post(h, "k", `{}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
	if ended != nil {
		t.Errorf("E6: the settlement is observed under a context that has ended: %v", ended)
	}
	handler.wantRuns(t, "E6", 1)
}

func TestNamesOfDecisions(t *testing.T) {
	t.Parallel()
	var names []string
	for d := store.Decision(0); d <= store.DecisionRefused+1; d++ {
		names = append(names, d.String())
	}
	for o := store.Origin(0); o <= store.OriginRepeated+1; o++ {
		names = append(names, o.String())
	}
	want := []string{
		"none", "execute", "replay", "in_progress", "mismatch", "unknown", "refused", "invalid",
		"none", "created", "retried", "resumed", "recreated", "repeated", "invalid",
	}
	if !slices.Equal(names, want) {
		t.Errorf("M1: the names of decisions and origins are %q, want %q", names, want)
	}
}

func TestTheLogNamesAnUnknownOutcomeByItsHash(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}}
	guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	post(guard.Handler(handler, reserved), "private-key", `{}`)
	if !strings.Contains(log.String(), "outcome unknown") ||
		!strings.Contains(log.String(), aliceID("private-key").Hash()) {
		t.Errorf("M3: the log does not say which outcome is unknown: %s", log.String())
	}
	if strings.Contains(log.String(), "private-key") {
		t.Errorf("M3: the log tells the key: %s", log.String())
	}
}

// TestObserverSeesStoreCalls tests that each call to the store for an attempt is reported, with the trace of the first
// one.
func TestObserverSeesStoreCalls(t *testing.T) {
	t.Parallel()
	events, s := new(journal), newFaultyStore()
	guard := newGuard(t, s, observedBy(events), func(c *onceward.Config) {
		c.TraceID = func(context.Context) string { return strings.Repeat("ab", 24) }
	})
	call := onceward.Call{Scope: "s", Key: "k", Operation: "job"}
	run := func() {
		_, err := guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
			if guard.ActiveLeases() != 1 {
				t.Errorf("%d active leases", guard.ActiveLeases())
			}
			return nil, onceward.FromContext(ctx).Checkpoint(store.Checkpoint{Point: "half"})
		}, onceward.Reserved(onceward.FailureUnknown))
		if err != nil {
			t.Fatal(err)
		}
	}
	run()
	run()
	if guard.ActiveLeases() != 0 {
		t.Errorf("%d active leases", guard.ActiveLeases())
	}
	var calls []string
	for _, e := range observed[onceward.StoreCalledEvent](events) {
		calls = append(calls, e.Call)
		if e.ID != (store.ID{Scope: "s", Key: "k"}) || e.Operation != "job" || e.Elapsed <= 0 || e.Err != nil {
			t.Errorf("%+v", e)
		}
	}
	if !slices.Equal(calls, []string{"checkpoint", "complete"}) {
		t.Errorf("calls: %q", calls)
	}
	if executed := observed[onceward.ExecutedEvent](events); len(executed) != 1 || executed[0].Status != 0 {
		t.Errorf("M1: a function was executed once: %+v", executed)
	}
	decided := observed[onceward.DecidedEvent](events)
	if len(decided) != 2 || decided[1].TraceID != strings.Repeat("ab", 24) {
		t.Errorf("M2: a replay tells the trace of the first execution: %+v", decided)
	}
}

// TestObserverSeesTheAgeOfReplays: with it a retention is compared with how long clients retry.
func TestObserverSeesTheAgeOfReplays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := new(journal)
		guard := newGuard(t, memory.New(), observedBy(events))
		for range 2 {
			_, err := guard.Do(t.Context(), onceward.Call{Scope: "s", Key: "k", Operation: "job"},
				func(context.Context) ([]byte, error) { return nil, nil }, onceward.Reserved(onceward.FailureUnknown))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		decided := observed[onceward.DecidedEvent](events)
		if len(decided) != 2 || decided[0].Age != 0 || decided[1].Age != time.Hour {
			t.Errorf("the ages are not none and an hour: %+v", decided)
		}
	})
}

// TestAPanicOfTheObserverChangesNothing: neither for the reported request, nor for the process, which a panic among the
// heartbeats would end.
func TestAPanicOfTheObserverChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		guard := newGuard(t, memory.New(), loggedTo(&log), func(c *onceward.Config) {
			c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) { panic("private") })
		})
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(3 * time.Second) // past some heartbeats
			w.WriteHeader(http.StatusCreated)
		}}
		h := guard.Handler(handler, reserved, onceward.Lease(time.Second))
		post(h, "k", `{}`).want(t, "M1: the observer panics", http.StatusCreated, false)
		post(h, "k", `{}`).want(t, "M1: the observer panics", http.StatusCreated, true)
		handler.wantRuns(t, "E1", 1)
		for _, event := range []string{"DecidedEvent", "ExecutedEvent", "StoreCalledEvent", "SettledEvent"} {
			if !strings.Contains(log.String(), "the observer panicked\" event=onceward."+event) {
				t.Errorf("M3: nothing is said of the panic at %s", event)
			}
		}
	})
}

// TestATransactionThatRunsAgainIsDecidedOnce: a request is one reservation, however often its work is undone.
func TestATransactionThatRunsAgainIsDecidedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := new(journal)
		s := &scriptedTransactor{Store: memory.New(), longest: time.Second, reruns: 2}
		h := newGuard(t, s, observedBy(events)).Handler(new(counted), onceward.Transactional())
		post(h, "k", `{}`)
		post(h, "k", `{}`)
		if decided := observed[onceward.DecidedEvent](events); len(decided) != 2 ||
			decided[0].Origin != store.OriginCreated || decided[1].Decision != store.DecisionReplay {
			t.Errorf("M1: the observer is told %+v, want one created and one replay", decided)
		}
		if executed := observed[onceward.ExecutedEvent](events); len(executed) != 3 {
			t.Errorf("M1: %d executions, want each run", len(executed))
		}
	})
}

// TestOutcomesThatBecomeUnknownAreObserved: an answer that could not be stored, or whose COMMIT is in doubt, does not
// count as an execution that ended well, whatever the handler wrote. The runs that the store undid were not unknown.
func TestOutcomesThatBecomeUnknownAreObserved(t *testing.T) {
	t.Parallel()
	ways := map[string]func(guard *onceward.Guard, mode onceward.Option){
		"HTTP": func(guard *onceward.Guard, mode onceward.Option) { post(guard.Handler(new(counted), mode), "k", `{}`) },
		"procedure": func(guard *onceward.Guard, mode onceward.Option) {
			post(asProcedure(guard, new(counted), mode), "k", `{}`)
		},
		"function": func(guard *onceward.Guard, mode onceward.Option) {
			_, _ = guard.Do(context.Background(), onceward.Call{Scope: "alice", Key: "k", Operation: "job"},
				func(context.Context) ([]byte, error) { return nil, nil }, mode)
		},
	}
	for way, run := range ways {
		for name, test := range map[string]struct {
			mode  onceward.Option
			open  func() store.Store
			known int // runs before the one whose outcome is unknown
		}{
			"reserved": {mode: reserved, open: func() store.Store {
				s := newFaultyStore()
				s.complete = func(context.Context, store.Claim, *store.Completion) (time.Time, error) {
					time.Sleep(time.Second)
					return time.Time{}, errDown
				}
				return s
			}},
			"transactional": {mode: onceward.Transactional(), known: 2, open: func() store.Store {
				return &scriptedTransactor{Store: memory.New(), longest: time.Second, reruns: 2, failure: store.ErrOutcomeUnknown}
			}},
		} {
			t.Run(way+" "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					events, began := new(journal), time.Now()
					run(newGuard(t, test.open(), observedBy(events), func(c *onceward.Config) {
						c.SettleTimeout = 20 * time.Millisecond
					}), test.mode)
					executed := observed[onceward.ExecutedEvent](events)
					if len(executed) != test.known+1 {
						t.Fatalf("M1: %d runs are reported, want %d: %+v", len(executed), test.known+1, executed)
					}
					for i, e := range executed {
						if e.Unknown != (i == test.known) || !e.EndedAt.Equal(began) || e.ID != aliceID("k") {
							t.Errorf("M1: run %d is reported as %+v", i+1, e)
						}
					}
				})
			})
		}
	}
}

// TestEachFailedReservationIsTold, also the first of two. That a record cannot be read is no failure of the store.
func TestEachFailedReservationIsTold(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		failures      int // before the store answers
		err           error
		calls, failed int
	}{
		"repeated":   {failures: 1, err: store.ErrUnavailable, calls: 1, failed: 1},
		"given up":   {failures: 2, err: store.ErrUnavailable, calls: 2, failed: 2},
		"unreadable": {failures: 2, err: store.ErrUnreadable, calls: 1},
	} {
		events, s := new(journal), newFaultyStore()
		s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
			if test.failures--; test.failures < 0 {
				return s.Store.Reserve(ctx, r)
			}
			return store.Verdict{}, test.err
		}
		post(newGuard(t, s, observedBy(events)).Handler(new(counted), reserved), "k", `{}`)
		calls := slices.DeleteFunc(observed[onceward.StoreCalledEvent](events),
			func(e onceward.StoreCalledEvent) bool { return e.Call != "reserve" || !errors.Is(e.Err, test.err) })
		failed := slices.DeleteFunc(observed[onceward.StoreFailedEvent](events),
			func(e onceward.StoreFailedEvent) bool { return e.Call != "reserve" || !errors.Is(e.Err, test.err) })
		if len(calls) != test.calls || len(failed) != test.failed {
			t.Errorf("M1: %s: %d calls and %d failures are told", name, len(calls), len(failed))
		}
	}
}

// TestALookAfterAWaitIsToldFromARequest: requests can be counted, whatever the store's way to wait for a change.
func TestALookAfterAWaitIsToldFromARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := new(journal)
		handler := &counted{then: func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }}
		h := newGuard(t, struct{ store.Store }{memory.New()}, observedBy(events)).
			Handler(handler, reserved, onceward.InFlightWait(time.Minute))
		go post(h, "k", `{}`)
		synctest.Wait()
		post(h, "k", `{}`).want(t, "D5", http.StatusOK, true)
		synctest.Wait()
		var requests, looks int
		for _, e := range observed[onceward.DecidedEvent](events) {
			if e.Waited {
				looks++
			} else {
				requests++
			}
		}
		if requests != 2 || looks < 2 {
			t.Errorf("M1: %d requests, and %d looks after waits", requests, looks)
		}
	})
}
