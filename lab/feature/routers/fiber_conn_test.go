package routers_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"

	"github.com/onceward/onceward"
	oncewardfiber "github.com/onceward/onceward/adapter/fiber"
	"github.com/onceward/onceward/internal/await"
)

// TestFiberBehindNetHTTP: an app that is served without a connection of fasthttp answers as with one.
func TestFiberBehindNetHTTP(t *testing.T) {
	t.Parallel()
	app := fiber.New()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	app.Post("/payments", oncewardfiber.Handler(guard, func(fiber.Ctx) error { return nil },
		onceward.Reserved(onceward.FailureUnknown)))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		adaptor.FiberApp(app)(w, r)
		if w.Code != http.StatusOK {
			t.Errorf("a handler without an answer: %d", w.Code)
		}
	}
}

// TestFiberAppTest: the connection of app.Test ends after the request, and fasthttp reports the end of a body in chunks
// like that of its connection: such a body is refused, where it is streamed, and nothing is executed.
func TestFiberAppTest(t *testing.T) {
	t.Parallel()
	for _, streams := range []bool{false, true} {
		runs := 0
		app := fiber.New(fiber.Config{StreamRequestBody: streams})
		app.Post("/payments", oncewardfiber.Handler(guardOfScope(t, onceward.SingleScope("shop")), func(c fiber.Ctx) error {
			runs++
			return c.SendString("done")
		}, reserved))
		for length, refused := range map[int64]bool{2: false, -1: streams} {
			r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", fmt.Sprint("length:", length))
			r.ContentLength = length
			if length < 0 {
				r.TransferEncoding = []string{"chunked"}
			}
			before := runs
			answer, err := app.Test(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(string(body), "body-incomplete"); got != refused || runs-before == 1 == refused {
				t.Errorf("streams %t, length %d: the answer is %d %q, and the handler ran %d times, want refused %t",
					streams, length, answer.StatusCode, body, runs-before, refused)
			}
		}
	}
}

// muted is a connection of which the system cannot be asked.
type muted struct{ net.Conn }

// mutedListener makes each connection a muted one.
type mutedListener struct{ net.Listener }

func (l mutedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return muted{conn}, err
}

// halfCloser is a connection on which the end of what is sent can be said.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// TestChunksCutShort: chunks that end early are never executed, whatever the connection is. What ends is TLS alone, or
// the whole connection.
func TestChunksCutShort(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	server.Close()
	secure := &tls.Config{Certificates: server.TLS.Certificates}
	for name, listener := range map[string]func(net.Listener) net.Listener{
		"tls":          func(l net.Listener) net.Listener { return tls.NewListener(l, secure) },
		"tls on muted": func(l net.Listener) net.Listener { return tls.NewListener(mutedListener{l}, secure) },
		"muted":        func(l net.Listener) net.Listener { return mutedListener{l} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			app := fiber.New(fiber.Config{StreamRequestBody: true})
			guard := guardOfScope(t, onceward.SingleScope("shop"))
			app.Post("/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
				runs.Add(1)
				return c.SendString("done")
			}, onceward.Reserved(onceward.FailureUnknown)))
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			serveOn(t, app, listener(tcp))
			send := func(body string, end bool) string {
				var conn halfCloser
				if strings.HasPrefix(name, "tls") {
					conn, err = tls.Dial("tcp", tcp.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the certificate is the test's own
				} else {
					var plain net.Conn
					plain, err = net.Dial("tcp", tcp.Addr().String())
					conn, _ = plain.(halfCloser)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				_, err = fmt.Fprintf(conn, "POST /payments HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\n"+
					"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n%s", body)
				if err == nil && end {
					err = conn.CloseWrite()
				}
				if err != nil {
					t.Fatal(err)
				}
				reply := make(chan string, 1)
				go func() {
					all, _ := io.ReadAll(conn) // a connection that is cut is no answer
					reply <- string(all)
				}()
				return await.Value(t, "the end of the connection", reply)
			}
			if reply := send("2\r\n{}\r\n", true); runs.Load() != 0 {
				t.Errorf("the handler ran for a part of the request: %q", reply)
			}
			if reply := send("2\r\n{}\r\n0\r\n\r\n", false); runs.Load() != 1 || !strings.Contains(reply, " 200 ") {
				t.Errorf("the whole request: %d runs, %q", runs.Load(), reply)
			}
		})
	}
}

// serveOn serves until the test ends.
func serveOn(t *testing.T, app *fiber.App, listener net.Listener) {
	ended := make(chan error, 1)
	go func() { ended <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Limit)
		defer cancel()
		if err := app.ShutdownWithContext(ctx); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
