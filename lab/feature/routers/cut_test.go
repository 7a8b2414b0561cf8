package routers_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/lab/feature/suite"
	"github.com/onceward/onceward/store/memory"
)

// TestBodiesCutShort: a request whose body ends early is never executed, wherever it is cut, with and without an
// announced length, over HTTP/1 and, where the framework serves it, over HTTP/2.
func TestBodiesCutShort(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]suite.Serve{
		"net/http": serveNetHTTP, "gin": serveGin, "echo v4": serveEcho4, "echo v5": serveEcho5, "fiber": serveFiber,
		"fiber with streams": serveStreams,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guard, err := onceward.New(memory.New(), onceward.Config{
				Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"), Logger: quiet,
			})
			if err != nil {
				t.Fatal(err)
			}
			var runs atomic.Int64
			caller := serve(t, guard, func(context.Context, suite.Payment) suite.Reply {
				runs.Add(1)
				return suite.Reply{Status: 201, Body: "done"}
			}, onceward.Reserved(onceward.FailureUnknown))
			address := strings.TrimPrefix(caller.(suite.HTTP).URL, "http://")
			const content = `{"account":"a","amount":7}         `
			chunks := fmt.Sprintf("%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", 16, content[:16], len(content)-16, content[16:])
			for how, body := range map[string]string{
				fmt.Sprintf("Content-Length: %d", len(content)): content, "Transfer-Encoding: chunked": chunks,
			} {
				ends := []int{16 + len("10\r\n\r\n"), len(body) - len("0\r\n\r\n")} // between chunks
				for end := 0; end < len(body)-len("0\r\n\r\n"); end += 8 {
					ends = append(ends, end)
				}
				if body == chunks { // in the size of the last chunk
					ends = append(ends, len(body)-len("\r\n\r\n"), len(body)-len("\n\r\n"))
				}
				for _, end := range ends {
					if end >= len(content) && body == content {
						continue
					}
					reply := cut(t, address, fmt.Sprintf("%s-%d", how[:1], end), how, body[:end])
					if strings.Contains(reply, " 201 ") || runs.Load() != 0 {
						t.Fatalf("%s, cut at %d of %d: the handler ran %d times, answer %q", how, end, len(body), runs.Load(), reply)
					}
				}
			}
			if handled := caller.(suite.HTTP).Handled; handled != nil {
				for i, c := range cutsOfHTTP2(len(content)) {
					before := handled.Load()
					cut2(t, address, fmt.Sprintf("http2-%d", i), content, c)
					await.That(t, "the end of the request", func() bool { return handled.Load() > before })
					if runs.Load() != 0 {
						t.Fatalf("HTTP/2, %+v: the handler ran", c)
					}
				}
				cut2(t, address, "http2", content, cutHTTP2{len(content), true, endStream})
				await.That(t, "a whole request over HTTP/2", func() bool { return runs.Load() == 1 })
			}
			whole, err := caller.Call(t.Context(), suite.Request{Key: "whole", Payment: suite.Payment{Account: "a", Amount: 7}})
			if err != nil || whole.Status != 201 {
				t.Errorf("the whole request is answered by %v, error %v", whole, err)
			}
		})
	}
}

// cut sends a part of a request, ends the sending, and returns what comes back.
func cut(t *testing.T, address, key, how, body string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /accounts/a/payments HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
		"Idempotency-Key: %s\r\n%s\r\n\r\n%s", address, key, how, body)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	reply := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(conn) // a connection that is cut is no answer
		reply <- string(all)
	}()
	return await.Value(t, "the end of the connection", reply)
}

// cutHTTP2 is a way to cut a body over HTTP/2.
type cutHTTP2 struct {
	end       int    // how much of the body is sent
	announced bool   // whether its length is
	how       string // what follows
}

// The ways in which a stream ends early.
const (
	resetStream = "RST_STREAM"
	endStream   = "END_STREAM"
	closeConn   = "the end of the connection"
)

// cutsOfHTTP2 are all of them, at every eighth byte. A body without a length is whole when its stream is ended.
func cutsOfHTTP2(size int) (cuts []cutHTTP2) {
	for end := 0; end < size; end += 8 {
		for _, how := range []string{resetStream, endStream, closeConn} {
			cuts = append(cuts, cutHTTP2{end, true, how})
			if how != endStream {
				cuts = append(cuts, cutHTTP2{end, false, how})
			}
		}
	}
	return cuts
}

// cut2 sends a part of a request over HTTP/2, and ends it.
func cut2(t *testing.T, address, key, body string, c cutHTTP2) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	conn, err := net.Dial("tcp", address)
	must(err)
	t.Cleanup(func() { _ = conn.Close() }) // a connection that ends too early is another cut
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(err)
	framer := http2.NewFramer(conn, nil)
	must(framer.WriteSettings())
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := []string{
		":method", "POST", ":scheme", "http", ":authority", address, ":path", "/accounts/a/payments",
		"content-type", "application/json", "idempotency-key", key,
	}
	if c.announced {
		fields = append(fields, "content-length", strconv.Itoa(len(body)))
	}
	for i := 0; i < len(fields); i += 2 {
		must(encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	must(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	must(framer.WriteData(1, c.how == endStream, []byte(body[:c.end])))
	switch c.how {
	case resetStream:
		must(framer.WriteRSTStream(1, http2.ErrCodeCancel))
	case closeConn:
		must(conn.(*net.TCPConn).CloseWrite()) // a reset could overtake the request
	}
}
