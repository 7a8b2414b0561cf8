package onceward_test

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// answersWith is a handler that sets headers and answers 200.
func answersWith(header http.Header) *counted {
	return &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range header {
			w.Header()[name] = slices.Clone(values)
		}
		fmt.Fprint(w, "done")
	}}
}

func TestStoredHeaders(t *testing.T) {
	t.Parallel()
	stored := http.Header{
		"Content-Type": {"application/vnd.x+json"}, "Content-Encoding": {"identity"}, "Content-Language": {"de"},
		"Content-Disposition": {`attachment; filename="a.csv"`}, "Location": {"/payments/1"}, "Content-Location": {"/payments/1"},
		"Etag": {`"v1"`}, "Last-Modified": {"Wed, 21 Oct 2015 07:28:00 GMT"}, "Link": {`</2>; rel="next"`, `</1>; rel="prev"`},
		"Vary": {"Accept", "Accept-Language"}, "X-Custom": {"z", "a", "a"}, "Cache-Control": {"private", "max-age=5"},
		"X-Empty": {""}, "X-Commas": {"a, b", "c"}, "Retry-After": {"7"},
	}
	server := startServer(t, newGuard(t, memory.New()).Handler(answersWith(stored), reserved))
	first, second := send(t, server, "k", `{}`), send(t, server, "k", `{}`)
	for name, values := range stored {
		if !slices.Equal(first.header[name], values) {
			t.Errorf("section 6: first answer: %s is %q, want %q", name, first.header[name], values)
		}
		if !slices.Equal(second.header[name], values) {
			t.Errorf("A2: replay: %s is %q, want %q", name, second.header[name], values)
		}
	}
}

func TestHeadersThatAreNotStored(t *testing.T) {
	t.Parallel()
	once := http.Header{
		"Set-Cookie": {"session=1"}, "Www-Authenticate": {"Bearer"}, "Authentication-Info": {"x"}, "Proxy-Authenticate": {"Basic"},
		"X-Request-Id": {"r1"}, "X-Correlation-Id": {"c1"}, "Traceparent": {"00-1"}, "Server-Timing": {"db;dur=1"}, "Age": {"5"},
		"Ratelimit-Remaining": {"4"}, "X-Ratelimit-Limit": {"9"}, "Ratelimit": {"x"}, "Access-Control-Allow-Origin": {"*"},
		"Date": {"Wed, 21 Oct 2015 07:28:00 GMT"}, "Keep-Alive": {"timeout=5"}, "Proxy-Connection": {"close"}, "Te": {"trailers"},
		"Connection": {"x-private, close"}, "X-Private": {"for this connection"},
		"Idempotent-Replayed": {"forged"}, "Idempotency-Key-Expires": {"never"},
	}
	handler := answersWith(once)
	h := newGuard(t, memory.New()).Handler(handler, reserved)
	first, second := post(h, "k", `{}`), post(h, "k", `{}`)
	for name, values := range once {
		if strings.HasPrefix(name, "Idempot") {
			continue
		}
		if !slices.Equal(first.header[name], values) {
			t.Errorf("section 6: first answer: %s is %q, want what the handler wrote, %q", name, first.header[name],
				values)
		}
		if got, ok := second.header[name]; ok {
			t.Errorf("A2: replay: %s: %q, want it left out", name, got)
		}
	}
	second.want(t, "A2: the mark of a replay is Onceward's own", http.StatusOK, true)
	if got := second.header["Idempotent-Replayed"]; !slices.Equal(got, []string{"true"}) {
		t.Errorf("A2: Idempotent-Replayed is %q", got)
	}
	if _, err := http.ParseTime(second.header.Get("Idempotency-Key-Expires")); err != nil {
		t.Errorf("section 6: Idempotency-Key-Expires: %v", err)
	}
	handler.wantRuns(t, "A2", 1)
}

func TestHeaderListsCanBeChanged(t *testing.T) {
	t.Parallel()
	handler := answersWith(http.Header{
		"X-Request-Id": {"r1"}, "X-Balance": {"10"}, "Set-Cookie": {"session=1"}, "X-Kept": {"yes"},
	})
	h := newGuard(t, memory.New()).Handler(handler, reserved,
		onceward.StoreHeaders("x-request-ID", "set-cookie"), onceward.DropHeaders("x-balance"))
	post(h, "k", `{}`)
	replay := post(h, "k", `{}`).header
	if replay.Get("X-Request-Id") != "r1" || replay.Get("X-Kept") != "yes" {
		t.Errorf("A2: X-Request-Id was to be stored, but the replay has %v", replay)
	}
	if replay.Get("X-Balance") != "" {
		t.Error("A2: X-Balance was to be dropped, but is replayed")
	}
	if replay.Get("Set-Cookie") != "" {
		t.Error("A2: Set-Cookie is never stored, whatever the route says")
	}
}

func TestHeadersOfOuterMiddleware(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("X-Overridden", "by the handler")
		w.Header().Del("X-Removed")
		if got := w.Header().Get("X-Serial"); got == "" {
			t.Error("section 6: the handler does not see what was set before it")
		}
		fmt.Fprint(w, "done")
	}}
	inner := newGuard(t, memory.New()).Handler(handler, reserved)
	serial := 0
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serial++
		w.Header().Set("X-Serial", fmt.Sprint(serial))
		w.Header().Set("X-Overridden", "by the middleware")
		w.Header().Set("X-Removed", "by the handler")
		w.Header().Add("Vary", "Origin")
		inner.ServeHTTP(w, r)
	})
	first, second := post(h, "k", `{}`), post(h, "k", `{}`)
	second.want(t, "A2", http.StatusOK, true)
	for i, a := range []answer{first, second} {
		if got := a.header.Get("X-Serial"); got != fmt.Sprint(i+1) {
			t.Errorf("A2: answer %d: X-Serial is %q: what comes from outside is not stored", i+1, got)
		}
		if got := a.header["Vary"]; !slices.Equal(got, []string{"Origin", "Accept"}) {
			t.Errorf("A2: answer %d: Vary is %q, want what the middleware and the handler added", i+1, got)
		}
		if got := a.header["X-Overridden"]; !slices.Equal(got, []string{"by the handler"}) {
			t.Errorf("A2: answer %d: X-Overridden is %q", i+1, got)
		}
	}
	if got, ok := first.header["X-Removed"]; ok {
		t.Errorf("section 6: the handler removed X-Removed, but it was sent as %q", got)
	}
}

func TestHeadersThatInject(t *testing.T) {
	t.Parallel()
	handler := answersWith(http.Header{
		"X-Note": {"a\r\nSet-Cookie: evil=1"}, "X-Binary": {"\xff\xfe"}, "Bad Name\r\nX-Evil": {"1"}, "Location": {"/x\nX-Evil: 1"},
	})
	server := startServer(t, newGuard(t, memory.New()).Handler(handler, reserved))
	for i := range 2 {
		a := send(t, server, "k", `{}`)
		a.want(t, "scenario 36", http.StatusOK, i == 1)
		if a.header.Get("Set-Cookie") != "" || a.header.Get("X-Evil") != "" {
			t.Errorf("scenario 36: answer %d: a header was injected: %v", i+1, a.header)
		}
		if got := a.header.Get("X-Binary"); got != "\xff\xfe" {
			t.Errorf("scenario 36: answer %d: X-Binary is %q", i+1, got)
		}
	}
	// The client's library may have cleaned up: look at the bytes themselves.
	conn := dial(t, server.Listener.Addr().String(), head+"Idempotency-Key: k\nContent-Length: 2\n\n{}")
	lines := bufio.NewScanner(conn)
	for lines.Scan() && lines.Text() != "" {
		if strings.HasPrefix(lines.Text(), "Set-Cookie") || strings.HasPrefix(lines.Text(), "X-Evil") {
			t.Errorf("scenario 36: the replay holds the line %q", lines.Text())
		}
	}
	handler.wantRuns(t, "scenario 36", 1)
}

func TestChangesAfterWriteHeaderHaveNoEffect(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Early", "yes")
		w.WriteHeader(http.StatusOK)
		w.Header().Set("X-Late", "yes")
		w.Header().Set("X-Early", "changed")
	}}
	h := newGuard(t, memory.New()).Handler(handler, reserved)
	for i := range 2 {
		a := post(h, "k", `{}`)
		a.want(t, "A2", http.StatusOK, i == 1)
		if a.header.Get("X-Early") != "yes" || a.header.Get("X-Late") != "" {
			t.Errorf("A2: answer %d has %v", i+1, a.header)
		}
	}
}

func TestTrailersAreNotStored(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set(http.TrailerPrefix+"X-Other", "2")
		fmt.Fprint(w, "done")
		w.Header().Set("X-Sum", "1")
	}}
	store := memory.New()
	server := startServer(t, newGuard(t, store).Handler(handler, reserved))
	first, second := send(t, server, "k", `{}`), send(t, server, "k", `{}`)
	first.want(t, "A3", http.StatusOK, false)
	second.want(t, "A3", http.StatusOK, true)
	second.wantSame(t, "A3", first)
	rec, err := store.Get(t.Context(), aliceID("k"))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range rec.Response.Header {
		if field.Name == "Trailer" || field.Name == "X-Sum" || strings.HasPrefix(field.Name, http.TrailerPrefix) {
			t.Errorf("A3: %s: %q is stored", field.Name, field.Value)
		}
	}
}

// TestRemovedHeadersStayRemoved: what a handler took away does not come back on a replay (A9).
func TestRemovedHeadersStayRemoved(t *testing.T) {
	t.Parallel()
	removed := []string{
		"X-Frame-Options", "Server", "X-Request-Id", "Set-Cookie", "Access-Control-Allow-Origin", "Cache-Control", "X-Nil",
	}
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range removed {
			w.Header().Del(name)
		}
		w.Header()["X-Nil"], w.Header()["Date"] = nil, nil
		w.Header().Del("Content-Type")
		w.Header().Del("X-Dropped")
		w.Header().Del("Connection")
		io.WriteString(w, "<html>")
	}}
	inner := newGuard(t, memory.New()).Handler(handler,
		reserved, onceward.DropHeaders("X-Dropped"))
	server := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range append(removed, "Content-Type", "X-Dropped", "Connection") {
			w.Header().Set(name, "close")
		}
		inner.ServeHTTP(w, r)
	}))
	first, second := send(t, server, "k", `{}`), send(t, server, "k", `{}`)
	second.want(t, "A9", http.StatusOK, true)
	for i, a := range []answer{first, second} {
		for _, name := range append(removed, "Date") {
			if got, ok := a.header[name]; ok {
				t.Errorf("A9: answer %d: the handler removed %s, but it was sent as %q", i+1, name, got)
			}
		}
		if got := a.header.Get("Content-Type"); got != "text/html; charset=utf-8" {
			t.Errorf("A9: answer %d: Content-Type is %q, want what net/http takes the body for", i+1, got)
		}
	}
	if first.header.Get("X-Dropped") != "" || second.header.Get("X-Dropped") != "close" {
		t.Errorf("A2: X-Dropped is not to be stored: got %v, then %v", first.header["X-Dropped"],
			second.header["X-Dropped"])
	}
}

// TestASuppressedContentType: a header that is set to nothing keeps net/http from adding its own.
func TestASuppressedContentType(t *testing.T) {
	t.Parallel()
	server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		io.WriteString(w, "<html>")
	})
	for i := range 2 {
		a := send(t, server, "k", `{}`)
		a.want(t, "A9", http.StatusOK, i == 1)
		if got, ok := a.header["Content-Type"]; ok {
			t.Errorf("A9: answer %d: Content-Type is %q, want none", i+1, got)
		}
	}
	handler.wantRuns(t, "A9", 1)
}

// TestAHeaderThatAMiddlewareSuppresses stays suppressed under a handler that does nothing to it.
func TestAHeaderThatAMiddlewareSuppresses(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }}
	inner := newGuard(t, memory.New()).Handler(handler, reserved)
	server := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Date"], w.Header()["Content-Type"] = nil, nil
		inner.ServeHTTP(w, r)
	}))
	for i := range 2 {
		a := send(t, server, "k", `{}`)
		a.want(t, "A9", http.StatusOK, i == 1)
		for _, name := range []string{"Date", "Content-Type"} {
			if got, ok := a.header[name]; ok {
				t.Errorf("A9: answer %d: %s is %q, want none", i+1, name, got)
			}
		}
	}
}

// TestTransferEncodingOfAHandler: how an answer is framed is the server's, and the first answer is as its replays are.
func TestTransferEncodingOfAHandler(t *testing.T) {
	t.Parallel()
	for _, coding := range []string{"chunked", "identity", "gzip"} {
		for _, body := range []string{"<html>", "<html>" + strings.Repeat("large ", 2000)} {
			t.Run(fmt.Sprint(coding, len(body)), func(t *testing.T) {
				t.Parallel()
				server, handler := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Transfer-Encoding", coding)
					io.WriteString(w, body)
				})
				first, second := send(t, server, "k", `{}`), send(t, server, "k", `{}`)
				first.want(t, "A2", http.StatusOK, false)
				second.want(t, "A2", http.StatusOK, true)
				second.wantSame(t, "A2", first)
				for i, a := range []answer{first, second} {
					if got := a.header.Get("Content-Type"); got != "text/html; charset=utf-8" || a.body != body {
						t.Errorf("A2: answer %d: Content-Type %q with %d bytes", i+1, got, len(a.body))
					}
					if got := a.header.Get("Content-Length"); got != fmt.Sprint(len(body)) {
						t.Errorf("A2: answer %d: Content-Length is %q, want %d", i+1, got, len(body))
					}
				}
				handler.wantRuns(t, "A2", 1)
			})
		}
	}
}

// This file is about trailers: they reach the first client and are not replayed (A9).

// trailing are handlers that send trailers, with what a client gets.
var trailing = map[string]struct {
	handle http.HandlerFunc
	want   http.Header
	unkept bool // the answer is none, so that one on its way is cut off
}{
	"announced": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum, x-rows")
		w.Header().Add("Trailer", "X-Never")
		io.WriteString(w, "done")
		w.Header().Set("X-Sum", "1")
		w.Header().Add("X-Rows", "2")
		w.Header().Add("X-Rows", "3")
		w.Header().Set("X-Unannounced", "4")
	}, http.Header{"X-Sum": {"1"}, "X-Rows": {"2", "3"}}, false},
	"unannounced": {func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "done")
		w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
	}, http.Header{"X-Sum": {"1"}}, false},
	"unannounced, but before the body": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-Dropped", "1")
		io.WriteString(w, "done")
		w.Header().Del(http.TrailerPrefix + "X-Dropped")
	}, http.Header{"X-Sum": {"1"}}, false},
	"both, behind a large body": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, strings.Repeat("large ", 2000))
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-Rows", "2")
	}, http.Header{"X-Sum": {"1"}, "X-Rows": {"2"}}, false},
	"both, behind a length": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Content-Length", "4")
		io.WriteString(w, "done")
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-Rows", "2")
	}, http.Header{"X-Sum": {"1"}, "X-Rows": {"2"}}, false},
	"both, behind nothing": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusOK)
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-Rows", "2")
	}, http.Header{"X-Sum": {"1"}, "X-Rows": {"2"}}, false},
	"of a refusal": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, "no")
		w.Header().Set("X-Sum", "1")
	}, http.Header{"X-Sum": {"1"}}, false},
	"of an answer that is not kept": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusTooManyRequests)
		io.WriteString(w, "later")
		w.Header().Set("X-Sum", "1")
	}, http.Header{"X-Sum": {"1"}}, true},
	"none, though announced": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "done")
	}, http.Header{}, false},
}

// flushed makes a handler stream from its first byte on.
func flushed(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { handle(flushingWriter{w}, r) }
}

// flushingWriter flushes each write.
type flushingWriter struct{ http.ResponseWriter }

func (f flushingWriter) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	f.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// protocols are those that trailers are sent by.
var protocols = map[string]func(t testing.TB, h http.Handler) *httptest.Server{
	"HTTP/1.1": startServer, "HTTP/2": startHTTP2,
}

func TestTrailersReachTheFirstClient(t *testing.T) {
	t.Parallel()
	for way, protect := range map[string]func(t *testing.T, handle http.HandlerFunc) http.Handler{
		"reserved": func(t *testing.T, handle http.HandlerFunc) http.Handler {
			return newGuard(t, memory.New()).Handler(handle, reserved)
		},
		"transactional": func(t *testing.T, handle http.HandlerFunc) http.Handler {
			return newGuard(t, &scriptedTransactor{Store: memory.New(), reruns: 1}).Handler(handle,
				onceward.Transactional())
		},
		"streamed": func(t *testing.T, handle http.HandlerFunc) http.Handler {
			return newGuard(t, memory.New()).Handler(flushed(handle), reserved)
		},
		"past the limit": func(t *testing.T, handle http.HandlerFunc) http.Handler {
			return newGuard(t, memory.New()).Handler(handle,
				reserved, onceward.ResponseLimit(1))
		},
	} {
		for protocol, start := range protocols {
			for name, test := range trailing {
				if test.unkept && way == "past the limit" {
					continue
				}
				t.Run(way+" by "+protocol+", "+name, func(t *testing.T) {
					t.Parallel()
					server := start(t, protect(t, test.handle))
					first := sendTo(t, server.Client(), server.URL+"/payments", "k")
					maps.DeleteFunc(first.trailer, func(_ string, values []string) bool { return values == nil }) // announced alone
					if !maps.EqualFunc(first.trailer, test.want, slices.Equal) {
						t.Errorf("A9: the first client got the trailers %v, want %v", first.trailer, test.want)
					}
					for name := range first.header {
						if _, trails := test.want[name]; trails || strings.HasPrefix(name, http.TrailerPrefix) {
							t.Errorf("A9: the trailer %s came as a header too", name)
						}
					}
					again := sendTo(t, server.Client(), server.URL+"/payments", "k")
					if again.replayed() && (len(again.trailer) != 0 || again.header["Trailer"] != nil) {
						t.Errorf("A9: a replay has the trailers %v and announces %v", again.trailer,
							again.header["Trailer"])
					}
					if again.replayed() {
						again.wantSame(t, "A2", first)
					}
				})
			}
		}
	}
}

// TestNoTrailersBehindAFailure: they may claim success.
func TestNoTrailersBehindAFailure(t *testing.T) {
	t.Parallel()
	handle := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Status")
		fmt.Fprint(w, "a part")
		w.Header().Set("X-Status", "0")
	}
	for name, h := range map[string]http.HandlerFunc{"kept back": handle, "streamed": flushed(handle)} {
		for protocol, start := range protocols {
			t.Run(name+" by "+protocol, func(t *testing.T) {
				t.Parallel()
				store := newFaultyStore()
				store.complete = brokenComplete
				server := start(t, newGuard(t, store, tryOnce).Handler(h, reserved))
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments",
					strings.NewReader(`{}`))
				if err != nil {
					t.Fatal(err)
				}
				prepare(r, "k", nil)
				res, err := server.Client().Do(r)
				if err != nil {
					return // cut off, as it should be
				}
				defer res.Body.Close()
				_, _ = io.ReadAll(res.Body)
				if got := res.Trailer.Get("X-Status"); got != "" {
					t.Errorf("E7: an answer that was not stored ends with the trailer %q", got)
				}
			})
		}
	}
}

// TestAHandlerDoesNotSpeakForTheGuard: a handler that passes on the answer of another service, which has a guard too,
// passes on none of that guard's headers. A client would take them for this guard's.
func TestAHandlerDoesNotSpeakForTheGuard(t *testing.T) {
	t.Parallel()
	for name, ending := range map[string]func(w http.ResponseWriter){
		"unknown":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"kept":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) },
		"streamed": func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated); w.(http.Flusher).Flush() },
	} {
		guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.ReplayedHeader = "X-Replayed" })
		h := guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Idempotency-Outcome", "not-executed")
			w.Header().Set("Idempotency-Key-Expires", "Thu, 01 Jan 1970 00:00:00 GMT")
			w.Header().Set("Idempotent-Replayed", "true")
			w.Header().Set("X-Replayed", "true")
			ending(w)
		}, onceward.Reserved(onceward.FailureUnknown))
		a := post(h, "k", `{}`)
		for _, field := range []string{
			"Idempotency-Outcome", "Idempotency-Key-Expires", "Idempotent-Replayed", "X-Replayed",
		} {
			got := a.header.Values(field)
			ours := name == "kept" && field == "Idempotency-Key-Expires"
			if ours && (len(got) != 1 || strings.Contains(got[0], "1970")) || !ours && len(got) != 0 {
				t.Errorf("section 6, %s: %s is %q", name, field, got)
			}
		}
	}
}
