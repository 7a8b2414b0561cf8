package oncewardmcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
)

// The names of what Onceward adds to _meta. They begin with a domain of the project, reversed, as the specification of
// MCP asks for.
const (
	// MetaKey carries the key of a call. In the list of tools it marks one that is protected.
	MetaKey = "io.github.onceward/idempotency-key"
	// MetaFirstSent carries the time at which a client first made a call, an HTTP date, for [onceward.RequireFirstSent].
	MetaFirstSent = "io.github.onceward/first-sent"
	// MetaReplayed marks a result that an earlier attempt gave.
	MetaReplayed = "io.github.onceward/replayed"
	// MetaExpires says until when a result is kept, by RFC 3339.
	MetaExpires = "io.github.onceward/expires"
	// MetaProblem holds a [Problem], in a result that Onceward gives in the tool's place.
	MetaProblem = "io.github.onceward/problem"
)

// OtherTools is a name for [Config].Tools: those that are not named there, unless their annotations say that they read
// only or are idempotent. Each is an operation of its own, under its own name.
const OtherTools = "*"

// The methods of MCP that the middleware looks at.
const (
	methodCall = "tools/call"
	methodList = "tools/list"
)

// ScopeFunc names the security boundary that the key of a call lives in, from authentication: req.Extra has the token
// and the header of an HTTP request. An error that wraps [onceward.ErrUnauthenticated], or an empty scope, refuses the
// call.
type ScopeFunc func(ctx context.Context, req *mcp.CallToolRequest) (string, error)

// SingleScope returns a [ScopeFunc] that gives every call the same scope, for a server with one caller, as on stdio.
func SingleScope(scope string) ScopeFunc {
	return func(context.Context, *mcp.CallToolRequest) (string, error) { return scope, nil }
}

// TokenScope is a [ScopeFunc] that takes the user of the verified bearer token. A call without one is refused.
func TokenScope(_ context.Context, req *mcp.CallToolRequest) (string, error) {
	if req.Extra == nil || req.Extra.TokenInfo == nil || req.Extra.TokenInfo.UserID == "" {
		return "", onceward.ErrUnauthenticated
	}
	return req.Extra.TokenInfo.UserID, nil
}

// Tool says how the calls of one tool are protected.
type Tool struct {
	// Options are those of a route. One of [onceward.Transactional] and [onceward.Reserved] is needed, here or among the
	// guard's defaults. Default: none.
	Options []onceward.Option
	// KeyArgument names an argument that carries the key, for models whose client does not. It is added to the tool's
	// input schema with words for the model, and taken away before the tool sees its arguments. It counts for more than
	// the key in _meta, which a client may make for each call. It must not be an argument of the tool's own. Default:
	// none; the key is in _meta.
	KeyArgument string
	// Intent derives a key for a call that brings none. Default: none; such a call is refused.
	Intent *Intent
	// ErrorResult says what a result with IsError means that the tool made itself: [onceward.FailureStore] that it is an
	// answer as others are, with the writes of a transaction undone, [onceward.FailureRetry] that nothing was done, and
	// [onceward.FailureUnknown] that something may have been. Default: FailureStore.
	ErrorResult onceward.Failure
}

// Config configures [New].
type Config struct {
	// Scope names the scope of a call. It is required, and has no default.
	Scope ScopeFunc
	// Tools are the protected tools by name; [OtherTools] stands for the rest. At least one is required.
	Tools map[string]Tool
	// Actor names who calls, for the audit of executions. Default: none.
	Actor func(req *mcp.CallToolRequest) string
}

// Tools protects the tool calls of a server. Its Middleware goes to the server's AddReceivingMiddleware.
type Tools struct {
	config  Config
	tools   map[string]*protection
	catalog catalog
}

// protection is a tool with what its calls run in.
type protection struct {
	Tool
	procedure *onceward.Procedure
}

// New returns the protection of a server's tools, or an error that says what in the configuration cannot be right.
func New(guard *onceward.Guard, config Config) (*Tools, error) {
	if guard == nil {
		return nil, errors.New("oncewardmcp: the guard is nil")
	}
	if config.Scope == nil {
		return nil, errors.New("oncewardmcp: Config.Scope is missing: it says whose key a call brings; " +
			"for a server with one caller, as on stdio, use SingleScope")
	}
	if len(config.Tools) == 0 {
		return nil, errors.New("oncewardmcp: Config.Tools is empty: name the tools that change something")
	}
	t := &Tools{config: config, tools: make(map[string]*protection)}
	for _, name := range slices.Sorted(maps.Keys(config.Tools)) {
		tool := config.Tools[name]
		if err := tool.check(); err != nil {
			return nil, fmt.Errorf("oncewardmcp: tool %q: %w", name, err)
		}
		options := tool.Options
		if name != OtherTools { // each of the others is an operation of its own
			options = append([]onceward.Option{onceward.OperationName(operation(name))}, options...)
		}
		procedure, err := guard.Procedure(options...)
		if err != nil {
			return nil, fmt.Errorf("oncewardmcp: tool %q: %w", name, err)
		}
		t.tools[name] = &protection{Tool: tool, procedure: procedure}
	}
	return t, nil
}

func (t *Tool) check() error {
	if t.ErrorResult > onceward.FailureStore {
		return fmt.Errorf("ErrorResult %d does not exist", t.ErrorResult)
	}
	if t.Intent == nil {
		return nil
	}
	return t.Intent.check(t.KeyArgument)
}

// Middleware protects the calls of tools, and adds to the list of tools what a caller has to know. Add it behind those
// that must see every call, such as one that authenticates: the middleware that is added last is called first.
//
// The context's cancellation does not reach a protected tool, so that neither a notification of MCP nor a lost
// connection stops work that has begun; the [onceward.Deadline] of the tool does.
func (t *Tools) Middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch r := req.(type) {
		case *mcp.CallToolRequest:
			if method != methodCall {
				break
			}
			if tool := t.protection(ctx, r, next); tool != nil {
				return t.serve(ctx, tool, r, next)
			}
		case *mcp.ListToolsRequest:
			result, err := next(ctx, method, req)
			if list, ok := result.(*mcp.ListToolsResult); ok && err == nil {
				return t.describe(list), nil
			}
			return result, err
		}
		return next(ctx, method, req)
	}
}

// protection finds how a call is protected; nil for a tool that is not.
func (t *Tools) protection(ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler) *protection {
	if tool := t.tools[req.Params.Name]; tool != nil {
		return tool
	}
	others := t.tools[OtherTools]
	if others == nil {
		return nil
	}
	// Of a tool that is not in the list, and if there is none, nothing says that it may be repeated.
	if tool := t.catalog.find(ctx, req, next); tool != nil && repeatable(tool) {
		return nil
	}
	return others
}
