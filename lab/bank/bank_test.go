package bank_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/lab/bank"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(watchdog.Over(m))) }

var secret = []byte("the secret of the tests")

// tasks is a queue that keeps what it is given.
type tasks struct {
	mu   sync.Mutex
	list []string
	fail error
}

// Enqueue implements [bank.Queue].
func (q *tasks) Enqueue(_ context.Context, task, payload string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fail != nil {
		return q.fail
	}
	q.list = append(q.list, task+" "+payload)
	return nil
}

func (q *tasks) all() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]string(nil), q.list...)
}

// open opens a bank in a database of its own, on a pool of four connections.
func open(t *testing.T, queue *tasks) *bank.Bank {
	t.Helper()
	config, err := pgxpool.ParseConfig(servers.Postgres(t).SchemaURL(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
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
	opened, err := bank.Open(t.Context(), pool, secret, queue)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// client calls the server of a bank as a user.
type client struct {
	*testing.T
	server http.Handler
	token  string
	header http.Header
}

// send makes a request, and fails the test unless it is answered with a status.
func (c *client) send(method, path, body string, status int) map[string]any {
	c.Helper()
	r, err := http.NewRequest(method, path, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	r.Header = c.header.Clone()
	r.Header.Set("Authorization", "Bearer "+c.token)
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, r)
	var answer map[string]any
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&answer); err != nil || w.Code != status {
		c.Fatalf("%s %s %s: %d %s, want %d (%v)", method, path, body, w.Code, w.Body, status, err)
	}
	return answer
}

// newUser signs up, logs in and opens an account in euros.
func newUser(t *testing.T, server http.Handler, name string, balance int64) (c *client, account int64) {
	t.Helper()
	c = &client{T: t, server: server, header: make(http.Header)}
	c.send("POST", "/users", fmt.Sprintf(`{"username": %q, "password": "secret", "email": "%s@example.org"}`, name, name), 201)
	c.token = c.send("POST", "/users/login", fmt.Sprintf(`{"username": %q, "password": "secret"}`, name), 200)["token"].(string)
	return c, int64(c.send("POST", "/accounts", fmt.Sprintf(`{"currency": "EUR", "balance": %d}`, balance), 201)["id"].(float64))
}

func (c *client) wantBalance(account int64, want float64) {
	c.Helper()
	if got := c.send("GET", fmt.Sprint("/accounts/", account), "", 200)["balance"]; got != want {
		c.Errorf("the balance of %d is %v, want %v", account, got, want)
	}
}

func transferBody(from, to, amount int64) string {
	return fmt.Sprintf(`{"from_account_id": %d, "to_account_id": %d, "amount": %d, "currency": "EUR"}`, from, to, amount)
}

func TestSignUp(t *testing.T) {
	t.Parallel()
	queue := new(tasks)
	server := open(t, queue)
	newUser(t, server, "alice", 0)
	if got := queue.all(); len(got) != 1 || got[0] != "email:verify alice" {
		t.Errorf("the queue has %q", got)
	}
	c := &client{T: t, server: server, header: make(http.Header)}
	c.send("POST", "/users", `{"username": "alice", "password": "secret", "email": "other@example.org"}`, 409)
	for _, body := range []string{
		`{`, `{}`, `{"username": "b b", "password": "secret", "email": "b@example.org"}`,
		`{"username": "bob", "password": "short", "email": "b@example.org"}`,
		`{"username": "bob", "password": "secret", "email": "nowhere"}`,
	} {
		c.send("POST", "/users", body, 400)
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	server := open(t, new(tasks))
	c, account := newUser(t, server, "alice", 5)
	const login = `{"username": "alice", "password": "secret"}`
	if first, second := c.send("POST", "/users/login", login, 200), c.send("POST", "/users/login", login, 200); first["token"] == second["token"] {
		t.Error("two log-ins got the same token")
	}
	c.send("POST", "/users/login", `{"username": "alice", "password": "wrong"}`, 401)
	c.send("POST", "/users/login", `{"username": "bob", "password": "secret"}`, 401)
	c.send("POST", "/users/login", `{}`, 400)
	c.wantBalance(account, 5)
	c.token = "forged.token"
	c.send("GET", fmt.Sprint("/accounts/", account), "", 401)
}

func TestTransfer(t *testing.T) {
	t.Parallel()
	server := open(t, new(tasks))
	alice, from := newUser(t, server, "alice", 100)
	bob, to := newUser(t, server, "bob", 0)
	answer := alice.send("POST", "/transfers", transferBody(from, to, 30), 201)
	if balance := answer["from_account"].(map[string]any)["balance"]; balance != 70.0 {
		t.Errorf("the answer has the balance %v", balance)
	}
	alice.send("POST", "/transfers", transferBody(from, to, 71), 422)
	alice.send("POST", "/transfers", transferBody(from, 999, 1), 404)
	alice.send("POST", "/transfers", transferBody(from, to, 0), 400)
	alice.send("POST", "/transfers", transferBody(from, from, 1), 400)
	alice.send("POST", "/transfers", strings.Replace(transferBody(from, to, 1), "EUR", "USD", 1), 422)
	alice.send("POST", "/transfers", transferBody(to, from, 1), 403)
	alice.send("POST", "/accounts", `{"currency": "EUR"}`, 409)
	alice.wantBalance(from, 70)
	bob.wantBalance(to, 30)
}
