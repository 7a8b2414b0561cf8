package onceward_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// This file is about goroutines that a handler left behind: they reach nothing that comes after it.

// TestAStrayGoroutineUnderAStoredFailure lets one at what the handler gave it while the failure is being stored.
func TestAStrayGoroutineUnderAStoredFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		storing, done := make(chan struct{}), make(chan struct{})
		s.complete = func(ctx context.Context, c store.Claim, completion *store.Completion) (time.Time, error) {
			close(storing)
			<-done
			return s.Store.Complete(ctx, c, completion)
		}
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			go func() {
				defer close(done)
				<-storing
				w.Header().Del("X-Frame-Options")
				w.Header().Set("Content-Type", "text/html")
				w.WriteHeader(http.StatusOK)
				if _, err := io.WriteString(w, "a late success"); err == nil {
					t.Error("E5: a write after the handler's end succeeds")
				}
			}()
			<-r.Context().Done()
		}}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureStore))
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Frame-Options", "DENY")
			h.ServeHTTP(w, r)
		})
		first := post(outer, "k", `{}`)
		first.wantProblem(t, "E5", http.StatusInternalServerError, "handler-failed")
		if got := first.header.Get("X-Frame-Options"); got != "DENY" {
			t.Errorf("E5: a goroutine that the handler left behind changed the failure: X-Frame-Options is %q, want DENY", got)
		}
		again := post(outer, "k", `{}`)
		again.want(t, "E5: stored", http.StatusInternalServerError, true)
		again.wantSame(t, "E5: stored", first)
		handler.wantRuns(t, "E5", 1)
	})
}

// TestAStrayGoroutineThatKeepsWriting: whatever it does, and under the race detector, the failure is what is stored.
func TestAStrayGoroutineThatKeepsWriting(t *testing.T) {
	t.Parallel()
	for range 50 {
		stop, stopped := make(chan struct{}), make(chan struct{})
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						w.Header().Set("Content-Type", "text/plain")
						_, _ = io.WriteString(w, "x") // an error as soon as the handler has ended
					}
				}
			}()
			panic("the handler's panic")
		}}
		h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureStore), onceward.ResponseLimit(64<<20))
		panicOf(func() { post(h, "k", `{}`) })
		close(stop)
		<-stopped
		post(h, "k", `{}`).wantProblem(t, "E5: stored", http.StatusInternalServerError, "handler-failed")
		handler.wantRuns(t, "E5", 1)
	}
}

// TestWhatAnUndoneRunLeftBehind: a transaction may be undone and its work repeated.
func TestWhatAnUndoneRunLeftBehind(t *testing.T) {
	t.Parallel()
	store := &scriptedTransactor{Store: memory.New(), reruns: 1}
	var earlier http.ResponseWriter
	var body io.Reader
	handler := new(counted)
	handler.then = func(w http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		if handler.runs.Load() == 1 {
			earlier, body = w, r.Body
			op.SetProviderID("of the first run")
			op.Retain(48 * time.Hour)
			io.WriteString(w, "the first run")
			return
		}
		earlier.Header().Set("X-Stray", "yes")
		if _, err := io.WriteString(earlier, "a stray write"); err == nil {
			t.Error("E1: a write of an undone run succeeds")
		}
		if n, err := body.Read(make([]byte, 10)); n != 0 || err == nil {
			t.Errorf("E1: an undone run reads %d bytes of the body, %v", n, err)
		}
		if content, err := io.ReadAll(r.Body); err != nil || string(content) != `{"amount":1}` {
			t.Errorf("E1: the second run reads %q, %v", content, err)
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "the second run")
	}
	h := newGuard(t, store).Handler(handler, onceward.Transactional())
	first := post(h, "k", `{"amount":1}`)
	first.want(t, "E1", http.StatusCreated, false)
	if first.body != "the second run" || first.header.Get("X-Stray") != "" {
		t.Errorf("E1: the answer is %q with %v, want that of the second run alone", first.body, first.header)
	}
	if store.done.ProviderID != "" || store.done.Retention != 0 {
		t.Errorf("E1: an undone run's words are stored: %+v", store.done)
	}
	handler.wantRuns(t, "E1", 2)
}

// TestAStrayGoroutineBehindAPanic: it goes on with the header of an answer that nobody sends any more. A look at that header
// would be a fault that no process survives.
func TestAStrayGoroutineBehindAPanic(t *testing.T) {
	t.Parallel()
	for range 50 {
		stop, started, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
		handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			for i := range 500 {
				h.Set("X-"+strconv.Itoa(i), "x")
			}
			w.WriteHeader(http.StatusCreated)
			go func() {
				defer close(stopped)
				for i := 0; ; i++ {
					h.Set("X-"+strconv.Itoa(i%1000), "y")
					if i == 0 {
						close(started)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
			<-started
			panic("the handler's panic")
		}}
		h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureStore))
		panicOf(func() { post(h, "k", `{}`) })
		close(stop)
		<-stopped
	}
}
