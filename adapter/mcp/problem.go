package oncewardmcp

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
)

// Problem is the structured content of a result that Onceward returns instead of the tool's result. The text of the
// result describes the same problem to a language model. The problem is also in _meta, under [MetaProblem], because the
// structured content of a tool with an output schema must match that schema.
type Problem struct {
	// Code is a stable code for programs. docs/problems.md describes each code.
	Code  string `json:"code"`
	Title string `json:"title"`
	// Executed reports whether the operation was done: "no", "yes" or "unknown". If a call is refused before its record
	// is read, the value does not cover earlier calls.
	Executed Executed `json:"executed"`
	// Retryable reports whether the same call may be repeated with the same key.
	Retryable bool `json:"retryable"`
	// RetryAfterSeconds is the time to wait before that; zero if it is not known.
	RetryAfterSeconds int `json:"retry_after_seconds,omitempty"`
	// Detail is a further explanation for people.
	Detail string `json:"detail,omitempty"`
	// Instance identifies this occurrence, also in logs.
	Instance string `json:"instance"`
}

// Executed reports whether an operation was done.
type Executed string

// The values of [Executed].
const (
	ExecutedNo      Executed = "no"
	ExecutedYes     Executed = "yes"
	ExecutedUnknown Executed = "unknown"
)

// ProblemOf returns the problem that a result of a tool contains instead of an answer, or nil if the result is an
// answer.
func ProblemOf(result *mcp.CallToolResult) *Problem {
	if result == nil || result.Meta[MetaProblem] == nil {
		return nil
	}
	encoded, err := json.Marshal(result.Meta[MetaProblem])
	p := new(Problem)
	if err != nil || json.Unmarshal(encoded, p) != nil {
		return nil
	}
	return p
}

// wording is the text about a problem for a language model. The text may contain these placeholders: TOOL is the tool's
// name, SAME is what a repeated call must have in common with this call, AGAIN is when the call may be repeated, KEY is
// how a call gets a key, NEW is how to request another operation, and DETAIL is the detail of the problem.
type wording struct {
	executed Executed
	text     string
}

const codeUnknown = "outcome-unknown"

// texts has the wording for each code: first what is known, then what to do, and what not to do.
var texts = map[string]wording{
	"missing-key": {ExecutedNo, "Nothing was done: this call has no idempotency key. KEY Then call TOOL again."},
	"invalid-key": {ExecutedNo, "Nothing was done: the idempotency key of this call is not valid (DETAIL). KEY " +
		"Then call TOOL again."},
	"personal-data-key": {ExecutedNo, "Nothing was done: the idempotency key looks like personal data. KEY " +
		"Then call TOOL again."},
	"unauthenticated": {ExecutedNo, "Nothing was done: the caller is not authenticated. Calling again does not help. " +
		"Tell the user that they have to sign in."},
	"body-too-large": {ExecutedNo, "Nothing was done: the arguments are too large. Make them smaller and call TOOL as a " +
		"new operation."},
	"mismatch": {ExecutedNo, "This call did nothing: its idempotency key belongs to an earlier call, of TOOL with other " +
		"arguments or of another tool, and that one may have been carried out. If you meant to repeat the earlier call, " +
		"send its arguments unchanged. If this is a different operation that the user wants in addition, NEW"},
	"in-progress": {ExecutedUnknown, "The same call is being carried out at this moment. Do not start it again as a new " +
		"operation. AGAIN, call TOOL with SAME to get its result."},
	codeUnknown: {ExecutedUnknown, "It is not known whether this was done: it may have been carried out. Do not " +
		"call TOOL for it as a new operation, because it could then happen twice. AGAIN, call TOOL with SAME to ask for " +
		"the result. If that still says that the outcome is unknown, tell the user that it may have happened and is being " +
		"checked."},
	"record-unreadable": {ExecutedUnknown, "It is not known whether this was done: the record of an earlier call cannot " +
		"be read. Do not call TOOL for it again, with this or any other idempotency key. Tell the user that it may have " +
		"happened and that the operator of this service has to check it."},
	"response-not-stored": {ExecutedYes, "This was carried out by an earlier call, but its result was too large to be " +
		"kept. Do not call TOOL for it again. Look the result up with another tool if there is one, or tell the user that " +
		"it was done."},
	"store-unavailable": {ExecutedNo, "This call did nothing: the service cannot reach its records at the moment. " +
		"AGAIN, call TOOL with SAME. If it fails repeatedly, tell the user to try later, and that an earlier call for it " +
		"whose result was not seen may have been carried out."},
	"new-keys-refused": {ExecutedNo, "Nothing was done: too many new operations were asked for. AGAIN, call TOOL with " +
		"SAME. Do not make several calls at once."},
	"mismatches-refused": {ExecutedNo, "Nothing was done: too many calls reused an idempotency key with other " +
		"arguments. AGAIN, call TOOL with SAME, and use a new key for each new operation only."},
	"not-executed": {ExecutedNo, "Nothing was done. AGAIN, call TOOL with SAME. If it fails repeatedly, tell the user " +
		"that it was not done."},
	"deadline-exceeded": {ExecutedNo, "Nothing was done: it took too long and was undone. AGAIN, call TOOL with SAME. " +
		"If it fails repeatedly, tell the user that it was not done."},
	"handler-failed": {ExecutedUnknown, "The tool failed with an internal error. Do not call TOOL for this as a new " +
		"operation: something may have been done. Tell the user that it failed and has to be checked."},
	"work-refused": {ExecutedNo, "Nothing was done: the database refused the work. You may call TOOL once more with " +
		"SAME. If it fails again, tell the user that it was not done."},
	"protected-twice": {ExecutedNo, "Nothing was done: the service is set up wrongly. Calling again does not help. Tell " +
		"the user that the service has to be mended."},
	"response-too-large": {ExecutedNo, "Nothing was done: the result would have been too large to be kept, and the work " +
		"was undone. Calling again with the same arguments does not help. Ask for less, as a new operation, or tell " +
		"the user."},
	"first-sent-missing": {ExecutedNo, "Nothing was done: the client did not say when this call was first made. Calling " +
		"again does not help. Tell the user that their client is not set up for this tool."},
	"first-sent-invalid": {ExecutedNo, "Nothing was done: the client's time of the first call cannot be read. Calling " +
		"again does not help. Tell the user that their client is not set up for this tool."},
	"first-sent-too-old": {ExecutedUnknown, "This call did nothing: it was first made too long ago to tell whether it " +
		"was carried out then. Do not repeat it. Check with another tool whether it happened, or ask the user."},
	"first-sent-in-future": {ExecutedNo, "Nothing was done: the client's clock is ahead. Calling again does not help. " +
		"Tell the user that the clock of their client is wrong."},
}

// otherwise is the wording for a code that is not in texts.
var otherwise = wording{ExecutedUnknown, "The call could not be completed (DETAIL). Do not call TOOL for this as a " +
	"new operation. Tell the user that it has to be checked."}

// unknownPause is how long a model should wait before it asks for an unknown outcome again.
const unknownPause = 5 * time.Second

// unknownProblem returns the problem that replaces a failure with an unknown outcome. The text of the failure is in the
// log and in the record, for operators.
func unknownProblem() *onceward.Problem {
	return &onceward.Problem{
		Type: onceward.DefaultProblemBase + codeUnknown, Code: codeUnknown, Status: http.StatusConflict,
		Title: "The outcome of the request is not known yet", Instance: onceward.NewInstance(), Retryable: true,
	}
}

// problem returns the result that describes a problem to a model, a program and a person.
func (t *Tools) problem(
	ctx context.Context, tool *protection, req *mcp.CallToolRequest, next mcp.MethodHandler, p *onceward.Problem,
) *mcp.CallToolResult {
	said, ok := texts[p.OwnCode()]
	if !ok {
		said = otherwise
	}
	wait := p.RetryAfter
	if wait == 0 && p.OwnCode() == codeUnknown {
		wait = unknownPause
	}
	problem := &Problem{
		Code: p.Code, Title: p.Title, Executed: said.executed, Retryable: p.Retryable,
		RetryAfterSeconds: int(math.Ceil(wait.Seconds())), Detail: p.Detail, Instance: p.Instance,
	}
	if p.OwnCode() == "missing-key" {
		problem.Detail = "" // it names an HTTP header; the text describes where the key belongs
	}
	result := &mcp.CallToolResult{
		Meta: mcp.Meta{MetaProblem: problem}, IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: tool.say(said.text, req, problem)}},
	}
	if t.takesAnyContent(ctx, req, next) {
		result.StructuredContent = problem
	}
	return result
}

// takesAnyContent reports whether the tool has no output schema that clients check structured content against. If next
// is nil, the server is not asked.
func (t *Tools) takesAnyContent(ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler) bool {
	if next == nil {
		tool := t.catalog.get(req.Params.Name)
		return tool != nil && tool.OutputSchema == nil
	}
	tool := t.catalog.find(ctx, req, next)
	return tool == nil || tool.OutputSchema == nil
}

// say replaces the placeholders of a text.
func (p *protection) say(text string, req *mcp.CallToolRequest, problem *Problem) string {
	var key, fresh string
	switch {
	case p.KeyArgument != "":
		key = fmt.Sprintf("Put a new random value, such as a UUID, into the argument %q.", p.KeyArgument)
		fresh = fmt.Sprintf("call it with a new value of %q.", p.KeyArgument)
	case p.Intent != nil:
		key = "Give the arguments " + strings.Join(p.Intent.Arguments, ", ") + "."
		fresh = "ask the user first: this tool takes calls with the same " + strings.Join(p.Intent.Arguments, ", ") +
			" for one operation."
	default:
		key = "Its client has to send one in _meta, as " + MetaKey + "."
		fresh = "call it with a new idempotency key."
	}
	return strings.NewReplacer("KEY", key, "SAME", p.same(req), "NEW", fresh, "AGAIN", again(problem.RetryAfterSeconds),
		"TOOL", req.Params.Name, "DETAIL", strings.TrimSuffix(problem.Detail, ".")).Replace(text)
}

// same describes what a repetition must have in common with this call. A model that adds a key to a call whose key was
// derived requests another operation.
func (p *protection) same(req *mcp.CallToolRequest) string {
	var arguments map[string]json.RawMessage
	_ = json.Unmarshal(req.Params.Arguments, &arguments) // arguments that cannot be decoded contain no key
	_, given := arguments[p.KeyArgument]
	_, inMeta := req.Params.Meta[MetaKey]
	switch {
	case p.KeyArgument != "" && (given || !inMeta && p.Intent == nil):
		return fmt.Sprintf("exactly the same arguments and the same %q", p.KeyArgument)
	case p.Intent == nil || inMeta:
		return "exactly the same arguments and the same idempotency key"
	case p.KeyArgument != "":
		return fmt.Sprintf("exactly the same arguments and again no %q", p.KeyArgument)
	default:
		return "exactly the same arguments"
	}
}

func again(seconds int) string {
	switch seconds {
	case 0:
		return "Later"
	case 1:
		return "In 1 second"
	default:
		return fmt.Sprintf("In %d seconds", seconds)
	}
}
