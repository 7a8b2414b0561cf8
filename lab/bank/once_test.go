package bank_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/lab/bank"
	"github.com/onceward/onceward/oncewardtest"
	"github.com/onceward/onceward/store/postgres"
)

// with returns the client with a key.
func (c *client) with(key string) *client {
	keyed := *c
	keyed.header = c.header.Clone()
	keyed.header.Set("Idempotency-Key", key)
	return &keyed
}

// TestTransferOnce: a transfer with a key is made once, by each of the ways that lead to the bank.
func TestTransferOnce(t *testing.T) {
	t.Parallel()
	server := open(t, new(tasks))
	alice, from := newUser(t, server, "alice", 100)
	_, to := newUser(t, server, "bob", 0)
	once := alice.with("one")
	once.send("POST", "/transfers", transferBody(from, to, 0), 400) // nothing is kept of a request that is corrected
	if first, second := once.send("POST", "/transfers", transferBody(from, to, 10), 201),
		once.send("POST", "/transfers", transferBody(from, to, 10), 201); !maps.EqualFunc(first, second, same) {
		t.Errorf("got %v, and then %v", first, second)
	}
	once.send("POST", "/transfers", transferBody(from, to, 11), 422)
	alice.wantBalance(from, 90)

	var answers []map[string]any
	for _, gateway := range gateways(t, server) {
		caller := &client{T: t, server: gateway, token: alice.token, header: http.Header{"Content-Type": {"application/json"}}}
		for range 2 {
			answers = append(answers, caller.with("two").send("POST", "/v1/transfers", transferBody(from, to, 10), 200))
		}
		caller.with("two").send("POST", "/v1/transfers", transferBody(from, to, 11), 422)
	}
	for _, answer := range answers {
		if !maps.EqualFunc(answer, answers[0], same) {
			t.Errorf("the gateways answered %v", answers)
		}
	}
	alice.wantBalance(from, 80)

	session := connectTools(t, server, "alice")
	for range 2 {
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "transfer", Arguments: map[string]any{
			"from_account_id": from, "to_account_id": to, "amount": 10, "currency": "EUR", "idempotency_key": "three",
		}})
		if err != nil || result.IsError || result.StructuredContent.(map[string]any)["balance"] != 70.0 {
			t.Errorf("got %+v, %v", result, err)
		}
	}
	alice.wantBalance(from, 70)
}

func same(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// TestSignUpOnce: a user signs up once, and gets one letter; two users with the same key do not get each other's answer.
func TestSignUpOnce(t *testing.T) {
	t.Parallel()
	queue := new(tasks)
	server := open(t, queue)
	c := (&client{T: t, server: server, header: make(http.Header)}).with("sign-up")
	for range 2 {
		c.send("POST", "/users", `{"username": "alice", "password": "secret", "email": "a@example.org"}`, 201)
		if _, err := server.Deliver.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.send("POST", "/users", `{"username": "bob", "password": "secret", "email": "b@example.org"}`, 422)
	if got := queue.all(); len(got) != 1 {
		t.Errorf("the queue has %q", got)
	}
}

// TestManyTransfersAtOnce: on a pool of four connections twenty transfers at once are answered, beside readers.
func TestManyTransfersAtOnce(t *testing.T) {
	t.Parallel()
	server := open(t, new(tasks))
	alice, from := newUser(t, server, "alice", 100)
	_, to := newUser(t, server, "bob", 0)
	for range 2 {
		var done sync.WaitGroup
		for i := range 20 {
			done.Go(func() { alice.with(fmt.Sprint("key-", i)).send("POST", "/transfers", transferBody(from, to, 1), 201) })
			done.Go(func() { alice.send("GET", fmt.Sprint("/accounts/", from), "", 200) })
		}
		done.Wait()
	}
	alice.wantBalance(from, 80)
}

// TestEverythingFails sends transfers through duplicates, crashes and lost replies.
func TestEverythingFails(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), servers.Postgres(t).SchemaURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	schema, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), string(schema)); err != nil {
		t.Fatal(err)
	}
	records, err := postgres.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() }) // the database goes with the test
	clock, db := postgres.NewTestClock(t, records), stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() }) // it was only read
	build := func(guard *onceward.Guard) http.Handler {
		b, err := bank.New(pool, records, guard, secret, new(tasks))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	guard, err := onceward.New(records, onceward.Config{Scope: onceward.SingleScope("bank"), Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	server := build(guard)
	alice, from := newUser(t, server, "alice", 100000)
	_, to := newUser(t, server, "bob", 0)
	transfer := oncewardtest.Post("/transfers", transferBody(from, to, 1))
	transfer.Header = http.Header{"Authorization": {"Bearer " + alice.token}}
	tooMuch := transfer
	tooMuch.Body = strings.Replace(tooMuch.Body, `"amount": 1`, `"amount": 1000000`, 1)
	oncewardtest.Check(t, func(oncewardtest.TestingT) oncewardtest.Config {
		return oncewardtest.Config{Store: records, Clock: clock, Effects: oncewardtest.Rows(db, "transfers"), Service: build}
	}, transfer, tooMuch)
}

// TestProblemOfTheGateway: what the guard refuses is a problem for clients of the gateways too.
func TestProblemOfTheGateway(t *testing.T) {
	t.Parallel()
	server := open(t, new(tasks))
	alice, from := newUser(t, server, "alice", 100)
	_, to := newUser(t, server, "bob", 0)
	for name, gateway := range gateways(t, server) {
		caller := &client{T: t, server: gateway, token: alice.token, header: http.Header{"Content-Type": {"application/json"}}}
		key := strings.ReplaceAll(name, " ", "-")
		caller.with(key).send("POST", "/v1/transfers", transferBody(from, to, 10), 200)
		r := httptest.NewRequest("POST", "/v1/transfers", strings.NewReader(transferBody(from, to, 11)))
		r.Header = caller.with(key).header
		r.Header.Set("Authorization", "Bearer "+alice.token)
		w := httptest.NewRecorder()
		gateway.ServeHTTP(w, r)
		if got := w.Header().Get("Content-Type"); w.Code != 422 || got != "application/problem+json" {
			t.Errorf("%s: %d %s %s", name, w.Code, got, w.Body)
		}
	}
}
