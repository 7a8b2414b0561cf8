package bank_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
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

// TestManyTransfersAtOnce: on a pool of four connections twenty transfers with different keys are executed at once,
// twice, beside readers.
func TestManyTransfersAtOnce(t *testing.T) {
	t.Parallel()
	server := open(t, new(tasks))
	alice, from := newUser(t, server, "alice", 100)
	_, to := newUser(t, server, "bob", 0)
	for round := range 2 {
		var done sync.WaitGroup
		for i := range 20 {
			key := fmt.Sprintf("key-%d-%d", round, i)
			done.Go(func() { alice.with(key).send("POST", "/transfers", transferBody(from, to, 1), 201) })
			done.Go(func() { alice.send("GET", fmt.Sprint("/accounts/", from), "", 200) })
		}
		done.Wait()
		alice.wantBalance(from, 80-20*float64(round))
	}
}

// TestRun: the bank serves, and removes the records whose time is over, until it is stopped. Then its store is closed.
func TestRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	records, err := postgres.New(t.Context(), w.pool)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := onceward.New(records, onceward.Config{Scope: onceward.SingleScope("bank"), Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	b, err := bank.New(w.pool, records, guard, secret, new(tasks))
	if err != nil {
		t.Fatal(err)
	}
	const user = `{"username": "alice", "password": "secret", "email": "a@example.org"}`
	(&client{T: t, server: b, header: make(http.Header)}).with("sign-up").send("POST", "/users", user, 201)
	kept := func() (n int) {
		if err := w.db.QueryRow(`SELECT count(*) FROM onceward_record WHERE state <> 0`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if kept() != 1 {
		t.Errorf("%d records are kept of one operation", kept())
	}
	w.clock.Advance(1000 * time.Hour)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx, listener) }()
	await.That(t, "the record is removed", func() bool { return kept() == 0 })
	answer, err := http.Post("http://"+listener.Addr().String()+"/users/login", "application/json",
		strings.NewReader(`{"username": "alice", "password": "secret"}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("a log-in was answered %d: %v", answer.StatusCode, err)
	}
	stop()
	if err := errors.Join(await.Value(t, "the end", ended), b.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + listener.Addr().String()); err == nil {
		t.Error("it serves after its end")
	}
	if err := guard.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEverythingFails sends transfers through duplicates, crashes and lost replies.
func TestEverythingFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	build := func(guard *onceward.Guard) http.Handler {
		b, err := bank.New(w.pool, w.records, guard, secret, new(tasks))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	guard, err := onceward.New(w.records, onceward.Config{
		Scope: onceward.SingleScope("bank"), Secret: secret, StoreTimeout: await.Limit,
	})
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
		return oncewardtest.Config{
			Store: w.records, Clock: w.clock, Effects: oncewardtest.Rows(w.db, "transfers"), Service: build,
			Guard: onceward.Config{StoreTimeout: await.Limit},
		}
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

// TestSecondConnectionIsFound: a handler that asks the pool that holds its transaction is found by a check.
func TestSecondConnectionIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, query := range map[string]func(ctx context.Context) error{
		"pool":   func(ctx context.Context) error { _, err := w.pool.Exec(ctx, `SELECT 1`); return err },
		"handle": func(ctx context.Context) error { _, err := postgres.DB(w.pool).Exec(ctx, `SELECT 1`); return err },
	} {
		found := oncewardtest.Find(t, func(oncewardtest.TestingT) oncewardtest.Config {
			return oncewardtest.Config{
				Store: w.records, Clock: w.clock, Effects: oncewardtest.Rows(w.db, "users"),
				Guard: onceward.Config{StoreTimeout: await.Limit},
				Service: func(guard *onceward.Guard) http.Handler {
					return guard.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						if err := query(r.Context()); err != nil {
							rw.WriteHeader(http.StatusInternalServerError)
							return
						}
						_, err := postgres.Tx(r.Context()).Exec(r.Context(), `INSERT INTO users (username, password, email)
							SELECT gen_random_uuid()::text, '', gen_random_uuid()::text`)
						if err != nil {
							rw.WriteHeader(http.StatusInternalServerError)
							return
						}
						rw.WriteHeader(http.StatusCreated)
					}, onceward.Transactional(), onceward.OperationName(name))
				},
			}
		}, oncewardtest.Post("/users", `{}`))
		second := slices.ContainsFunc(found, func(f oncewardtest.Finding) bool { return f.Kind == oncewardtest.KindSecondConnection })
		if second != (name == "pool") {
			t.Errorf("through the %s: found %v", name, found)
		}
	}
}

// world is a database with the tables of the bank, on a pool that is watched.
type world struct {
	pool    *pgxpool.Pool
	records *postgres.Store
	clock   *postgres.TestClock
	db      *sql.DB
}

func newWorld(t *testing.T) world {
	t.Helper()
	config, err := pgxpool.ParseConfig(servers.Postgres(t).SchemaURL(t))
	if err != nil {
		t.Fatal(err)
	}
	postgres.WatchPool(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
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
	w := world{pool, records, postgres.NewTestClock(t, records), stdlib.OpenDBFromPool(pool)}
	t.Cleanup(func() { _ = w.db.Close() }) // it was only read
	return w
}
