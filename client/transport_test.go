package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/await"
)

// TestTheRequestIsNotChanged holds the contract of http.RoundTripper.
func TestTheRequestIsNotChanged(t *testing.T) {
	t.Parallel()
	service := &script{lines: []line{created}}
	transport, err := client.New(client.Config{Base: service})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://payments.test/", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "alice")
	before, body := maps.Clone(req.Header), req.Body
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if fmt.Sprint(req.Header) != fmt.Sprint(before) || req.Body != body || req.Context() != t.Context() {
		t.Errorf("the request is now %+v", req)
	}
	if sent := resp.Request.Header.Get("Idempotency-Key"); sent != `"`+client.KeyOf(resp)+`"` || len(sent) != 38 {
		t.Errorf("the key %s was sent as %s", client.KeyOf(resp), sent)
	}
}

// TestKeys holds where a key comes from, how it is sent, and that one which is not allowed is not sent at all.
func TestKeys(t *testing.T) {
	t.Parallel()
	inHeader := func(p *client.Profile, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[p.Header] = values }
	}
	ietf, stripe, paypal := client.ProfileIETF(), client.ProfileStripe(), client.ProfilePayPal()
	small := client.ProfileStripe()
	small.MaxLength = 20
	long := strings.Repeat("a", 255)
	for name, each := range map[string]struct {
		profile   *client.Profile
		given     string // by the context
		configure func(*http.Request)
		key, sent string // empty if it is refused
	}{
		"context":               {ietf, "a", nil, "a", `"a"`},
		"header, bare":          {ietf, "", inHeader(ietf, "a"), "a", `"a"`},
		"header, quoted":        {ietf, "", inHeader(ietf, `"a"`), "a", `"a"`},
		"header goes first":     {ietf, "b", inHeader(ietf, `"a"`), "a", `"a"`},
		"escapes":               {ietf, "", inHeader(ietf, `"a\"\\"`), `a"\`, `"a\"\\"`},
		"not closed":            {ietf, "", inHeader(ietf, `"a`), "", ""},
		"closed too early":      {ietf, "", inHeader(ietf, `"a"b"`), "", ""},
		"a bad escape":          {ietf, "", inHeader(ietf, `"a\b"`), "", ""},
		"two lines":             {ietf, "", inHeader(ietf, "a", "b"), "", ""},
		"empty":                 {ietf, "", inHeader(ietf, ""), "", ""},
		"too long":              {ietf, strings.Repeat("a", 256), nil, "", ""},
		"long":                  {ietf, long, nil, long, `"` + long + `"`},
		"no ASCII":              {ietf, "ä", nil, "", ""},
		"a line break":          {ietf, "a\r\nX: y", nil, "", ""},
		"Stripe":                {stripe, "a", nil, "a", "a"},
		"Stripe, with a space":  {stripe, "a b", nil, "", ""},
		"PayPal":                {paypal, "a", nil, "a", "a"},
		"PayPal, too long":      {paypal, strings.Repeat("a", 109), nil, "", ""},
		"too small for new one": {small, "", nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := &script{lines: []line{created}}
			ctx := t.Context()
			if each.given != "" {
				ctx = client.WithKey(ctx, each.given)
			}
			var configure []func(*http.Request)
			if each.configure != nil {
				configure = append(configure, each.configure)
			}
			got := post(ctx, newClient(t, client.Config{Base: service, Profile: each.profile}), configure...)
			if each.key == "" {
				if !errors.Is(got.err, client.ErrBadKey) || got.outcome != client.OutcomeNotExecuted || len(service.sent) > 0 {
					t.Errorf("got %+v", got)
				}
				return
			}
			sent := service.sent[0].Header.Values(each.profile.Header)
			if got.key != each.key || len(sent) != 1 || sent[0] != each.sent {
				t.Errorf("the key %q was sent as %q: %+v", got.key, sent, got)
			}
		})
	}
}

// TestOtherMethods are none of the transport's business, unless they carry a key.
func TestOtherMethods(t *testing.T) {
	t.Parallel()
	service := &script{lines: []line{answers(503)}}
	c := newClient(t, client.Config{Base: service, MinBackoff: time.Nanosecond, MaxBackoff: time.Nanosecond})
	got := post(t.Context(), c, func(r *http.Request) { r.Method = http.MethodPut })
	if len(service.sent) != 1 || service.sent[0].Header.Get("Idempotency-Key") != "" || got.key != "" {
		t.Errorf("%+v, sent %v", got, service.sent[0].Header)
	}
	post(client.WithKey(t.Context(), "a"), c, func(r *http.Request) { r.Method = http.MethodPut })
	if len(service.sent) != 6 || service.sent[5].Header.Get("Idempotency-Key") != `"a"` {
		t.Errorf("sent %d times", len(service.sent))
	}
}

// TestBodies sends the same body each time, from memory if need be, or nothing.
func TestBodies(t *testing.T) {
	t.Parallel()
	// plain hides what http.NewRequest knows of a reader.
	plain := func(r io.Reader) io.Reader { return struct{ io.Reader }{r} }
	for name, each := range map[string]struct {
		body   io.Reader
		length int64
		want   string
		err    error
	}{
		"by GetBody, of any length": {strings.NewReader(strings.Repeat("x", 2000)), 2000, strings.Repeat("x", 2000), nil},
		"from memory":               {plain(strings.NewReader(strings.Repeat("x", 1000))), 0, strings.Repeat("x", 1000), nil},
		"with a length":             {plain(strings.NewReader("xyz")), 3, "xyz", nil},
		"empty":                     {plain(strings.NewReader("")), 0, "", nil},
		"too long":                  {plain(strings.NewReader(strings.Repeat("x", 1001))), 0, "", client.ErrBodyTooLarge},
		"too long by its length":    {plain(iotest.ErrReader(errReset)), 1001, "", client.ErrBodyTooLarge},
		"broken":                    {plain(iotest.ErrReader(errReset)), 0, "", errReset},
		"shorter than announced":    {plain(strings.NewReader("xy")), 3, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				service := &script{lines: []line{answers(503), created}}
				transport, err := client.New(client.Config{Base: service, BodyLimit: 1000})
				if err != nil {
					t.Fatal(err)
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://payments.test/", each.body)
				if err != nil {
					t.Fatal(err)
				}
				if each.length > 0 {
					req.ContentLength = each.length
				}
				closed := false
				req.Body = closer{req.Body, &closed}
				resp, err := transport.RoundTrip(req)
				if !closed {
					t.Error("the body was not closed")
				}
				if each.want == "" && name != "empty" {
					if err == nil || each.err != nil && !errors.Is(err, each.err) || len(service.sent) > 0 ||
						client.Classify(resp, err) != client.OutcomeNotExecuted {
						t.Errorf("%v, sent %d times", err, len(service.sent))
					}
					return
				}
				if err != nil || len(service.body) != 2 || service.body[0] != each.want || service.body[1] != each.want ||
					service.sent[0].ContentLength != int64(len(each.want)) {
					t.Errorf("%v, sent %d times, with the length %d", err, len(service.sent), service.sent[0].ContentLength)
				}
			})
		})
	}
}

type closer struct {
	io.Reader
	closed *bool
}

func (c closer) Close() error {
	*c.closed = true
	return nil
}

// TestReadAnswer asks again for an answer that was cut off, if it is short enough to be read first, and otherwise
// hands it over as it comes.
func TestReadAnswer(t *testing.T) {
	t.Parallel()
	const size = 1000
	for name, each := range map[string]struct {
		read     int64
		kind     string
		length   int64
		attempts int
	}{
		"with a length":      {0, "text/plain", size, 2},
		"without a length":   {0, "text/plain", -1, 2},
		"exactly the limit":  {size, "text/plain", size, 2},
		"longer":             {size - 1, "text/plain", size, 1},
		"longer than it saw": {size/2 - 1, "text/plain", -1, 1},
		"a stream":           {0, "text/event-stream", -1, 1},
		"not wanted":         {-1, "text/plain", size, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				whole := strings.Repeat("x", size)
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					attempts++
					var body io.Reader = strings.NewReader(whole)
					if attempts == 1 {
						body = io.MultiReader(strings.NewReader(whole[:size/2]), iotest.ErrReader(io.ErrUnexpectedEOF))
					}
					return &http.Response{
						StatusCode: 201, Header: http.Header{"Content-Type": {each.kind}}, ContentLength: each.length,
						Body: io.NopCloser(body), Request: req,
					}, nil
				})
				got := post(t.Context(), newClient(t, client.Config{Base: base, ReadAnswer: each.read}))
				if attempts != each.attempts || got.status != 201 {
					t.Errorf("%d attempts: %+v", attempts, got)
				}
				if each.attempts == 2 && (got.err != nil || got.body != whole) ||
					each.attempts == 1 && (!errors.Is(got.err, io.ErrUnexpectedEOF) || got.body != whole[:size/2] || got.key == "") {
					t.Errorf("%d bytes: %v", len(got.body), got.err)
				}
			})
		})
	}
}

// TestAttemptTimeout ends an attempt that hangs, and sends the next one. An answer that streams has the same time.
func TestAttemptTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := &counted{}
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // from then on the server notices that the client leaves
			if handler.runs.Load() == 1 {
				<-r.Context().Done()
			}
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(bytes.Repeat([]byte("x"), 5000))
			_ = http.NewResponseController(w).Flush()
			if r.URL.Query().Has("endless") {
				<-r.Context().Done()
			}
		}
		base := serve(t, newWire(), handler)
		c := newClient(t, client.Config{Base: base, AttemptTimeout: 2 * time.Second})
		got := post(t.Context(), c)
		if got.status != 201 || len(got.body) != 5000 || got.took < 2*time.Second || got.took > 3*time.Second {
			t.Errorf("got %+v", got)
		}
		endless := post(t.Context(), c, func(r *http.Request) { r.URL.RawQuery = "endless" })
		if endless.status != 201 || len(endless.body) != 5000 || endless.err == nil {
			t.Errorf("got %+v", endless)
		}
	})
}

// TestTraces keeps a trace of the caller's beside the operation's own.
func TestTraces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		c := newClient(t, client.Config{Base: serve(t, w, &counted{}), MaxAttempts: 1})
		got := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { got++ },
		})
		post(ctx, c)
		if got != 1 {
			t.Errorf("the caller's trace was told of %d connections", got)
		}
		c.CloseIdleConnections()
		w.mu.Lock()
		w.cuts = []cut{{request: -1, answer: 0}}
		w.mu.Unlock()
		if lost := post(ctx, c); got != 2 || lost.outcome != client.OutcomeUnknown {
			t.Errorf("%d connections: %+v", got, lost)
		}
		c.CloseIdleConnections()
		w.refused.Store(true)
		if refused := post(ctx, c); got != 2 || refused.outcome != client.OutcomeNotExecuted {
			t.Errorf("%d connections: %+v", got, refused)
		}
	})
}

// TestAnAnswerThatNeverComes: a failure is known by its status, however long what it says is to be.
func TestAnAnswerThatNeverComes(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) > 1 {
			return
		}
		w.Header().Set("Content-Length", "2000000")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	c := newClient(t, client.Config{Base: &http.Transport{DisableKeepAlives: true}, MinBackoff: 1, MaxBackoff: 1})
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("a"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if client.Classify(resp, err) != client.OutcomeAnswered || resp.Body.Close() != nil || requests.Load() != 2 {
		t.Errorf("after %d requests: %v", requests.Load(), err)
	}
}

// TestHead: an answer to HEAD announces a length, and has no body that could be cut off.
func TestHead(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
	}))
	t.Cleanup(server.Close)
	c := newClient(t, client.Config{Base: &http.Transport{DisableKeepAlives: true}, MaxAttempts: 1})
	req, err := http.NewRequestWithContext(client.WithKey(t.Context(), "a"), http.MethodHead, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close() != nil || resp.ContentLength != 5 {
		t.Errorf("got %+v", resp)
	}
}
