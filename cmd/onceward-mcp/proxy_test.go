package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// runAsMCP makes the test binary a server of MCP. It holds the file that the server writes its effects to.
const runAsMCP = "ONCEWARD_TEST_MCP"

// program is the path of the program as users have it.
var program string

func TestMain(m *testing.M) {
	if effects := os.Getenv(runAsMCP); effects != "" {
		os.Exit(serveMCP(effects))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "onceward-mcp-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "onceward-mcp")
	if output, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the program does not build: %v: %s\n", err, output)
		return 1
	}
	return m.Run()
}

// serveMCP is a server that knows nothing of Onceward: each booking is a line of a file, the guest "die" ends it, and
// "hang" waits until the call is given up.
func serveMCP(path string) int {
	server := mcp.NewServer(&mcp.Implementation{Name: "bookings"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "book"},
		func(ctx context.Context, _ *mcp.CallToolRequest, in struct {
			Guest string `json:"guest"`
		},
		) (*mcp.CallToolResult, any, error) {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return nil, nil, err
			}
			defer f.Close()
			_, err = fmt.Fprintln(f, in.Guest)
			switch in.Guest {
			case "die":
				os.Exit(3)
			case "hang":
				<-ctx.Done()
			}
			text := "booked for " + in.Guest
			if in.Guest == "spy" {
				text = os.Getenv("ONCEWARD_SECRET") + os.Getenv("ONCEWARD_STORE")
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
		})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		return 1
	}
	return 0
}

// proxyCommand is the proxy in front of that server.
func proxyCommand(t *testing.T, dir string, flags ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Concat([]string{"--store", "sqlite:" + filepath.Join(dir, "store.db")}, flags,
		[]string{"--", self})
	command := exec.Command(program, args...)
	command.Env = append(os.Environ(), "ONCEWARD_SECRET=0123456789abcdef", runAsMCP+"="+filepath.Join(dir, "effects"))
	return command
}

func mcpSession(t *testing.T, transport mcp.Transport) *mcp.ClientSession {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

func bookTable(t *testing.T, session *mcp.ClientSession, key, guest string) (string, *oncewardmcp.Problem) {
	t.Helper()
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{
		Name: "book", Arguments: map[string]any{"guest": guest, "idempotency_key": key},
	})
	if err != nil {
		t.Fatal(err)
	}
	return result.Content[0].(*mcp.TextContent).Text, oncewardmcp.ProblemOf(result)
}

func wantEffects(t *testing.T, dir, want string) {
	t.Helper()
	effects, err := os.ReadFile(filepath.Join(dir, "effects"))
	if got := strings.Join(strings.Fields(string(effects)), " "); err != nil || got != want {
		t.Errorf("the effects are %q, %v, want %q", got, err, want)
	}
}

// TestMCPProxyOnStdio: a client of a proxied server repeats calls also over a restart of the proxy, and what became
// unknown is settled by an operator.
func TestMCPProxyOnStdio(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := mcpSession(t, &mcp.CommandTransport{Command: proxyCommand(t, dir)})
	if text, _ := bookTable(t, first, "k1", "Ada"); text != "booked for Ada" {
		t.Errorf("the first call got %q", text)
	}
	if err := first.Close(); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
	session := mcpSession(t, &mcp.CommandTransport{Command: proxyCommand(t, dir)})
	if text, _ := bookTable(t, session, "k1", "Ada"); text != "booked for Ada" {
		t.Errorf("the same call got %q", text)
	}
	if text, _ := bookTable(t, session, "k3", "spy"); text != "" {
		t.Errorf("the server behind was told %q", text)
	}
	if text, problem := bookTable(t, session, "k2", "die"); problem == nil || problem.Code != "outcome-unknown" {
		t.Errorf("a server that died got %q", text)
	}
	resolve(t, dir, "k2", "It was booked.")
	if text, problem := bookTable(t, session, "k2", "die"); text != "It was booked." || problem != nil {
		t.Errorf("after the operator the call got %q", text)
	}
	wantEffects(t, dir, "Ada spy die")
}

// resolve settles an unknown outcome as an operator does with `onceward unknown resolve`.
func resolve(t *testing.T, dir, key, answer string) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	guard, err := onceward.New(db, onceward.Config{Secret: []byte("0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	operator, err := reconcile.NewOperator(guard, db)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := db.Get(t.Context(), store.ID{Scope: "mcp", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	err = operator.ResolveCompleted(t.Context(), reconcile.By{Who: "ops", Why: "asked"},
		store.Claim{ID: rec.ID, Attempt: rec.Attempt},
		store.Completion{Response: reconcile.Response(http.StatusOK, nil, []byte(answer))})
	if err != nil {
		t.Fatal(err)
	}
}

// listening starts a proxy over HTTP, and returns its URL.
func listening(t *testing.T, command *exec.Cmd) (started *exec.Cmd, url string) {
	t.Helper()
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	url, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !found {
		t.Fatalf("the proxy says %q, %v", line, err)
	}
	return command, url
}

// tenants adds header fields to requests.
type tenants []string

func (h tenants) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for _, name := range h {
		r.Header.Add("X-Tenant", name)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestMCPProxyScopeHeader: tenants with the same key do not meet, and one that cannot be told is refused. The server
// behind is another proxy, over HTTP.
func TestMCPProxyScopeHeader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, behind := listening(t, proxyCommand(t, dir, "--listen", "127.0.0.1:0"))
	front := exec.Command(program, "--store", "sqlite:"+filepath.Join(dir, "front.db"), "--listen", "127.0.0.1:0",
		"--scope-header", "X-Tenant", "--upstream", behind)
	front.Env = append(os.Environ(), "ONCEWARD_SECRET=0123456789abcdef")
	_, url := listening(t, front)
	for _, tc := range []struct {
		header tenants
		guest  string
		want   string
	}{
		{tenants{"a"}, "Ada", "booked for Ada"},
		{tenants{"b"}, "Bob", "booked for Bob"},
		{tenants{"a"}, "Ada", "booked for Ada"},
		{nil, "Ada", "unauthenticated"},
		{tenants{""}, "Ada", "unauthenticated"},
		{tenants{"a", "b"}, "Ada", "unauthenticated"},
		{tenants{"b"}, "Ada", "mismatch"},
	} {
		session := mcpSession(t, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: tc.header}})
		text, problem := bookTable(t, session, "k", tc.guest)
		if problem != nil {
			text = problem.Code
		}
		if text != tc.want {
			t.Errorf("%q for %s got %q, want %q", tc.header, tc.guest, text, tc.want)
		}
		_ = session.Close()
	}
	wantEffects(t, dir, "Ada Bob")
}

// TestMCPProxyTokenFile: the token reaches the server behind, also after it was changed, and no other server.
func TestMCPProxyTokenFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, behind := listening(t, proxyCommand(t, dir, "--listen", "127.0.0.1:0"))
	target, err := url.Parse(behind)
	if err != nil {
		t.Fatal(err)
	}
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if token := r.Header.Get("Authorization"); token != "" {
			t.Errorf("another server got %q", token)
		}
	}))
	t.Cleanup(other.Close)
	pass := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	var valid atomic.Value
	valid.Store("Bearer one")
	secured := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != valid.Load() {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(secured.Close)
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	front := exec.Command(program, "--store", "sqlite:"+filepath.Join(dir, "front.db"), "--listen", "127.0.0.1:0",
		"--upstream", secured.URL, "--token-file", token)
	front.Env = append(os.Environ(), "ONCEWARD_SECRET=0123456789abcdef")
	_, address := listening(t, front)
	session := mcpSession(t, &mcp.StreamableClientTransport{Endpoint: address})
	if text, problem := bookTable(t, session, "first", "Ada"); problem != nil || text != "booked for Ada" {
		t.Fatalf("got %q, %+v", text, problem)
	}
	valid.Store("Bearer two")
	if text, problem := bookTable(t, session, "second", "Bob"); problem == nil {
		t.Errorf("with the old token: %q", text)
	}
	if err := os.WriteFile(token, []byte("two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text, problem := bookTable(t, session, "third", "Eve")
	await.That(t, "the proxy asks the server again, which had refused it", func() bool {
		if problem == nil || problem.Executed != "no" {
			return true
		}
		text, problem = bookTable(t, session, "third", "Eve")
		return false
	})
	if problem != nil || text != "booked for Eve" {
		t.Errorf("with the new token: %q, %+v", text, problem)
	}
	wantEffects(t, dir, "Ada Eve")
}

// TestMCPProxyOnHTTP: the proxy serves many clients, each in its own scope, and ends in order.
func TestMCPProxyOnHTTP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command, url := listening(t, proxyCommand(t, dir, "--listen", "127.0.0.1:0", "--intent", "book=guest", "--protect", "book"))
	session := mcpSession(t, &mcp.StreamableClientTransport{Endpoint: url})
	for range 2 {
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "book", Arguments: map[string]any{"guest": "Ada"}})
		if err != nil || result.IsError {
			t.Errorf("got %+v, %v", result, err)
		}
	}
	wantEffects(t, dir, "Ada")
	wantForeignPageRefused(t, url)
	_ = session.Close()
	if err := command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	if err := await.Value(t, "the end of the proxy", ended); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
}

// wantForeignPageRefused: a page that a browser shows cannot call the tools of its user's machine.
func wantForeignPageRefused(t *testing.T, url string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Sec-Fetch-Site", "cross-site")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another origin got %s", response.Status)
	}
}

// TestMCPProxyInterrupts: the first interrupt waits for a call that hangs, and the second one gives it up.
func TestMCPProxyInterrupts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command := proxyCommand(t, dir)
	session := mcpSession(t, &mcp.CommandTransport{Command: command, TerminateDuration: time.Minute})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = session.CallTool(t.Context(), &mcp.CallToolParams{
			Name: "book", Arguments: map[string]any{"guest": "hang", "idempotency_key": "k"},
		})
	}()
	await.That(t, "the call has had its effect", func() bool {
		_, err := os.Stat(filepath.Join(dir, "effects"))
		return err == nil
	})
	// Two signals at once are one, and the third one would end the proxy where it is: so they differ.
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		if err := command.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	await.Return(t, "the end of the proxy", func() { _ = session.Close() })
	await.Return(t, "the answer to the call", func() { <-answered })
	next := mcpSession(t, &mcp.CommandTransport{Command: proxyCommand(t, dir)})
	if text, problem := bookTable(t, next, "k", "hang"); problem == nil || problem.Code != "outcome-unknown" {
		t.Errorf("the call that was given up got %q", text)
	}
	wantEffects(t, dir, "hang")
}

// TestMCPProxyFlags: what cannot be meant is said before anything is started.
func TestMCPProxyFlags(t *testing.T) {
	t.Setenv("ONCEWARD_SECRET", "0123456789abcdef")
	t.Setenv("ONCEWARD_STORE", "")
	for want, args := range map[string][]string{
		"the server is not named":        {"--store", "x.db"},
		"the server is named twice":      {"--store", "x.db", "--upstream", "http://127.0.0.1:1", "--", "cat"},
		"--scope-header is for --listen": {"--store", "x.db", "--scope-header", "X-User", "--", "cat"},
		`the tool "pay" has flags`:       {"--store", "x.db", "--protect", "book", "--knows-key", "pay", "--", "cat"},
		"take answer, retry or unknown":  {"--store", "x.db", "--errors", "pay=maybe", "--", "cat"},
		"the store is not named":         {"--", "cat"},
		"the secret cannot be read":      {"--store", "x.db", "--secret-file", "/nowhere", "--", "cat"},
	} {
		err := run(interrupts{t.Context(), t.Context()}, args, os.Stdout)
		if err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != exitUsage {
			t.Errorf("%v: got %v with the exit code %d, want %q", args, err, exitCode(err), want)
		}
	}
}

// TestMCPProxyFlagsOfOneTool: a tool with a flag of its own is protected by it, and the others stay protected.
func TestMCPProxyFlagsOfOneTool(t *testing.T) {
	t.Setenv("ONCEWARD_SECRET", "0123456789abcdef")
	command := command{
		Command: []string{"cat"}, Store: "sqlite:x.db", Protect: []string{"*"}, KnowsKey: []string{"pay"},
		Errors: map[string]string{"book": "unknown"},
	}
	config, _, err := command.config()
	if err != nil {
		t.Fatal(err)
	}
	tools := config.Tools
	if len(tools) != 3 || !tools["pay"].KnowsKey || tools["book"].ErrorResult != onceward.FailureUnknown ||
		tools["*"].KnowsKey || tools["*"].ErrorResult != 0 {
		t.Errorf("the tools are protected as %+v", tools)
	}
}
