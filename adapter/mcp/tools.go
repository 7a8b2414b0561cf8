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

// The names of the fields that Onceward adds to _meta. They begin with a reversed domain of the project, as the MCP
// specification requires.
const (
	// MetaKey is the key of a call. In the list of tools it marks a protected tool.
	MetaKey = "io.github.onceward/idempotency-key"
	// MetaFirstSent is the time at which a client first made a call, as an HTTP date, for [onceward.RequireFirstSent].
	MetaFirstSent = "io.github.onceward/first-sent"
	// MetaReplayed marks a result of an earlier attempt.
	MetaReplayed = "io.github.onceward/replayed"
	// MetaExpires is the time until which a result is kept, in the format of RFC 3339.
	MetaExpires = "io.github.onceward/expires"
	// MetaProblem is a [Problem], in a result that Onceward returns instead of the tool's result.
	MetaProblem = "io.github.onceward/problem"
)

// OtherTools is a name for [Config].Tools. It stands for all tools that are not named there, except tools whose
// annotations declare that they are read-only or idempotent. Each of these tools is an operation of its own, under its
// own name.
const OtherTools = "*"

// The MCP methods that the middleware handles.
const (
	methodCall = "tools/call"
	methodList = "tools/list"
)

// ScopeFunc returns the security boundary of the key of a call, derived from authentication: req.Extra has the token
// and the header of an HTTP request. If it returns an error that wraps [onceward.ErrUnauthenticated], or an empty
// scope, the call is refused.
type ScopeFunc func(ctx context.Context, req *mcp.CallToolRequest) (string, error)

// SingleScope returns a [ScopeFunc] that returns the same scope for every call, for a server with one caller, such as a
// server on stdio.
func SingleScope(scope string) ScopeFunc {
	return func(context.Context, *mcp.CallToolRequest) (string, error) { return scope, nil }
}

// TokenScope is a [ScopeFunc] that returns the user of the verified bearer token. A call without a user is refused.
func TokenScope(_ context.Context, req *mcp.CallToolRequest) (string, error) {
	if req.Extra == nil || req.Extra.TokenInfo == nil || req.Extra.TokenInfo.UserID == "" {
		return "", onceward.ErrUnauthenticated
	}
	return req.Extra.TokenInfo.UserID, nil
}

// Tool configures the protection of the calls of one tool.
type Tool struct {
	// Options are the same options as for a route. Either [onceward.Transactional] or [onceward.Reserved] is required,
	// here or in the guard's defaults. Default: none.
	Options []onceward.Option
	// KeyArgument is the name of an argument that carries the key, for models whose client sends no key. It is added to
	// the tool's input schema with a description for the model, and removed from the arguments before the tool is
	// called. It takes precedence over the key in _meta, which a client may create for each call. It must not be one of
	// the tool's own arguments. Default: none; the key is in _meta.
	KeyArgument string
	// Intent derives a key for a call without a key. Default: none; such a call is refused.
	Intent *Intent
	// ErrorResult is the meaning of a result with IsError that the tool itself made. [onceward.FailureStore] means that
	// it is an answer like any other, except that the writes of a transaction are undone; [onceward.FailureRetry] means
	// that nothing was done; [onceward.FailureUnknown] means that something may have been done. Default: FailureStore.
	ErrorResult onceward.Failure
}

// Config configures [New].
type Config struct {
	// Scope returns the scope of a call. Required.
	Scope ScopeFunc
	// Tools are the protected tools by name. [OtherTools] stands for all other tools. At least one is required.
	Tools map[string]Tool
	// Actor returns the name of the caller, for the audit of executions. Default: none.
	Actor func(req *mcp.CallToolRequest) string
}

// Tools protects the tool calls of a server. Pass its Middleware method to the server's AddReceivingMiddleware.
type Tools struct {
	config  Config
	tools   map[string]*protection
	catalog catalog
}

// protection is a tool with the procedure that runs its calls.
type protection struct {
	Tool
	procedure *onceward.Procedure
}

// New returns the protection of a server's tools, or an error if the configuration is invalid.
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
		if name != OtherTools { // each other tool is an operation of its own
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

// Middleware protects the calls of tools, and marks the protected tools in the list of tools. Middleware that must see
// every call, such as authentication, must be added after it: the middleware that is added last is called first.
//
// A cancellation of the context does not reach a protected tool, so neither a notification of MCP nor a lost connection
// stops work that has begun. The [onceward.Deadline] of the tool does.
func (t *Tools) Middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch r := req.(type) {
		case *mcp.CallToolRequest:
			if method == methodCall {
				return t.call(ctx, r, next)
			}
		case *mcp.ListToolsRequest:
			age := t.catalog.age()
			result, err := next(ctx, method, req)
			if list, ok := result.(*mcp.ListToolsResult); ok && err == nil {
				t.catalog.add(age, list.Tools)
				return t.describe(list), nil
			}
			return result, err
		}
		return next(ctx, method, req)
	}
}
