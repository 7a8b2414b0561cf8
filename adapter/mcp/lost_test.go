package oncewardmcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// forgetful is an HTTP server with sessions, written by hand: it forgets its sessions in mid-call, as one does that was
// restarted or that another node answers for.
type forgetful struct {
	effects atomic.Int64
	session atomic.Int64 // the number of the session that it knows
	began   chan struct{}
	hold    atomic.Bool // the stream of a call is kept open instead of cut
}

func (f *forgetful) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var req struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	_ = json.Unmarshal(body, &req)
	known := fmt.Sprint(f.session.Load())
	if id := r.Header.Get("Mcp-Session-Id"); id != "" && id != known {
		http.Error(w, "no such session", http.StatusNotFound)
		return
	}
	reply := func(result string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, result)
	}
	switch {
	case r.Method == http.MethodGet && r.Header.Get("Last-Event-ID") == "":
		w.WriteHeader(http.StatusMethodNotAllowed)
	case req.Method == "initialize":
		w.Header().Set("Mcp-Session-Id", known)
		reply(`{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"f","version":"1"}}`)
	case req.Method == "tools/list":
		reply(`{"tools":[{"name":"book","inputSchema":{"type":"object"}}]}`)
	case req.Method == "tools/call":
		f.effects.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		out := bufio.NewWriter(w)
		fmt.Fprint(out, "id: 1\nretry: 1\ndata:\n\n")
		_ = out.Flush()
		w.(http.Flusher).Flush()
		f.began <- struct{}{}
		f.session.Add(1)
		if f.hold.Load() {
			<-r.Context().Done()
		}
	case req.ID != nil:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, req.ID)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// TestProxyLostSession: a session that is lost behind a call says nothing about what the call did; one that was lost
// before says that nothing was done.
func TestProxyLostSession(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]bool{"the stream is cut": false, "another call finds it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &forgetful{began: make(chan struct{}, 10)}
			f.session.Store(1)
			f.hold.Store(hold)
			web := httptest.NewServer(f)
			t.Cleanup(func() {
				web.CloseClientConnections()
				web.Close()
			})
			b := newBench(t)
			proxy := b.proxy(oncewardmcp.ProxyTool{}, func(context.Context) (mcp.Transport, error) {
				return &mcp.StreamableClientTransport{Endpoint: web.URL}, nil
			})
			session := overHTTP(t, proxy.Server(), newest)
			done := make(chan *mcp.CallToolResult, 1)
			go func() {
				result, _ := session.CallTool(t.Context(), book("k1", "Ada"))
				done <- result
			}()
			<-f.began
			if hold {
				p := wantProblem(t, callTool(t, session, book("k2", "Bob")), "not-executed")
				if p.Executed != oncewardmcp.ExecutedNo {
					t.Errorf("the problem is %+v", p)
				}
			}
			wantProblem(t, await.Value(t, "the answer", done), "outcome-unknown")
			wantProblem(t, callTool(t, session, book("k1", "Ada")), "outcome-unknown")
			if n := f.effects.Load(); n != 1 {
				t.Errorf("there are %d effects", n)
			}
		})
	}
}

// proxyConfig is for proxies that are not to be reached, or fail.
func proxyConfig(connect func(context.Context) (mcp.Transport, error)) oncewardmcp.ProxyConfig {
	return oncewardmcp.ProxyConfig{
		Connect: connect, Scope: oncewardmcp.SingleScope("s"), Tools: map[string]oncewardmcp.ProxyTool{"book": {}},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// TestProxyHangingServer: a server that takes the connection and says nothing does not keep the proxy for ever.
func TestProxyHangingServer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	silent := func(context.Context) (mcp.Transport, error) {
		out, in := io.Pipe()
		return &mcp.IOTransport{Reader: out, Writer: silence{in}}, nil
	}
	config := proxyConfig(silent)
	config.ConnectTimeout = 20 * time.Millisecond
	if _, err := oncewardmcp.NewProxy(t.Context(), b.guard, config); err == nil {
		t.Error("there is a proxy in front of nothing")
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := oncewardmcp.NewProxy(ctx, b.guard, proxyConfig(silent)); err == nil {
		t.Error("there is a proxy in front of nothing")
	}
}

// silence takes everything, and its close ends the other side.
type silence struct{ io.Closer }

func (silence) Write(p []byte) (int, error) { return len(p), nil }

// TestProxyDyingServer: a server that dies as often as it is started is not started as fast as possible, although each
// start succeeds.
func TestProxyDyingServer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var starts atomic.Int64
	config := proxyConfig(func(ctx context.Context) (mcp.Transport, error) {
		starts.Add(1)
		here, there := mcp.NewInMemoryTransports()
		server := plainServer(b.path + ".lines")
		server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == "tools/list" {
					go func() { _ = req.GetSession().(*mcp.ServerSession).Close() }()
					<-ctx.Done()
				}
				return next(ctx, method, req)
			}
		})
		go func() { _ = server.Run(ctx, there) }()
		return here, nil
	})
	config.MinBackoff = time.Hour
	config.MaxBackoff = time.Hour
	proxy, err := oncewardmcp.NewProxy(t.Context(), b.guard, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	for range 5 {
		if _, err := proxy.Unprotected(t.Context()); err == nil {
			t.Error("a server that died has answered")
		}
		await.That(t, "the session has ended", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := proxy.Unprotected(ctx)
			return err != nil && strings.Contains(err.Error(), "is not tried again")
		})
	}
	if n := starts.Load(); n != 1 {
		t.Errorf("it was started %d times", n)
	}
}

// TestProxyCloseDoesNotWait: a call that hangs does not keep a proxy that is closed, and its outcome is unknown.
func TestProxyCloseDoesNotWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	f := &forgetful{began: make(chan struct{}, 1)}
	f.hold.Store(true)
	web := httptest.NewServer(f)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	proxy := b.proxy(oncewardmcp.ProxyTool{}, func(context.Context) (mcp.Transport, error) {
		return &mcp.StreamableClientTransport{Endpoint: web.URL}, nil
	})
	session := overHTTP(t, proxy.Server(), newest)
	done := make(chan *mcp.CallToolResult, 1)
	go func() {
		result, _ := session.CallTool(t.Context(), book("k1", "Ada"))
		done <- result
	}()
	<-f.began
	_ = proxy.Close()
	wantProblem(t, await.Value(t, "the answer", done), "outcome-unknown")
}

// TestProxyOwnArgument: a tool that has an argument of the key's name itself gets a key of the proxy's own in it.
func TestProxyOwnArgument(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy, path := b.proxied(oncewardmcp.ProxyTool{KeyArgument: "token"})
	session := overHTTP(t, proxy.Server(), newest)
	for range 2 {
		callTool(t, session, &mcp.CallToolParams{Name: "book", Arguments: map[string]any{"guest": "Ada", "token": "mine"}})
	}
	effects := lines(t, path)
	if len(effects) != 1 || len(effects[0]) < 30 || strings.Contains(effects[0], "mine") {
		t.Errorf("the effects are %q", effects)
	}
}

// TestProxyHidesTheQuery: a secret in the URL of the server behind is shown neither to clients nor in logs. The
// failure itself is in the record, and not sent.
func TestProxyHidesTheQuery(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	endpoint := listen(t, plainServer(b.path+".lines"), newest)
	var cut atomic.Bool
	logged, err := os.Create(b.path + ".log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = logged.Close() })
	config := proxyConfig(func(context.Context) (mcp.Transport, error) {
		return &mcp.StreamableClientTransport{
			Endpoint: endpoint + "?token=hush", HTTPClient: &http.Client{Transport: cutting{&cut}},
		}, nil
	})
	config.Logger = slog.New(slog.NewTextHandler(logged, nil))
	proxy, err := oncewardmcp.NewProxy(t.Context(), b.guard, config)
	if err != nil {
		t.Fatal(err)
	}
	session := overHTTP(t, proxy.Server(), newest)
	cut.Store(true)
	problem := wantProblem(t, callTool(t, session, book("k1", "Ada")), "outcome-unknown")
	rec, err := b.store.Get(t.Context(), store.ID{Scope: "s", Key: "k1"})
	if err != nil || strings.Contains(rec.LastError, "hush") || !strings.Contains(rec.LastError, "the wire is cut") {
		t.Errorf("the reason in the record is %q: %v", rec.LastError, err)
	}
	if problem.Detail != "" {
		t.Errorf("the problem is %+v", problem)
	}
	_ = session.Close()
	_ = proxy.Close()
	if got := strings.Join(lines(t, logged.Name()), "\n"); got == "" || strings.Contains(got, "hush") {
		t.Errorf("logged was %s", got)
	}
}

// cutting is a wire that can be cut.
type cutting struct{ cut *atomic.Bool }

func (c cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		return nil, errors.New("the wire is cut")
	}
	return http.DefaultTransport.RoundTrip(r)
}
