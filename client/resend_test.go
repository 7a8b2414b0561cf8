package client_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"github.com/onceward/onceward/client"
)

// forgetful is a server on a real connection that answers the first request on each, and closes the connection when
// it has read the second one: as a server does that is restarted.
type forgetful struct {
	net.Listener
	header string // that carries keys

	mu   sync.Mutex
	keys []string
	all  sync.WaitGroup
	// closing says that it no longer listens by then.
	closing bool
}

func newForgetful(t *testing.T, header string, closing bool) *forgetful {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forgetful{Listener: listener, header: header, closing: closing}
	f.all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.all.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		f.all.Wait()
	})
	return f
}

func (f *forgetful) serve(conn net.Conn) {
	defer conn.Close()
	requests := bufio.NewReader(conn)
	for n := 1; ; n++ {
		req, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		f.mu.Lock()
		f.keys = append(f.keys, req.Header.Get(f.header))
		f.mu.Unlock()
		if n == 2 {
			if f.closing {
				f.Close()
			}
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
	}
}

// TestResends holds that what net/http sends again by itself, when a kept connection dies, has the same key, and that
// it does so only for headers that it knows: otherwise the transport does it.
func TestResends(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]struct {
		profile  *client.Profile
		attempts int
		without  bool // a body
	}{
		"by net/http":                 {client.ProfileIETF(), 1, false},
		"by net/http, without a body": {client.ProfileIETF(), 1, true},
		"by the transport":            {client.ProfilePayPal(), 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newForgetful(t, each.profile.Header, false)
			seen := &events{}
			c := newClient(t, client.Config{Base: &http.Transport{}, Profile: each.profile, Observer: seen})
			t.Cleanup(c.CloseIdleConnections)
			first := post(t.Context(), c, f.at(each.without))
			second := post(t.Context(), c, f.at(each.without))
			first.want(t, http.StatusCreated, client.OutcomeAnswered, false)
			second.want(t, http.StatusCreated, client.OutcomeAnswered, false)
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.keys) != 3 || f.keys[0] == f.keys[1] || f.keys[1] != f.keys[2] {
				t.Errorf("the keys are %q", f.keys)
			}
			if n := len(eventsOf[client.AttemptEvent](seen)); n != 1+each.attempts {
				t.Errorf("%d attempts", n)
			}
		})
	}
}

// TestADialErrorAfterAResend proves nothing: the request was sent before, on a connection that had been kept.
func TestADialErrorAfterAResend(t *testing.T) {
	t.Parallel()
	for _, without := range []bool{false, true} {
		f := newForgetful(t, "Idempotency-Key", true)
		c := newClient(t, client.Config{Base: &http.Transport{}, MaxAttempts: 1})
		t.Cleanup(c.CloseIdleConnections)
		first := post(t.Context(), c, f.at(without))
		first.want(t, http.StatusCreated, client.OutcomeAnswered, false)
		dial := (*net.OpError)(nil)
		second := post(t.Context(), c, f.at(without))
		if !errors.As(second.err, &dial) || dial.Op != "dial" || second.outcome != client.OutcomeUnknown {
			t.Errorf("got %+v", second)
		}
		third := post(t.Context(), c, f.at(without))
		if !errors.As(third.err, &dial) || third.outcome != client.OutcomeNotExecuted {
			t.Errorf("got %+v", third)
		}
	}
}

// at sends a request to the server, maybe without a body.
func (f *forgetful) at(withoutBody bool) func(*http.Request) {
	return func(r *http.Request) {
		r.URL, r.Host = &url.URL{Scheme: "http", Host: f.Addr().String(), Path: "/payments"}, ""
		if withoutBody {
			r.Body, r.GetBody, r.ContentLength = nil, nil, 0
		}
	}
}
