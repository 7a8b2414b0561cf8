package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

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
