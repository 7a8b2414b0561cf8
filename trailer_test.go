package onceward_test

import (
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
			return newGuard(t, memory.New()).Handler(handle, onceward.Reserved(onceward.FailureUnknown))
		},
		"transactional": func(t *testing.T, handle http.HandlerFunc) http.Handler {
			return newGuard(t, &scriptedTransactor{Store: memory.New(), reruns: 1}).Handler(handle, onceward.Transactional())
		},
		"streamed": func(t *testing.T, handle http.HandlerFunc) http.Handler {
			return newGuard(t, memory.New()).Handler(flushed(handle), onceward.Reserved(onceward.FailureUnknown))
		},
		"past the limit": func(t *testing.T, handle http.HandlerFunc) http.Handler {
			return newGuard(t, memory.New()).Handler(handle,
				onceward.Reserved(onceward.FailureUnknown), onceward.ResponseLimit(1))
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
						t.Errorf("A9: a replay has the trailers %v and announces %v", again.trailer, again.header["Trailer"])
					}
					if again.replayed() {
						again.wantSame(t, "A2", first)
					}
				})
			}
		}
	}
}

// TestNoTrailersBehindAFailure: they may say that all went well.
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
				server := start(t, newGuard(t, store, giveUpSoon).Handler(h, onceward.Reserved(onceward.FailureUnknown)))
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments", strings.NewReader(`{}`))
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
