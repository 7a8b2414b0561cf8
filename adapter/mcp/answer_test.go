package oncewardmcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
)

// TestOperatorsAnswer: what an operator has settled is given to the model, in whatever form it was written.
func TestOperatorsAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	session := b.protect(oncewardmcp.Tool{Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, errInternal })
	for key, tc := range map[string]struct {
		status  int
		isError bool
	}{"done": {200, false}, "failed": {402, true}} {
		first := callTool(t, session, keyed("act", key, nil))
		wantProblem(t, first, "outcome-unknown")
		if encoded, err := json.Marshal(first); err != nil || strings.Contains(string(encoded), "out of order") {
			t.Errorf("the text of the failure was sent: %s %v", encoded, err)
		}
		b.settle("s", key, tc.status, "by hand")
		if result := callTool(t, session, keyed("act", key, nil)); text(result) != "by hand" || result.IsError != tc.isError {
			t.Errorf("got %+v", result)
		}
	}
}

// TestOperatorsAnswerFitsTheSchema: where a tool has an output schema, an operator's JSON becomes the structured content
// that strict clients ask for. An answer that does not fit the schema is an error, with what the operator has written.
func TestOperatorsAnswerFitsTheSchema(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcp.NewServer(&mcp.Implementation{Name: "test"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "act"},
		func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, booked, error) {
			return nil, booked{}, errInternal
		})
	tools, err := oncewardmcp.New(b.guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("s"),
		Tools: map[string]oncewardmcp.Tool{"act": {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.AddReceivingMiddleware(tools.Middleware)
	session := overHTTP(t, server, newest)
	schema := outputSchema(t, session, "act")
	for key, tc := range map[string]struct {
		status int
		body   string
		want   string // "" for content by the schema, or the code of a problem, or "failed" for an error of the tool's
	}{
		"fits":             {200, `{"number": 7}`, ""},
		"created":          {201, `{"number": 7}`, ""},
		"another field":    {200, `{"count": 7}`, "record-unreadable"},
		"another type":     {200, `{"number": "7"}`, "record-unreadable"},
		"no object":        {200, `[7]`, "record-unreadable"},
		"no JSON":          {200, `by hand`, "record-unreadable"},
		"nothing":          {200, ``, "record-unreadable"},
		"one that failed":  {402, `{"reason": "declined"}`, "failed"},
		"text that failed": {402, `declined`, "failed"},
	} {
		wantProblem(t, callTool(t, session, keyed("act", key, nil)), "outcome-unknown")
		b.settle("s", key, tc.status, tc.body)
		result := callTool(t, session, keyed("act", key, nil))
		if !strings.Contains(text(result), tc.body) {
			t.Errorf("%s: the text is %q", key, text(result))
		}
		switch {
		case tc.want == "failed":
			if !result.IsError || result.StructuredContent != nil || oncewardmcp.ProblemOf(result) != nil {
				t.Errorf("%s: got %+v", key, result)
			}
		case tc.want != "":
			if wantProblem(t, result, tc.want); result.StructuredContent != nil {
				t.Errorf("%s: got the structured content %v", key, result.StructuredContent)
			}
		case result.IsError || result.StructuredContent == nil:
			t.Errorf("%s: a tool with an output schema gave no structured content: %+v", key, result)
		default:
			if err := schema.Validate(result.StructuredContent); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
}

// outputSchema is the schema against which a client checks the structured content of a tool.
func outputSchema(t *testing.T, session *mcp.ClientSession, name string) *jsonschema.Resolved {
	t.Helper()
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		if tool.Name != name || tool.OutputSchema == nil {
			continue
		}
		encoded, err := json.Marshal(tool.OutputSchema)
		schema := new(jsonschema.Schema)
		if err = errors.Join(err, json.Unmarshal(encoded, schema)); err != nil {
			t.Fatal(err)
		}
		resolved, err := schema.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		return resolved
	}
	t.Fatalf("there is no tool %s with an output schema", name)
	return nil
}
