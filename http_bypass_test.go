package onceward_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// The writers of frameworks, as far as they show what was written to them.
type (
	// ginWriter shows by methods what was written. It keeps a status back until the first byte; 200 stands for none.
	ginWriter struct {
		http.ResponseWriter
		status  int
		written bool
	}
	// chiWriter shows by methods the status, 0 for none, and the number of bytes.
	chiWriter struct {
		http.ResponseWriter
		status, size int
	}
	// sizedWriter shows by methods the status, 200 for none, and the size, as gorilla/handlers does.
	sizedWriter struct{ chiWriter }
	// echoWriter shows by fields what was written.
	echoWriter struct {
		http.ResponseWriter
		Status    int
		Committed bool
	}
	// wrapperWriter shows nothing itself.
	wrapperWriter struct{ http.ResponseWriter }
)

func (w *ginWriter) WriteHeader(status int) { w.status = status }
func (w *ginWriter) Status() int            { return w.status }
func (w *ginWriter) Written() bool          { return w.written }

func (w *ginWriter) Write(p []byte) (int, error) {
	w.now()
	return w.ResponseWriter.Write(p)
}

// now sends the status, as gin does at the end of a request.
func (w *ginWriter) now() {
	if !w.written {
		w.written = true
		w.ResponseWriter.WriteHeader(w.status)
	}
}

func (w *chiWriter) Status() int       { return w.status }
func (w *chiWriter) BytesWritten() int { return w.size }

func (w *chiWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *chiWriter) Write(p []byte) (int, error) {
	w.size += len(p)
	return w.ResponseWriter.Write(p)
}

func (w *sizedWriter) Status() int       { return max(w.status, http.StatusOK) }
func (w *sizedWriter) Size() int         { return w.size }
func (w *sizedWriter) BytesWritten() int { return 0 }

func (w *echoWriter) WriteHeader(status int) {
	w.Status, w.Committed = status, true
	w.ResponseWriter.WriteHeader(status)
}

func (w wrapperWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// frameworks wrap the server's writer in their own.
var frameworks = map[string]func(http.ResponseWriter) http.ResponseWriter{
	"gin": func(w http.ResponseWriter) http.ResponseWriter {
		return &ginWriter{ResponseWriter: w, status: http.StatusOK}
	},
	"sized": func(w http.ResponseWriter) http.ResponseWriter {
		return &sizedWriter{chiWriter{ResponseWriter: w}}
	},
	"chi":  func(w http.ResponseWriter) http.ResponseWriter { return &chiWriter{ResponseWriter: w} },
	"echo": func(w http.ResponseWriter) http.ResponseWriter { return &echoWriter{ResponseWriter: w} },
	"wrapped gin": func(w http.ResponseWriter) http.ResponseWriter {
		return wrapperWriter{&ginWriter{ResponseWriter: w, status: http.StatusOK}}
	},
	"net/http": func(w http.ResponseWriter) http.ResponseWriter { return w },
}

// bypassing is a service whose handler writes to the framework's writer, not to the one that the guard hands to it. As
// wrappers of frameworks do, it protects the handler again for each request.
type bypassing struct {
	guard   *onceward.Guard
	options []onceward.Option
	writer  func(http.ResponseWriter) http.ResponseWriter
	handler *counted
}

func (b *bypassing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	real := b.writer(w)
	r.Pattern = "/payments"
	b.guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { b.handler.ServeHTTP(real, r) }, b.options...).
		ServeHTTP(real, r)
	if outer, ok := real.(wrapperWriter); ok {
		real = outer.Unwrap()
	}
	if gin, ok := real.(*ginWriter); ok {
		gin.now()
	}
}

// logging writes the log of a guard into a buffer.
func logging(log *bytes.Buffer) func(*onceward.Config) {
	return func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) }
}

// answering is a handler that answers with a status and a body, or with the status alone.
func answering(status int, body string) *counted {
	return &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		if body != "" {
			w.Header().Set("Content-Type", "text/plain")
		}
		w.WriteHeader(status)
		if body != "" {
			fmt.Fprint(w, body)
		}
	}}
}

// TestAnAnswerPastTheGuardIsNoticed: the client gets it, it is not replayed as an empty one, nothing is executed again,
// and the log contains the remedy once.
func TestAnAnswerPastTheGuardIsNoticed(t *testing.T) {
	t.Parallel()
	for name, writer := range frameworks {
		if name == "net/http" {
			continue // its status cannot be seen: see TestAnAnswerPastTheGuardWithoutAStatus
		}
		for _, answer := range []struct {
			status int
			body   string
		}{{http.StatusCreated, "the answer"}, {http.StatusCreated, ""}, {http.StatusOK, "the answer"}} {
			t.Run(fmt.Sprintf("%s, %d %q", name, answer.status, answer.body), func(t *testing.T) {
				t.Parallel()
				status, body := answer.status, answer.body
				var log bytes.Buffer
				events, s := new(journal), memory.New()
				b := &bypassing{
					guard: newGuard(t, s, logging(&log), observedBy(events)), options: []onceward.Option{reserved},
					writer: writer, handler: answering(status, body),
				}
				for _, key := range []string{"k", "l"} {
					first := post(b, key, `{}`)
					if first.want(t, "E7", status, false); first.body != body {
						t.Errorf("E7: the client got %q, want %q alone", first.body, body)
					}
					post(b, key, `{}`).wantProblem(t, "A4", http.StatusConflict, "response-not-stored")
					wantState(t, "A4", s, key, store.StateCompleted)
				}
				b.handler.wantRuns(t, "S1", 2)
				wantLogged(t, log.String(), "past the guard", 1)
				got := observed[onceward.BypassedEvent](events)
				if want := (onceward.BypassedEvent{
					ID: aliceID("k"), Operation: "POST /payments", Status: status,
				}); len(got) != 2 || got[0] != want {
					t.Errorf("M1: the observer was told %+v, want two as %+v", got, want)
				}
			})
		}
	}
}

// wantLogged checks how often the log has a line about a route, with its remedy.
func wantLogged(t testing.TB, log, what string, want int) {
	t.Helper()
	found := 0
	for line := range strings.Lines(log) {
		if strings.Contains(line, what) {
			found++
			if !strings.Contains(line, `operation="POST /payments"`) || !strings.Contains(line, "docs/routers.md") {
				t.Errorf("M3: the log names no route or no remedy: %s", line)
			}
		}
	}
	if found != want {
		t.Errorf("M3: %q is %d times in the log, want %d: %s", what, found, want, log)
	}
}

// TestAFailurePastTheGuard: the status that a framework's writer shows counts as if it was written to the guard's.
func TestAFailurePastTheGuard(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		option onceward.Option
		want   store.State
	}{
		"500, unknown": {500, onceward.Reserved(onceward.FailureUnknown), store.StateUnknown},
		"500, retry":   {500, onceward.Reserved(onceward.FailureRetry), store.StateRetryable},
		"500, store":   {500, onceward.Reserved(onceward.FailureStore), store.StateCompleted},
		"503, store":   {503, onceward.Reserved(onceward.FailureStore), store.StateRetryable},
		"429":          {429, onceward.Reserved(onceward.FailureUnknown), store.StateRetryable},
		"422":          {422, onceward.Reserved(onceward.FailureUnknown), store.StateCompleted},
	} {
		for framework, writer := range frameworks {
			if framework == "net/http" {
				continue
			}
			t.Run(name+", "+framework, func(t *testing.T) {
				t.Parallel()
				s := memory.New()
				b := &bypassing{
					guard: newGuard(t, s), options: []onceward.Option{test.option}, writer: writer,
					handler: answering(test.status, "sorry"),
				}
				if a := post(b, "k", `{}`); a.status != test.status || a.body != "sorry" {
					t.Errorf("E5: the client got %d %q, want the handler's answer alone", a.status, a.body)
				}
				wantState(t, "E5", s, "k", test.want)
			})
		}
	}
}

// TestAnAnswerPastTheGuardWithoutAStatus: where only the header shows that an answer went past, it is not guessed
// whether the handler failed.
func TestAnAnswerPastTheGuardWithoutAStatus(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := memory.New()
	b := &bypassing{
		guard: newGuard(t, s, logging(&log)), options: []onceward.Option{onceward.Reserved(onceward.FailureRetry)},
		writer: frameworks["net/http"], handler: answering(http.StatusCreated, "the answer"),
	}
	server := startServer(t, b)
	if a := send(t, server, "k", `{}`); a.status != http.StatusCreated || a.body != "the answer" {
		t.Errorf("E7: the client got %d %q, want the handler's answer alone", a.status, a.body)
	}
	wantState(t, "E5", s, "k", store.StateUnknown)
	send(t, server, "k", `{}`).wantProblem(t, "section 6", http.StatusConflict, "outcome-unknown")
	b.handler.wantRuns(t, "E5", 1)
	wantLogged(t, log.String(), "past the guard: its answer", 1)
}

// TestATransactionAnsweredPastTheGuard: it ends as its answer requires, even if its status cannot be seen. If its
// commit fails the log reports that the client got another answer.
func TestATransactionAnsweredPastTheGuard(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		framework string
		status    int
		failure   error
		action    store.TxAction
		logged    int
	}{
		"201":                        {"gin", 201, nil, store.TxCommit, 0},
		"422":                        {"echo", 422, nil, store.TxCommitAnswer, 0},
		"500":                        {"gin", 500, nil, store.TxRollback, 0},
		"no status":                  {"net/http", 201, nil, store.TxCommit, 0},
		"201, the commit fails":      {"gin", 201, errDown, store.TxCommit, 1},
		"201, its commit is unknown": {"gin", 201, fmt.Errorf("%w: yes", store.ErrOutcomeUnknown), store.TxCommit, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			s := &scriptedTransactor{Store: memory.New(), failure: test.failure}
			b := &bypassing{
				guard: newGuard(t, s, logging(&log)), options: []onceward.Option{onceward.Transactional()},
				writer: frameworks[test.framework], handler: answering(test.status, "the answer"),
			}
			if a := post(b, "k", `{}`); a.status != test.status || a.body != "the answer" {
				t.Errorf("E1: the client got %d %q, want the handler's answer alone", a.status, a.body)
			}
			if len(s.actions) != 1 || s.actions[0] != test.action {
				t.Errorf("E1: the transaction ended with %v, want %d", s.actions, test.action)
			}
			if test.action != store.TxRollback && !s.done.Response.NotStored {
				t.Errorf("A4: %+v is stored as the answer", s.done.Response)
			}
			if got := strings.Count(log.String(), "before the outcome was durable"); got != test.logged {
				t.Errorf("E7: the log says %d times that the client was told otherwise, want %d: %s", got, test.logged,
					log.String())
			}
		})
	}
}

// TestTheHandlersWordPastTheGuard: the outcome it set takes precedence, and nothing is sent after its answer.
func TestTheHandlersWordPastTheGuard(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		say  func(*onceward.Operation)
		want store.State
	}{
		"not executed": {(*onceward.Operation).NotExecuted, store.StateRetryable},
		"unknown":      {(*onceward.Operation).Unknown, store.StateUnknown},
	} {
		for _, framework := range []string{"gin", "net/http"} {
			t.Run(name+", "+framework, func(t *testing.T) {
				t.Parallel()
				s := memory.New()
				b := &bypassing{
					guard: newGuard(t, s), options: []onceward.Option{reserved}, writer: frameworks[framework],
					handler: &counted{then: func(w http.ResponseWriter, r *http.Request) {
						test.say(onceward.FromContext(r.Context()))
						w.Header().Set("Content-Type", "text/plain")
						fmt.Fprint(w, "the answer")
					}},
				}
				if a := post(b, "k", `{}`); a.status != http.StatusOK || a.body != "the answer" {
					t.Errorf("E5: the client got %d %q, want the handler's answer alone", a.status, a.body)
				}
				wantState(t, "E5", s, "k", test.want)
			})
		}
	}
}

// TestHandlersThatWriteThroughTheGuard: under the writer of a framework too they are stored and replayed, in silence.
func TestHandlersThatWriteThroughTheGuard(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]http.HandlerFunc{
		"a status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) },
		"a body":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") },
		"a header": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Answer", "1") },
	} {
		for framework, writer := range frameworks {
			t.Run(name+", "+framework, func(t *testing.T) {
				t.Parallel()
				var log bytes.Buffer
				events := new(journal)
				guard := newGuard(t, memory.New(), logging(&log), observedBy(events))
				h := guard.Handler(handle, reserved, onceward.OperationName("pay"))
				service := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("X-Outer", "1")
					h.ServeHTTP(writer(w), r)
				})
				post(service, "k", `{}`).want(t, "E7", http.StatusOK, false)
				post(service, "k", `{}`).want(t, "section 6", http.StatusOK, true)
				if log.Len() != 0 || len(observed[onceward.BypassedEvent](events)) != 0 {
					t.Errorf("M3: a handler that does it right is told of: %s", log.String())
				}
			})
		}
	}
}

// TestAHandlerWithoutAnAnswer is legitimate, stored as an empty 200, and logged once.
func TestAHandlerWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := newGuard(t, memory.New(), logging(&log)).
		HandlerFunc(func(http.ResponseWriter, *http.Request) {}, reserved, onceward.OperationName("POST /payments"))
	for _, key := range []string{"k", "l"} {
		post(h, key, `{}`).want(t, "A3", http.StatusOK, false)
		post(h, key, `{}`).want(t, "A3", http.StatusOK, true)
	}
	wantLogged(t, log.String(), "level=WARN", 1)
}

// TestAnAnswerAfterTheHandler: a framework that turns an error into an answer after the guard has ended is logged.
func TestAnAnswerAfterTheHandler(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	events := new(journal)
	var kept http.ResponseWriter
	h := newGuard(t, memory.New(), logging(&log), observedBy(events)).
		HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { kept = w }, reserved,
			onceward.OperationName("POST /payments"))
	for _, key := range []string{"k", "l"} {
		post(h, key, `{}`)
		http.Error(kept, "not a payment", http.StatusBadRequest)
	}
	wantLogged(t, log.String(), "after the handler had returned", 1)
	got := observed[onceward.BypassedEvent](events)
	if want := (onceward.BypassedEvent{
		ID: aliceID("k"), Operation: "POST /payments", Status: http.StatusBadRequest, Late: true,
	}); len(got) != 2 || got[0] != want {
		t.Errorf("M1: the observer was told %+v, want two as %+v", got, want)
	}
}

// TestAHandlerThatDoesNotRunAgain: a chain that runs once does nothing in a transaction that the database undid, and
// its silence is no answer.
func TestAHandlerThatDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := &handingTransactor{&scriptedTransactor{Store: memory.New(), reruns: 1}}
	ran := false
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		if !ran {
			ran = true
			onceward.Tx(r.Context())
			w.WriteHeader(http.StatusCreated)
		}
	}}
	h := newGuard(t, s, logging(&log)).
		Handler(handler, onceward.Transactional(), onceward.OperationName("POST /payments"))
	post(h, "k", `{}`).wantProblem(t, "E1", http.StatusServiceUnavailable, "not-executed")
	if got := s.actions[len(s.actions)-1]; got != store.TxRollback {
		t.Errorf("E1: the transaction in which nothing was done ended with %d", got)
	}
	wantLogged(t, log.String(), "did not run again", 1)
}

// TestAHandlerThatRunsAgainInSilence: one that answers failures alone has done its work, as its use of the body or of
// the transaction shows.
func TestAHandlerThatRunsAgainInSilence(t *testing.T) {
	t.Parallel()
	read := func(r *http.Request) bool { _, err := io.ReadAll(r.Body); return err == nil }
	for name, test := range map[string]struct {
		body string
		work func(r *http.Request) bool
	}{
		"reads":            {`{}`, read},
		"reads nothing":    {``, read},
		"writes to the tx": {``, func(r *http.Request) bool { return onceward.Tx(r.Context()) != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &handingTransactor{&scriptedTransactor{Store: memory.New(), reruns: 1}}
			handler := new(counted)
			handler.then = func(w http.ResponseWriter, r *http.Request) {
				if !test.work(r) || handler.runs.Load() == 1 {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}
			h := newGuard(t, s).Handler(handler, onceward.Transactional(), onceward.OperationName("POST /payments"))
			post(h, "k", test.body).want(t, "E1", http.StatusOK, false)
			handler.wantRuns(t, "E1", 2)
			wantState(t, "E1", s, "k", store.StateCompleted)
		})
	}
}

// handingTransactor is a scripted one that hands a transaction to the handler.
type handingTransactor struct{ *scriptedTransactor }

func (s *handingTransactor) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	return s.scriptedTransactor.Transact(ctx, r, func(ctx context.Context, v store.Verdict) store.Settlement {
		return work(store.ContextWithTx(ctx, new(sql.Tx)), v)
	})
}

// TestMistakesOfManyRoutes: the memory of what was logged has a limit.
func TestMistakesOfManyRoutes(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	guard := newGuard(t, memory.New(), logging(&log))
	for i := range 1100 {
		h := guard.HandlerFunc(func(http.ResponseWriter, *http.Request) {}, reserved,
			onceward.OperationName(fmt.Sprint("operation ", i)))
		h.ServeHTTP(httptest.NewRecorder(), newRequest(http.MethodPost, "/", fmt.Sprint(i), `{}`))
	}
	if got := strings.Count(log.String(), "level=WARN"); got != 1024 {
		t.Errorf("M3: %d routes are logged, want 1024", got)
	}
}
