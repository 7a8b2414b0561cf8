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

// The media types of stored answers: a result of a tool, and an error of the protocol.
const (
	resultType = "application/vnd.onceward.mcp-result+json"
	errorType  = "application/vnd.onceward.mcp-error+json"
)

// nothingDone is the status of an answer that means, in every mode, that nothing was done.
const nothingDone = http.StatusTooEarly

// call is one call of a protected tool.
type call struct {
	tool   *protection
	req    *mcp.CallToolRequest // the request without the key argument
	next   mcp.MethodHandler
	result *mcp.CallToolResult // the result of the last run
	err    error
}

// operation returns the name of the operation that an operator sees for the calls of a tool.
func operation(tool string) string { return methodCall + " " + tool }

// call handles a call of a tool. It checks the caller first, so that an unknown caller cannot make the server list its
// tools.
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
	// A tool that is not in the list, or a list that cannot be read, does not show that the call may be repeated.
	if !named && repeatable(t.catalog.find(ctx, req, next)) {
		return next(ctx, methodCall, req)
	}
	return t.serve(ctx, tool, onceward.Call{Scope: scope, Operation: name, Method: req.Params.Name}, req, next)
}

// serve handles a call of a protected tool.
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

// header returns the fields of _meta that correspond to header fields.
func header(req *mcp.CallToolRequest) http.Header {
	sent, ok := req.Params.Meta[MetaFirstSent].(string)
	if !ok {
		return nil
	}
	return http.Header{onceward.FirstSentHeader: {sent}}
}

// withArguments returns a copy of the request with other arguments.
func withArguments(req *mcp.CallToolRequest, arguments json.RawMessage) *mcp.CallToolRequest {
	params := *req.Params
	params.Arguments = arguments
	changed := *req
	changed.Params = &params
	return &changed
}

// run calls the tool, and returns its result with the status that [onceward.Answer] defines for it.
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
		return onceward.Answer{Status: nothingDone} // the tool asks for input before it acts
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

// behind returns the answer for a problem that a protected server behind the tool reported. The problem describes a
// record that will change, so it is stored only if the operation was done.
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

// refused returns the answer for a result with IsError that the tool itself made.
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

// failed returns the answer for a tool that returned an error. The error's own mark counts first, then the Failure of
// the tool.
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
		return onceward.Answer{} // the error has no text for a model, so the problem is returned instead
	case onceward.IsNotExecuted(err):
		op.SetReason(err.Error())
		return onceward.Answer{Status: nothingDone}
	case saysInvalid(err):
		return c.encoded(ctx, http.StatusBadRequest)
	}
	op.HandlerFailed(err)
	return c.encoded(ctx, http.StatusInternalServerError)
}

// invalidArguments reports whether the SDK rejected the arguments by the input schema, before it called the tool.
func invalidArguments(err error) bool {
	return strings.HasPrefix(err.Error(), `validating "arguments":`)
}

// saysInvalid reports whether an error of the protocol means that the call itself is wrong. The error is stored as an
// answer: if the tool did something anyway, a retry does not do it again.
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

// encoded returns the answer in the form that is stored. If the result cannot be encoded, the call fails.
func (c *call) encoded(ctx context.Context, status int) onceward.Answer {
	var body []byte
	var err error
	kind := resultType
	if c.result != nil {
		// The result type is omitted: it belongs to the protocol, and depends on the caller's version.
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

// failure returns the text with which the tool failed.
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

// answered returns the result of the tool in this call.
func (c *call) answered(expires time.Time) (mcp.Result, error) {
	if c.err != nil {
		return nil, c.err
	}
	result := *c.result
	result.Meta = maps.Clone(result.Meta)
	mark(&result, false, expires)
	return &result, nil
}

// replay returns the stored answer: a result, or an error of the protocol. An answer that an operator has recorded may
// have any form, and is returned as text.
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

// structure sets an answer that an operator has recorded as the structured content of a result, if the tool has an
// output schema, because clients reject a result without it. It returns an error if the answer does not match the
// schema.
func (t *Tools) structure(
	ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler, result *mcp.CallToolResult, body []byte,
) error {
	if result.IsError { // an error result needs no structured content
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

// resolved returns a schema for validation, or nil if this library cannot read the schema, for example because it
// refers to another document.
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

// decode decodes a stored result. Values of any form stay exactly as written, so that numbers are not rounded.
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

// mark adds the expiry and the replay flag to the _meta of a result.
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
