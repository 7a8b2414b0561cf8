package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
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

// serveHandler protects a handler and serves it on loopback.
func serveHandler(t *testing.T, f http.HandlerFunc, options ...onceward.Option) (*httptest.Server, *counted) {
	t.Helper()
	handler := &counted{then: f}
	options = append([]onceward.Option{reserved}, options...)
	return startServer(t, newGuard(t, memory.New()).Handler(handler, options...)), handler
}

func TestHandlersThatAreOdd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		f      http.HandlerFunc
		status int
		body   string
	}{
		"writes nothing":       {func(http.ResponseWriter, *http.Request) {}, http.StatusOK, ""},
		"only a status":        {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }, http.StatusAccepted, ""},
		"an empty write":       {func(w http.ResponseWriter, _ *http.Request) { w.Write(nil) }, http.StatusOK, ""},
		"writes in pieces":     {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a"); fmt.Fprint(w, "b") }, http.StatusOK, "ab"},
		"writes a string":      {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ab") }, http.StatusOK, "ab"},
		"two statuses":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); w.WriteHeader(500) }, http.StatusCreated, ""},
		"a status after words": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a"); w.WriteHeader(500) }, http.StatusOK, "a"},
		"reads no body":        {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a") }, http.StatusOK, "a"},
		"reads half the body": {func(w http.ResponseWriter, r *http.Request) {
			io.ReadFull(r.Body, make([]byte, 3))
			fmt.Fprint(w, "a")
		}, http.StatusOK, "a"},
		"closes the body": {func(w http.ResponseWriter, r *http.Request) { r.Body.Close(); fmt.Fprint(w, "a") }, http.StatusOK, "a"},
		"words with 204": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := fmt.Fprint(w, "a"); err != http.ErrBodyNotAllowed {
				panic(fmt.Sprint("A3: a body with 204: ", err))
			}
		}, http.StatusNoContent, ""},
		"words with 304": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotModified)
			if _, err := io.WriteString(w, "a"); err != http.ErrBodyNotAllowed {
				panic(fmt.Sprint("A3: a body with 304: ", err))
			}
		}, http.StatusNotModified, ""},
		"its own length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			fmt.Fprint(w, "ab")
		}, http.StatusOK, "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, handler := serveHandler(t, test.f)
			for i := range 3 {
				a := send(t, server, "k", strings.Repeat("x", 1000))
				a.want(t, "section 6", test.status, i > 0)
				if a.body != test.body {
					t.Errorf("section 6: answer %d has the body %q, want %q", i+1, a.body, test.body)
				}
			}
			handler.wantRuns(t, "section 6", 1)
		})
	}
}

func TestCopyDoesNotSlipPast(t *testing.T) {
	t.Parallel()
	server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(io.ReaderFrom); ok {
			t.Error("A4: the recorder is an io.ReaderFrom")
		}
		io.Copy(w, strings.NewReader(strings.Repeat("copied ", 1000)))
	})
	first, second := send(t, server, "k", `{}`), send(t, server, "k", `{}`)
	second.want(t, "A4", http.StatusOK, true)
	second.wantSame(t, "A4", first)
	if len(second.body) != 7000 {
		t.Errorf("A4: the replay has %d bytes, want 7000", len(second.body))
	}
	handler.wantRuns(t, "A4", 1)
}

func TestHijackIsRefused(t *testing.T) {
	t.Parallel()
	server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(http.Hijacker); ok {
			t.Error("A4: the recorder is an http.Hijacker")
		}
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("A4: the recorder unwraps to the writer that it guards")
		}
		if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("A4: Hijack = %v, want ErrNotSupported", err)
		}
		w.WriteHeader(http.StatusCreated)
	})
	send(t, server, "k", `{}`).want(t, "A4", http.StatusCreated, false)
	send(t, server, "k", `{}`).want(t, "A4", http.StatusCreated, true)
	handler.wantRuns(t, "A4", 1)
}

func TestUpgradeIsRefused(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	h := newGuard(t, store).Handler(handler, reserved)
	for _, connection := range []string{"Upgrade", "keep-alive, upgrade"} {
		post(h, "k", `{}`, withHeader("Upgrade", "websocket"), withHeader("Connection", connection)).
			wantProblem(t, "A4", http.StatusBadRequest, "upgrade-refused")
	}
	handler.wantRuns(t, "A4", 0)
	wantNothingStored(t, "A4", store)
	post(h, "k", `{}`, withHeader("Upgrade", "h2c")).
		want(t, "A4: Upgrade without Connection asks for nothing", http.StatusCreated, false)
}

func TestResponseController(t *testing.T) {
	t.Parallel()
	server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		controller := http.NewResponseController(w)
		if err := controller.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("A4: SetReadDeadline: %v", err)
		}
		if err := controller.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("A4: SetWriteDeadline: %v", err)
		}
		fmt.Fprint(w, "done")
	})
	send(t, server, "k", `{}`).want(t, "A4", http.StatusOK, false)
	handler.wantRuns(t, "A4", 1)
}

func TestEarlyHintsAreNotStored(t *testing.T) {
	t.Parallel()
	server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.Header().Set("X-Hint", "only now")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("X-Hint")
		w.Header().Set("X-Final", "yes")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "done")
	})
	var hints []string
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
		hints = append(hints, fmt.Sprint(code, header["Link"], header["X-Final"]))
		return nil
	}}
	traced := func(r *http.Request) { *r = *r.WithContext(httptrace.WithClientTrace(r.Context(), trace)) }
	first, second := send(t, server, "k", `{}`, traced), send(t, server, "k", `{}`, traced)
	if want := fmt.Sprint(103, []string{"</style.css>; rel=preload"}, []string(nil)); len(hints) != 1 ||
		hints[0] != want {
		t.Errorf("A3: the hints were %q, want one, of the first answer: %q", hints, want)
	}
	second.want(t, "A3", http.StatusCreated, true)
	second.wantSame(t, "A3", first)
	for i, a := range []answer{first, second} {
		if len(a.header["Link"]) != 1 || a.header.Get("X-Final") != "yes" || a.header.Get("X-Hint") != "" {
			t.Errorf("A3: answer %d has %v", i+1, a.header)
		}
	}
	handler.wantRuns(t, "A3", 1)
}

// TestGoroutinesLeftBehind lets a handler leave goroutines running that continue to read and write while other requests
// reuse the memory. Under the race detector it also proves that nothing is shared.
func TestGoroutinesLeftBehind(t *testing.T) {
	t.Parallel()
	started, leftovers := make(chan struct{}), make(chan string, 2)
	readOn := func(body io.Reader) {
		started <- struct{}{}
		for {
			content, err := io.ReadAll(body)
			if strings.Contains(string(content), "b") {
				leftovers <- "a goroutine read the body of another request"
				return
			}
			if err != nil {
				leftovers <- ""
				return
			}
		}
	}
	writeOn := func(w http.ResponseWriter) {
		started <- struct{}{}
		for {
			if _, err := io.WriteString(w, "stray"); err != nil {
				w.WriteHeader(http.StatusTeapot)
				w.(http.Flusher).Flush()
				leftovers <- ""
				return
			}
		}
	}
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Leave") == "" {
			content, _ := io.ReadAll(r.Body)
			w.Write(content)
			return
		}
		go readOn(r.Body)
		go writeOn(w)
		<-started
		<-started
	}}
	h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.ResponseLimit(256<<20))
	first := post(h, "leaver", strings.Repeat("a", 4000), withHeader("X-Leave", "yes"))
	for i := range 200 {
		body := strings.Repeat("b", 4000)
		if a := post(h, fmt.Sprint(i), body); a.body != body {
			t.Fatalf("section 6: another request's answer was changed: %q", strings.ReplaceAll(a.body, "b", ""))
		}
	}
	for range 2 {
		if complaint := await.Value(t, "the end of a goroutine that was left", leftovers); complaint != "" {
			t.Errorf("F5: %s", complaint)
		}
	}
	post(h, "leaver", strings.Repeat("a", 4000), withHeader("X-Leave", "yes")).
		wantSame(t, "section 6: what is written after the handler does not count", first)
	handler.wantRuns(t, "section 6", 201)
}

// TestAGoroutineLeftBehindSetsHeaders while its handler is judged that gave up without an answer: were the header read
// then, the process would die. The race detector sees each time what else happens now and then.
func TestAGoroutineLeftBehindSetsHeaders(t *testing.T) {
	t.Parallel()
	for name, giveUp := range map[string]func(*http.Request, *onceward.Operation){
		"past its deadline": func(r *http.Request, _ *onceward.Operation) { <-r.Context().Done() },
		"rejected":          func(_ *http.Request, op *onceward.Operation) { op.Reject() },
		"not executed":      func(_ *http.Request, op *onceward.Operation) { op.NotExecuted() },
		"unknown":           func(_ *http.Request, op *onceward.Operation) { op.Unknown() },
		"panicked":          func(*http.Request, *onceward.Operation) { panic("the handler's panic") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started, answered, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			setOn := func(h http.Header) {
				defer close(ended)
				close(started)
				for i := 0; ; i++ {
					select {
					case <-answered:
						return
					default:
						h.Set(fmt.Sprint("X-", i%len(h)), "v")
					}
				}
			}
			h := newGuard(t, memory.New()).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				go setOn(w.Header())
				<-started
				giveUp(r, onceward.FromContext(r.Context()))
			}, reserved, onceward.Deadline(10*time.Millisecond))
			outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for i := range 50 {
					w.Header().Set(fmt.Sprint("X-", i), "v")
				}
				h.ServeHTTP(w, r)
			})
			panicOf(func() {
				if a := post(outer, "k", `{}`); a.status < http.StatusInternalServerError {
					t.Errorf("E5: the answer is %d %s", a.status, a.body)
				}
			})
			close(answered)
			<-ended
		})
	}
}

// TestAnOfferOfHTTP2IsNoUpgrade: some clients offer h2c with every request, and a server may ignore it.
func TestAnOfferOfHTTP2IsNoUpgrade(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	h := newGuard(t, store).Handler(handler, reserved)
	offering := func(protocol string) answer {
		return post(h, "k", `{}`, withHeader("Connection", "Upgrade, HTTP2-Settings"), withHeader("Upgrade", protocol),
			withHeader("HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA"))
	}
	for _, protocol := range []string{"websocket", "h2c, websocket"} {
		offering(protocol).wantProblem(t, "A4", http.StatusBadRequest, "upgrade-refused")
	}
	handler.wantRuns(t, "A4", 0)
	wantNothingStored(t, "A4", store)
	offering("h2c").want(t, "A4: an offer, not a demand", http.StatusCreated, false)
	offering("H2C").want(t, "A4: an offer, not a demand", http.StatusCreated, true)
	post(h, "k", `{}`).want(t, "A4: the same request without it", http.StatusCreated, true)
	handler.wantRuns(t, "A4", 1)
}

// keepingWriter keeps what is written to it and then fails, as HTTP/2 does when a client resets its stream while a
// frame is being sent.
type keepingWriter struct {
	http.ResponseWriter
	kept []byte
}

func (w *keepingWriter) Write(p []byte) (int, error) {
	w.kept = p
	return 0, errors.New("the stream was reset")
}

// TestWrittenMemoryIsNotReused: the server may still read what it was given to write.
func TestWrittenMemoryIsNotReused(t *testing.T) {
	t.Parallel()
	unkept := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.Copy(w, r.Body)
	}
	streamed := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		w.(http.Flusher).Flush()
	}
	stored := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
	for name, handler := range map[string]http.HandlerFunc{"unkept": unkept, "streamed": streamed, "stored": stored} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureRetry))
			var written [50]keepingWriter
			for i := range written {
				written[i].ResponseWriter = httptest.NewRecorder()
				key := fmt.Sprintf("key-%02d", i)
				h.ServeHTTP(&written[i], newRequest(http.MethodPost, "/payments", key, key))
			}
			for i := range written {
				if got, want := string(written[i].kept), fmt.Sprintf("key-%02d", i); got != want {
					t.Errorf("E7: the memory of answer %q holds %q after later requests", want, got)
				}
			}
		})
	}
}

// hookedWriter is a writer in front of the guard. Its hook runs before each call, whose name the hook gets.
type hookedWriter struct {
	http.ResponseWriter
	hook func(call string)
}

func (w *hookedWriter) WriteHeader(status int) {
	w.hook("WriteHeader")
	w.ResponseWriter.WriteHeader(status)
}

func (w *hookedWriter) Write(p []byte) (int, error) {
	w.hook("Write")
	return w.ResponseWriter.Write(p)
}

func (w *hookedWriter) FlushError() error {
	w.hook("Flush")
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// TestAHookUsesTheHandlersWriter: whatever a hook of a writer in front does with the writer of the handler, in another
// goroutine that it waits for, the request ends with the handler's answer (rule E9).
func TestAHookUsesTheHandlersWriter(t *testing.T) {
	t.Parallel()
	uses := map[string]func(w http.ResponseWriter){
		"Header":           func(w http.ResponseWriter) { w.Header().Get("X") },
		"WriteHeader":      func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) },
		"WriteHeader, 1xx": func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints) },
		"Write":            func(w http.ResponseWriter) { w.Write([]byte("+")) },
		"WriteString":      func(w http.ResponseWriter) { io.WriteString(w, "+") },
		"Flush":            func(w http.ResponseWriter) { http.NewResponseController(w).Flush() },
	}
	answers := map[string]func(w http.ResponseWriter){
		"streamed": func(w http.ResponseWriter) {
			io.WriteString(w, "begun")
			w.(http.Flusher).Flush()
			io.WriteString(w, ", ended")
		},
		"hinted": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, "begun, ended")
		},
		"whole": func(w http.ResponseWriter) { io.WriteString(w, "begun, ended") },
		"none":  func(http.ResponseWriter) {},
	}
	for use, hook := range uses {
		for way, write := range answers {
			for _, during := range []string{"WriteHeader", "Write", "Flush"} {
				t.Run(use+" in "+during+", "+way, func(t *testing.T) {
					t.Parallel()
					var inner http.ResponseWriter
					var logged atomic.Bool
					guard := newGuard(t, memory.New(), func(c *onceward.Config) {
						c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {
							if inner != nil {
								logged.Store(true)
								inner.WriteHeader(http.StatusOK)
							}
						})
					})
					h := guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						inner = w
						write(w)
					}, reserved)
					real, ran := httptest.NewRecorder(), 0
					front := &hookedWriter{real, func(call string) {
						if call != during || ran == 2 {
							return
						}
						ran++
						await.Return(t, "the use of the handler's writer in another goroutine", func() { hook(inner) })
					}}
					await.Return(t, "the end of the request", func() {
						h.ServeHTTP(front, newRequest(http.MethodPost, "/payments", "k", `{}`))
					})
					if way != "none" && strings.ReplaceAll(real.Body.String(), "+", "") != "begun, ended" {
						t.Errorf("E9: the answer is %q, want that of the handler", real.Body)
					}
					writes := way == "streamed" && (use == "Write" || use == "WriteString")
					if got := strings.Count(real.Body.String(), "+"); writes && got != ran {
						t.Errorf("E9: %d parts of the hook were sent, want %d", got, ran)
					}
					if !logged.Load() {
						t.Error("the observer got no event")
					}
				})
			}
		}
	}
}

// TestAHandlerThatReturnsWhileItsAnswerIsSent: a goroutine of the handler streams while the handler returns. The server
// forbids the use of its writer after that, so the request ends when the goroutine has sent what was written.
func TestAHandlerThatReturnsWhileItsAnswerIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sending, resume, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		wrote := make(chan error, 1)
		h := newGuard(t, memory.New()).HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			go func() {
				_, err := io.WriteString(w, "one ")
				wrote <- err
			}()
			<-sending
			io.WriteString(w, "two")
			w.(http.Flusher).Flush()
		}, reserved)
		real, flushed, first := httptest.NewRecorder(), 0, true
		front := &hookedWriter{real, func(call string) {
			if call == "Flush" {
				flushed++
			}
			if call == "Write" && first {
				first = false
				close(sending)
				<-resume
			}
		}}
		go func() {
			defer close(ended)
			h.ServeHTTP(front, newRequest(http.MethodPost, "/payments", "k", `{}`))
		}()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("E7: the request ended while a part of its answer was being sent")
		default:
		}
		close(resume)
		<-ended
		if err := <-wrote; err != nil || real.Body.String() != "one two" || flushed != 2 {
			t.Errorf("A4: the answer is %q, flushed %d times, error %v; want both parts, and two", real.Body, flushed, err)
		}
	})
}

// TestTooMuchIsWrittenWhileAnAnswerIsSent: what waits for its sending is bounded, and an answer that lacks a part of it
// is no success.
func TestTooMuchIsWrittenWhileAnAnswerIsSent(t *testing.T) {
	t.Parallel()
	s := memory.New()
	var inner http.ResponseWriter
	h := newGuard(t, s).HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		inner = w
		io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
	}, reserved, onceward.ResponseLimit(10))
	front := &hookedWriter{httptest.NewRecorder(), func(call string) {
		if call != "Flush" {
			return
		}
		if _, err := io.WriteString(inner, "ten bytes."); err != nil {
			t.Errorf("A4: what fits into the limit is %v", err)
		}
		if _, err := io.WriteString(inner, "!"); err == nil {
			t.Error("A4: more than the limit waits for its sending")
		}
	}}
	p := panicOf(func() { h.ServeHTTP(front, newRequest(http.MethodPost, "/payments", "k", `{}`)) })
	if p != http.ErrAbortHandler {
		t.Errorf("E5: the request ended with %v, want a connection that is cut", p)
	}
	wantState(t, "E5", s, "k", store.StateUnknown)
}
