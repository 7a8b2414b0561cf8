package onceward_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/racing"
	"github.com/onceward/onceward/store/memory"
)

// silentWriter is a response writer that allocates nothing of its own.
type silentWriter struct{ header http.Header }

func (w *silentWriter) Header() http.Header         { return w.header }
func (w *silentWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w *silentWriter) WriteHeader(int)             {}

// mostAllocs returns how many allocations each way to execute may make beside the request, with one to spare for the
// pools that a collection empties. There are more under the race detector, which drops what is kept in pools now and
// then.
func mostAllocs() (first, replay, do, serve float64) {
	if racing.Enabled {
		return 29, 14, 11, 8
	}
	return 16, 6, 6, 4
}

// TestWithoutAnObserverNothingIsAllocatedForEvents holds that telemetry costs those nothing who do not use it.
func TestWithoutAnObserverNothingIsAllocatedForEvents(t *testing.T) {
	guard := newGuard(t, memory.New())
	handler := routed(guard.Handler(&counted{}, onceward.Reserved(onceward.FailureStore)))
	const runs = 1000
	send := func(key string) {
		r := newRequest(http.MethodPost, "/payments", key, `{"amount":1}`)
		handler.ServeHTTP(&silentWriter{header: make(http.Header)}, r)
	}
	keys := make([]string, 2*runs+2)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", strings.Repeat("k", 10), i)
	}
	request := testing.AllocsPerRun(runs, func() {
		_ = newRequest(http.MethodPost, "/payments", "k", `{"amount":1}`)
		_ = &silentWriter{header: make(http.Header)}
	})
	next := 0
	want := func(what string, most float64, call func()) {
		t.Helper()
		got := testing.AllocsPerRun(runs, call)
		t.Logf("%s: %v allocations", what, got)
		if got > most {
			t.Errorf("%s: %v allocations, and %v are enough", what, got, most)
		}
	}
	first, replay, do, serve := mostAllocs()
	want("first", request+first, func() { send(keys[next]); next++ })
	want("replay", request+replay, func() { send(keys[0]) })
	next = 0
	want("do", do, func() {
		_, err := guard.Do(context.Background(), onceward.Call{Scope: "s", Key: keys[next], Operation: "job"},
			func(context.Context) ([]byte, error) { return nil, nil }, onceward.Reserved(onceward.FailureStore))
		if err != nil {
			t.Error(err)
		}
		next++
	})
	procedure, err := guard.Procedure(onceward.Reserved(onceward.FailureStore))
	if err != nil {
		t.Fatal(err)
	}
	next = 0
	want("serve", serve, func() {
		call := onceward.Call{Scope: "p", Key: keys[next], Operation: "method"}
		_, err := procedure.Serve(context.Background(), call, func(context.Context) onceward.Answer {
			return onceward.Answer{ContentType: "text/plain"}
		})
		if err != nil {
			t.Error(err)
		}
		next++
	})
}
