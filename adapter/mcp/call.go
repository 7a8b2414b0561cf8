package oncewardmcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
)

// The media types of what is stored: a result of a tool, and an error of the protocol.
const (
	resultType = "application/vnd.onceward.mcp-result+json"
	errorType  = "application/vnd.onceward.mcp-error+json"
)

// nothingDone is a status with which an answer says in every mode that nothing was done.
const nothingDone = http.StatusTooEarly

// call is one call of a protected tool.
type call struct {
	tool   *protection
	req    *mcp.CallToolRequest // without the key argument
	next   mcp.MethodHandler
	result *mcp.CallToolResult // of the last run
	err    error
}

// operation is the name under which an operator finds the calls of a tool.
func operation(tool string) string { return methodCall + " " + tool }

// call takes a call to its result. Who calls is asked first: the server is not asked for its tools on behalf of a caller
// who is not known.
func (t *Tools) call(ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler) (mcp.Result, error) {
	tool, named := t.tools[req.Params.Name]
	if !named {
		tool = t.tools[OtherTools]
	}
	if tool == nil || !named && repeatable(t.catalog.get(req.Params.Name)) {
		return next(ctx, methodCall, req)
	}
	name := cmp.Or(tool.procedure.Operation(), operation(req.Params.Name))
	scope, err := t.config.Scope(ctx, req)
	if err == nil && scope == "" {
		err = onceward.ErrUnauthenticated
	}
	if err != nil {
		return t.problem(ctx, tool, req, nil, tool.procedure.Refuse(ctx, name, err)), nil
	}
	// Of a tool that is not in the list, and if there is none, nothing says that it may be repeated.
	if !named && repeatable(t.catalog.find(ctx, req, next)) {
		return next(ctx, methodCall, req)
	}
	return t.serve(ctx, tool, onceward.Call{Scope: scope, Operation: name, Method: req.Params.Name}, req, next)
}

// serve takes a call of a protected tool to its result.
func (t *Tools) serve(
	ctx context.Context, tool *protection, about onceward.Call, req *mcp.CallToolRequest, next mcp.MethodHandler,
) (mcp.Result, error) {
	name := about.Operation
	who, err := tool.identify(req)
	if errors.Is(err, errArguments) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error() + "; nothing was done"}
	}
	if err != nil && !errors.Is(err, onceward.ErrNoKey) {
		return t.problem(ctx, tool, req, next, tool.procedure.Refuse(ctx, name, err)), nil
	}
	about.Key, about.Payload, about.Header, about.Actor = who.key, who.payload, header(req), t.actor(req)
	c := &call{tool: tool, req: withArguments(req, who.arguments), next: next}
	served, err := tool.procedure.Serve(ctx, about, c.run)
	var problem *onceward.Problem
	switch {
	case errors.As(err, &problem):
		return t.problem(ctx, tool, req, next, problem), nil
	case err != nil:
		return nil, err
	case served.Unknown:
		return t.problem(ctx, tool, req, next, unknownProblem()), nil
	case served.Replayed:
		result, wire, err := replay(&served)
		if err == nil && served.ContentType != errorType && served.ContentType != resultType {
			err = t.structure(ctx, req, next, result, served.Body)
		}
		if err != nil {
			unreadable := t.problem(ctx, tool, req, next, tool.procedure.Unreadable(ctx, name, err))
			unreadable.Content = append(unreadable.Content, result.Content...)
			return unreadable, nil
		}
		if wire != nil {
			return nil, wire
		}
		return result, nil
	default:
		return c.answered(served.ExpiresAt)
	}
}

func (t *Tools) actor(req *mcp.CallToolRequest) string {
	if t.config.Actor == nil {
		return ""
	}
	return t.config.Actor(req)
}

// header is what of _meta has a header's meaning.
func header(req *mcp.CallToolRequest) http.Header {
	sent, ok := req.Params.Meta[MetaFirstSent].(string)
	if !ok {
		return nil
	}
	return http.Header{onceward.FirstSentHeader: {sent}}
}

// withArguments is the request with other arguments. The original stays as it is.
func withArguments(req *mcp.CallToolRequest, arguments json.RawMessage) *mcp.CallToolRequest {
	params := *req.Params
	params.Arguments = arguments
	changed := *req
	changed.Params = &params
	return &changed
}

// run calls the tool, and says what its result means by the statuses of [onceward.Answer].
func (c *call) run(ctx context.Context) onceward.Answer {
	c.result, c.err = nil, nil
	result, err := c.next(ctx, methodCall, c.req)
	if err != nil {
		c.err = err
		return c.failed(ctx, err)
	}
	r, ok := result.(*mcp.CallToolResult)
	if !ok || r == nil {
		c.err = errors.New("oncewardmcp: the tool gave no result")
		return c.failed(ctx, c.err)
	}
	c.result = r
	switch {
	case r.NeedsInput() || r.InputRequests != nil:
		return onceward.Answer{Status: nothingDone} // the tool asks before it acts
	case r.IsError && r.GetError() != nil:
		return c.failed(ctx, r.GetError())
	case ProblemOf(r) != nil:
		return c.behind(ctx, ProblemOf(r))
	case r.IsError:
		return c.refused(ctx)
	default:
		return c.encoded(ctx, http.StatusOK)
	}
}

// behind is a result in which a server behind, protected too, says what is wrong. It is about a record that will
// change, and kept only if the operation was done.
func (c *call) behind(ctx context.Context, problem *Problem) onceward.Answer {
	switch problem.Executed {
	case ExecutedNo:
		return onceward.Answer{Status: nothingDone}
	case ExecutedYes:
		return c.encoded(ctx, http.StatusUnprocessableEntity)
	default:
		return c.encoded(ctx, http.StatusInternalServerError)
	}
}

// refused is a result with IsError that the tool made itself.
func (c *call) refused(ctx context.Context) onceward.Answer {
	switch c.tool.ErrorResult {
	case onceward.FailureRetry:
		return onceward.Answer{Status: nothingDone}
	case onceward.FailureUnknown:
		onceward.FromContext(ctx).Unknown()
		onceward.FromContext(ctx).HandlerFailed(errors.New(c.failure()))
		return c.encoded(ctx, http.StatusInternalServerError)
	default:
		return c.encoded(ctx, http.StatusUnprocessableEntity)
	}
}

// failed is a tool that returned an error: what the error says of itself counts, then the Failure of the tool.
func (c *call) failed(ctx context.Context, err error) onceward.Answer {
	op := onceward.FromContext(ctx)
	switch {
	case onceward.IsOutcomeUnknown(err):
		op.Unknown()
		op.SetReason(err.Error())
	case onceward.IsRejected(err), invalidArguments(err):
		op.Reject()
		return onceward.Answer{Status: http.StatusBadRequest}
	case onceward.IsNotExecuted(err) && c.result == nil:
		op.NotExecuted()
		op.SetReason(err.Error())
		return onceward.Answer{} // there is nothing for a model in it: the problem is told instead
	case onceward.IsNotExecuted(err):
		op.SetReason(err.Error())
		return onceward.Answer{Status: nothingDone}
	case saysInvalid(err):
		return c.encoded(ctx, http.StatusBadRequest)
	}
	op.HandlerFailed(err)
	return c.encoded(ctx, http.StatusInternalServerError)
}

// invalidArguments reports whether the SDK refused the arguments by the input schema, before the tool was called.
func invalidArguments(err error) bool {
	return strings.HasPrefix(err.Error(), `validating "arguments":`)
}

// saysInvalid reports whether an error of the protocol says that the call itself is wrong. It is stored as an answer:
// if the tool did something all the same, a retry does not do it again.
func saysInvalid(err error) bool {
	var wire *jsonrpc.Error
	if !errors.As(err, &wire) {
		return false
	}
	switch wire.Code {
	case jsonrpc.CodeInvalidParams, jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound:
		return true
	default:
		return false
	}
}

// encoded is the answer as it is stored. What cannot be encoded is a failure.
func (c *call) encoded(ctx context.Context, status int) onceward.Answer {
	var body []byte
	var err error
	kind := resultType
	if c.result != nil {
		// The result type is the protocol's, and depends on the version that a caller speaks.
		body, err = json.Marshal(&mcp.CallToolResult{
			Meta: c.result.Meta, Content: c.result.Content, StructuredContent: c.result.StructuredContent,
			IsError: c.result.IsError,
		})
	} else {
		kind = errorType
		body, err = json.Marshal(wireError(c.err))
	}
	if err != nil {
		onceward.FromContext(ctx).SetReason("the result cannot be encoded: " + err.Error())
		c.result, c.err = nil, err
		return onceward.Answer{Status: http.StatusInternalServerError}
	}
	return onceward.Answer{Status: status, ContentType: kind, Body: body}
}

// failure is what the tool said when it failed.
func (c *call) failure() string {
	if c.err != nil {
		return c.err.Error()
	}
	var said []string
	for _, content := range c.result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			said = append(said, text.Text)
		}
	}
	return strings.Join(said, "\n")
}

func wireError(err error) *jsonrpc.Error {
	var wire *jsonrpc.Error
	if errors.As(err, &wire) {
		return wire
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
}

// answered is what the tool answered now.
func (c *call) answered(expires time.Time) (mcp.Result, error) {
	if c.err != nil {
		return nil, c.err
	}
	result := *c.result
	result.Meta = maps.Clone(result.Meta)
	mark(&result, false, expires)
	return &result, nil
}

// replay is the stored answer, a result or an error of the protocol. An answer that an operator has written may have any
// form, and is given as text.
func replay(served *onceward.Served) (*mcp.CallToolResult, *jsonrpc.Error, error) {
	result := new(mcp.CallToolResult)
	switch served.ContentType {
	case errorType:
		wire := new(jsonrpc.Error)
		return result, wire, json.Unmarshal(served.Body, wire)
	case resultType:
		if err := decode(served.Body, result); err != nil {
			return new(mcp.CallToolResult), nil, err
		}
	default:
		result.Content = []mcp.Content{&mcp.TextContent{Text: string(served.Body)}}
		result.IsError = served.Status >= http.StatusBadRequest
	}
	mark(result, true, served.ExpiresAt)
	return result, nil, nil
}

// structure makes the answer that an operator has written the structured content of a result, where the tool has an
// output schema: clients refuse a result without it. It returns an error for an answer that does not fit the schema.
func (t *Tools) structure(
	ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler, result *mcp.CallToolResult, body []byte,
) error {
	if result.IsError { // which needs no structured content
		return nil
	}
	tool := t.catalog.find(ctx, req, next)
	if tool == nil || tool.OutputSchema == nil {
		return nil
	}
	var content any
	if err := json.Unmarshal(body, &content); err != nil {
		return fmt.Errorf("the tool has an output schema, and the recorded answer is not JSON: %w", err)
	}
	if schema := resolved(tool.OutputSchema); schema != nil {
		if err := schema.Validate(content); err != nil {
			return fmt.Errorf("the recorded answer does not fit the output schema of the tool: %w", err)
		}
	}
	result.StructuredContent = json.RawMessage(body)
	return nil
}

// resolved returns a schema that values can be checked against; nil for a schema that this library cannot read, such as
// a schema that refers to another document.
func resolved(schema any) *jsonschema.Resolved {
	encoded, err := json.Marshal(schema)
	if err != nil {
		return nil
	}
	read := new(jsonschema.Schema)
	if json.Unmarshal(encoded, read) != nil {
		return nil
	}
	found, err := read.Resolve(nil)
	if err != nil {
		return nil
	}
	return found
}

// decode reads a result as it was written. What may have any form stays as it is: a number is not rounded.
func decode(body []byte, result *mcp.CallToolResult) error {
	var exact struct {
		Meta              map[string]json.RawMessage `json:"_meta"`
		StructuredContent json.RawMessage            `json:"structuredContent"`
	}
	if err := errors.Join(json.Unmarshal(body, result), json.Unmarshal(body, &exact)); err != nil {
		return err
	}
	for name, value := range exact.Meta {
		result.Meta[name] = value
	}
	if exact.StructuredContent != nil {
		result.StructuredContent = exact.StructuredContent
	}
	return nil
}

// mark says in _meta what a client may want to know about a result.
func mark(result *mcp.CallToolResult, replayed bool, expires time.Time) {
	if expires.IsZero() {
		return
	}
	if result.Meta == nil {
		result.Meta = make(mcp.Meta)
	}
	result.Meta[MetaExpires] = expires.UTC().Format(time.RFC3339)
	if replayed {
		result.Meta[MetaReplayed] = true
	}
}
