package routers_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/lab/feature/suite"
	"github.com/onceward/onceward/store/memory"
)

// TestBodiesCutShort: a request whose body ends early is never executed, wherever it is cut, with and without an
// announced length.
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
