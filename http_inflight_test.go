package onceward_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// slow is a handler that takes its time, by the clock of the test.
func slow(d time.Duration, status int) *counted {
	return &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(d)
		w.WriteHeader(status)
		fmt.Fprint(w, "the answer")
	}}
}

// crowd sends n equal requests at once and returns their answers.
func crowd(n int, h http.Handler) []answer {
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { answers[i] = post(h, "k", `{}`) })
	}
	all.Wait()
	return answers
}

func tally(answers []answer) map[int]int {
	count := make(map[int]int)
	for _, a := range answers {
		count[a.status]++
	}
	return count
}

func TestConflictIsTheDefault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := slow(10*time.Second, http.StatusCreated)
		h := newGuard(t, memory.New()).Handler(handler, reserved)
		started := time.Now()
		answers := crowd(50, h)
		if took := time.Since(started); took != 10*time.Second {
			t.Errorf("section 6: a conflict waited: all took %s", took)
		}
		if got := tally(answers); got[http.StatusCreated] != 1 || got[http.StatusConflict] != 49 {
			t.Errorf("section 6: the answers are %v, want one 201 and 49 times 409", got)
		}
		for _, a := range answers {
			if a.status == http.StatusConflict {
				a.wantProblem(t, "section 6", http.StatusConflict, "in-progress")
				if seconds, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || seconds < 1 {
					t.Errorf("section 6: Retry-After is %q, want at least 1", a.header.Get("Retry-After"))
				}
			}
		}
		handler.wantRuns(t, "S1", 1)
		post(h, "k", `{}`).want(t, "section 6", http.StatusCreated, true)
	})
}

func TestMismatchIsSeenInFlight(t *testing.T) {
	t.Parallel()
	var h http.Handler
	for name, option := range map[string]onceward.Option{
		"conflict": onceward.InFlightConflict(), "wait": onceward.InFlightWait(time.Hour), "accepted": onceward.InFlightAccepted("/operations/"),
	} {
		t.Run(name, func(t *testing.T) {
			handler := &counted{then: func(http.ResponseWriter, *http.Request) {
				post(h, "k", `{"amount":2}`).wantProblem(t, "S4", http.StatusUnprocessableEntity, "mismatch")
			}}
			h = newGuard(t, memory.New()).Handler(handler, reserved, option)
			post(h, "k", `{"amount":1}`).want(t, "scenario 21", http.StatusOK, false)
			handler.wantRuns(t, "scenario 21: one of them runs, never both", 1)
		})
	}
}

func TestOneExecutionForTwoHundred(t *testing.T) {
	t.Parallel()
	const n = 200
	goOn := make(chan struct{})
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		<-goOn
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "the answer")
	}}
	var decisions atomic.Int64
	allArrived := make(chan struct{})
	guard := newGuard(t, memory.New(), func(c *onceward.Config) {
		c.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
			if _, ok := e.(onceward.DecidedEvent); ok && decisions.Add(1) == n {
				close(allArrived)
			}
		})
	})
	server := startServer(t, guard.Handler(handler, reserved, onceward.InFlightWait(time.Minute)))
	answers, errs := make([]answer, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { answers[i], errs[i] = trySend(t.Context(), server, "k", `{}`) })
	}
	<-allArrived // before the first is answered
	close(goOn)
	all.Wait()
	replayed := 0
	for i, a := range answers {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if a.status != http.StatusCreated || a.body != "the answer" {
			t.Fatalf("section 6: answer %d is %d %q", i, a.status, a.body)
		}
		if a.replayed() {
			replayed++
		}
	}
	if replayed != n-1 {
		t.Errorf("section 6: %d of %d answers are replays, want all but one", replayed, n)
	}
	handler.wantRuns(t, "S1", 1)
}

func TestWaitHasALimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := slow(20*time.Second, http.StatusCreated)
		h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.InFlightWait(5*time.Second))
		var first answer
		var all sync.WaitGroup
		all.Go(func() { first = post(h, "k", `{}`) })
		synctest.Wait()
		started := time.Now()
		a := post(h, "k", `{}`)
		a.wantProblem(t, "section 6: 409 at the limit", http.StatusConflict, "in-progress")
		if took := time.Since(started); took != 5*time.Second || a.header.Get("Retry-After") == "" {
			t.Errorf("section 6: it waited %s, Retry-After %q; want 5s", took, a.header.Get("Retry-After"))
		}
		time.Sleep(12 * time.Second)
		started = time.Now()
		post(h, "k", `{}`).want(t, "section 6: waits, then replays", http.StatusCreated, true)
		if took := time.Since(started); took != 3*time.Second {
			t.Errorf("section 6: it waited %s, want until the answer was there, 3s", took)
		}
		all.Wait()
		first.want(t, "section 6", http.StatusCreated, false)
		handler.wantRuns(t, "S1", 1)
	})
}

func TestWaitersHaveACap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := slow(10*time.Second, http.StatusCreated)
		guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.MaxWaiters = 3 })
		h := guard.Handler(handler, reserved, onceward.InFlightWait(time.Minute))
		for round := range 2 {
			key := fmt.Sprint("round", round)
			answers := make([]answer, 10)
			var all sync.WaitGroup
			for i := range answers {
				all.Go(func() { answers[i] = post(h, key, `{}`) })
			}
			all.Wait()
			if got := tally(answers); got[http.StatusCreated] != 4 || got[http.StatusConflict] != 6 {
				t.Errorf("section 6: round %d: %v, want one execution, 3 that waited, and 6 past the cap", round, got)
			}
		}
		handler.wantRuns(t, "S1", 2)
	})
}

func TestAWaiterTakesOverWhatWasReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := &counted{}
		handler.then = func(w http.ResponseWriter, _ *http.Request) {
			n := handler.runs.Load()
			time.Sleep(time.Second)
			if n == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}
		h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureRetry),
			onceward.InFlightWait(time.Minute))
		answers := crowd(20, h)
		if got := tally(answers); got[http.StatusServiceUnavailable] != 1 || got[http.StatusCreated] != 19 {
			t.Errorf("section 4: %v, want the one that failed, and 19 with the answer of the one that took over", got)
		}
		handler.wantRuns(t, "section 4: one winner", 2)
	})
}

func TestAWaiterLearnsThatTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			onceward.FromContext(r.Context()).Unknown()
		}}
		h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.InFlightWait(time.Minute))
		if got := tally(crowd(5, h)); got[http.StatusInternalServerError] != 1 || got[http.StatusConflict] != 4 {
			t.Errorf("section 6: %v, want one 500 and four 409", got)
		}
		handler.wantRuns(t, "section 6", 1)
	})
}

func TestWaitOnAStoreThatCannotNotify(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := slow(10*time.Second, http.StatusCreated)
		h := newGuard(t, plainStore{memory.New()}).Handler(handler, reserved, onceward.InFlightWait(time.Minute))
		started := time.Now()
		if got := tally(crowd(5, h)); got[http.StatusCreated] != 5 {
			t.Errorf("section 6: %v, want five 201", got)
		}
		if took := time.Since(started); took > 11*time.Second {
			t.Errorf("section 6: the waiters learned it after %s", took)
		}
		handler.wantRuns(t, "S1", 1)
	})
}

func TestDifferentKeysDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := slow(10*time.Second, http.StatusCreated)
		h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.InFlightWait(time.Minute))
		started := time.Now()
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() { post(h, fmt.Sprint(i), `{}`).want(t, "section 1", http.StatusCreated, false) })
		}
		all.Wait()
		if took := time.Since(started); took != 10*time.Second {
			t.Errorf("section 1: twenty keys took %s, want 10s", took)
		}
		handler.wantRuns(t, "section 1", 20)
	})
}
