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

// ProxyTool says how a [Proxy] protects a tool of the server behind it.
type ProxyTool struct {
	// KeyArgument, Intent and ErrorResult are those of [Tool].
	KeyArgument string
	Intent      *Intent
	ErrorResult onceward.Failure
	// KnowsKey says that the server behind recognises the key that the proxy sends along, in _meta as [MetaKey] and in
	// ForwardArgument, and does not execute a call with the same key again: an attempt whose end was not seen is then
	// repeated. Default: false; its outcome is unknown, until an operator or a poller settles it.
	KnowsKey bool
	// ForwardArgument names the argument in which the server behind takes a key. Default: KeyArgument if the tool itself
	// has an argument of that name, otherwise none.
	ForwardArgument string
	// Options are further options of a route, such as [onceward.Retain]; the mode is reserved. Default: none.
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
	// Connect returns a transport to the server behind the proxy, a new one each time, such as an
	// [mcp.CommandTransport]. It is required, and called again when the session has ended. The context lasts as long as
	// the proxy.
	Connect func(ctx context.Context) (mcp.Transport, error)
	// Scope names the scope of a call. It is required.
	Scope ScopeFunc
	// Tools are the protected tools by name; [OtherTools] stands for the rest.
	Tools map[string]ProxyTool
	// MinBackoff and MaxBackoff bound the time between two attempts to reach the server behind, which doubles.
	// Default: 100 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// ConnectTimeout bounds an attempt to reach the server behind, from its start to its answer to the handshake; calls
	// wait meanwhile. Default: 1 min.
	ConnectTimeout time.Duration
	// WithoutQuestions offers the server behind no way to ask clients (sampling and elicitation): some servers ask whenever
	// they may, and fail where a client cannot answer. Default: false.
	WithoutQuestions bool
	// Logger is told of a server behind that is gone. Default: [slog.Default].
	Logger *slog.Logger
}

// The defaults of ProxyConfig.
const (
	defaultProxyBackoff   = 30 * time.Second
	defaultConnectTimeout = time.Minute
)

// Proxy stands in front of a server of MCP that does not know Onceward, and lets its tool calls happen once. Whatever
// else a client asks is passed on: prompts, resources and their subscriptions, completions, and notifications that a
// list has changed, that a resource was updated, and of progress. A question of a tool for input passes as a result,
// as protocol version 2026-07-28 has it. The questions of a server of an older version (sampling and elicitation) and log
// messages are passed on while it is certain which client they are for: while the calls of one client alone are open.
// Roots are not passed on.
type Proxy struct {
	config   ProxyConfig
	tools    *Tools
	server   atomic.Pointer[mcp.Server] // nil until the server behind has said what it is
	upstream upstream
	progress progress
	watched  subscriptions

	questions questions
	levelMu   sync.Mutex
	level     mcp.LoggingLevel // of the client that wants most log messages; empty if none does
}

// NewProxy connects to the server behind and returns the proxy. Close it.
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
		_ = p.upstream.close() // there is nothing to close but what has failed
		return nil, fmt.Errorf("oncewardmcp: %w", err)
	}
	p.server.Store(p.serverLike(session.InitializeResult()))
	return p, nil
}

// client is the side that faces the server behind.
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
				_ = server.ResourceUpdated(ctx, req.Params) // a client that is gone has no use for it
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

// unlisted is added to the server and removed again, which tells its clients that a list has changed. No client sees
// it: lists are those of the server behind.
const unlisted = "onceward-unlisted"

// toolsChanged forgets what is known of the tools, and tells the clients.
func (p *Proxy) toolsChanged() {
	p.tools.catalog.forget()
	p.tell(func(server *mcp.Server) {
		server.AddTool(&mcp.Tool{Name: unlisted, InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
		server.RemoveTools(unlisted)
	})
}

// tell has the clients told something. Before there is a server there is no client.
func (p *Proxy) tell(what func(*mcp.Server)) {
	if server := p.server.Load(); server != nil {
		what(server)
	}
}

// serverLike is the side that faces clients: it looks like the server behind.
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

// Server is what clients connect to, over any transport.
func (p *Proxy) Server() *mcp.Server { return p.server.Load() }

// Unprotected asks the server behind for its tools, and returns those that change state and are not protected.
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

// Close ends the session with the server behind. Wait for the guard first, see [onceward.Guard.Wait]: what becomes of
// calls that are on their way is unknown.
func (p *Proxy) Close() error { return p.upstream.close() }

// forward sends what clients ask to the server behind.
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

// sender is how a request is sent on; nil for one that the proxy answers itself.
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

// withMeta are params whose _meta can be changed.
type withMeta interface {
	comparable
	GetMeta() map[string]any
	SetMeta(map[string]any)
}

// sending sends params on, with their _meta as the session behind needs it.
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

// passedMeta is _meta without what the protocol says about the connection to the client.
func passedMeta(meta map[string]any) map[string]any {
	passed := maps.Clone(meta)
	maps.DeleteFunc(passed, func(name string, _ any) bool {
		return strings.HasPrefix(name, "io.modelcontextprotocol/")
	})
	return passed
}

// call sends a call of a tool on, with a key of its own if it is protected: that of the client belongs to a scope, of
// which the server behind knows nothing.
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

// withKey is the arguments with the key where the server behind takes it.
func (p *Proxy) withKey(ctx context.Context, req *mcp.CallToolRequest, key string) (json.RawMessage, error) {
	name := p.keyArgumentBehind(ctx, req)
	if name == "" {
		return req.Params.Arguments, nil
	}
	arguments := make(map[string]json.RawMessage)
	if err := json.Unmarshal(req.Params.Arguments, &arguments); err != nil {
		return nil, err
	}
	arguments[name], _ = json.Marshal(key) // of text
	return json.Marshal(arguments)
}

// keyArgumentBehind is the argument in which the server behind takes a key; empty if there is none.
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

// progress finds the client that a notification of progress is for. Clients choose tokens as they like, so that those
// of two may be the same: the server behind gets tokens of the proxy's own.
type progress struct {
	mu     sync.Mutex
	last   int64
	routes map[string]progressRoute
}

type progressRoute struct {
	ctx     context.Context // of the client's request, whose stream the notification goes out on
	session *mcp.ServerSession
	token   any
}

// route gives a call a token of the proxy's own, until the returned function is called.
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
	_ = to.session.NotifyProgress(to.ctx, &passed) // a client that is gone has no use for it
}
