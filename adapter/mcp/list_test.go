package oncewardmcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// listing is a server that counts how often its tools are listed.
type listing struct {
	mu    sync.Mutex
	lists int
	calls int
	fails bool
}

func (l *listing) handle(ctx context.Context, method string, _ mcp.Request) (mcp.Result, error) {
	if method == methodList {
		time.Sleep(time.Second) // others come meanwhile
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if method == methodCall {
		l.calls++
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
	}
	l.lists++
	if l.fails {
		return nil, errors.New("the test fails the list")
	}
	return &mcp.ListToolsResult{Tools: []*mcp.Tool{
		{Name: "pay"}, {Name: "menu", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
	}}, ctx.Err()
}

// want checks how often the tools were listed.
func (l *listing) want(t *testing.T, what string, lists int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lists != lists {
		t.Errorf("%s: the tools were listed %d times, want %d", what, l.lists, lists)
	}
}

// TestUnknownToolsAreListedSeldom: callers who make up names of tools do not have the server list its tools for each,
// and those who are not known not at all.
func TestUnknownToolsAreListedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		guard, err := onceward.New(memory.New(), onceward.Config{
			Secret: []byte("0123456789abcdef"), Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		scope := ""
		tools, err := New(guard, Config{
			Scope: func(context.Context, *mcp.CallToolRequest) (string, error) { return scope, nil },
			Tools: map[string]Tool{OtherTools: {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		server := new(listing)
		handler := tools.Middleware(server.handle)
		call := func(name string) *mcp.CallToolResult {
			result, err := handler(t.Context(), methodCall, &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: name}})
			if err != nil {
				t.Fatal(err)
			}
			return result.(*mcp.CallToolResult)
		}
		crowd := func(code string) {
			t.Helper()
			var group sync.WaitGroup
			for i := range 20 {
				group.Go(func() {
					if p := ProblemOf(call(fmt.Sprint("made-up-", i))); p == nil || p.Code != code {
						t.Errorf("a tool that does not exist: got %+v, want %s", p, code)
					}
				})
			}
			group.Wait()
		}
		crowd("unauthenticated")
		server.want(t, "L2: callers who are not known", 0)
		scope = "alice"
		server.fails = true
		crowd("missing-key")
		server.want(t, "a list that fails", 1)
		server.fails = false
		time.Sleep(listRetry)
		crowd("missing-key")
		server.want(t, "twenty callers", 2)
		if p := ProblemOf(call("menu")); p != nil {
			t.Errorf("a tool that reads only: %+v", p)
		}
		crowd("missing-key")
		server.want(t, "within the interval", 2)
		tools.catalog.forget()
		crowd("missing-key")
		server.want(t, "when the list has changed", 3)
		time.Sleep(listInterval)
		crowd("missing-key")
		server.want(t, "after the interval", 4)
		if server.calls != 1 {
			t.Errorf("%d calls reached the tools, want 1", server.calls)
		}
	})
}

// TestListAgreesWithItsSchema: a tool's mark and its input schema say the same about the key, also where the tool has an
// argument of that name itself.
func TestListAgreesWithItsSchema(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(memory.New(), onceward.Config{Secret: []byte("0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	reserved := onceward.Reserved(onceward.FailureUnknown)
	for _, required := range [][]any{nil, {"guest"}, {"guest", "key"}, {"key"}} {
		for _, declared := range []Tool{
			{Options: []onceward.Option{reserved}},
			{Options: []onceward.Option{reserved}, Intent: &Intent{Arguments: []string{"guest"}}},
			{Options: []onceward.Option{reserved, onceward.KeyOptional()}},
		} {
			procedure, err := guard.Procedure(declared.Options...)
			if err != nil {
				t.Fatal(err)
			}
			declared.KeyArgument = "key"
			tool := &protection{Tool: declared, procedure: procedure}
			described := tool.describe(&mcp.Tool{Name: "book", InputSchema: map[string]any{"type": "object", "required": required}})
			names, _ := described.InputSchema.(map[string]any)["required"].([]any)
			says := described.Meta[MetaKey].(map[string]any)["required"]
			if says != slices.Contains(names, any("key")) || says != (len(declared.Options) == 1 && declared.Intent == nil) {
				t.Errorf("of %v: the mark says %v, and the schema requires %v", required, says, names)
			}
			if slices.Contains(names, any("guest")) != slices.Contains(required, any("guest")) {
				t.Errorf("of %v: the schema requires %v", required, names)
			}
		}
	}
}
