package oncewardmcp

import (
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// TestTexts: each problem tells a model what is known, and what to do about it, in words that fit how the key is sent.
func TestTexts(t *testing.T) {
	t.Parallel()
	argument := &protection{Tool: Tool{KeyArgument: "id"}}
	meta := &protection{}
	intent := &protection{Tool: Tool{Intent: &Intent{Arguments: []string{"guest", "time"}}}}
	both := &protection{Tool: Tool{KeyArgument: "id", Intent: intent.Intent}}
	req := &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "pay"}}
	for _, tc := range []struct {
		code string
		tool *protection
		want []string
		not  []string
	}{
		{"outcome-unknown", argument, []string{
			"may have been carried out", "Do not call pay for it as a new operation",
			"In 5 seconds, call pay with exactly the same arguments and the same \"id\" to ask", "tell the user",
		}, []string{"Nothing was done"}},
		{"outcome-unknown", meta, []string{"the same idempotency key"}, nil},
		{"outcome-unknown", intent, []string{"call pay with exactly the same arguments to ask"}, []string{"key"}},
		{"outcome-unknown", both, []string{"the same arguments and again no \"id\" to ask"}, nil},
		{"in-progress", argument, []string{"at this moment", "In 2 seconds, call pay", "Do not start it again"}, []string{"Nothing was done"}},
		{"mismatch", argument, []string{"This call did nothing", "may have been carried out", "a new value of \"id\""}, nil},
		{"mismatch", intent, []string{"ask the user first", "guest, time"}, nil},
		{"missing-key", argument, []string{"Nothing was done", "into the argument \"id\"", "call pay again"}, nil},
		{"missing-key", meta, []string{MetaKey}, nil},
		{"missing-key", intent, []string{"Give the arguments guest, time."}, nil},
		{"invalid-key", argument, []string{"Nothing was done", "(the detail)"}, nil},
		{"personal-data-key", argument, []string{"Nothing was done", "personal data"}, nil},
		{"unauthenticated", argument, []string{"Nothing was done", "sign in"}, []string{"call pay"}},
		{"body-too-large", argument, []string{"Nothing was done", "smaller"}, nil},
		{"record-unreadable", argument, []string{"not known", "Do not call pay for it again"}, []string{"Nothing was done"}},
		{"response-not-stored", argument, []string{"was carried out", "Do not call pay for it again"}, []string{"Nothing was done"}},
		{"store-unavailable", argument, []string{"did nothing", "In 2 seconds, call pay"}, nil},
		{"new-keys-refused", argument, []string{"Nothing was done", "In 2 seconds, call pay"}, nil},
		{"mismatches-refused", argument, []string{"Nothing was done", "In 2 seconds, call pay"}, nil},
		{"not-executed", argument, []string{"Nothing was done", "In 2 seconds, call pay"}, nil},
		{"deadline-exceeded", argument, []string{"Nothing was done", "In 2 seconds, call pay"}, nil},
		{"handler-failed", argument, []string{"something may have been done", "Do not call pay"}, []string{"Nothing was done"}},
		{"work-refused", argument, []string{"Nothing was done", "once more"}, nil},
		{"response-too-large", argument, []string{"Nothing was done", "undone", "does not help"}, nil},
		{"first-sent-missing", argument, []string{"Nothing was done", "does not help"}, nil},
		{"first-sent-invalid", argument, []string{"Nothing was done", "does not help"}, nil},
		{"first-sent-too-old", argument, []string{"did nothing", "Do not repeat it"}, nil},
		{"first-sent-in-future", argument, []string{"Nothing was done", "clock"}, nil},
		{"anything-else", argument, []string{"could not be completed (the detail)", "Do not call pay"}, []string{"Nothing was done"}},
	} {
		said, ok := texts[tc.code]
		if !ok {
			said = otherwise
		}
		seconds := 2
		if tc.code == "outcome-unknown" {
			seconds = 5
		}
		text := tc.tool.say(said.text, req, &Problem{Code: tc.code, RetryAfterSeconds: seconds, Detail: "the detail."})
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in %q", tc.code, want, text)
			}
		}
		for _, not := range tc.not {
			if strings.Contains(text, not) {
				t.Errorf("%s: %q is in %q", tc.code, not, text)
			}
		}
		if left := regexp.MustCompile(`\b[A-Z]{3,}\b`).FindString(strings.ReplaceAll(text, "UUID", "")); left != "" {
			t.Errorf("%s: %q was not filled in: %q", tc.code, left, text)
		}
		if strings.HasPrefix(text, "Nothing was done") && said.executed != ExecutedNo {
			t.Errorf("%s says %q and executed %s", tc.code, text, said.executed)
		}
	}
}

// TestTextsAreComplete: each problem that docs/problems.md has, and that a call of a tool can meet, has a text.
func TestTextsAreComplete(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	ofHTTP := []string{ // and of what looks operations up
		"body-consumed", "body-incomplete", "operation-unnamed", "invalid-request", "upgrade-refused",
		"lookups-refused", "key-not-found", "method-not-allowed", "event-failed",
	}
	var codes []string
	for _, match := range regexp.MustCompile("(?m)^#+ `?([a-z]+(?:-[a-z]+)+)`?$").FindAllStringSubmatch(string(page), -1) {
		codes = append(codes, match[1])
		if _, ok := texts[match[1]]; !ok && !slices.Contains(ofHTTP, match[1]) {
			t.Errorf("there is no text for %s", match[1])
		}
	}
	for code := range texts {
		if !slices.Contains(codes, code) && code != "unauthenticated" && code != "mismatch" {
			t.Errorf("the text for %s is for no problem", code)
		}
	}
	if len(codes) < 20 {
		t.Errorf("docs/problems.md has the codes %q", codes)
	}
}

// TestProblemNames: codes may have other names for clients, and a tool with an output schema has no structured content
// that does not fit it.
func TestProblemNames(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Secret: []byte("0123456789abcdef"), Logger: slog.New(slog.DiscardHandler), ProblemCode: onceward.DraftCode,
	})
	if err != nil {
		t.Fatal(err)
	}
	procedure, err := guard.Procedure(onceward.Reserved(onceward.FailureUnknown))
	if err != nil {
		t.Fatal(err)
	}
	problem := procedure.Refuse(t.Context(), "pay", onceward.ErrNoKey)
	for name, schema := range map[string]any{"with a schema": map[string]any{"type": "object"}, "without": nil} {
		tools := &Tools{}
		tools.catalog.add(0, []*mcp.Tool{{Name: "pay", OutputSchema: schema}})
		req := &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "pay"}}
		result := tools.problem(t.Context(), &protection{}, req, nil, problem)
		if p := ProblemOf(result); p.Code != problem.Code || p.Executed != ExecutedNo {
			t.Errorf("%s: the problem is %+v", name, p)
		}
		if (result.StructuredContent == nil) != (schema != nil) {
			t.Errorf("%s: the structured content is %v", name, result.StructuredContent)
		}
	}
}
