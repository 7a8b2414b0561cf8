package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/storeurl"
)

// command is the command line of the proxy.
type command struct {
	Version kong.VersionFlag `help:"Say which version this is."`

	Command   []string `arg:"" optional:"" help:"The server behind the proxy, with its arguments: a command that serves on its standard input and output. Write -- before it."`
	Upstream  string   `placeholder:"URL" group:"Server" help:"The server as the URL of its streamable HTTP, in place of a command."`
	TokenFile string   `type:"path" placeholder:"FILE" group:"Server" help:"A file with the bearer token for --upstream, read for each request."`
	Listen    string   `placeholder:"ADDRESS" group:"Server" help:"Serve streamable HTTP there, such as 127.0.0.1:8080; port 0 takes a free one. Default: standard input and output."`

	Stateless        bool `group:"Server" help:"Give clients of --listen no sessions, for several proxies at one address. Questions of the server are not passed on then, nor subscriptions of clients without protocol 2026-07-28."`
	WithoutQuestions bool `group:"Server" help:"Offer the server no sampling and no elicitation, for clients that cannot answer."`

	Store      string        `env:"ONCEWARD_STORE" placeholder:"URL" group:"Records" help:"The store: postgres://user@host/database, mysql://user@host/database, sqlite:PATH, redis://host:6379/0 or dynamodb://TABLE. Missing tables are created."`
	SecretFile string        `type:"path" placeholder:"FILE" group:"Records" help:"A file with a secret of 16 random bytes or more, the same over restarts. Default: the environment's ONCEWARD_SECRET."`
	Retain     time.Duration `default:"24h" group:"Records" help:"How long results are kept."`

	Scope       string `default:"mcp" group:"Callers" help:"The scope of all keys: who calls."`
	ScopeHeader string `placeholder:"NAME" group:"Callers" help:"Take the scope from this header field, with --listen. What is in front of the proxy must set it."`

	Protect         []string          `default:"*" sep:"none" placeholder:"TOOL" group:"Tools" help:"A tool whose calls happen once; * for all that are not annotated as read-only or idempotent. Can be repeated. Default: *, and the tools that other flags name."`
	KeyArgument     string            `default:"idempotency_key" placeholder:"NAME" group:"Tools" help:"The argument with the key, added to protected tools for models to fill in; empty for none. A key in _meta also counts. Default: idempotency_key."`
	Intent          map[string]string `mapsep:"none" placeholder:"TOOL=ARGUMENT,…" group:"Tools" help:"Derive the key of a call without one from these arguments. An intended repetition gets the first result until it expires. Can be repeated."`
	KnowsKey        []string          `sep:"none" placeholder:"TOOL" group:"Tools" help:"The server recognises the proxy's key for this tool and executes it once: a call whose end was not seen is repeated, and never unknown. Can be repeated."`
	ForwardArgument map[string]string `mapsep:"none" placeholder:"TOOL=ARGUMENT" group:"Tools" help:"The argument in which this tool takes a key, which is also in _meta. Can be repeated."`
	Errors          map[string]string `mapsep:"none" placeholder:"TOOL=MEANING" group:"Tools" help:"What an error result of this tool means: answer (it is kept), retry (nothing was done) or unknown. Can be repeated. Default: answer."`
	Deadline        time.Duration     `default:"1m" group:"Tools" help:"How long a call may take; then its outcome is unknown."`
}

// description is the start of the --help text.
const description = `Stands in front of a server of MCP, and lets its tool calls happen once.

It needs a store and a secret, which stay the same over restarts:

  head -c 32 /dev/urandom | base64 > mcp.secret
  onceward-mcp --store sqlite:mcp.db --secret-file mcp.secret -- npx some-mcp-server

Configure this command in the model's host in place of the server's. See docs/mcp.md.`

// Run serves until the client leaves or an interrupt ends it.
func (c *command) Run(ends interrupts, out io.Writer) error {
	config, secret, err := c.config()
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	config.Logger = logger
	opened, err := storeurl.OpenStore(ends.first, c.Store, storeurl.WithLogger(logger))
	if err != nil {
		return &unavailable{err}
	}
	defer opened.Close()
	guard, err := onceward.New(opened, onceward.Config{Secret: secret, Logger: logger})
	if err != nil {
		return usage("%v", err)
	}
	sweeping, err := janitor.New(opened, janitor.Config{Logger: logger})
	if err != nil {
		return err
	}
	proxy, err := oncewardmcp.NewProxy(ends.first, guard, config)
	if err != nil {
		return err
	}
	defer proxy.Close()
	c.warn(ends.first, proxy, logger)
	return c.serve(ends, out, guard, proxy, sweeping)
}

// warn logs the tools that are passed on unprotected.
func (c *command) warn(ctx context.Context, proxy *oncewardmcp.Proxy, logger *slog.Logger) {
	names, err := proxy.Unprotected(ctx)
	if err == nil && len(names) > 0 {
		logger.Warn("tools change state and are not protected: add --protect for each, or --protect '*'",
			"tools", strings.Join(names, ", "))
	}
}

// serve serves over HTTP, or on the standard input and output until the input ends.
func (c *command) serve(
	ends interrupts, out io.Writer, guard *onceward.Guard, proxy *oncewardmcp.Proxy, sweeping onceward.Worker,
) error {
	ctx, cancel := context.WithCancel(ends.first)
	defer cancel()
	// The first interrupt waits for calls, and the second one gives them up.
	defer context.AfterFunc(ends.second, func() { _ = proxy.Close() })()
	var ended error
	server := onceward.Worker(onceward.WorkerFunc(func(ctx context.Context) error {
		if err := proxy.Server().Run(ctx, &mcp.StdioTransport{}); ctx.Err() == nil && !errors.Is(err, io.EOF) {
			ended = err
		}
		cancel() // the client has left
		<-ctx.Done()
		return nil
	}))
	if c.Listen != "" {
		listener, err := net.Listen("tcp", c.Listen)
		if err != nil {
			return usage("--listen: %v", err)
		}
		fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
		server = guard.Server(c.httpServer(proxy.Server()), listener, c.Deadline+30*time.Second)
	}
	if err := onceward.Run(ctx, sweeping, server); err != nil {
		return err
	}
	if err := guard.Wait(ends.second); err != nil { // calls outlive their callers
		return err
	}
	return ended
}

// idleSession is how long a client's session may be without a request, in addition to the deadline of calls.
const idleSession = time.Hour

// httpServer returns a server for every version of the protocol. Clients of older
// versions get sessions, so that the protected server can send them requests.
func (c *command) httpServer(server *mcp.Server) *http.Server {
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: c.Stateless, SessionTimeout: c.Deadline + idleSession})
	protected := http.NewCrossOriginProtection().Handler(handler) // against pages of other origins
	web := &http.Server{Handler: protected, ReadHeaderTimeout: 10 * time.Second}
	web.RegisterOnShutdown(func() { // ends streams, which would never end
		for session := range server.Sessions() {
			go session.Close() // it waits for the calls of the session
		}
	})
	return web
}

// config returns the configuration that the flags describe.
func (c *command) config() (config oncewardmcp.ProxyConfig, key []byte, err error) {
	if err := c.check(); err != nil {
		return config, nil, err
	}
	if key, err = c.secret(); err != nil {
		return config, nil, err
	}
	if len(key) == 0 {
		return config, nil, usage("the secret is missing: give --secret-file FILE, or set ONCEWARD_SECRET")
	}
	config.Connect, config.Scope = c.connect, oncewardmcp.SingleScope(c.Scope)
	config.WithoutQuestions = c.WithoutQuestions
	if c.ScopeHeader != "" {
		config.Scope = c.headerScope
	}
	config.Tools = make(map[string]oncewardmcp.ProxyTool)
	for _, name := range slices.Concat(c.Protect, c.named()) {
		if config.Tools[name], err = c.tool(name); err != nil {
			return config, nil, err
		}
	}
	return config, key, nil
}

// secret reads the secret from its file, or from the environment.
// A line end after the secret is dropped: editors add one.
func (c *command) secret() ([]byte, error) {
	if c.SecretFile == "" {
		return []byte(os.Getenv("ONCEWARD_SECRET")), nil
	}
	content, err := os.ReadFile(c.SecretFile)
	if err != nil {
		return nil, usage("the secret cannot be read: %v", err)
	}
	return bytes.TrimRight(content, "\r\n"), nil
}

// check refuses flags that contradict each other.
func (c *command) check() error {
	switch {
	case c.Upstream == "" && len(c.Command) == 0:
		return usage("the server is not named: give its command behind --, or --upstream URL")
	case c.Upstream != "" && len(c.Command) > 0:
		return usage("the server is named twice: give a command or --upstream, not both")
	case c.TokenFile != "" && c.Upstream == "":
		return usage("--token-file is for --upstream: a command has its own environment")
	case c.ScopeHeader != "" && c.Listen == "":
		return usage("--scope-header is for --listen: there are no header fields on the standard input")
	}
	for _, name := range c.named() {
		if !slices.Contains(c.Protect, name) && !slices.Contains(c.Protect, oncewardmcp.OtherTools) {
			return usage("the tool %q has flags and is not protected: add --protect %[1]q", name)
		}
	}
	if c.Store == "" {
		return usage("the store is not named: give --store URL, or set ONCEWARD_STORE; such as " +
			"postgres://user@host/database, mysql://user@host/database, sqlite:PATH, redis://host:6379/0 or dynamodb://TABLE")
	}
	return nil
}

// named returns the tools that have flags of their own.
func (c *command) named() []string {
	names := slices.Clone(c.KnowsKey)
	for _, flags := range []map[string]string{c.Intent, c.ForwardArgument, c.Errors} {
		names = slices.AppendSeq(names, maps.Keys(flags))
	}
	return names
}

// tool returns how one tool is protected.
func (c *command) tool(name string) (oncewardmcp.ProxyTool, error) {
	tool := oncewardmcp.ProxyTool{
		KeyArgument: c.KeyArgument, KnowsKey: slices.Contains(c.KnowsKey, name), ForwardArgument: c.ForwardArgument[name],
		Options: []onceward.Option{onceward.Retain(c.Retain), onceward.Deadline(c.Deadline)},
	}
	if arguments := c.Intent[name]; arguments != "" {
		tool.Intent = &oncewardmcp.Intent{Arguments: strings.Split(arguments, ",")}
	}
	switch meaning := c.Errors[name]; meaning {
	case "", "answer":
	case "retry":
		tool.ErrorResult = onceward.FailureRetry
	case "unknown":
		tool.ErrorResult = onceward.FailureUnknown
	default:
		return tool, usage("--errors %s=%q: take answer, retry or unknown", name, meaning)
	}
	return tool, nil
}

// connect starts the server, or connects to it.
func (c *command) connect(context.Context) (mcp.Transport, error) {
	if c.Upstream != "" {
		web := &mcp.StreamableClientTransport{Endpoint: c.Upstream}
		if c.TokenFile != "" {
			web.HTTPClient = &http.Client{Transport: bearer(c.TokenFile), CheckRedirect: keepOrigin}
		}
		return web, nil
	}
	command := exec.Command(c.Command[0], c.Command[1:]...)
	command.Stderr = os.Stderr
	command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { // keeps our secrets from the server
		return strings.HasPrefix(variable, "ONCEWARD_SECRET=") || strings.HasPrefix(variable, "ONCEWARD_STORE=")
	})
	return &mcp.CommandTransport{Command: command}, nil
}

// bearer is a transport that sends the token in a file.
type bearer string

// RoundTrip implements [http.RoundTripper].
func (file bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := os.ReadFile(string(file))
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return http.DefaultTransport.RoundTrip(r)
}

// keepOrigin refuses redirects that would send the token to another server.
func keepOrigin(r *http.Request, via []*http.Request) error {
	if r.URL.Scheme != via[0].URL.Scheme || r.URL.Host != via[0].URL.Host || len(via) > 10 {
		return http.ErrUseLastResponse
	}
	return nil
}

// headerScope returns the scope in a header field. It refuses two fields, because a client could have added either.
func (c *command) headerScope(_ context.Context, req *mcp.CallToolRequest) (string, error) {
	if req.Extra == nil {
		return "", onceward.ErrUnauthenticated
	}
	values := req.Extra.Header.Values(c.ScopeHeader)
	if len(values) != 1 {
		return "", onceward.ErrUnauthenticated
	}
	return values[0], nil
}
