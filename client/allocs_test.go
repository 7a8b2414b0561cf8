package client_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/racing"
)

// mostAllocs returns how many allocations an operation may make beside a plain call. There are more under the race
// detector, which keeps on the heap what is on the stack without it.
func mostAllocs() float64 {
	if racing.Enabled {
		return 10
	}
	return 7
}

// TestAnOperationAllocatesLittle compares the same calls with and without the transport, over a stub that allocates
// alike for both and over a real server.
func TestAnOperationAllocatesLittle(t *testing.T) {
	address := silentServer(t)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	for name, base := range map[string]http.RoundTripper{"stub": roundTrip(okay), "server": base} {
		call := func(c *http.Client) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/payments",
				strings.NewReader(`{"amount":1}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer alice")
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		plain, operation := &http.Client{Transport: base}, newClient(t, client.Config{Base: base})
		const runs = 1000
		without := testing.AllocsPerRun(runs, func() { call(plain) })
		with := testing.AllocsPerRun(runs, func() { call(operation) })
		t.Logf("%s: %v allocations, and %v without keys", name, with, without)
		if most := mostAllocs(); with-without > most {
			t.Errorf("%s: an operation allocates %v times more than a plain call, and %v are enough",
				name, with-without, most)
		}
	}
}

func okay(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		req.Body.Close()
	}
	return &http.Response{
		StatusCode: http.StatusCreated, ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header),
		ContentLength: 8, Body: io.NopCloser(strings.NewReader(`{"id":1}`)), Request: req,
	}, nil
}

// silentServer answers every request with the same bytes, and allocates nothing for that.
func silentServer(t *testing.T) (address string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerSilently(conn)
		}
	}()
	return listener.Addr().String()
}

func answerSilently(conn net.Conn) {
	defer conn.Close()
	requests := bufio.NewReader(conn)
	answer := []byte("HTTP/1.1 201 Created\r\nContent-Length: 8\r\n\r\n{\"id\":1}")
	for {
		line, err := requests.ReadSlice('\n')
		if err != nil {
			return
		}
		if len(line) > 2 {
			continue
		}
		if _, err := requests.Discard(len(`{"amount":1}`)); err != nil {
			return
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}
