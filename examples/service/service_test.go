package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
)

// partVariable makes the test binary the service instead of running tests.
const partVariable = "ONCEWARD_SERVICE_TEST_PART"

func TestMain(m *testing.M) {
	if os.Getenv(partVariable) != "" {
		main()
		return
	}
	os.Exit(servers.Main(m))
}

const (
	replicas = 3
	clients  = 4
	drained  = 50 * time.Millisecond
)

// TestRollingDeploy stops the replicas one after the other, under load, and starts each again, as a deploy does.
// Clients retry with the same key on any replica: all of them are answered, each key has had its effect once, and
// nothing is left behind.
func TestRollingDeploy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.migrate()
	for i := range w.fleet {
		w.start(i)
	}
	var load sync.WaitGroup
	over := make(chan struct{})
	for n := range clients {
		load.Go(func() { w.newClient(n).shop(over) })
	}
	for i := range w.fleet {
		await.That(w.t, "there is some load", func() bool { return w.finished.Load() > int64(20*(i+1)) })
		w.deploy(i)
	}
	await.That(w.t, "there is load after the last deploy", func() bool { return w.finished.Load() > 20*(replicas+1) })
	close(over)
	load.Wait()
	await.That(w.t, "all orders are delivered", func() bool { return w.warehouse.orders() >= len(w.sent["/orders"]) })
	w.checkMetrics()
	w.silent(w.fleet[0].Load().admin)
	for i := range w.fleet {
		w.stop(i)
	}
	w.checkEffects()
}

// TestStopWhileStarting: a replica whose database does not answer, told to stop, has not failed.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	database := "postgres://shop_service@" + listener.Addr().String() + "/shop"
	w := &world{t: t, environment: settings(database, "http://provider", "http://warehouse")}
	r := proctest.Start(t, w.command())
	conn, err := listener.Accept() // and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := r.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(await.Limit); err != nil {
		t.Errorf("it ended with %v: %s", err, strings.Join(r.Rest(), "\n"))
	}
}

// world is the surroundings of the service: a database, a provider, a warehouse and clients.
type world struct {
	t           *testing.T
	database    *servers.PostgresServer
	provider    *provider.Server
	warehouse   *warehouse
	environment []string
	fleet       [replicas]atomic.Pointer[replica]
	finished    atomic.Int64

	mu   sync.Mutex
	sent map[string][]string // the keys by the path that they were sent to
}

type replica struct {
	*proctest.Process
	url, admin string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, database: servers.NewPostgres(t), warehouse: newWarehouse(t), sent: make(map[string][]string)}
	var err error
	if w.provider, err = provider.Start(t.Context(), provider.Config{Dedup: true, Faults: faults()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.provider.Close(); err != nil {
			t.Error(err)
		}
	})
	w.environment = append(settings(w.as("shop_service"), w.provider.URL, w.warehouse.URL),
		"OWNER_DATABASE_URL="+w.as("shop_owner"), "SERVICE_ROLE=shop_service")
	return w
}

// settings is the environment of a replica.
func settings(database, provider, warehouse string) []string {
	return []string{
		"DATABASE_URL=" + database, "PROVIDER_URL=" + provider, "WAREHOUSE_URL=" + warehouse,
		"WAREHOUSE_SECRET=whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("s"), 24)),
		"ONCEWARD_SECRET=the secret of all replicas", `TOKENS={"token":"tenant"}`,
		"GORACE=atexit_sleep_ms=50", // else each process takes a second more to end
		"LISTEN=127.0.0.1:0", "ADMIN_LISTEN=127.0.0.1:0", "DRAIN=" + drained.String(),
		"CALL_TIMEOUT=" + await.Limit.String(),
	}
}

// heldKey is that of the payment which is under way when a replica is told to stop.
func heldKey(i int) string { return fmt.Sprint("held-", i) }

// faults hold one payment for each replica, and make all others take a moment.
func faults() (f provider.Faults) {
	for i := range replicas {
		f.Rules = append(f.Rules, provider.Rule{
			Name: heldKey(i), Match: provider.Match{Method: http.MethodPost, Reference: heldKey(i)},
			Kind: provider.Hold, Times: 1,
		})
	}
	f.Rules = append(f.Rules, provider.Rule{
		Match: provider.Match{Method: http.MethodPost, Path: "/charges"}, Kind: provider.Delay,
		Delay: 15 * time.Millisecond,
	})
	return f
}

// as is the URL by which a role connects.
func (w *world) as(role string) string {
	address, err := url.Parse(w.database.URL())
	if err != nil {
		w.t.Fatal(err)
	}
	address.User = url.User(role)
	return address.String()
}

func (w *world) query(sql string) string {
	w.t.Helper()
	rows, err := w.database.Query(w.t.Context(), sql)
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}

// migrate makes the roles and lets the owner make the tables, before which no replica starts.
func (w *world) migrate() {
	w.t.Helper()
	database := w.query(`SELECT current_database()`)
	w.query(`CREATE ROLE shop_owner LOGIN; CREATE ROLE shop_service LOGIN;
		GRANT CREATE ON DATABASE ` + database + ` TO shop_owner`)
	if early := w.run(); early.Code != 1 || !strings.Contains(early.Stdout, `run \"service migrate\" first`) {
		w.t.Fatalf("without tables it ended with %d: %s", early.Code, early.Stdout)
	}
	for range 2 { // the second changes nothing
		if done := w.run("migrate"); done.Code != 0 {
			w.t.Fatalf("migrate ended with %d: %s %s", done.Code, done.Stdout, done.Stderr)
		}
	}
	for _, forbidden := range []string{
		`CREATE TABLE app.other (id int)`, `ALTER TABLE app.onceward_record ADD COLUMN other int`, `DELETE FROM app.orders`,
	} {
		if err := w.database.Exec(w.t.Context(), `SET ROLE shop_service; `+forbidden); err == nil {
			w.t.Errorf("the role of the service may do too much: %s", forbidden)
		}
	}
}

// run runs the service to its end.
func (w *world) run(args ...string) proctest.Result {
	w.t.Helper()
	return proctest.Run(w.t, w.command(args...))
}

func (w *world) command(args ...string) *exec.Cmd {
	cmd := proc.Self(partVariable, "service", args...)
	cmd.Env = append(cmd.Env, w.environment...)
	return cmd
}

// start starts a replica and sends it requests when it is ready.
func (w *world) start(i int) {
	w.t.Helper()
	r := &replica{Process: proctest.Start(w.t, w.command())}
	var line struct{ Msg, Address, Admin string }
	if err := json.Unmarshal([]byte(r.Hear("{")), &line); err != nil || line.Msg != "serving" {
		w.t.Fatalf("the replica said %+v, %v", line, err)
	}
	r.url, r.admin = "http://"+line.Address, "http://"+line.Admin
	await.That(w.t, "the replica is ready", func() bool { return w.get(r.admin+"/ready") == http.StatusOK })
	w.fleet[i].Store(r)
}

// deploy replaces a replica while one of its handlers works for a client that has left.
func (w *world) deploy(i int) {
	w.t.Helper()
	old := w.fleet[i].Load()
	ctx, leave := context.WithCancel(w.t.Context())
	key := w.newKey("/payments", heldKey(i))
	left := make(chan struct{})
	go func() {
		defer close(left)
		for ctx.Err() == nil { // until the client leaves
			_, _ = w.newClient(clients).try(ctx, old.url, "/payments", key)
		}
	}()
	if err := w.provider.Client().Await(w.t.Context(), heldKey(i), 1); err != nil {
		w.t.Fatal(err)
	}
	leave()
	<-left
	w.signal(old)
	await.That(w.t, "the replica is not ready", func() bool {
		return w.get(old.admin+"/ready") == http.StatusServiceUnavailable
	})
	await.That(w.t, "the replica has stopped accepting", func() bool { return w.get(old.url) == 0 })
	if live := w.get(old.admin + "/live"); live != http.StatusOK {
		w.t.Errorf("while it stops it answers %d: it would be killed", live)
	}
	if err := w.provider.Client().Release(w.t.Context(), heldKey(i)); err != nil {
		w.t.Fatal(err)
	}
	w.awaitExit(i, old)
	w.start(i)
	var status int
	await.Success(w.t, "the payment whose client left is answered", func() (err error) {
		status, err = w.newClient(clients).try(w.t.Context(), w.fleet[i].Load().url, "/payments", key)
		if status == http.StatusServiceUnavailable {
			err = errors.New("the store has not answered in time")
		}
		return err
	})
	if status != http.StatusCreated { // a conflict would mean that the handler was cut off
		w.t.Errorf("the payment whose client left while its replica stopped is answered %d", status)
	}
}

// silent connects and says nothing, which is not to make the end of a replica a failure.
func (w *world) silent(address string) {
	w.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
}

func (w *world) stop(i int) {
	w.t.Helper()
	r := w.fleet[i].Load()
	w.signal(r)
	w.awaitExit(i, r)
}

func (w *world) signal(r *replica) {
	w.t.Helper()
	if err := r.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
}

// awaitExit waits for a replica that was told to stop.
func (w *world) awaitExit(i int, r *replica) {
	w.t.Helper()
	if err := r.Wait(await.Limit); err != nil {
		w.t.Errorf("replica %d ended with %v: %s", i, err, strings.Join(r.Rest(), "\n"))
	}
}

func (w *world) get(address string) (status int) {
	res, err := http.Get(address)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// newKey notes a key that is sent to a path. It is also the reference by which its effects are counted.
func (w *world) newKey(path, key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[path] = append(w.sent[path], key)
	return key
}

// client is one that retries.
type client struct {
	*world
	number, turn int
	http         *http.Client
}

func (w *world) newClient(number int) *client {
	transport := &http.Transport{}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &client{world: w, number: number, turn: number, http: &http.Client{Transport: transport}}
}

// shop orders and pays until the load is over.
func (c *client) shop(over <-chan struct{}) {
	for n := 0; ; n++ {
		path := []string{"/orders", "/payments"}[n%2]
		c.finish(path, c.newKey(path, fmt.Sprintf("%d-%d", c.number, n)), n%5 == 0)
		c.finished.Add(1)
		select {
		case <-over:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// finish sends a request, each time to the next replica, until it is answered for good. An impatient client does not
// wait for the first answer.
func (c *client) finish(path, key string, impatient bool) {
	var tries []string
	for end := time.Now().Add(await.Limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		limit := await.Limit
		if impatient && len(tries) == 0 {
			limit = 5 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), limit)
		c.turn++
		status, err := c.try(ctx, c.fleet[c.turn%replicas].Load().url, path, key)
		cancel()
		switch {
		case status == http.StatusCreated:
			return
		case err == nil && status != http.StatusConflict && status != http.StatusServiceUnavailable:
			c.t.Errorf("%s with key %s was answered %d", path, key, status)
			return
		}
		tries = append(tries, fmt.Sprint(status, " ", err))
	}
	c.t.Errorf("%s with key %s was not answered: %q", path, key, tries)
}

// try sends a request once.
func (c *client) try(ctx context.Context, to, path, key string) (status int, err error) {
	body := fmt.Sprintf(`{"reference":%q,"quantity":1,"amount":100}`, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer token")
	req.Header.Set("Idempotency-Key", key)
	res, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// warehouse receives the events of orders.
type warehouse struct {
	*httptest.Server
	mu       sync.Mutex
	received map[string]int // by the reference of the order
}

func newWarehouse(t *testing.T) *warehouse {
	t.Helper()
	h := &warehouse{received: make(map[string]int)}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.received[o.Reference]++
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *warehouse) orders() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.received)
}

// checkMetrics looks for what the replicas together have counted.
func (w *world) checkMetrics() {
	w.t.Helper()
	var all strings.Builder
	for i := range w.fleet {
		res, err := http.Get(w.fleet[i].Load().admin + "/metrics")
		if err != nil {
			w.t.Fatal(err)
		}
		_, err = io.Copy(&all, res.Body)
		res.Body.Close()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	for _, want := range []string{
		`onceward_reservations_total{decision="created",route="POST /orders"} `,
		`onceward_attempts_settled_total{route="POST /payments",state="completed"} `,
		`onceward_outbox_deliveries_total{outcome="done",topic="orders"} `,
	} {
		if !strings.Contains(all.String(), want) {
			w.t.Errorf("no replica counts %s:\n%s", want, &all)
		}
	}
	for _, bad := range []string{
		`",state="unknown"`, "onceward_reconcile_resolved_total{", "onceward_leases_lost_total{",
		`onceward_worker_runs_total{outcome="failed"`,
	} {
		if strings.Contains(all.String(), bad) {
			w.t.Errorf("a handler was cut off, or a worker has failed: %s is counted:\n%s", bad, &all)
		}
	}
}

// checkEffects compares what was asked for with what was done.
func (w *world) checkEffects() {
	w.t.Helper()
	orders, payments := w.sent["/orders"], w.sent["/payments"]
	w.t.Logf("%d orders and %d payments", len(orders), len(payments))
	made := strings.Fields(w.query(`SELECT reference FROM app.orders`))
	w.compare("orders", orders, made)
	var charged []string
	for _, entry := range w.provider.Ledger() {
		charged = append(charged, entry.Charge.Reference)
	}
	w.compare("charges", payments, charged)
	var delivered []string
	for reference, times := range w.warehouse.received {
		delivered = append(delivered, slices.Repeat([]string{reference}, times)...)
	}
	w.compare("deliveries", orders, delivered)
	completed := fmt.Sprintf("20|%d", len(orders)+len(payments))
	states := w.query(`SELECT state, count(*) FROM app.onceward_record WHERE state > 0 GROUP BY state`)
	if states != completed {
		w.t.Errorf("the records by state: %s, want %s", states, completed)
	}
	if open := w.query(`SELECT count(*) FROM app.onceward_message WHERE state <> 4`); open != "0" {
		w.t.Errorf("%s messages are not delivered", open)
	}
}

// compare wants each key once.
func (w *world) compare(what string, keys, effects []string) {
	w.t.Helper()
	keys, effects = slices.Sorted(slices.Values(keys)), slices.Sorted(slices.Values(effects))
	if !slices.Equal(keys, effects) {
		w.t.Errorf("%s: %d keys and %d effects: %q, want %q", what, len(keys), len(effects), effects, keys)
	}
}
