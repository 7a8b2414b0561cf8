package oncewardmcp_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// serverVariable has the test's own program serve on stdio, with the store in the file that it names.
const serverVariable = "ONCEWARD_TEST_MCP_SERVER"

func TestMain(m *testing.M) {
	switch kind, path, _ := strings.Cut(os.Getenv(serverVariable), ":"); kind {
	case "protected":
		if err := serveProtected(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case "plain":
		if err := plainServer(path).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(watchdog.Settling(m))
}

func serveProtected(path string) error {
	ctx := context.Background()
	s, err := openStore(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close()
	guard, err := onceward.New(s, guardConfig())
	if err != nil {
		return err
	}
	server, _, err := bookingServer(guard, s)
	if err != nil {
		return err
	}
	return server.Run(ctx, &mcp.StdioTransport{})
}

func guardConfig() onceward.Config {
	return onceward.Config{
		Secret: []byte("0123456789abcdef0123456789abcdef"), Logger: slog.New(slog.DiscardHandler),
		StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	}
}

func openStore(ctx context.Context, path string) (*sqlite.Store, error) {
	s, err := sqlite.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	err = s.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS bookings (guest TEXT NOT NULL)")
		return err
	})
	return s, err
}

type booking struct {
	Guest string `json:"guest" jsonschema:"who comes"`
	Note  string `json:"note,omitempty"`
}

type booked struct {
	Number int64 `json:"number"`
}

// bookingServer has a transactional tool with a key argument, a reserved one with a key in _meta, and one that reads.
func bookingServer(guard *onceward.Guard, s *sqlite.Store) (*mcp.Server, *oncewardmcp.Tools, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "bookings", Version: "v1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "book_table"},
		func(ctx context.Context, _ *mcp.CallToolRequest, in booking) (*mcp.CallToolResult, booked, error) {
			var n int64
			err := onceward.Tx(ctx).QueryRowContext(ctx, "INSERT INTO bookings VALUES (?) RETURNING rowid", in.Guest).Scan(&n)
			return nil, booked{n}, err
		})
	mcp.AddTool(server, &mcp.Tool{Name: "send_mail"},
		func(ctx context.Context, _ *mcp.CallToolRequest, in booking) (*mcp.CallToolResult, any, error) {
			return said("sent to " + in.Guest), nil, insert(ctx, s, in.Guest)
		})
	mcp.AddTool(server, &mcp.Tool{Name: "list_tables", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "12 tables"}}}, nil, nil
		})
	tools, err := oncewardmcp.New(guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("assistant"),
		Tools: map[string]oncewardmcp.Tool{
			"book_table": {Options: []onceward.Option{onceward.Transactional()}, KeyArgument: "idempotency_key"},
			"send_mail":  {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}},
		},
	})
	if err != nil {
		return nil, nil, err
	}
	server.AddReceivingMiddleware(tools.Middleware)
	return server, tools, nil
}

// said is a result of text.
func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

func insert(ctx context.Context, s *sqlite.Store, guest string) error {
	return s.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO bookings VALUES (?)", guest)
		return err
	})
}

// bench is a store with a guard, for one test.
type bench struct {
	t     *testing.T
	path  string
	store *sqlite.Store
	guard *onceward.Guard
}

func newBench(t *testing.T) *bench {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := openStore(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	guard, err := onceward.New(s, guardConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, path: path, store: s, guard: guard}
}

// bookings counts the effects.
func (b *bench) bookings() (n int) {
	b.t.Helper()
	if err := b.store.DB().QueryRow("SELECT count(*) FROM bookings").Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// settle completes an operation whose outcome is unknown, as an operator does.
func (b *bench) settle(scope, key string, status int, body string) {
	b.t.Helper()
	rec, err := b.store.Get(b.t.Context(), store.ID{Scope: scope, Key: key})
	if err != nil {
		b.t.Fatal(err)
	}
	err = b.store.ResolveCompleted(b.t.Context(), store.Claim{ID: rec.ID, Attempt: rec.Attempt},
		&store.Completion{Response: store.Response{Status: status, Body: []byte(body)}})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) wantBookings(want int) {
	b.t.Helper()
	if n := b.bookings(); n != want {
		b.t.Errorf("there are %d bookings, want %d", n, want)
	}
}

// protect connects to a server with one tool, which the test writes itself.
func (b *bench) protect(tool oncewardmcp.Tool, handler mcp.ToolHandler) *mcp.ClientSession {
	b.t.Helper()
	return overHTTP(b.t, b.acting(tool, handler), newest)
}

// acting is a server with one tool.
func (b *bench) acting(tool oncewardmcp.Tool, handler mcp.ToolHandler) *mcp.Server {
	b.t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "test"}, nil)
	server.AddTool(&mcp.Tool{Name: "act", InputSchema: map[string]any{"type": "object"}}, handler)
	tools, err := oncewardmcp.New(b.guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("s"), Tools: map[string]oncewardmcp.Tool{"act": tool},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	server.AddReceivingMiddleware(tools.Middleware)
	return server
}

// overHTTP connects to a server over streamable HTTP, by a version of the protocol.
func overHTTP(t *testing.T, server *mcp.Server, version string) *mcp.ClientSession {
	t.Helper()
	return connect(t, &mcp.StreamableClientTransport{Endpoint: listen(t, server, version)},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
}

// newest is the version of the protocol that has no sessions.
const newest = "2026-07-28"

// listen serves over streamable HTTP, with sessions if the version of the protocol has them, and returns the URL.
func listen(t *testing.T, server *mcp.Server, version string) string {
	t.Helper()
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{PropagateRequestCancellation: true, Stateless: version == newest})
	web := httptest.NewServer(handler)
	t.Cleanup(func() {
		web.CloseClientConnections()
		for session := range server.Sessions() {
			_ = session.Close()
		}
		web.Close()
	})
	return web.URL
}

// overStdio starts the test's own program as a server, and connects to it.
func overStdio(t *testing.T, kind string) *mcp.ClientSession {
	t.Helper()
	return connect(t, &mcp.CommandTransport{Command: proc.Self(serverVariable, kind)}, nil)
}

func connect(t *testing.T, transport mcp.Transport, options *mcp.ClientSessionOptions) *mcp.ClientSession {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), transport, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// keyed is a call of a tool with a key in _meta.
func keyed(tool, key string, arguments map[string]any) *mcp.CallToolParams {
	return &mcp.CallToolParams{Name: tool, Arguments: arguments, Meta: mcp.Meta{oncewardmcp.MetaKey: key}}
}

func callTool(t *testing.T, session *mcp.ClientSession, params *mcp.CallToolParams) *mcp.CallToolResult {
	t.Helper()
	result, err := session.CallTool(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// text is what a model reads.
func text(result *mcp.CallToolResult) string {
	var b strings.Builder
	for _, content := range result.Content {
		if t, ok := content.(*mcp.TextContent); ok {
			b.WriteString(t.Text)
		}
	}
	return b.String()
}

func replayed(result *mcp.CallToolResult) bool { return result.Meta[oncewardmcp.MetaReplayed] == true }

// wantProblem checks a result that Onceward gives in the tool's place.
func wantProblem(t *testing.T, result *mcp.CallToolResult, code string) *oncewardmcp.Problem {
	t.Helper()
	p := oncewardmcp.ProblemOf(result)
	if p == nil || p.Code != code || !result.IsError {
		t.Fatalf("got %+v with the text %q, want the problem %s", p, text(result), code)
	}
	return p
}

// plainServer knows nothing of Onceward. Its effects are lines of a file. The guest "die" ends the process behind the
// effect, "busy" is refused, and "broken" makes the tool fail.
func plainServer(path string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "plain", Version: "v7"}, &mcp.ServerOptions{
		Instructions:     "Book wisely.",
		SubscribeHandler: func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error {
			return nil
		},
	})
	var calls atomic.Int64
	mcp.AddTool(server, &mcp.Tool{Name: "book"},
		func(ctx context.Context, req *mcp.CallToolRequest, in struct {
			Guest string `json:"guest"`
			Token string `json:"token,omitempty"`
		},
		) (*mcp.CallToolResult, any, error) {
			if in.Guest == "busy" {
				return nil, nil, errors.New("there is no table")
			}
			if in.Token != "" && req.Params.Meta[oncewardmcp.MetaKey] != in.Token {
				return nil, nil, errors.New("the keys in _meta and in the argument differ")
			}
			if err := appendLine(path, in.Guest+" "+in.Token); err != nil {
				return nil, nil, err
			}
			switch in.Guest {
			case "die":
				os.Exit(3)
			case "broken":
				return nil, nil, errors.New("the till broke")
			case "protocol":
				return nil, nil, errInternal
			}
			if token := req.Params.GetProgressToken(); token != nil {
				for step := range 20 { // what comes with the result may be late
					_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(step)})
					time.Sleep(5 * time.Millisecond)
				}
			}
			text := fmt.Sprintf("booked %d", calls.Add(1))
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "menu", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "soup"}}}, nil, nil
		})
	server.AddPrompt(&mcp.Prompt{Name: "ask"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Description: "asks"}, nil
	})
	server.AddResource(&mcp.Resource{Name: "card", URI: "file:///card"},
		func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "file:///card", Text: "the card"}}}, nil
		})
	return server
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}
