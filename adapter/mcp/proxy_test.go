package oncewardmcp_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
)

// lines are the effects of a plain server.
func lines(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' })
}

// proxied is a proxy in front of a plain server on stdio, and the file of that server's effects.
func (b *bench) proxied(tool oncewardmcp.ProxyTool) (*oncewardmcp.Proxy, string) {
	b.t.Helper()
	path := b.path + ".lines"
	return b.proxy(tool, func(context.Context) (mcp.Transport, error) {
		return &mcp.CommandTransport{Command: proc.Self(serverVariable, "plain:"+path)}, nil
	}), path
}

func (b *bench) proxy(
	tool oncewardmcp.ProxyTool, connect func(context.Context) (mcp.Transport, error),
) *oncewardmcp.Proxy {
	b.t.Helper()
	proxy, err := oncewardmcp.NewProxy(b.t.Context(), b.guard, oncewardmcp.ProxyConfig{
		Connect: connect, Scope: oncewardmcp.SingleScope("s"), Tools: map[string]oncewardmcp.ProxyTool{"book": tool},
		MinBackoff: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = proxy.Close() })
	return proxy
}

func book(key, guest string) *mcp.CallToolParams {
	return keyed("book", key, map[string]any{"guest": guest})
}

// TestProxy: calls of a server that knows nothing of Onceward happen once, and the server is started again.
func TestProxy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy, path := b.proxied(oncewardmcp.ProxyTool{KeyArgument: "idempotency_key"})
	session := overHTTP(t, proxy.Server(), newest)
	for range 2 {
		if result := callTool(t, session, book("k1", "Ada")); text(result) != "booked 1" {
			t.Fatalf("got %+v", result)
		}
	}
	died := wantProblem(t, callTool(t, session, book("k2", "die")), "outcome-unknown")
	if died.Executed != oncewardmcp.ExecutedUnknown || !died.Retryable {
		t.Errorf("the problem is %+v", died)
	}
	tries := 0
	await.That(t, "the next server answers", func() bool { // what is sent to the one that is dying stays unknown
		tries++
		result := callTool(t, session, book(fmt.Sprint("k3-", tries), "Bob"))
		return oncewardmcp.ProblemOf(result) == nil && text(result) == "booked 1"
	})
	wantProblem(t, callTool(t, session, book("k2", "die")), "outcome-unknown")
	busy := callTool(t, session, book("k4", "busy"))
	if !busy.IsError || text(busy) != "there is no table" || oncewardmcp.ProblemOf(busy) != nil {
		t.Errorf("got %+v", busy)
	}
	if again := callTool(t, session, book("k4", "busy")); !replayed(again) || text(again) != text(busy) {
		t.Errorf("got %+v", again)
	}
	if got := strings.Join(lines(t, path), ","); got != "Ada ,die ,Bob " {
		t.Errorf("the effects are %q", got)
	}
}

// TestProxyRepeats: a server that knows the key gets the same one with each attempt, and a failure is no doubt.
func TestProxyRepeats(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy, path := b.proxied(oncewardmcp.ProxyTool{KnowsKey: true, ForwardArgument: "token"})
	session := overHTTP(t, proxy.Server(), newest)
	for range 2 {
		if _, err := session.CallTool(t.Context(), book("k1", "die")); err == nil {
			t.Error("a server that died has answered")
		}
		await.That(t, "the next server answers", func() bool {
			menu, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "menu"})
			return err == nil && text(menu) == "soup"
		})
	}
	effects := lines(t, path)
	if len(effects) != 2 || effects[0] != effects[1] || len(effects[0]) < 30 || strings.Contains(effects[0], "k1") {
		t.Errorf("the effects are %q, want two with one key of the proxy's own", effects)
	}
}

// TestProxyDown: while the server behind cannot be reached nothing is done, and the key stays free.
func TestProxyDown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	down := false
	var connections []mcp.Connection
	proxy := b.proxy(oncewardmcp.ProxyTool{}, func(ctx context.Context) (mcp.Transport, error) {
		if down {
			return nil, errors.New("connection refused")
		}
		here, there := mcp.NewInMemoryTransports()
		go func() { _ = plainServer(b.path+".lines").Run(ctx, there) }()
		return &keeping{here, &connections}, nil
	})
	session := overHTTP(t, proxy.Server(), newest)
	down = true
	_ = connections[0].Close()
	await.That(t, "the connection has ended", func() bool {
		p := oncewardmcp.ProblemOf(callTool(t, session, book("k1", "Ada")))
		return p != nil && p.Code == "not-executed" && p.Executed == oncewardmcp.ExecutedNo
	})
	down = false
	await.That(t, "the server behind answers", func() bool { return text(callTool(t, session, book("k2", "Bob"))) == "booked 1" })
}

// keeping keeps the connection, to cut it.
type keeping struct {
	mcp.Transport
	connections *[]mcp.Connection
}

func (k *keeping) Connect(ctx context.Context) (mcp.Connection, error) {
	connection, err := k.Transport.Connect(ctx)
	*k.connections = append(*k.connections, connection)
	return connection, err
}

// TestProxyPasses: what is no call of a protected tool reaches the server behind, and what that tells reaches clients.
func TestProxyPasses(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]string{"with sessions": "2025-06-18", "newest": newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			behind := plainServer(b.path + ".lines")
			endpoint := listen(t, behind, version)
			proxy := b.proxy(oncewardmcp.ProxyTool{KeyArgument: "id"}, func(context.Context) (mcp.Transport, error) {
				return &mcp.StreamableClientTransport{Endpoint: endpoint}, nil
			})
			told := make(chan string, 100)
			client := mcp.NewClient(&mcp.Implementation{Name: "test"}, &mcp.ClientOptions{
				ToolListChangedHandler:     func(context.Context, *mcp.ToolListChangedRequest) { told <- "tools" },
				PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { told <- "prompts" },
				ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { told <- "resources" },
				ResourceUpdatedHandler:     func(context.Context, *mcp.ResourceUpdatedNotificationRequest) { told <- "updated" },
				ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
					if req.Params.ProgressToken == "mine" {
						told <- "progress"
					}
				},
			})
			here, there := mcp.NewInMemoryTransports()
			serving, err := proxy.Server().Connect(t.Context(), there, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer serving.Close()
			session, err := client.Connect(t.Context(), here, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()

			if got := session.InitializeResult(); got.ServerInfo.Name != "plain" || got.Instructions != "Book wisely." {
				t.Errorf("the server says that it is %+v", got)
			}
			tools, err := session.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) != 2 {
				t.Fatalf("the tools are %+v, %v", tools, err)
			}
			if schema, _ := tools.Tools[0].InputSchema.(map[string]any); schema["properties"].(map[string]any)["id"] == nil {
				t.Errorf("the input schema is %v", schema)
			}
			if prompt, err := session.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "ask"}); err != nil || prompt.Description != "asks" {
				t.Errorf("the prompt is %+v, %v", prompt, err)
			}
			read, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "file:///card"})
			if err != nil || read.Contents[0].Text != "the card" {
				t.Errorf("the resource is %+v, %v", read, err)
			}
			params := book("k1", "Ada")
			params.SetProgressToken("mine")
			if result := callTool(t, session, params); text(result) != "booked 1" {
				t.Errorf("got %+v", result)
			}
			wantTold(t, told, "progress")
			behind.AddPrompt(&mcp.Prompt{Name: "new"}, nil)
			wantTold(t, told, "prompts")
			behind.RemoveTools("menu")
			wantTold(t, told, "tools")
			behind.RemoveResources("file:///none")
			if unprotected, err := proxy.Unprotected(t.Context()); err != nil || len(unprotected) != 0 {
				t.Errorf("not protected are %v, %v", unprotected, err)
			}
		})
	}
}

func wantTold(t *testing.T, told <-chan string, want string) {
	t.Helper()
	for got := ""; got != want; {
		got = await.Value(t, "a notification about "+want, told)
	}
}

// TestProxyOptions: the retention and the meaning of errors of a protected tool are its own.
func TestProxyOptions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy, path := b.proxied(oncewardmcp.ProxyTool{
		ErrorResult: onceward.FailureUnknown, Options: []onceward.Option{onceward.Retain(48 * time.Hour)},
	})
	session := overHTTP(t, proxy.Server(), newest)
	wantProblem(t, callTool(t, session, book("k1", "broken")), "outcome-unknown")
	done := callTool(t, session, book("k2", "Ada"))
	until, err := time.Parse(time.RFC3339, done.Meta[oncewardmcp.MetaExpires].(string))
	if err != nil || time.Until(until) < 47*time.Hour {
		t.Errorf("it is kept until %v, %v", until, err)
	}
	if got := lines(t, path); len(got) != 2 {
		t.Errorf("the effects are %q", got)
	}
}

// TestProblemsBehindAreNoAnswers: what a protected server behind a proxy says about its records is not kept as the
// answer: the next call asks again if that server knows the key, and the outcome is unknown if it does not.
func TestProblemsBehindAreNoAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tool     oncewardmcp.ProxyTool
		executed oncewardmcp.Executed
		want     string // the code of a problem, or none for the answer
	}{
		"unknown, and it knows the key": {oncewardmcp.ProxyTool{KnowsKey: true}, oncewardmcp.ExecutedUnknown, ""},
		"unknown":                       {oncewardmcp.ProxyTool{}, oncewardmcp.ExecutedUnknown, "outcome-unknown"},
		"not done":                      {oncewardmcp.ProxyTool{}, oncewardmcp.ExecutedNo, ""},
		"done":                          {oncewardmcp.ProxyTool{}, oncewardmcp.ExecutedYes, "behind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			server := mcp.NewServer(&mcp.Implementation{Name: "behind"}, nil)
			var calls atomic.Int64
			server.AddTool(&mcp.Tool{Name: "book", InputSchema: map[string]any{"type": "object"}},
				func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					if calls.Add(1) > 1 {
						return said("booked"), nil
					}
					result := said("wait")
					result.IsError = true
					result.Meta = mcp.Meta{oncewardmcp.MetaProblem: oncewardmcp.Problem{Code: "behind", Executed: tc.executed}}
					return result, nil
				})
			endpoint := listen(t, server, newest)
			proxy := b.proxy(tc.tool, func(context.Context) (mcp.Transport, error) {
				return &mcp.StreamableClientTransport{Endpoint: endpoint}, nil
			})
			session := overHTTP(t, proxy.Server(), newest)
			callTool(t, session, book("k", "Ada"))
			second := callTool(t, session, book("k", "Ada"))
			if tc.want != "" {
				wantProblem(t, second, tc.want)
			} else if text(second) != "booked" {
				t.Errorf("the second call got %q", text(second))
			}
		})
	}
}
