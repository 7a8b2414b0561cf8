package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/part"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// scriptedTransactor is a store whose transactions are made of nothing: it shows what the guard asks of one. What a
// real one does with it is tested in the stores that have them.
type scriptedTransactor struct {
	*memory.Store
	reruns   int   // how often a transaction is undone and its work repeated
	unread   int   // how many runs get a decision that the guard refuses
	failure  error // what becomes of the COMMIT
	longest  time.Duration
	inFlight map[store.ID]bool

	actions []store.TxAction
	done    store.Completion
}

func (s *scriptedTransactor) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	if s.inFlight[r.ID] {
		return store.Verdict{Decision: store.DecisionInProgress}, nil
	}
	v, err := s.Reserve(ctx, r)
	if err != nil || v.Decision != store.DecisionExecute {
		return v, err
	}
	s.inFlight = map[store.ID]bool{r.ID: true}
	defer delete(s.inFlight, r.ID)
	var end store.Settlement
	for run := range s.reruns + 1 {
		decision := v
		if run < s.unread {
			decision = store.Verdict{}
		}
		end = work(ctx, decision)
		s.actions = append(s.actions, end.Action)
	}
	s.done = end.Completion
	claim := store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
	if end.Action == store.TxRollback || s.failure != nil {
		return v, errors.Join(s.Release(ctx, claim, "rolled back"), s.failure)
	}
	v.Record.ExpiresAt, err = s.Complete(ctx, claim, &end.Completion)
	return v, err
}

func (s *scriptedTransactor) LongestWork(time.Duration) time.Duration { return s.longest }

func (s *scriptedTransactor) InFlight(id store.ID) bool { return s.inFlight[id] }

// TestRunsShareTheDeadline: the deadline of a route bounds all runs of its handler together, however often the database
// undoes one.
func TestRunsShareTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scriptedTransactor{Store: memory.New(), reruns: 4}
		var runs []time.Duration
		guard := newGuard(t, s)
		h := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			until, _ := r.Context().Deadline()
			runs = append(runs, time.Until(until))
			time.Sleep(25 * time.Second)
			w.WriteHeader(http.StatusCreated)
		}, onceward.Transactional(), onceward.Deadline(time.Minute), onceward.Lease(time.Hour))
		post(h, "k", `{}`).wantProblem(t, "E6", http.StatusServiceUnavailable, "deadline-exceeded")
		if want := []time.Duration{time.Minute, 35 * time.Second, 10 * time.Second}; !slices.Equal(runs, want) {
			t.Errorf("E6: the runs have %v, want %v", runs, want)
		}
	})
}

func TestHowATransactionEnds(t *testing.T) {
	t.Parallel()
	answers := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, "the answer")
		}
	}
	says := func(f func(*onceward.Operation), then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { f(onceward.FromContext(r.Context())); then(w, r) }
	}
	// late are those that leave no time for another run: see TestRunsShareTheDeadline.
	late := []string{
		"past its deadline", "in time for the grace", "success after the grace", "rejected after its deadline",
		"a statement that was cut off, answered by 500", "a statement that was cut off, answered by 404",
	}
	for name, test := range map[string]struct {
		f      http.HandlerFunc
		action store.TxAction
		status int // 0 for a panic
		code   string
	}{
		"201":                {answers(201), store.TxCommit, 201, ""},
		"303":                {answers(303), store.TxCommit, 303, ""},
		"409":                {answers(409), store.TxCommitAnswer, 409, ""},
		"409, writes kept":   {says((*onceward.Operation).KeepWrites, answers(409)), store.TxCommit, 409, ""},
		"401":                {answers(401), store.TxRollback, 401, ""},
		"401, writes kept":   {says((*onceward.Operation).KeepWrites, answers(401)), store.TxRollback, 401, ""},
		"429":                {answers(429), store.TxRollback, 429, ""},
		"500":                {answers(500), store.TxRollback, 500, ""},
		"500, writes kept":   {says((*onceward.Operation).KeepWrites, answers(500)), store.TxRollback, 500, ""},
		"503":                {answers(503), store.TxRollback, 503, ""},
		"panic":              {func(http.ResponseWriter, *http.Request) { panic("the handler's panic") }, store.TxRollback, 0, ""},
		"not executed":       {says((*onceward.Operation).NotExecuted, answers(201)), store.TxRollback, 503, "not-executed"},
		"rejected":           {says((*onceward.Operation).Reject, answers(400)), store.TxRollback, 400, ""},
		"rejected, with 201": {says((*onceward.Operation).Reject, answers(201)), store.TxRollback, 503, "not-executed"},
		"unknown":            {says((*onceward.Operation).Unknown, answers(201)), store.TxRollback, 503, "not-executed"},
		"past its deadline":  {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, store.TxRollback, 503, "deadline-exceeded"},
		"in time for the grace": {func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			time.Sleep(200 * time.Millisecond)
			answers(201)(w, r)
		}, store.TxCommit, 201, ""},
		"success after the grace": {func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			time.Sleep(300 * time.Millisecond)
			answers(201)(w, r)
		}, store.TxRollback, 503, "deadline-exceeded"},
		"a statement that was cut off, answered by 500": {func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			answers(500)(w, r)
		}, store.TxRollback, 503, "deadline-exceeded"},
		"a statement that was cut off, answered by 404": {func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			answers(404)(w, r)
		}, store.TxRollback, 503, "deadline-exceeded"},
		"rejected after its deadline": {func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			says((*onceward.Operation).Reject, answers(400))(w, r)
		}, store.TxRollback, 400, ""},
		"too large":           {func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 101)) }, store.TxRollback, 500, "response-too-large"},
		"a flush is gathered": {func(w http.ResponseWriter, r *http.Request) { answers(201)(w, r); w.(http.Flusher).Flush() }, store.TxCommit, 201, ""},
	} {
		for _, reruns := range []int{0, 2} {
			if reruns > 0 && slices.Contains(late, name) {
				continue
			}
			t.Run(fmt.Sprint(name, reruns), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := &scriptedTransactor{Store: memory.New(), longest: time.Second, reruns: reruns}
					handler := &counted{then: test.f}
					h := newGuard(t, s).Handler(handler, onceward.Transactional(), onceward.ResponseLimit(100))
					var a answer
					panicked := panicOf(func() { a = post(h, "k", `{}`) })
					switch {
					case (panicked != nil) != (test.status == 0):
						t.Fatalf("E8: the panic is %v", panicked)
					case test.code != "":
						a.wantProblem(t, "E1", test.status, test.code)
					case test.status != 0:
						a.want(t, "E1", test.status, false)
					}
					for _, action := range s.actions {
						if action != test.action {
							t.Errorf("E1: the transaction ended with %v, want %d", s.actions, test.action)
						}
					}
					if test.action != store.TxRollback &&
						(s.done.Response.Status != test.status || string(s.done.Response.Body) != "the answer") {
						t.Errorf("E1: the answer to store is %d %q", s.done.Response.Status, s.done.Response.Body)
					}
					handler.wantRuns(t, "E1", int64(reruns+1))
					handler.then = answers(202)
					again := post(h, "k", `{}`)
					if test.action == store.TxRollback {
						again.want(t, "E1: the retry runs afresh", 202, false)
					} else {
						again.want(t, "E1: stored", test.status, true)
						again.wantSame(t, "E1: stored", a)
					}
				})
			})
		}
	}
}

func TestATransactionWhoseCommitIsLost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"unknown":    {fmt.Errorf("%w: the connection broke", store.ErrOutcomeUnknown), http.StatusInternalServerError, "outcome-unknown"},
		"failed":     {errDown, http.StatusServiceUnavailable, "store-unavailable"},
		"refused":    {fmt.Errorf("%w: a deferred constraint", store.ErrWorkRefused), http.StatusInternalServerError, "work-refused"},
		"unreadable": {&store.UnreadableError{}, http.StatusInternalServerError, "record-unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events := new(journal)
			s := &scriptedTransactor{Store: memory.New(), failure: test.err}
			h := newGuard(t, s, observedBy(events)).Handler(new(counted), onceward.Transactional())
			a := post(h, "k", `{}`)
			a.wantProblem(t, "E7", test.status, test.code)
			if strings.Contains(a.body, "execution") || a.header.Get("Location") != "" {
				t.Errorf("E7: an answer that is not durable was sent: %v %s", a.header, a.body)
			}
			settled := observed[onceward.SettledEvent](events)
			if unknown := len(settled) == 1 && settled[0].State == store.StateUnknown; unknown != (name == "unknown") {
				t.Errorf("E7: settled as %+v", settled)
			}
			if failed := observed[onceward.StoreFailedEvent](events); (len(failed) == 1) != (name == "failed") {
				t.Errorf("E7: the store is said to have failed: %+v", failed)
			}
		})
	}
}

// TestATransactionPastItsDeadline: what a transaction came to whose deadline has passed. An error of its end is a cut
// by the deadline, unless nobody knows whether it was committed.
func TestATransactionPastItsDeadline(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err    error
		status int
		code   string
	}{
		{fmt.Errorf("%w: the connection broke", store.ErrOutcomeUnknown), http.StatusInternalServerError, "outcome-unknown"},
		{errDown, http.StatusServiceUnavailable, "deadline-exceeded"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &scriptedTransactor{Store: memory.New(), failure: test.err}
			late := &counted{then: func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }}
			h := newGuard(t, s).Handler(late, onceward.Transactional(), onceward.Deadline(time.Second))
			post(h, "k", `{}`).wantProblem(t, "E7", test.status, test.code)

			slow := func(context.Context) ([]byte, error) { time.Sleep(time.Second); return nil, nil }
			_, err := newGuard(t, s).Do(t.Context(), someCall, slow, onceward.Transactional(), onceward.Deadline(time.Second))
			unknown := test.code == "outcome-unknown"
			if !errors.Is(err, test.err) || errors.Is(err, store.ErrDeadline) == unknown {
				t.Errorf("E7: %s: the error of a function is %v", test.code, err)
			}
		})
	}
}

func TestATransactionInFlight(t *testing.T) {
	t.Parallel()
	st := &scriptedTransactor{Store: memory.New()}
	guard := newGuard(t, st)
	var h, statuses http.Handler
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		post(h, "k", `{"other":1}`).
			wantProblem(t, "S4: a conflict, whatever its payload", http.StatusConflict, "in-progress")
		if op := onceward.FromContext(r.Context()); op.CheckLease() != nil || op.Attempt() == 0 {
			t.Errorf("E1: CheckLease() = %v, attempt %d", op.CheckLease(), op.Attempt())
		}
	}}
	h = guard.Handler(handler, onceward.Transactional())
	statuses = guard.StatusHandler()
	post(h, "k", `{}`).want(t, "E1", http.StatusOK, false)
	handler.wantRuns(t, "E1", 1)

	// Nothing is visible before the commit, but this process knows that something is under way.
	st.inFlight = map[store.ID]bool{aliceID("hidden"): true}
	if s := status(t, ask(statuses, "/operations/hidden")); s.State != "in_progress" {
		t.Errorf("section 6: the status of a transaction in flight is %+v", s)
	}
	bound := guard.StatusHandler(onceward.BindSession(sessionOf))
	ask(bound, "/operations/hidden", inSession("one")).
		wantProblem(t, "L4: it may be another session's", http.StatusNotFound, "key-not-found")
	ask(statuses, "/operations/hidden", as("bob")).wantProblem(t, "section 6", http.StatusNotFound, "key-not-found")
}

func TestTheDeadlineOfATransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &scriptedTransactor{Store: memory.New(), longest: 5 * time.Second}
		var left time.Duration
		handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
			deadline, _ := r.Context().Deadline()
			left = time.Until(deadline)
		}}
		guard := newGuard(t, store)
		post(guard.Handler(handler, onceward.Transactional()), "k1", `{}`)
		if left != 5*time.Second {
			t.Errorf("E1: the handler has %s, want the 5 s that the store allows", left)
		}
		post(guard.Handler(handler, onceward.Transactional(), onceward.Deadline(2*time.Second)), "k2", `{}`)
		if left != 2*time.Second {
			t.Errorf("E1: the handler has %s, want the route's 2 s", left)
		}
	})
}

// TestTheContextOfARunThatWasUndone: it has ended, even if a goroutine still holds it, while the next run has its own.
func TestTheContextOfARunThatWasUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs []context.Context
		s := &scriptedTransactor{Store: memory.New(), longest: time.Second, reruns: 2}
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			for _, before := range runs {
				if before.Err() == nil {
					t.Error("E6: the context of a run that was undone has not ended")
				}
			}
			if err := r.Context().Err(); err != nil {
				t.Errorf("E6: the context of a run has ended as it begins: %v", err)
			}
			runs = append(runs, r.Context())
			w.WriteHeader(http.StatusCreated)
		}}
		post(newGuard(t, s).Handler(handler, onceward.Transactional()), "k", `{}`).want(t, "E1", http.StatusCreated, false)
		handler.wantRuns(t, "E1", 3)
	})
}

// TestARunAfterARefusedOne: a run that the guard refused before its handler, such as one whose audit entry met a
// conflict, leaves no deadline to the next run.
func TestARunAfterARefusedOne(t *testing.T) {
	t.Parallel()
	s := &scriptedTransactor{Store: memory.New(), longest: time.Hour, reruns: 1, unread: 1}
	handler := new(counted)
	post(newGuard(t, s).Handler(handler, onceward.Transactional()), "k", `{}`).want(t, "E1", http.StatusCreated, false)
	handler.wantRuns(t, "E1", 1)
}

func TestATransactionThatItsCallerLeft(t *testing.T) {
	t.Parallel()
	store, handler := &scriptedTransactor{Store: memory.New()}, new(counted)
	h := newGuard(t, store).Handler(handler, onceward.Transactional())
	ctx, leave := context.WithCancel(t.Context())
	leave()
	post(h, "k", `{}`, func(r *http.Request) { *r = *r.WithContext(ctx) }).
		wantProblem(t, "S9", http.StatusServiceUnavailable, "not-executed")
	handler.wantRuns(t, "S9", 0)
	post(h, "k", `{}`).want(t, "S9", http.StatusCreated, false)
}

func TestAFunctionInATransaction(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then   func(context.Context, *onceward.Operation) ([]byte, error)
		action store.TxAction
		is     error
	}{
		"a value":  {func(context.Context, *onceward.Operation) ([]byte, error) { return []byte("v"), nil }, store.TxCommit, nil},
		"an error": {func(context.Context, *onceward.Operation) ([]byte, error) { return nil, errCard }, store.TxRollback, errCard},
		"unknown": {func(context.Context, *onceward.Operation) ([]byte, error) {
			return nil, onceward.OutcomeUnknown(errCard)
		}, store.TxRollback, errCard},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, w := &scriptedTransactor{Store: memory.New()}, &work{then: test.then}
			guard := newGuard(t, s)
			if _, err := guard.Do(t.Context(), someCall, w.do, onceward.Transactional()); !errors.Is(err, test.is) ||
				errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("E1, E4: the error is %v, want %v", err, test.is)
			}
			if len(s.actions) != 1 || s.actions[0] != test.action {
				t.Errorf("E1, E4: the transaction ended with %v, want %d", s.actions, test.action)
			}
		})
	}
	s := &scriptedTransactor{Store: memory.New()}
	w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) { return make([]byte, 101), nil }}
	if _, err := newGuard(t, s).Do(t.Context(), someCall, w.do, onceward.Transactional(),
		onceward.ResponseLimit(100)); err == nil {
		t.Error("A4: a value that is too large was committed without being stored")
	}
	if len(s.actions) != 1 || s.actions[0] != store.TxRollback {
		t.Errorf("A4: the transaction ended with %v, want a rollback", s.actions)
	}
}

func TestNoTransaction(t *testing.T) {
	t.Parallel()
	if _, ok := onceward.LookupTx(t.Context()); ok {
		t.Error("E1: a transaction in a context without one")
	}
	if said := panicOf(func() { onceward.Tx(t.Context()) }); said == nil {
		t.Error("E1: Tx gave out a transaction that is not there")
	}
}

// partsOf asks for the name of a part several times.
func partsOf(ctx context.Context, names ...string) (got []string) {
	for _, name := range names {
		got = append(got, part.Name(ctx, name))
	}
	return got
}

// TestPartsOfARun: what was undone and runs again counts from one again, and so has the same names.
func TestPartsOfARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs [][]string
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs = append(runs, partsOf(r.Context(), "mail", "mail"))
			w.WriteHeader(http.StatusCreated)
		})
		store := &scriptedTransactor{Store: memory.New(), longest: time.Second, reruns: 2}
		post(newGuard(t, store).Handler(handler, onceward.Transactional()), "k", `{}`).
			want(t, "E1", http.StatusCreated, false)
		if len(runs) != 3 {
			t.Fatalf("there were %d runs", len(runs))
		}
		for _, run := range runs {
			if want := []string{"mail", "mail #2"}; !slices.Equal(run, want) {
				t.Errorf("the parts of a run are %q, want %q", run, want)
			}
		}
	})
}

// TestPartsOfAnOperationInAStep: an operation inside a step counts its own parts, so that their names do not depend on
// which operations before it were replayed.
func TestPartsOfAnOperationInAStep(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	step := part.WithStep(t.Context(), "book")
	for _, key := range []string{"1", "2"} {
		call := onceward.Call{Scope: "alice", Key: key, Operation: "mail"}
		_, err := guard.Do(step, call, func(ctx context.Context) ([]byte, error) {
			if got, want := partsOf(ctx, "mail", "mail"), []string{"mail", "mail #2"}; !slices.Equal(got, want) {
				t.Errorf("the parts of operation %s are %q, want %q", key, got, want)
			}
			return nil, nil
		}, reserved)
		if err != nil {
			t.Error(err)
		}
	}
}
