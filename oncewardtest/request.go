package oncewardtest

import (
	"cmp"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
)

// Request is a request of a client.
type Request struct {
	// Method and Path are the method and the path of the request; the path may have a query. Default: POST.
	Method, Path string
	// Key is the idempotency key, as it appears in the header. A check uses its own keys. Default: none.
	Key string
	// Header has additional headers, such as headers for authentication. Default: a Content-Type for JSON.
	Header http.Header
	// Body is the body of the request.
	Body string
}

// Post returns a POST request with a JSON body.
func Post(path, body string) Request { return Request{Path: path, Body: body} }

// String returns the method and the path.
func (r Request) String() string { return cmp.Or(r.Method, http.MethodPost) + " " + r.Path }

func (r Request) build(ctx context.Context, keyHeader string) *http.Request {
	request := httptest.NewRequestWithContext(ctx, cmp.Or(r.Method, http.MethodPost), r.Path, strings.NewReader(r.Body))
	request.Header.Set("Content-Type", "application/json")
	for name, values := range r.Header {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	if r.Key != "" {
		request.Header.Set(keyHeader, r.Key)
	}
	return request
}

// writer is the writer for the service's answer. Like the writers of frameworks, it reports whether an answer was
// written.
type writer struct {
	*httptest.ResponseRecorder
	written bool
}

// Written reports whether there is an answer.
func (w *writer) Written() bool { return w.written }

// WriteHeader implements [http.ResponseWriter].
func (w *writer) WriteHeader(status int) {
	w.written = w.written || status >= http.StatusOK
	w.ResponseRecorder.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *writer) Write(b []byte) (int, error) {
	w.written = true
	return w.ResponseRecorder.Write(b)
}
