package routers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/lab/feature/suite"
)

func TestMCP(t *testing.T) {
	t.Parallel()
	for name, protected := range map[string][]string{"named": {"pay", "refund"}, "others": {oncewardmcp.OtherTools}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite.Run(t, suite.Adapter{
				Name: "mcp", Operation: "tools/call pay", Serve: serveMCP(protected...),
				Features: suite.Features{FirstSent: true, Refusals: true, Errors: true, ProblemForUnknown: true},
			})
		})
	}
}

// byToken is the scope of the suite: the bearer token.
func byToken(_ context.Context, req *sdk.CallToolRequest) (string, error) {
	token, ok := strings.CutPrefix(req.Extra.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return "", onceward.ErrUnauthenticated
	}
	return token, nil
}

// serveMCP protects the tools under these names.
func serveMCP(protected ...string) suite.Serve {
	return func(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
		server := sdk.NewServer(&sdk.Implementation{Name: "payments"}, nil)
		config := oncewardmcp.Config{Scope: byToken, Tools: make(map[string]oncewardmcp.Tool)}
		for _, name := range []string{"pay", "refund"} {
			sdk.AddTool(server, &sdk.Tool{Name: name},
				func(ctx context.Context, _ *sdk.CallToolRequest, in suite.Payment) (*sdk.CallToolResult, any, error) {
					return replied(work(ctx, in))
				})
		}
		for _, name := range protected {
			config.Tools[name] = oncewardmcp.Tool{Options: options}
		}
		tools, err := oncewardmcp.New(guard, config)
		if err != nil {
			t.Fatal(err)
		}
		server.AddReceivingMiddleware(tools.Middleware)
		server.AddReceivingMiddleware(recovering)
		web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
			&sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}))
		t.Cleanup(func() {
			web.CloseClientConnections()
			web.Close()
		})
		return mcpCaller{web.URL, web.Client()}
	}
}

// recovering is what a server has that should outlive a tool that panics: the SDK does not.
func recovering(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (result sdk.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				message := toolReply{Status: http.StatusInternalServerError}.String()
				err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: message}
			}
		}()
		return next(ctx, method, req)
	}
}

// toolReply is how the tool writes what the suite replies.
type toolReply struct {
	Status int    `json:"status"`
	Body   string `json:"body"`
}

// String implements [fmt.Stringer].
func (r toolReply) String() string {
	text, _ := json.Marshal(r) // of a number and a text
	return string(text)
}

// replied is a reply as a tool gives it: a refusal is a result with IsError, and a failure an error.
func replied(r suite.Reply) (*sdk.CallToolResult, any, error) {
	if r.Status == 0 { // a tool that gave up has an error to return
		r.Status = http.StatusInternalServerError
	}
	text := toolReply{r.Status, r.Body}.String()
	switch {
	case r.Status == http.StatusServiceUnavailable:
		return nil, nil, onceward.NotExecuted(errors.New(text))
	case r.Status >= http.StatusInternalServerError:
		return nil, nil, errors.New(text)
	default:
		return &sdk.CallToolResult{
			Content: []sdk.Content{&sdk.TextContent{Text: text}}, IsError: r.Status >= http.StatusBadRequest,
		}, nil, nil
	}
}

// mcpCaller calls the tools.
type mcpCaller struct {
	url    string
	client *http.Client
}

// authorized sends who calls.
type authorized struct {
	http.RoundTripper
	tenant string
}

// RoundTrip implements [http.RoundTripper].
func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.tenant != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+a.tenant)
	}
	return a.RoundTripper.RoundTrip(r)
}

// Call implements [suite.Caller].
func (c mcpCaller) Call(ctx context.Context, r suite.Request) (suite.Answer, error) {
	session, err := sdk.NewClient(&sdk.Implementation{Name: "suite"}, nil).Connect(context.WithoutCancel(ctx),
		&sdk.StreamableClientTransport{
			Endpoint: c.url, DisableStandaloneSSE: true,
			HTTPClient: &http.Client{Transport: authorized{c.client.Transport, r.Tenant}},
		}, nil)
	if err != nil {
		return suite.Answer{}, err
	}
	defer session.Close()
	params := &sdk.CallToolParams{Name: "pay", Arguments: r.Payment, Meta: sdk.Meta{}}
	if r.Refund {
		params.Name = "refund"
	}
	if r.Key != "" {
		params.Meta[oncewardmcp.MetaKey] = r.Key
	}
	if r.FirstSent != "" {
		params.Meta[oncewardmcp.MetaFirstSent] = r.FirstSent
	}
	result, err := session.CallTool(ctx, params)
	var wire *jsonrpc.Error
	if errors.As(err, &wire) {
		return parsed(wire.Message, suite.Answer{})
	}
	if err != nil {
		return suite.Answer{}, err
	}
	return answerOfTool(result)
}

// statuses are those of HTTP for the codes of problems, where the suite asks for them.
var statuses = map[string]int{
	"missing-key": 400, "invalid-key": 400, "personal-data-key": 400, "unauthenticated": 401, "body-too-large": 413,
	"mismatch": 422, "in-progress": 409, "outcome-unknown": 409, "response-not-stored": 409, "store-unavailable": 503,
	"new-keys-refused": 429, "mismatches-refused": 429, "not-executed": 503, "deadline-exceeded": 503,
	"handler-failed": 500, "work-refused": 500, "response-too-large": 500, "record-unreadable": 500,
	"first-sent-missing": 400, "first-sent-invalid": 400, "first-sent-too-old": 412, "first-sent-in-future": 412,
}

func answerOfTool(result *sdk.CallToolResult) (suite.Answer, error) {
	var a suite.Answer
	a.Replayed = result.Meta[oncewardmcp.MetaReplayed] == true
	if expires, ok := result.Meta[oncewardmcp.MetaExpires].(string); ok {
		a.Expires, _ = time.Parse(time.RFC3339, expires)
	}
	problem := oncewardmcp.ProblemOf(result)
	if problem == nil {
		return parsed(result.Content[0].(*sdk.TextContent).Text, a)
	}
	a.Status, a.Code, a.Retryable = statuses[problem.Code], problem.Code, problem.Retryable
	if problem.Code == "outcome-unknown" && problem.Detail == "" { // it became unknown in this call
		a.Status = http.StatusInternalServerError
	}
	a.RetryAfter = time.Duration(problem.RetryAfterSeconds) * time.Second
	return a, nil
}

func parsed(text string, a suite.Answer) (suite.Answer, error) {
	var r toolReply
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return a, fmt.Errorf("%w: %s", err, text)
	}
	a.Status, a.Body = r.Status, r.Body
	return a, nil
}
