package oncewardmcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
)

var errInternal = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "out of order"}

// TestCallsHappenOnce walks through what a caller sees, over each transport and protocol of the SDK.
func TestCallsHappenOnce(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, *bench) *mcp.ClientSession{
		"stdio": func(t *testing.T, b *bench) *mcp.ClientSession { return overStdio(t, "protected:"+b.path) },
		"HTTP": func(t *testing.T, b *bench) *mcp.ClientSession {
			return overHTTP(t, b.booking(), newest)
		},
		"HTTP with sessions": func(t *testing.T, b *bench) *mcp.ClientSession {
			return overHTTP(t, b.booking(), "2025-06-18")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			session := open(t, b)
			book := func(key string, guest string) *mcp.CallToolResult {
				arguments := map[string]any{"guest": guest}
				if key != "" {
					arguments["idempotency_key"] = key
				}
				return callTool(t, session, &mcp.CallToolParams{Name: "book_table", Arguments: arguments})
			}
			first := book("k1", "Ada")
			again := book("k1", "Ada")
			if replayed(first) || !replayed(again) || text(first) != `{"number":1}` ||
				!reflect.DeepEqual(first.StructuredContent, again.StructuredContent) || text(first) != text(again) {
				t.Errorf("first %+v, then %+v", first, again)
			}
			if first.Meta[oncewardmcp.MetaExpires] == nil || again.Meta[oncewardmcp.MetaExpires] == nil {
				t.Error("it is not said until when the result is kept")
			}
			wantProblem(t, book("k1", "Bob"), "mismatch")
			if p := wantProblem(t, book("", "Bob"), "missing-key"); p.Detail != "" {
				t.Errorf("a caller without headers is told to %s", p.Detail)
			}
			wantProblem(t, book("bad\u0000key", "Bob"), "invalid-key")
			b.wantBookings(1)

			mail := callTool(t, session, keyed("send_mail", "m1", map[string]any{"guest": "Ada", "note": "n"}))
			same := callTool(t, session, keyed("send_mail", "m1", map[string]any{"note": "n", "guest": "Ada"}))
			if text(mail) != "sent to Ada" || text(same) != text(mail) || !replayed(same) {
				t.Errorf("first %+v, then %+v", mail, same)
			}
			wantProblem(t, callTool(t, session, &mcp.CallToolParams{Name: "send_mail", Arguments: booking{Guest: "x"}}),
				"missing-key")
			b.wantBookings(2)
			if tables := callTool(t, session, &mcp.CallToolParams{Name: "list_tables"}); text(tables) != "12 tables" {
				t.Errorf("a tool that reads answers %+v", tables)
			}
		})
	}
}

func (b *bench) booking() *mcp.Server {
	b.t.Helper()
	server, _, err := bookingServer(b.guard, b.store)
	if err != nil {
		b.t.Fatal(err)
	}
	return server
}

// TestMeaningOfResults: what a tool returns decides whether a repetition executes, by the rules for handlers and Do.
func TestMeaningOfResults(t *testing.T) {
	t.Parallel()
	said := errors.New("it broke")
	unknown, retry := onceward.Reserved(onceward.FailureUnknown), onceward.Reserved(onceward.FailureRetry)
	keep := onceward.Reserved(onceward.FailureStore)
	for name, tc := range map[string]struct {
		option onceward.Option
		meant  onceward.Failure
		refuse bool   // the tool makes a result with IsError itself
		err    error  // of a typed tool: SetError
		wire   error  // of the protocol
		runs   int    // after two calls with the same key
		writes int    // that are left
		first  string // the code of the problem, empty for an answer, "error" for an error of the protocol
		second string
	}{
		"an error result is an answer":              {option: unknown, refuse: true, runs: 1, writes: 1},
		"in a transaction it is undone":             {option: onceward.Transactional(), refuse: true, runs: 1},
		"or it means that nothing was done":         {option: unknown, meant: onceward.FailureRetry, refuse: true, runs: 2, writes: 2},
		"or that something may have been":           {option: unknown, meant: onceward.FailureUnknown, refuse: true, runs: 1, writes: 1, first: "outcome-unknown", second: "outcome-unknown"},
		"a failure may have done something":         {option: unknown, err: said, runs: 1, writes: 1, first: "outcome-unknown", second: "outcome-unknown"},
		"a failure did nothing":                     {option: retry, err: said, runs: 2, writes: 2},
		"a failure is kept":                         {option: keep, err: said, runs: 1, writes: 1},
		"a failure is undone":                       {option: onceward.Transactional(), err: said, runs: 2},
		"an error says that nothing was done":       {option: unknown, err: onceward.NotExecuted(said), runs: 2, writes: 2},
		"an error says that the call is not valid":  {option: unknown, err: onceward.Rejected(said), runs: 2, writes: 2},
		"an error says that it is not known":        {option: keep, err: onceward.OutcomeUnknown(said), runs: 1, writes: 1, first: "outcome-unknown", second: "outcome-unknown"},
		"a protocol error may have done something":  {option: unknown, wire: errInternal, runs: 1, writes: 1, first: "outcome-unknown", second: "outcome-unknown"},
		"a protocol error is kept":                  {option: keep, wire: errInternal, runs: 1, writes: 1, first: "error", second: "error"},
		"a protocol error for the arguments":        {option: unknown, wire: &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "no"}, runs: 1, writes: 1, first: "error", second: "error"},
		"a protocol error that says nothing was do": {option: unknown, wire: onceward.NotExecuted(said), runs: 2, writes: 2, first: "not-executed", second: "not-executed"},
		"no result": {option: unknown, runs: 1, writes: 1, first: "outcome-unknown", second: "outcome-unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			runs := 0
			session := b.protect(oncewardmcp.Tool{Options: []onceward.Option{tc.option}, ErrorResult: tc.meant},
				func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					runs++
					if tx, ok := onceward.LookupTx(ctx); ok {
						if _, err := tx.ExecContext(ctx, "INSERT INTO bookings VALUES ('x')"); err != nil {
							t.Error(err)
						}
					} else if err := insert(ctx, b.store, "x"); err != nil {
						t.Error(err)
					}
					if tc.err != nil {
						result := new(mcp.CallToolResult)
						result.SetError(tc.err)
						return result, nil
					}
					if tc.refuse {
						return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "no table"}}, IsError: true}, nil
					}
					return nil, tc.wire
				})
			var texts []string
			for _, want := range []string{tc.first, tc.second} {
				result, err := session.CallTool(t.Context(), keyed("act", "k", nil))
				switch {
				case want == "error":
					if err == nil || !strings.Contains(err.Error(), tc.wire.Error()) {
						t.Errorf("got %+v and %v, want %v", result, err, tc.wire)
					}
					continue
				case err != nil:
					t.Fatal(err)
				case want != "":
					wantProblem(t, result, want)
				case oncewardmcp.ProblemOf(result) != nil:
					t.Errorf("got the problem %q, want an answer", text(result))
				}
				texts = append(texts, text(result))
			}
			if runs != tc.runs {
				t.Errorf("the tool ran %d times, want %d", runs, tc.runs)
			}
			if len(slices.Compact(texts)) > 1 {
				t.Errorf("the second call got another text: %q", texts)
			}
			b.wantBookings(tc.writes)
		})
	}
}

// TestInvalidArgumentsKeepNothing: a model may correct its arguments and use the key again, if the tool was not called.
func TestInvalidArgumentsKeepNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	session := overHTTP(t, b.booking(), newest)
	wrong := callTool(t, session, keyed("send_mail", "k", map[string]any{"guest": 7}))
	if !wrong.IsError || oncewardmcp.ProblemOf(wrong) != nil {
		t.Fatalf("a number for a text got %+v", wrong)
	}
	if right := callTool(t, session, keyed("send_mail", "k", map[string]any{"guest": "Ada"})); right.IsError {
		t.Errorf("the corrected call got %q", text(right))
	}
	_, err := session.CallTool(t.Context(), &mcp.CallToolParams{
		Name: "send_mail", Arguments: json.RawMessage(`{"guest":"a","guest":"b"}`),
		Meta: mcp.Meta{oncewardmcp.MetaKey: "k2"},
	})
	if !strings.Contains(err.Error(), "the arguments cannot be read") {
		t.Errorf("a duplicate name got %v", err)
	}
	b.wantBookings(1)
}

// TestQuestionsAreNotAnswers: a tool that asks for input has not acted, and the call that brings the input executes.
func TestQuestionsAreNotAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var asked, acted int
	handler := func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if req.Params.InputResponses == nil {
			asked++
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"sure": &mcp.ElicitParams{Message: "Sure?"}}}, nil
		}
		acted++
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
	}
	endpoint := listen(t, b.acting(oncewardmcp.Tool{Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}}, handler), newest)
	client := mcp.NewClient(&mcp.Implementation{Name: "test"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept"}, nil
		},
	})
	answering, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: endpoint}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answering.Close()
	for range 2 {
		if result := callTool(t, answering, keyed("act", "k", nil)); text(result) != "done" {
			t.Fatalf("got %+v", result)
		}
	}
	if asked != 1 || acted != 1 {
		t.Errorf("the tool asked %d times and acted %d times, want once each", asked, acted)
	}
}

// TestCancellationDoesNotReachTheTool: neither a notification of MCP nor a connection that is gone stops what has begun.
func TestCancellationDoesNotReachTheTool(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]string{"notification": "2025-11-25", "connection": newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			begun, finish := make(chan struct{}), make(chan struct{})
			server := b.acting(oncewardmcp.Tool{Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}},
				func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					if req.ProtocolVersion() != version {
						t.Errorf("the protocol is %s", req.ProtocolVersion())
					}
					close(begun)
					select {
					case <-finish:
					case <-ctx.Done():
						t.Error("the tool was cancelled")
					}
					return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, insert(ctx, b.store, "x")
				})
			session := overHTTP(t, server, version)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-begun
				cancel()
			}()
			if _, err := session.CallTool(ctx, keyed("act", "k", nil)); !errors.Is(err, context.Canceled) {
				t.Fatalf("the call ended with %v", err)
			}
			busy := wantProblem(t, callTool(t, session, keyed("act", "k", nil)), "in-progress")
			if !busy.Retryable || busy.RetryAfterSeconds != 1 || busy.Executed != oncewardmcp.ExecutedUnknown {
				t.Errorf("the problem is %+v", busy)
			}
			close(finish)
			if err := b.guard.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if result := callTool(t, session, keyed("act", "k", nil)); !replayed(result) || text(result) != "done" {
				t.Errorf("got %+v", result)
			}
			b.wantBookings(1)
		})
	}
}

// TestKeys: the argument counts for more than _meta, and a derived key for less.
func TestKeys(t *testing.T) {
	t.Parallel()
	reserved := []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}
	intent := &oncewardmcp.Intent{Arguments: []string{"guest", "time"}}
	within := &oncewardmcp.Intent{Arguments: []string{"guest"}, Within: func(req *mcp.CallToolRequest) string {
		conversation, _ := req.Params.Meta["conversation"].(string)
		return conversation
	}}
	type arguments = map[string]any
	for name, tc := range map[string]struct {
		tool          oncewardmcp.Tool
		first, second *mcp.CallToolParams
		want          string // "replayed", "executed", or the code of a problem
	}{
		"the argument, with another key in _meta": {
			oncewardmcp.Tool{Options: reserved, KeyArgument: "id"},
			keyed("act", "m1", arguments{"id": "k", "guest": "Ada"}), keyed("act", "m2", arguments{"id": "k", "guest": "Ada"}), "replayed",
		},
		"_meta, if the argument is missing": {
			oncewardmcp.Tool{Options: reserved, KeyArgument: "id"},
			keyed("act", "m1", arguments{"guest": "Ada"}), keyed("act", "m1", arguments{"guest": "Ada"}), "replayed",
		},
		"another argument": {
			oncewardmcp.Tool{Options: reserved, KeyArgument: "id"},
			keyed("act", "m1", arguments{"id": "k"}), keyed("act", "m1", arguments{"id": "l"}), "executed",
		},
		"an argument that is no text": {
			oncewardmcp.Tool{Options: reserved, KeyArgument: "id"},
			keyed("act", "m1", arguments{"id": "k"}), keyed("act", "m1", arguments{"id": 7}), "invalid-key",
		},
		"the same intent": {
			oncewardmcp.Tool{Options: reserved, Intent: intent},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada", "time": 19}},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"time": 19.0, "guest": "Ada"}}, "replayed",
		},
		"another intent": {
			oncewardmcp.Tool{Options: reserved, Intent: intent},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada", "time": 19}},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada", "time": 20}}, "executed",
		},
		"the same intent with other details": {
			oncewardmcp.Tool{Options: reserved, Intent: intent},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada"}},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada", "note": "by the window"}}, "mismatch",
		},
		"the same intent with a key of its own": {
			oncewardmcp.Tool{Options: reserved, Intent: intent},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada"}},
			keyed("act", "on purpose", arguments{"guest": "Ada"}), "executed",
		},
		"the same intent, once with null and once without": {
			oncewardmcp.Tool{Options: reserved, Intent: intent},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada", "time": nil}},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada"}}, "mismatch",
		},
		"no intent at all": {
			oncewardmcp.Tool{Options: reserved, Intent: intent},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"guest": "Ada"}},
			&mcp.CallToolParams{Name: "act", Arguments: arguments{"note": "x"}}, "missing-key",
		},
		"the same intent in another conversation": {
			oncewardmcp.Tool{Options: reserved, Intent: within},
			&mcp.CallToolParams{Name: "act", Meta: mcp.Meta{"conversation": "a"}, Arguments: arguments{"guest": "Ada"}},
			&mcp.CallToolParams{Name: "act", Meta: mcp.Meta{"conversation": "b"}, Arguments: arguments{"guest": "Ada"}}, "executed",
		},
		"without a key where that is allowed": {
			oncewardmcp.Tool{Options: append(slices.Clone(reserved), onceward.KeyOptional())},
			&mcp.CallToolParams{Name: "act"}, &mcp.CallToolParams{Name: "act"}, "executed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			session := b.protect(tc.tool, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				if strings.Contains(string(req.Params.Arguments), `"id"`) {
					t.Errorf("the tool sees the key: %s", req.Params.Arguments)
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
			})
			if first := callTool(t, session, tc.first); first.IsError {
				t.Fatal(text(first))
			}
			switch second := callTool(t, session, tc.second); tc.want {
			case "replayed", "executed":
				if second.IsError || replayed(second) != (tc.want == "replayed") {
					t.Errorf("got %q, replayed %v, want %s", text(second), replayed(second), tc.want)
				}
			default:
				wantProblem(t, second, tc.want)
			}
		})
	}
}

// TestScopes: the same key of two users is two operations, and a caller without a token is refused.
func TestScopes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := mcp.NewServer(&mcp.Implementation{Name: "test"}, nil)
	server.AddTool(&mcp.Tool{Name: "act", InputSchema: map[string]any{"type": "object"}},
		func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{}, insert(ctx, b.store, onceward.FromContext(ctx).Scope())
		})
	tools, err := oncewardmcp.New(b.guard, oncewardmcp.Config{
		Scope: oncewardmcp.TokenScope,
		Tools: map[string]oncewardmcp.Tool{"act": {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.AddReceivingMiddleware(tools.Middleware)
	wantProblem(t, callTool(t, overHTTP(t, server, newest), keyed("act", "k", nil)), "unauthenticated")

	handler := tools.Middleware(func(ctx context.Context, _ string, _ mcp.Request) (mcp.Result, error) {
		return &mcp.CallToolResult{}, insert(ctx, b.store, onceward.FromContext(ctx).Scope())
	})
	for _, user := range []string{"ada", "bob", "ada"} {
		_, err := handler(t.Context(), "tools/call", &mcp.CallToolRequest{
			Params: &mcp.CallToolParamsRaw{Name: "act", Meta: mcp.Meta{oncewardmcp.MetaKey: "k"}},
			Extra:  &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: user}, Header: http.Header{}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	b.wantBookings(2)
}

// TestList: a caller sees which tools are protected and how their keys are sent; tools that change state without
// protection are found.
func TestList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server, tools, err := bookingServer(b.guard, b.store)
	if err != nil {
		t.Fatal(err)
	}
	if err := tools.Audit(t.Context(), server); err != nil {
		t.Error(err)
	}
	server.AddTool(&mcp.Tool{Name: "cancel", InputSchema: map[string]any{"type": "object"}},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{}, nil
		})
	if err := tools.Audit(t.Context(), server); err == nil || !strings.Contains(err.Error(), "not protected: cancel:") {
		t.Errorf("the audit says %v", err)
	}
	if err := tools.Audit(t.Context(), server, "cancel"); err != nil {
		t.Error(err)
	}
	list, err := overHTTP(t, server, newest).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	marks := make(map[string]any)
	for _, tool := range list.Tools {
		marks[tool.Name] = tool.Meta[oncewardmcp.MetaKey]
		if tool.Name != "book_table" {
			continue
		}
		schema := tool.InputSchema.(map[string]any)
		argument, _ := schema["properties"].(map[string]any)["idempotency_key"].(map[string]any)
		description, _ := argument["description"].(string)
		if argument["type"] != "string" || !strings.Contains(description, "exactly the same value") ||
			!slices.Contains(schema["required"].([]any), any("idempotency_key")) {
			t.Errorf("the input schema is %v", schema)
		}
	}
	for _, name := range []string{"book_table", "send_mail"} { // the key is required, in the schema of one and in _meta of the other
		if about, _ := marks[name].(map[string]any); about["required"] != true {
			t.Errorf("the mark of %s is %v", name, marks[name])
		}
	}
	if marks["book_table"] == nil || marks["send_mail"] == nil || marks["list_tables"] != nil || marks["cancel"] != nil {
		t.Errorf("the marks are %v", marks)
	}
}

// TestOtherTools: a star protects what does not say of itself that it may be repeated.
func TestOtherTools(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	server := plainServer(b.path + ".lines")
	tools, err := oncewardmcp.New(b.guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("s"), Tools: map[string]oncewardmcp.Tool{
			oncewardmcp.OtherTools: {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.AddReceivingMiddleware(tools.Middleware)
	session := overHTTP(t, server, newest)
	if menu := callTool(t, session, &mcp.CallToolParams{Name: "menu"}); text(menu) != "soup" {
		t.Errorf("got %+v", menu)
	}
	wantProblem(t, callTool(t, session, &mcp.CallToolParams{Name: "book", Arguments: map[string]any{"guest": "a"}}), "missing-key")
	if err := tools.Audit(t.Context(), server); err != nil {
		t.Error(err)
	}
}

// TestNewRefuses: what cannot be right is an error before the first call.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	scope := oncewardmcp.SingleScope("s")
	reserved := []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}
	for name, tc := range map[string]struct {
		config oncewardmcp.Config
		want   string
	}{
		"no scope": {oncewardmcp.Config{Tools: map[string]oncewardmcp.Tool{"a": {Options: reserved}}}, "Scope is missing"},
		"no tools": {oncewardmcp.Config{Scope: scope}, "Tools is empty"},
		"no mode":  {oncewardmcp.Config{Scope: scope, Tools: map[string]oncewardmcp.Tool{"a": {}}}, `tool "a"`},
		"an intent of nothing": {oncewardmcp.Config{Scope: scope, Tools: map[string]oncewardmcp.Tool{
			"a": {Options: reserved, Intent: &oncewardmcp.Intent{}},
		}}, "Intent.Arguments is empty"},
		"an intent with the key": {oncewardmcp.Config{Scope: scope, Tools: map[string]oncewardmcp.Tool{
			"a": {Options: reserved, KeyArgument: "k", Intent: &oncewardmcp.Intent{Arguments: []string{"k"}}},
		}}, "no part of what is meant"},
	} {
		if _, err := oncewardmcp.New(b.guard, tc.config); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

// TestNumbersStayExact: a replay has the numbers of the first answer.
func TestNumbersStayExact(t *testing.T) {
	t.Parallel()
	const exact = `{"account":9007199254740993,"amount":1.10}`
	b := newBench(t)
	act := func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		result := said("done")
		result.StructuredContent = json.RawMessage(exact)
		result.Meta = mcp.Meta{"ref": json.RawMessage(`9007199254740993`)}
		return result, nil
	}
	server := b.acting(oncewardmcp.Tool{Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}}, act)
	endpoint := listen(t, server, newest)
	for range 2 {
		got := rawCall(t, endpoint)
		if strings.Count(got, "9007199254740993") != 2 || !strings.Contains(got, "1.10") {
			t.Errorf("got %s", got)
		}
	}
}

// rawCall makes a call of the tool act, and returns the bytes of the reply: a client in Go would round numbers itself.
func rawCall(t *testing.T, endpoint string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint, strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act","_meta":{"`+oncewardmcp.MetaKey+`":"k"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestEndlessList: a list of tools without an end does not keep a call from its answer.
func TestEndlessList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tools, err := oncewardmcp.New(b.guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("s"),
		Tools: map[string]oncewardmcp.Tool{
			oncewardmcp.OtherTools: {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	handler := tools.Middleware(func(_ context.Context, method string, _ mcp.Request) (mcp.Result, error) {
		if method == "tools/list" {
			return &mcp.ListToolsResult{NextCursor: "more"}, nil
		}
		return said("done"), nil
	})
	result, err := handler(t.Context(), "tools/call", &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "act"}})
	if err != nil {
		t.Fatal(err)
	}
	wantProblem(t, result.(*mcp.CallToolResult), "missing-key")
}
