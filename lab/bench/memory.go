package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// httpContender is a handler with the minimum around it that a server needs, so that only the code under test
// allocates.
type httpContender struct {
	name string
	// open returns the handler in a fresh state: a call sends one request with the key.
	open func() (call func(key string), check func(replayed bool) error, err error)
	// replays says that every key has been used before it is measured.
	replays bool
}

// The contenders on the memory store.
const (
	bareHTTP   = "net/http: bare handler"
	firstHTTP  = "Onceward: first execution"
	replayHTTP = "Onceward: replay"
)

var httpContenders = []httpContender{
	{name: bareHTTP, open: openBare},
	{name: firstHTTP, open: openGuarded},
	{name: replayHTTP, open: openGuarded, replays: true},
}

// requestsPerTurn is enough to amortise what a store allocates once in a while, such as a larger map.
const requestsPerTurn = 20_000

// measureMemory takes the cost of protection over the memory store.
func measureMemory(ctx context.Context, o *options, r *report) error {
	if !o.wants("memory-first", "memory-replay") {
		return nil
	}
	nanos, allocs := make(series), make(series)
	for range o.rounds {
		for _, c := range httpContenders {
			if err := ctx.Err(); err != nil {
				return err
			}
			spent, allocated, err := c.turn()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			nanos.add(c.name, spent)
			allocs.add(c.name, allocated)
		}
	}
	t := &table{
		title: "Requests over the memory store: one caller, 1 KiB of JSON in, 200 bytes out",
		head:  []string{"handler", "requests/s", "ns/request", "allocs/request"},
	}
	for _, c := range httpContenders {
		ns := nanos.median(c.name)
		t.add(c.name, grouped(1e9/ns), grouped(ns), fmt.Sprintf("%.1f", allocs.median(c.name)))
	}
	r.keep(t)
	r.judge("memory-first", allocs.median(firstHTTP)-allocs.median(bareHTTP))
	r.judge("memory-replay", allocs.median(replayHTTP)-allocs.median(bareHTTP))
	return nil
}

// turn measures nanoseconds and allocations of a request. The keys are made before, and so is what a replay needs.
func (c *httpContender) turn() (nanos, allocs float64, err error) {
	call, check, err := c.open()
	if err != nil {
		return 0, 0, err
	}
	keys := newKeys(requestsPerTurn)
	warmUp := newKeys(100)
	if c.replays {
		warmUp = keys
	}
	for _, key := range warmUp {
		call(key)
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	started := time.Now()
	for _, key := range keys {
		call(key)
	}
	elapsed := time.Since(started)
	runtime.ReadMemStats(&after)
	n := float64(len(keys))
	return float64(elapsed.Nanoseconds()) / n, float64(after.Mallocs-before.Mallocs) / n, check(c.replays)
}

// pay is the handler that is protected: it reads its body and answers.
func pay(w http.ResponseWriter, r *http.Request) {
	var chunk [2048]byte
	for {
		if _, err := r.Body.Read(chunk[:]); err != nil {
			break
		}
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, answer)
}

// openBare is the handler under a mux and nothing else.
func openBare() (func(string), func(bool) error, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", pay)
	client := newClient(mux)
	return client.call, func(bool) error { return client.check("") }, nil
}

// openGuarded is the same handler, protected in reserved mode on an empty memory store.
func openGuarded() (func(string), func(bool) error, error) {
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope:  func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil },
		Secret: []byte("a secret of enough random bytes "),
	})
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.HandlerFunc(pay, onceward.Reserved(onceward.FailureUnknown)))
	client := newClient(mux)
	check := func(replayed bool) error {
		if replayed {
			return client.check("true")
		}
		return client.check("")
	}
	return client.call, check, nil
}

// orderBytes is order, converted once.
var orderBytes = []byte(order)

// client sends the same request again and again under different keys. Request and response writer are used again.
type client struct {
	handler http.Handler
	request http.Request
	body    requestBody
	key     []string
	answer  discard
}

func newClient(handler http.Handler) *client {
	c := &client{handler: handler, key: make([]string, 1), answer: discard{header: make(http.Header)}}
	c.request = http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: "/payments"}, Host: "api.example.com", RequestURI: "/payments",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(order)), Body: &c.body,
		Header: http.Header{
			"Content-Type": {contentType}, "Authorization": {"Bearer alice"}, onceward.DefaultKeyHeader: c.key,
		},
	}
	return c
}

func (c *client) call(key string) {
	c.key[0] = key
	c.body.Reset(orderBytes)
	c.request.Body = &c.body
	clear(c.answer.header)
	c.answer.status, c.answer.written = 0, 0
	c.handler.ServeHTTP(&c.answer, &c.request)
}

// check makes sure that the last call did what was measured.
func (c *client) check(replayed string) error {
	a := &c.answer
	if a.status != http.StatusCreated || a.written != len(answer) || a.header.Get("Location") != location ||
		a.header.Get("Idempotent-Replayed") != replayed {
		return fmt.Errorf("the answer was %d with %d bytes and header %v", a.status, a.written, a.header)
	}
	return nil
}

// requestBody is a body that can be sent again.
type requestBody struct{ bytes.Reader }

// Close implements [io.Closer].
func (*requestBody) Close() error { return nil }

// discard is a ResponseWriter that keeps nothing of the body.
type discard struct {
	header  http.Header
	status  int
	written int
}

// Header implements [http.ResponseWriter].
func (d *discard) Header() http.Header { return d.header }

// WriteHeader implements [http.ResponseWriter].
func (d *discard) WriteHeader(status int) { d.status = status }

// Write implements [http.ResponseWriter].
func (d *discard) Write(p []byte) (int, error) {
	d.written += len(p)
	return len(p), nil
}

// WriteString implements [io.StringWriter], as the writer of net/http does.
func (d *discard) WriteString(s string) (int, error) {
	d.written += len(s)
	return len(s), nil
}
