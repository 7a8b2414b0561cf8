package callers_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store/sqlite"
)

// roleVariable has the test's own program be a server, as ROLE:DIRECTORY.
const roleVariable = "ONCEWARD_TEST_MCP_ROLE"

// The files of a storm.
const (
	ledgerFile = "ledger.db" // the effects, and of the protected server also the records
	proxyFile  = "proxy.db"  // the records of the proxy
	deathsFile = "deaths"    // a line for each server that died between an effect and its reply
	// registerFile has the address of the test, to which each plain server keeps a connection as long as it lives.
	registerFile = "register"
)

const scope = "storm"

func TestMain(m *testing.M) {
	role, dir, found := strings.Cut(os.Getenv(roleVariable), ":")
	switch {
	case !found && os.Getenv(callsVariable) != "":
		os.Exit(servers.Main(m)) // a long storm is at one point whenever the watchdog looks
	case !found:
		os.Exit(servers.Main(watchdog.Over(m)))
	}
	serve := map[string]func(context.Context, string) error{
		"stdio": serveStdio, "http": serveHTTP, "proxy": serveProxy, "plain": servePlain,
	}[role]
	if err := serve(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func openLedger(ctx context.Context, dir string) (*sqlite.Store, error) {
	s, err := sqlite.Open(ctx, filepath.Join(dir, ledgerFile))
	if err != nil {
		return nil, err
	}
	return s, s.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS ledger (key TEXT NOT NULL)")
		return err
	})
}

func newGuard(s *sqlite.Store) (*onceward.Guard, error) {
	return onceward.New(s, onceward.Config{
		Secret: []byte("the secret of the storm"), StoreTimeout: await.Limit, Logger: quiet,
	})
}

type payment struct {
	To string `json:"to"`
}

// paid is a server with one tool.
func paid(pay func(ctx context.Context, to string) error) *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: "payments"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "pay"},
		func(ctx context.Context, _ *sdk.CallToolRequest, in payment) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "paid " + in.To}}}, nil, pay(ctx, in.To)
		})
	return server
}

// dying ends the process after the first effect of a storm, and after one of sixty others, before the reply is sent.
func dying(dir string) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			result, err := next(ctx, method, req)
			if method == "tools/call" && (rand.N(60) == 0 || deaths(dir) == 0) {
				die(dir)
			}
			return result, err
		}
	}
}

// deaths returns how many servers of the storm died between an effect and its reply.
func deaths(dir string) int {
	content, err := os.ReadFile(filepath.Join(dir, deathsFile))
	if err != nil {
		return 0
	}
	return strings.Count(string(content), "\n")
}

// die kills the process as a power cut does, and leaves a line.
func die(dir string) {
	f, err := os.OpenFile(filepath.Join(dir, deathsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.WriteString("died\n")
	}
	self, _ := os.FindProcess(os.Getpid())
	_ = self.Kill()
	select {}
}

// protected is a server whose tool writes in the guard's transaction.
func protected(ctx context.Context, dir string) (*sdk.Server, error) {
	s, err := openLedger(ctx, dir)
	if err != nil {
		return nil, err
	}
	guard, err := newGuard(s)
	if err != nil {
		return nil, err
	}
	server := paid(func(ctx context.Context, to string) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, "INSERT INTO ledger VALUES (?)", to)
		return err
	})
	tools, err := oncewardmcp.New(guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope(scope),
		Tools: map[string]oncewardmcp.Tool{"pay": {Options: []onceward.Option{onceward.Transactional()}}},
	})
	if err != nil {
		return nil, err
	}
	server.AddReceivingMiddleware(tools.Middleware)
	server.AddReceivingMiddleware(dying(dir))
	return server, nil
}

func serveStdio(ctx context.Context, dir string) error {
	server, err := protected(ctx, dir)
	if err != nil {
		return err
	}
	return server.Run(ctx, &sdk.StdioTransport{})
}

// serveHTTP serves on the address of its argument.
func serveHTTP(ctx context.Context, dir string) error {
	server, err := protected(ctx, dir)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		return err
	}
	fmt.Println("listening")
	return http.Serve(listener, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}))
}

// register connects to the test. The connection ends when this process ends, for whatever reason.
func register(dir string) (net.Conn, error) {
	address, err := os.ReadFile(filepath.Join(dir, registerFile))
	if err != nil {
		return nil, err
	}
	return net.Dial("tcp", string(address))
}

// servePlain knows nothing of Onceward, and dies as often.
func servePlain(ctx context.Context, dir string) error {
	registered, err := register(dir)
	if err != nil {
		return err
	}
	defer registered.Close()
	s, err := openLedger(ctx, dir)
	if err != nil {
		return err
	}
	server := paid(func(ctx context.Context, to string) error {
		return s.Update(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES (?)", to)
			return err
		})
	})
	server.AddReceivingMiddleware(dying(dir))
	return server.Run(ctx, &sdk.StdioTransport{})
}

// serveProxy is a proxy in front of it.
func serveProxy(ctx context.Context, dir string) error {
	s, err := sqlite.Open(ctx, filepath.Join(dir, proxyFile))
	if err != nil {
		return err
	}
	guard, err := newGuard(s)
	if err != nil {
		return err
	}
	proxy, err := oncewardmcp.NewProxy(ctx, guard, oncewardmcp.ProxyConfig{
		Connect: func(context.Context) (sdk.Transport, error) {
			return &sdk.CommandTransport{Command: proc.Self(roleVariable, "plain:"+dir)}, nil
		},
		Scope: oncewardmcp.SingleScope(scope), Logger: quiet, MinBackoff: time.Millisecond,
		Tools: map[string]oncewardmcp.ProxyTool{"pay": {Options: []onceward.Option{onceward.Lease(500 * time.Millisecond)}}},
	})
	if err != nil {
		return err
	}
	return proxy.Server().Run(ctx, &sdk.StdioTransport{})
}
