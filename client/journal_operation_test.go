package client_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/onceward/onceward/client"
)

func newRequest(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://payments.test/payments", body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// TestARequestIsEnqueuedTwice, as when a transaction is repeated: with its body both times.
func TestARequestIsEnqueuedTwice(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]io.Reader{
		"rewound": strings.NewReader("paper"), "read once": io.MultiReader(strings.NewReader("paper")),
	} {
		req := newRequest(t, body)
		for range 2 {
			if o, err := client.NewOperation(req); err != nil || string(o.Body) != "paper" {
				t.Errorf("%s: the body is %q: %v", name, o.Body, err)
			}
		}
	}
	short := newRequest(t, io.MultiReader(strings.NewReader("pap")))
	short.ContentLength = 5
	if o, err := client.NewOperation(short); err == nil {
		t.Errorf("a body that is shorter than announced was taken: %q", o.Body)
	}
}

// TestNoPasswordInTheError: what is refused is not shown with its secrets.
func TestNoPasswordInTheError(t *testing.T) {
	t.Parallel()
	req := newRequest(t, nil)
	req.URL = &url.URL{Scheme: "ftp", Host: "payments.test", User: url.UserPassword("alice", "password")}
	if _, err := client.NewOperation(req); err == nil || strings.Contains(err.Error(), "password") {
		t.Error(err)
	}
}

// TestARequestThatNetHTTPWouldRefuse is refused when it is enqueued, while there is a caller who can be told.
func TestARequestThatNetHTTPWouldRefuse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(r *http.Request){
		"a control character": func(r *http.Request) { r.Header.Set("X-Customer", "Ann\x01") },
		"a second line":       func(r *http.Request) { r.Header.Set("X-Customer", "Ann\r\nX-Admin: yes") },
		"a deleted character": func(r *http.Request) { r.Header.Set("X-Customer", "Ann\x7f") },
		"a name with a space": func(r *http.Request) { r.Header["X Customer"] = []string{"Ann"} },
		"a name of none":      func(r *http.Request) { r.Header[""] = []string{"Ann"} },
		"a method":            func(r *http.Request) { r.Method = "PO ST" },
		"a host":              func(r *http.Request) { r.URL.Host = "payments test" },
	} {
		req := newRequest(t, nil)
		spoil(req)
		if _, err := client.NewOperation(req); err == nil {
			t.Errorf("%s that cannot be sent was enqueued", name)
		}
	}
	req := newRequest(t, nil)
	req.Header["X-Customer"] = []string{"Zo\xeb\tB", "Zoë", ""}
	if _, err := client.NewOperation(req); err != nil {
		t.Errorf("a header that can be sent: %v", err)
	}
}

// TestKeysOfOperations: which key a request has is the same when it is enqueued as when it is sent.
func TestKeysOfOperations(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]struct {
		context, header []string
		want            string // or none, if it is refused
	}{
		"header before context": {[]string{"c"}, []string{`"h"`}, "h"},
		"context":               {[]string{"c"}, nil, "c"},
		"empty context":         {[]string{""}, nil, ""},
		"empty header":          {nil, []string{""}, ""},
		"two lines":             {nil, []string{"a", "a"}, ""},
		"not a string":          {nil, []string{`"a`}, ""},
	} {
		req := newRequest(t, nil)
		for _, key := range each.context {
			req = req.WithContext(client.WithKey(req.Context(), key))
		}
		if each.header != nil {
			req.Header["Idempotency-Key"] = each.header
		}
		o, err := client.NewOperation(req)
		if each.want == "" && !errors.Is(err, client.ErrBadKey) || each.want != "" && (err != nil || o.Key != each.want) {
			t.Errorf("%s: enqueued as %+v: %v", name, o, err)
		}
		service := &script{lines: []line{created}}
		resp, err := newClient(t, client.Config{Base: service}).Do(req)
		if each.want == "" && !errors.Is(err, client.ErrBadKey) || each.want != "" && client.KeyOf(resp) != each.want {
			t.Errorf("%s: sent: %v", name, err)
		}
	}
}
