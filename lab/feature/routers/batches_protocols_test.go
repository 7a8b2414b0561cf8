package routers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	viagraphql "github.com/onceward/onceward/lab/feature/batches/graphql"
	viajsonrpc "github.com/onceward/onceward/lab/feature/batches/jsonrpc"
	viarest "github.com/onceward/onceward/lab/feature/batches/rest"
)

// protocol is a directory here, and how a client speaks.
type protocol struct {
	dir     string
	handler func(s *batchService, p *onceward.Procedure, scope onceward.ScopeFunc) http.Handler
	encode  func(items []item) string
	decode  func(answer []byte, items int) ([]outcome, error)
}

var batchProtocols = []protocol{
	{"rest", rest, encodeREST, decodeREST},
	{"jsonrpc", jsonRPC, encodeRPC, decodeRPC},
	{"graphql", graphQL, encodeGraphQL, decodeGraphQL},
}

func rest(_ *batchService, p *onceward.Procedure, scope onceward.ScopeFunc) http.Handler {
	return viarest.Batch{Procedure: p, Scope: scope}
}

func encodeREST(items []item) string {
	var all []string
	for _, i := range items {
		all = append(all, fmt.Sprintf(`{"key":%s,"account":%s,"amount":%d}`, quote(i.key), quote(i.account), i.amount))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func decodeREST(answer []byte, _ int) (outcomes []outcome, err error) {
	var got []struct {
		Status int
		Body   struct {
			ID, Error, Code string
			Retryable       bool
		}
	}
	err = json.Unmarshal(answer, &got)
	for _, g := range got {
		if (g.Status == http.StatusCreated) != (g.Body.ID != "") {
			err = fmt.Errorf("status %d for %+v", g.Status, g.Body)
		}
		outcomes = append(outcomes, outcome{g.Body.ID, g.Body.Error + g.Body.Code, g.Body.Retryable})
	}
	return outcomes, err
}

func jsonRPC(_ *batchService, p *onceward.Procedure, scope onceward.ScopeFunc) http.Handler {
	type methods = map[string]func(context.Context, json.RawMessage) (any, *viajsonrpc.Error)
	return viajsonrpc.Server{Procedure: p, Scope: scope, Methods: methods{"pay": viajsonrpc.Pay}}
}

func encodeRPC(items []item) string {
	var all []string
	for at, i := range items {
		all = append(all, fmt.Sprintf(
			`{"jsonrpc":"2.0","id":%d,"method":"pay","params":{"idempotencyKey":%s,"account":%s,"amount":%d}}`,
			at, quote(i.key), quote(i.account), i.amount))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func decodeRPC(answer []byte, _ int) (outcomes []outcome, err error) {
	var got []struct {
		ID     int
		Result struct{ ID string }
		Error  struct {
			Message string
			Data    struct {
				Code      string
				Retryable bool
			}
		}
	}
	err = json.Unmarshal(answer, &got)
	for at, g := range got {
		if g.ID != at {
			err = fmt.Errorf("reply %d has the id %d", at, g.ID)
		}
		failed := g.Error.Data.Code
		if failed == "" {
			failed = g.Error.Message
		}
		outcomes = append(outcomes, outcome{g.Result.ID, failed, g.Error.Data.Retryable})
	}
	return outcomes, err
}

func graphQL(s *batchService, p *onceward.Procedure, scope onceward.ScopeFunc) http.Handler {
	schema, err := viagraphql.NewSchema(viagraphql.Mutations{Procedure: p, Scope: scope})
	s.must(err)
	return viagraphql.Handler(schema)
}

func encodeGraphQL(items []item) string {
	var query strings.Builder
	query.WriteString("mutation {")
	for at, i := range items {
		directive := ""
		if i.key != "" {
			directive = "@idempotent(key: " + quote(i.key) + ")"
		}
		fmt.Fprintf(&query, " n%d: pay(account: %s, amount: %d) %s { id }", at, quote(i.account), i.amount, directive)
	}
	return `{"query":` + quote(query.String()+"}") + `}`
}

// batchReply is an answer of GraphQL.
type batchReply struct {
	Data   map[string]*struct{ ID string }
	Errors []struct {
		Message    string
		Path       []string
		Extensions struct {
			Code      string
			Retryable bool
		}
	}
}

func decodeGraphQL(answer []byte, items int) ([]outcome, error) {
	var got batchReply
	err := json.Unmarshal(answer, &got)
	outcomes := make([]outcome, items)
	for at := range outcomes {
		name := fmt.Sprint("n", at)
		if paid := got.Data[name]; paid != nil {
			outcomes[at].id = paid.ID
		}
		for _, e := range got.Errors {
			if len(e.Path) == 1 && e.Path[0] == name {
				outcomes[at].failed, outcomes[at].retryable = e.Extensions.Code, e.Extensions.Retryable
			}
		}
	}
	return outcomes, err
}

// TestKeysOfMutations: from a directive with a variable, an argument, and the header; and the text of a query may
// change, and what it selects, as long as the arguments are the same.
func TestKeysOfMutations(t *testing.T) {
	t.Parallel()
	s := newBatchService(t, batchProtocols[2])
	ask := func(body string, header ...string) (got batchReply) {
		t.Helper()
		_, answer, err := s.post(body, header...)
		s.must(err)
		s.must(json.Unmarshal(answer, &got))
		return got
	}
	same := func(what, alias string, a, b batchReply) {
		t.Helper()
		if a.Data[alias] == nil || b.Data[alias] == nil || a.Data[alias].ID != b.Data[alias].ID || a.Data[alias].ID == "" {
			t.Errorf("%s: got %+v and %+v", what, a, b)
		}
	}
	literal := ask(`{"query":"mutation { pay(account: \"1\", amount: 5) @idempotent(key: \"d\") { id } }"}`)
	variable := ask(`{"query":"mutation M($k: String!, $n: Int!) { pay(amount: $n, account: \"1\") ` +
		`@idempotent(key: $k) { id account amount } }","variables":{"k":"d","n":5}}`)
	same("a directive", "pay", literal, variable)
	argument := `{"query":"mutation { pay(account: \"1\", amount: 5, key: \"a\") { id } }"}`
	same("an argument", "pay", ask(argument), ask(argument))
	header := `{"query":"mutation { x: pay(account: \"1\", amount: 5) { id } y: pay(account: \"1\", amount: 5) { id } }"}`
	first := ask(header, "Idempotency-Key", "h")
	again := ask(header, "Idempotency-Key", `"h"`)
	same("a header", "x", first, again)
	same("a header", "y", first, again)
	if first.Data["x"].ID == first.Data["y"].ID {
		t.Error("two mutations under one header are one payment")
	}
	s.wantPayments("in all", 4)
}

// TestQueriesOfGraphQL: what other clients write, and what only an attacker does.
func TestQueriesOfGraphQL(t *testing.T) {
	t.Parallel()
	s := newBatchService(t, batchProtocols[2])
	want := func(what, query, want string) {
		t.Helper()
		_, answer, err := s.post(`{"operationName":"B","query":` + quote(query) + `}`)
		s.must(err)
		if !strings.Contains(string(answer), want) {
			t.Errorf("%s: got %.300s, want %s", what, answer, want)
		}
	}
	pay := func(key, selected string) string {
		return ` pay(account: "1", amount: 5) @idempotent(key: "` + key + `") {` + selected + `} `
	}
	want("one operation of two", `mutation A {`+pay("a", "id")+`} mutation B {`+pay("b", "id")+`}`, `"id":"`)
	want("in a fragment", `mutation B { ...F } fragment F on Mutation {`+pay("b", "id")+`}`, `"id":"`)
	want("one field, twice", `mutation B {`+pay("b", "id")+pay("b", "amount")+`}`, `"amount":5`)
	s.wantPayments("one key", 1)
	want("two keys for one field", `mutation B {`+pay("c", "id")+pay("d", "id")+`}`, `"invalid-key"`)
	two := strings.Replace(pay("c", "id"), "{", `@idempotent(key: "d") {`, 1)
	want("two directives", `mutation B {`+two+`}`, `"invalid-key"`)
	want("a query", `query B { shop }`, `"shop":null`)
	const deep = 4000 // takes the library half a minute
	want("deep", `query B `+strings.Repeat("{a", deep)+strings.Repeat("}", deep), "too large")
	want("deep, with comments", `query B `+strings.Repeat("{a #}\n", deep)+strings.Repeat("}", deep), "too large")
	want("wide", `query B {`+strings.Repeat("shop ", deep)+`}`, "too large")
	s.wantPayments("refused", 1)
}

// TestCallsOfJSONRPC: what is not in every protocol.
func TestCallsOfJSONRPC(t *testing.T) {
	t.Parallel()
	s := newBatchService(t, batchProtocols[1])
	want := func(what, body, want string, header ...string) string {
		t.Helper()
		_, answer, err := s.post(body, header...)
		s.must(err)
		if got := string(answer); got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
		return string(answer)
	}
	pay := func(id string) string {
		return `{"jsonrpc":"2.0","method":"pay","params":{"account":"1","amount":5}` + id + `}`
	}
	first := want("a single call", pay(`,"id":1`), `"result":{"id":"`, "Idempotency-Key", "s")
	again := want("with another id", pay(`,"id":"two"`), `"id":"two"`, "Idempotency-Key", "s")
	if strings.Replace(first, `"id":1`, `"id":"two"`, 1) != again {
		t.Errorf("got %s, replayed as %s", first, again)
	}
	reordered := `{"id":3,"params":{ "amount":5, "account":"1" },"method":"pay","jsonrpc":"2.0"}`
	want("in another order", reordered, strings.Replace(first, `"id":1`, `"id":3`, 1), "Idempotency-Key", "s")
	want("the id is no key", pay(`,"id":1`), `"code":"missing-key"`)
	want("nor is the header one of a batch", "["+pay(`,"id":1`)+"]", `"code":"missing-key"`, "Idempotency-Key", "s")
	s.wantPayments("one key", 1)

	want("a notification", pay(""), "", "Idempotency-Key", "n")
	want("a notification again", pay(""), "", "Idempotency-Key", "n")
	s.wantPayments("a notification", 2)

	want("no JSON", `{`, `-32700`)
	want("no call", `[1]`, `[{"error":{"code":-32600,"message":"not a call of JSON-RPC 2.0"},"id":null,"jsonrpc":"2.0"}]`)
	want("an empty batch", `[]`, `-32600`)
	want("no method", `{"jsonrpc":"2.0","id":1,"method":"steal"}`, `-32601`)
	s.wantPayments("in all", 2)
}
