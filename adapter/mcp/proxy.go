//lint:file-ignore SA1019 a proxy passes on what clients and servers of earlier versions of the protocol use

package oncewardmcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
)

// ProxyTool configures how a [Proxy] protects a tool of the server behind it.
type ProxyTool struct {
	// KeyArgument, Intent and ErrorResult have the same meaning as in [Tool].
	KeyArgument string
	Intent      *Intent
	ErrorResult onceward.Failure
	// KnowsKey means that the server behind recognises the key that the proxy sends, in _meta as [MetaKey] and in
	// ForwardArgument, and does not execute a call with the same key twice. An attempt whose end was not seen is then
	// repeated. Default: false; the outcome of such an attempt is unknown until an operator or a poller settles it.
	KnowsKey bool
	// ForwardArgument is the name of the argument in which the server behind accepts a key. Default: KeyArgument if the
	// tool itself has an argument of that name, otherwise none.
	ForwardArgument string
	// Options are further options, the same as for a route, such as [onceward.Retain]. The mode is always reserved.
	// Default: none.
	Options []onceward.Option
}

func (t *ProxyTool) tool() Tool {
	options := []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}
	if t.KnowsKey {
		options = []onceward.Option{onceward.Reserved(onceward.FailureRetry), onceward.OnLost(onceward.LostResume)}
	}
	return Tool{
		Options:     append(options, t.Options...),
		KeyArgument: t.KeyArgument, Intent: t.Intent, ErrorResult: t.ErrorResult,
	}
}

// ProxyConfig configures [NewProxy].
type ProxyConfig struct {
	// Connect returns a new transport to the server behind the proxy, such as an [mcp.CommandTransport]. It is called
	// again after the session has ended. Its context lasts as long as the proxy. Required.
	Connect func(ctx context.Context) (mcp.Transport, error)
	// Scope returns the scope of a call. Required.
	Scope ScopeFunc
	// Tools are the protected tools by name. [OtherTools] stands for all other tools.
	Tools map[string]ProxyTool
	// MinBackoff and MaxBackoff bound the wait between two attempts to connect to the server behind, which doubles.
	// Default: 100 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// ConnectTimeout is the longest time of an attempt to connect to the server behind, up to its answer to the
	// handshake. Calls wait during that time. Default: 1 min.
	ConnectTimeout time.Duration
	// WithoutQuestions means that the server behind cannot ask clients questions (sampling and elicitation). Some
	// servers ask whenever they may, and fail if a client cannot answer. Default: false.
	WithoutQuestions bool
	// Logger logs failures of the connection to the server behind. Default: [slog.Default].
	Logger *slog.Logger
}

// The defaults of [ProxyConfig].
const (
	defaultProxyBackoff   = 30 * time.Second
	defaultConnectTimeout = time.Minute
)

// Proxy is an MCP server in front of a server that does not use Onceward. It executes tool calls once, and forwards all
// other requests of clients: prompts, resources and their subscriptions, and completions. It also forwards
// notifications of progress, of changed lists and of updated resources. A tool's request for input is forwarded as a
// result, as in protocol version 2026-07-28. Questions of a server with an older protocol version (sampling and
// elicitation) and log messages are forwarded only while their client is certain: while only one client has open calls.
// Roots are not forwarded.
type Proxy struct {
	config   ProxyConfig
	tools    *Tools
	server   atomic.Pointer[mcp.Server] // nil until the handshake with the server behind
	upstream upstream
	progress progress
	watched  subscriptions

	questions questions
	levelMu   sync.Mutex
	level     mcp.LoggingLevel // the most verbose level that a client has set; empty if none has
}

// NewProxy connects to the server behind and returns the proxy. The caller must close it.
func NewProxy(ctx context.Context, guard *onceward.Guard, config ProxyConfig) (*Proxy, error) {
	if config.Connect == nil {
		return nil, errors.New("oncewardmcp: ProxyConfig.Connect is missing")
	}
	if config.MinBackoff == 0 {
		config.MinBackoff = defaultMinBackoff
	}
	if config.MaxBackoff == 0 {
		config.MaxBackoff = max(defaultProxyBackoff, config.MinBackoff)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = defaultConnectTimeout
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	tools := make(map[string]Tool)
	for name, tool := range config.Tools {
		tools[name] = tool.tool()
	}
	protected, err := New(guard, Config{Scope: config.Scope, Tools: tools})
	if err != nil {
		return nil, err
	}
	p := &Proxy{config: config, tools: protected}
	p.upstream = upstream{
		client: p.client(), connect: config.Connect, opening: p.renew, changed: p.toolsChanged, log: config.Logger,
		min: config.MinBackoff, max: config.MaxBackoff, timeout: config.ConnectTimeout,
	}
	p.upstream.ending, p.upstream.end = context.WithCancel(context.Background())
	p.upstream.living, p.upstream.die = context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, p.upstream.end)()
	session, err := p.upstream.get(ctx)
	if err != nil {
		_ = p.upstream.close() // only the failed connection is closed
		return nil, fmt.Errorf("oncewardmcp: %w", err)
	}
	p.server.Store(p.serverLike(session.InitializeResult()))
	return p, nil
}

// client returns the MCP client that connects to the server behind.
func (p *Proxy) client() *mcp.Client {
	options := &mcp.ClientOptions{
		Capabilities:   &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			p.toolsChanged()
		},
		PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) {
			p.tell(func(server *mcp.Server) {
				server.AddPrompt(&mcp.Prompt{Name: unlisted}, nil)
				server.RemovePrompts(unlisted)
			})
		},
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) {
			p.tell(func(server *mcp.Server) {
				server.AddResource(&mcp.Resource{Name: unlisted, URI: "onceward:" + unlisted}, nil)
				server.RemoveResources("onceward:" + unlisted)
			})
		},
		ResourceUpdatedHandler: func(ctx context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
			p.tell(func(server *mcp.Server) {
				_ = server.ResourceUpdated(ctx, req.Params) // the client may be gone
			})
		},
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			p.progress.pass(req.Params)
		},
		LoggingMessageHandler: p.logged,
	}
	if !p.config.WithoutQuestions {
		options.Capabilities.Sampling = new(mcp.SamplingCapabilities)
		options.Capabilities.Elicitation = &mcp.ElicitationCapabilities{Form: new(mcp.FormElicitationCapabilities)}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "onceward-mcp-proxy"}, options)
	client.AddReceivingMiddleware(p.passQuestions)
	return client
}

// unlisted is the name of an item that is added to the server and removed again, so that the server notifies its
// clients of a changed list. No client sees the item, because lists come from the server behind.
const unlisted = "onceward-unlisted"

// toolsChanged removes the known tools, and notifies the clients.
func (p *Proxy) toolsChanged() {
	p.tools.catalog.forget()
	p.tell(func(server *mcp.Server) {
		server.AddTool(&mcp.Tool{Name: unlisted, InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
		server.RemoveTools(unlisted)
	})
}

// tell calls a function that notifies the clients. Before there is a server there are no clients.
func (p *Proxy) tell(what func(*mcp.Server)) {
	if server := p.server.Load(); server != nil {
		what(server)
	}
}

// serverLike returns the MCP server for the clients, with the properties of the server behind.
func (p *Proxy) serverLike(behind *mcp.InitializeResult) *mcp.Server {
	implementation := &mcp.Implementation{Name: "onceward-mcp-proxy"}
	options := &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{}, SubscribeHandler: p.subscribe, UnsubscribeHandler: p.unsubscribe,
		Logger: p.config.Logger,
	}
	if behind != nil {
		options.Instructions = behind.Instructions
		if behind.ServerInfo != nil {
			implementation = behind.ServerInfo
		}
		if behind.Capabilities != nil {
			can := behind.Capabilities
			options.Capabilities = &mcp.ServerCapabilities{
				Experimental: can.Experimental, Extensions: can.Extensions, Completions: can.Completions,
				Logging: can.Logging, Prompts: can.Prompts, Resources: can.Resources, Tools: can.Tools,
			}
		}
	}
	server := mcp.NewServer(implementation, options)
	server.AddReceivingMiddleware(p.forward)
	server.AddReceivingMiddleware(p.tools.Middleware)
	return server
}

// Server returns the server that clients connect to, over any transport.
func (p *Proxy) Server() *mcp.Server { return p.server.Load() }

// Unprotected lists the tools of the server behind, and returns the names of the tools that may change state and are
// not protected.
func (p *Proxy) Unprotected(ctx context.Context) ([]string, error) {
	session, err := p.upstream.get(ctx)
	if err != nil {
		return nil, err
	}
	var tools []*mcp.Tool
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		tools = append(tools, tool)
	}
	return p.tools.Unprotected(tools), nil
}

// Close ends the session with the server behind. Wait for the guard first, see [onceward.Guard.Wait]: the outcome of
// running calls becomes unknown.
func (p *Proxy) Close() error { return p.upstream.close() }

// forward sends the requests of clients to the server behind.
func (p *Proxy) forward(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if level, ok := req.GetParams().(*mcp.SetLoggingLevelParams); ok {
			if err := p.setLevel(ctx, level.Level); err != nil {
				return nil, err
			}
		}
		send := p.sender(req)
		if send == nil {
			return next(ctx, method, req)
		}
		session, err := p.upstream.get(ctx)
		if err != nil {
			return nil, onceward.NotExecuted(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(p.upstream.ending, cancel)()
		ctx, sent := notingPosts(ctx)
		call := p.questions.open(ctx, req.GetSession(), session)
		result, err := send(ctx, session)
		p.awaitMessages()
		p.questions.close(call, err)
		if err != nil {
			return nil, p.upstream.judged(session, sent, err)
		}
		return result, nil
	}
}

// sender returns the function that forwards a request, or nil for a request that the proxy itself answers.
func (p *Proxy) sender(req mcp.Request) func(context.Context, *mcp.ClientSession) (mcp.Result, error) {
	switch r := req.(type) {
	case *mcp.CallToolRequest:
		return func(ctx context.Context, s *mcp.ClientSession) (mcp.Result, error) { return p.call(ctx, s, r) }
	case *mcp.ListToolsRequest:
		return sending(r.Params, (*mcp.ClientSession).ListTools)
	case *mcp.ListPromptsRequest:
		return sending(r.Params, (*mcp.ClientSession).ListPrompts)
	case *mcp.GetPromptRequest:
		return sending(r.Params, (*mcp.ClientSession).GetPrompt)
	case *mcp.ListResourcesRequest:
		return sending(r.Params, (*mcp.ClientSession).ListResources)
	case *mcp.ListResourceTemplatesRequest:
		return sending(r.Params, (*mcp.ClientSession).ListResourceTemplates)
	case *mcp.ReadResourceRequest:
		return sending(r.Params, (*mcp.ClientSession).ReadResource)
	case *mcp.CompleteRequest:
		return sending(r.Params, (*mcp.ClientSession).Complete)
	default:
		return nil
	}
}

// withMeta is the interface of params with a _meta that can be changed.
type withMeta interface {
	comparable
	GetMeta() map[string]any
	SetMeta(map[string]any)
}

// sending returns a function that forwards params, with the _meta that the session with the server behind needs.
func sending[P withMeta, R mcp.Result](
	params P, send func(*mcp.ClientSession, context.Context, P) (R, error),
) func(context.Context, *mcp.ClientSession) (mcp.Result, error) {
	return func(ctx context.Context, session *mcp.ClientSession) (mcp.Result, error) {
		var none P
		if params != none {
			params.SetMeta(passedMeta(params.GetMeta()))
		}
		return send(session, ctx, params)
	}
}

// passedMeta returns _meta without the fields of the protocol about the connection to the client.
func passedMeta(meta map[string]any) map[string]any {
	passed := maps.Clone(meta)
	maps.DeleteFunc(passed, func(name string, _ any) bool {
		return strings.HasPrefix(name, "io.modelcontextprotocol/")
	})
	return passed
}

// call forwards a call of a tool. A protected call gets a key of the proxy's own, because the client's key belongs to a
// scope that the server behind does not know.
func (p *Proxy) call(ctx context.Context, session *mcp.ClientSession, req *mcp.CallToolRequest) (mcp.Result, error) {
	params := &mcp.CallToolParams{
		Meta: passedMeta(req.Params.Meta), Name: req.Params.Name, Arguments: req.Params.Arguments,
		InputResponses: req.Params.InputResponses, RequestState: req.Params.RequestState,
	}
	if op := onceward.FromContext(ctx); op != nil {
		key := op.DownstreamKey("mcp")
		if params.Meta == nil {
			params.Meta = make(mcp.Meta)
		}
		params.Meta[MetaKey] = key
		arguments, err := p.withKey(ctx, req, key)
		if err != nil {
			return nil, onceward.NotExecuted(err)
		}
		params.Arguments = arguments
	}
	defer p.progress.route(ctx, req.Session, params)()
	result, err := session.CallTool(ctx, params)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// withKey returns the arguments with the key, if the server behind accepts the key in an argument.
func (p *Proxy) withKey(ctx context.Context, req *mcp.CallToolRequest, key string) (json.RawMessage, error) {
	name := p.keyArgumentBehind(ctx, req)
	if name == "" {
		return req.Params.Arguments, nil
	}
	arguments := make(map[string]json.RawMessage)
	if err := json.Unmarshal(req.Params.Arguments, &arguments); err != nil {
		return nil, err
	}
	arguments[name], _ = json.Marshal(key) // encoding a string cannot fail
	return json.Marshal(arguments)
}

// keyArgumentBehind returns the name of the argument in which the server behind accepts a key, or an empty string if
// there is none.
func (p *Proxy) keyArgumentBehind(ctx context.Context, req *mcp.CallToolRequest) string {
	tool, named := p.config.Tools[req.Params.Name]
	if !named {
		tool = p.config.Tools[OtherTools]
	}
	if tool.ForwardArgument != "" || tool.KeyArgument == "" {
		return tool.ForwardArgument
	}
	definition := p.tools.catalog.find(ctx, req, p.forward(nil))
	if definition == nil {
		return ""
	}
	schema, _ := definition.InputSchema.(map[string]any)
	properties, _ := schema["properties"].(map[string]any)
	if _, own := properties[tool.KeyArgument]; !own {
		return ""
	}
	return tool.KeyArgument
}

// progress finds the client of a progress notification. Two clients may choose the same token, so the proxy sends
// tokens of its own to the server behind.
type progress struct {
	mu     sync.Mutex
	last   int64
	routes map[string]progressRoute
}

type progressRoute struct {
	ctx     context.Context // the context of the client's request; the notification uses its stream
	session *mcp.ServerSession
	token   any
}

// route replaces the progress token of a call by a token of the proxy, until the returned function is called.
func (p *progress) route(ctx context.Context, session *mcp.ServerSession, params *mcp.CallToolParams) (end func()) {
	token := params.GetProgressToken()
	if token == nil || session == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	own := fmt.Sprintf("onceward-%d", p.last)
	if p.routes == nil {
		p.routes = make(map[string]progressRoute)
	}
	p.routes[own] = progressRoute{ctx: ctx, session: session, token: token}
	params.SetProgressToken(own)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.routes, own)
	}
}

func (p *progress) pass(params *mcp.ProgressNotificationParams) {
	own, _ := params.ProgressToken.(string)
	p.mu.Lock()
	to, found := p.routes[own]
	p.mu.Unlock()
	if !found {
		return
	}
	passed := *params
	passed.ProgressToken = to.token
	_ = to.session.NotifyProgress(to.ctx, &passed) // the client may be gone
}
