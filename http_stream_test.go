package onceward_test

import (
	"bufio"
	"context"
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
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestAStreamIsMarkedThenSentAndNotRepeated(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	marked := make(chan struct{})
	s.checkpoint = func(ctx context.Context, c store.Claim, p store.Checkpoint) error {
		if !p.NotReplayable {
			t.Error("A4: the record is not marked as not replayable")
		}
		close(marked)
		return s.Store.Checkpoint(ctx, c, p)
	}
	goOn := make(chan struct{})
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Stream", "yes")
		fmt.Fprintln(w, "one")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("A4: Flush: %v", err)
		}
		<-goOn
		fmt.Fprintln(w, "two")
		w.(http.Flusher).Flush()
		io.WriteString(w, "three\n")
	}}
	server := startServer(t, newGuard(t, s).Handler(handler, reserved))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments",
		strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	prepare(request, "k", nil)
	res, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "one\n" || res.Header.Get("X-Stream") != "yes" {
		t.Errorf("A4: the first line is %q, %v, with %v", line, err, res.Header)
	}
	select {
	case <-marked:
	default:
		t.Error("A4: a byte was sent before the record was marked")
	}
	rec, err := s.Get(t.Context(), aliceID("k"))
	if err != nil || !rec.NotReplayable || rec.State != store.StateInProgress {
		t.Errorf("A4: while it streams the record is %s, not replayable %t, %v", rec.State, rec.NotReplayable, err)
	}
	send(t, server, "k", `{}`).wantProblem(t, "section 6: in flight", http.StatusConflict, "in-progress")
	close(goOn)
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "two\nthree\n" {
		t.Errorf("A4: the rest is %q, %v", rest, err)
	}
	for range 2 {
		send(t, server, "k", `{}`).wantProblem(t, "A4", http.StatusConflict, "response-not-stored")
	}
	wantState(t, "A4", s, "k", store.StateCompleted)
	handler.wantRuns(t, "A4: never executed again", 1)
}

func TestAResponseThatIsTooLarge(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789", 1000)
	for name, write := range map[string]func(w http.ResponseWriter){
		"at once":   func(w http.ResponseWriter) { io.WriteString(w, large) },
		"in pieces": func(w http.ResponseWriter) { io.Copy(w, iotestOneByOne(large)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/payments/1")
				w.WriteHeader(http.StatusCreated)
				write(w)
			}, onceward.ResponseLimit(9999))
			first := send(t, server, "k", `{}`)
			first.want(t, "A4", http.StatusCreated, false)
			if first.body != large || first.header.Get("Location") != "/payments/1" {
				t.Errorf("A4: the first answer has %d bytes and %v, want all %d", len(first.body), first.header,
					len(large))
			}
			again := send(t, server, "k", `{}`)
			again.wantProblem(t, "section 6", http.StatusConflict, "response-not-stored")
			send(t, server, "k", `{"other":1}`).wantProblem(t, "S4", http.StatusUnprocessableEntity, "mismatch")
			handler.wantRuns(t, "section 6", 1)
		})
	}
	t.Run("exactly the limit", func(t *testing.T) {
		t.Parallel()
		server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, large) },
			onceward.ResponseLimit(10_000))
		send(t, server, "k", `{}`).want(t, "A4", http.StatusOK, false)
		if a := send(t, server, "k", `{}`); !a.replayed() || a.body != large {
			t.Errorf("A4: a response of exactly the limit is not replayed: %d, %d bytes", a.status, len(a.body))
		}
		handler.wantRuns(t, "A4", 1)
	})
}

// iotestOneByOne reads a few bytes at a time.
func iotestOneByOne(s string) io.Reader {
	pieces := make([]io.Reader, 0, len(s)/100+1)
	for len(s) > 0 {
		n := min(100, len(s))
		pieces = append(pieces, strings.NewReader(s[:n]))
		s = s[n:]
	}
	return io.MultiReader(pieces...)
}

func TestFailureAfterAPartWasSentIsUnknown(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*onceward.Operation){
		"panic":        func(*onceward.Operation) { panic("the handler's panic") },
		"abort":        func(*onceward.Operation) { panic(http.ErrAbortHandler) },
		"unknown":      (*onceward.Operation).Unknown,
		"not executed": (*onceward.Operation).NotExecuted,
	} {
		for _, policy := range []onceward.Failure{onceward.FailureRetry, onceward.FailureStore, onceward.FailureUnknown} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				t.Parallel()
				s := memory.New()
				handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
					fmt.Fprint(w, "a part")
					w.(http.Flusher).Flush()
					fail(onceward.FromContext(r.Context()))
				}}
				server := startServer(t, newGuard(t, s).Handler(handler, onceward.Reserved(policy)))
				if a, err := trySend(t.Context(), server, "k", `{}`); err == nil {
					t.Errorf("A4: the client takes %d %q for a whole answer", a.status, a.body)
				}
				wantState(t, "A4", s, "k", store.StateUnknown)
				send(t, server, "k", `{}`).wantProblem(t, "A4", http.StatusConflict, "outcome-unknown")
				handler.wantRuns(t, "A4", 1)
			})
		}
	}
}

func TestAMarkThatFailsSendsNothing(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	s.checkpoint = func(context.Context, store.Claim, store.Checkpoint) error { return errDown }
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Stream", "yes")
		fmt.Fprint(w, "a part")
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("A4: Flush = %v, want the store's error", err)
		}
		if _, err := fmt.Fprint(w, "more"); err == nil {
			t.Error("A4: a write after that succeeds")
		}
		if _, err := io.WriteString(w, "more"); err == nil {
			t.Error("A4: a write of a string after that succeeds")
		}
	}}
	server := startServer(t, newGuard(t, s, tryOnce).Handler(handler, onceward.Reserved(onceward.FailureRetry)))
	a := send(t, server, "k", `{}`)
	a.wantProblem(t, "A4", http.StatusInternalServerError, "outcome-unknown")
	if a.header.Get("X-Stream") != "" || strings.Contains(a.body, "part") {
		t.Errorf("A4: something of the handler's answer was sent: %v %q", a.header, a.body)
	}
	wantState(t, "A4", s, "k", store.StateUnknown)
	send(t, server, "k", `{}`).wantProblem(t, "A4", http.StatusConflict, "outcome-unknown")
	handler.wantRuns(t, "A4", 1)
}

func TestAStreamWhoseEndCannotBeStoredIsCut(t *testing.T) {
	t.Parallel()
	s := newFaultyStore()
	s.complete = brokenComplete
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "a part")
		w.(http.Flusher).Flush()
	}}
	server := startServer(t, newGuard(t, s, tryOnce).Handler(handler, onceward.Reserved(onceward.FailureRetry)))
	if a, err := trySend(t.Context(), server, "k", `{}`); err == nil {
		t.Errorf("E7: the client takes %d %q for a success", a.status, a.body)
	}
	wantState(t, "E7", s, "k", store.StateUnknown)
	handler.wantRuns(t, "E7", 1)
}

func TestFlushWithoutABody(t *testing.T) {
	t.Parallel()
	server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		w.(http.Flusher).Flush()
	})
	send(t, server, "k", `{}`).want(t, "A4", http.StatusNoContent, false)
	send(t, server, "k", `{}`).wantProblem(t, "A4", http.StatusConflict, "response-not-stored")
	handler.wantRuns(t, "A4", 1)
}

func TestTheStreamGoesOnWithoutItsReader(t *testing.T) {
	t.Parallel()
	s := memory.New()
	gone, ended := make(chan struct{}), make(chan error, 1)
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "one")
		w.(http.Flusher).Flush()
		<-gone
		var failed error
		for range 1000 {
			if _, err := fmt.Fprintln(w, strings.Repeat("x", 1000)); err != nil {
				failed = err
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				failed = err
			}
		}
		ended <- failed
	}}
	protected := newGuard(t, s).Handler(handler, reserved)
	server, done := startServerSignalling(t, protected)
	ctx, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/payments", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	prepare(request, "k", nil)
	res, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	res.Body.Close()
	close(gone)
	if err := await.Value(t, "the end of the handler", ended); err != nil {
		t.Errorf("E6: the handler was told that the client left: %v", err)
	}
	await.Value(t, "the end of the request", done)
	wantState(t, "E6", s, "k", store.StateCompleted)
	send(t, server, "k", `{}`).wantProblem(t, "scenario 25", http.StatusConflict, "response-not-stored")
	handler.wantRuns(t, "E6", 1)
}

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
	for _, name := range []string{
		"401", "408", "425", "429", "500", "501", "502", "503", "504", "not executed, with 500", "unknown, with 500",
	} {
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
				synctest.Test(t, func(t *testing.T) { checkFailure(t, doors["handler"], fail, test.failure, test.want) })
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
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "a part")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureRetry), onceward.Deadline(time.Second))
		if got := panicOf(func() { post(h, "k", `{}`) }); got != http.ErrAbortHandler {
			t.Errorf("A4: the connection is not cut: %v", got)
		}
		wantState(t, "A4", s, "k", store.StateUnknown)
		post(h, "k", `{}`).wantProblem(t, "A4", http.StatusConflict, "outcome-unknown")
		handler.wantRuns(t, "A4", 1)
	})
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
