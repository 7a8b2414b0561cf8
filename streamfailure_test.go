package onceward_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// flushing flushes after everything that is written, as httputil.ReverseProxy does with answers in chunks.
type flushing struct{ http.ResponseWriter }

func (f flushing) flush() { _ = http.NewResponseController(f.ResponseWriter).Flush() }

func (f flushing) WriteHeader(status int) {
	f.ResponseWriter.WriteHeader(status)
	f.flush()
}

func (f flushing) Write(p []byte) (int, error) {
	defer f.flush()
	return f.ResponseWriter.Write(p)
}

// TestAFailureThatIsFlushed: a failure is no stream, and comes to the same as without a flush.
func TestAFailureThatIsFlushed(t *testing.T) {
	t.Parallel()
	rows := failures()
	for _, name := range []string{"408", "425", "429", "500", "501", "502", "503", "504", "not executed, with 500", "unknown, with 500"} {
		row := rows[name]
		fail := func(w http.ResponseWriter, r *http.Request) { row.fail(flushing{w}, r) }
		for policy, test := range map[string]struct {
			failure onceward.Failure
			want    outcome
		}{
			"retry":   {onceward.FailureRetry, row.retry},
			"store":   {onceward.FailureStore, row.store},
			"unknown": {onceward.FailureUnknown, row.unknown},
		} {
			t.Run(name+", "+policy, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { checkFailure(t, fail, test.failure, test.want) })
			})
		}
	}
}

func TestAFailureThatIsTooLarge(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 500, 502, 503} {
		for _, policy := range []onceward.Failure{onceward.FailureRetry, onceward.FailureStore, onceward.FailureUnknown} {
			t.Run(fmt.Sprint(status, policy), func(t *testing.T) {
				t.Parallel()
				s := memory.New()
				handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(status)
					io.WriteString(w, strings.Repeat("x", 101))
				}}
				h := newGuard(t, s).Handler(handler, onceward.Reserved(policy), onceward.ResponseLimit(100))
				if got := panicOf(func() { post(h, "k", `{}`) }); got != http.ErrAbortHandler {
					t.Errorf("A4: the connection is not cut: %v", got)
				}
				wantState(t, "A4: a failure after a part was sent is unknown", s, "k", store.StateUnknown)
				post(h, "k", `{}`).wantProblem(t, "A4", http.StatusConflict, "outcome-unknown")
				handler.wantRuns(t, "A4", 1)
			})
		}
	}
}

func TestAStreamThatItsDeadlineEnds(t *testing.T) {
	t.Parallel()
	s := memory.New()
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "a part")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}}
	server := startServer(t, newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureRetry), onceward.Deadline(20*time.Millisecond)))
	if a, err := trySend(t.Context(), server, "k", `{}`); err == nil {
		t.Errorf("A4: the client takes %d %q for a whole answer", a.status, a.body)
	}
	wantState(t, "A4", s, "k", store.StateUnknown)
	send(t, server, "k", `{}`).wantProblem(t, "A4", http.StatusConflict, "outcome-unknown")
	handler.wantRuns(t, "A4", 1)
}

func TestAStreamThatLosesItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeartbeatStore()
		s.fault = func(time.Duration) error { return errDown }
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "a part")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureRetry), onceward.Deadline(5*time.Minute))
		if got := panicOf(func() { post(h, "k", `{}`) }); got != http.ErrAbortHandler {
			t.Errorf("A4: the connection is not cut: %v", got)
		}
		wantState(t, "A4, E2", s, "k", store.StateUnknown)
		handler.wantRuns(t, "A4", 1)
	})
}

// startProxy puts a protected reverse proxy in front of an upstream that answers in chunks.
func startProxy(t *testing.T, store store.Store, upstream http.Handler, option onceward.Option) *httptest.Server {
	t.Helper()
	behind := startServer(t, upstream)
	target, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = behind.Client().Transport
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return startServer(t, newGuard(t, store).Handler(proxy, option))
}

func TestAReverseProxyWhoseUpstreamFails(t *testing.T) {
	t.Parallel()
	rows := failures()
	for _, status := range []int{429, 500, 502, 503} {
		row := rows[fmt.Sprint(status)]
		for policy, test := range map[string]struct {
			failure onceward.Failure
			state   store.State
		}{
			"retry":   {onceward.FailureRetry, row.retry.state},
			"store":   {onceward.FailureStore, row.store.state},
			"unknown": {onceward.FailureUnknown, row.unknown.state},
		} {
			t.Run(fmt.Sprint(status, ", ", policy), func(t *testing.T) {
				t.Parallel()
				s := memory.New()
				upstream := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(status)
					w.(http.Flusher).Flush()
					fmt.Fprint(w, "the upstream's own words")
				}}
				server := startProxy(t, s, upstream, onceward.Reserved(test.failure))
				first := send(t, server, "k", `{}`)
				first.want(t, "E5", status, false)
				if first.body != "the upstream's own words" {
					t.Errorf("E5: the answer is %q, want the upstream's own words", first.body)
				}
				wantState(t, "E5", s, "k", test.state)
				again := send(t, server, "k", `{}`)
				switch test.state {
				case store.StateRetryable:
					again.want(t, "E5: released, the retry executes", status, false)
					upstream.wantRuns(t, "E5", 2)
				case store.StateCompleted:
					again.want(t, "E5: stored", status, true)
					again.wantSame(t, "E5: stored", first)
					upstream.wantRuns(t, "E5", 1)
				default:
					again.wantProblem(t, "E5: unknown", http.StatusConflict, "outcome-unknown")
					upstream.wantRuns(t, "E5", 1)
				}
			})
		}
	}
}

func TestAReverseProxyWhoseUpstreamBreaksOff(t *testing.T) {
	t.Parallel()
	s := memory.New()
	upstream := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "a part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}}
	server := startProxy(t, s, upstream, onceward.Reserved(onceward.FailureRetry))
	if a, err := trySend(t.Context(), server, "k", `{}`); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("A4: the client takes %d %q for a whole answer: %v", a.status, a.body, err)
	}
	wantState(t, "A4", s, "k", store.StateUnknown)
	upstream.wantRuns(t, "A4", 1)
}
