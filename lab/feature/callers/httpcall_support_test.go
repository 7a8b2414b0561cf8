package callers_test

import (
	"context"
	"database/sql"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// topic is the topic of the operations of the tests.
const topic = "payments"

// caller is a store whose outbox has durable operations, and what was reported of them.
type caller struct {
	*testing.T
	store interface {
		store.Store
		outbox.Store
		InTx(ctx context.Context, work func(ctx context.Context) error) error
	}
	box *outbox.Outbox
	// create makes a table of the application.
	create func(statement string)
	// advance moves the store's clock.
	advance func(d time.Duration)
	// ours are durable operations that only enqueue.
	ours *httpcall.Calls
}

// onStores runs a test on each store that has an outbox.
func onStores(t *testing.T, test func(c *caller)) {
	t.Helper()
	for name, open := range map[string]func(c *caller){"sqlite": openSQLite, "postgres": openPostgres, "mariadb": openMariaDB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(openCaller(t, open))
		})
	}
}

// inTime runs a test on SQLite whose time passes only while all goroutines wait. The store's clock is the same.
func inTime(t *testing.T, test func(c *caller)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(openCaller(t, openSQLite)) })
}

func openCaller(t *testing.T, open func(c *caller)) *caller {
	t.Helper()
	c := &caller{T: t}
	c.create = func(statement string) {
		must(t, c.store.InTx(t.Context(), func(ctx context.Context) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, statement)
			return err
		}))
	}
	open(c)
	var err error
	c.box, err = outbox.New(c.store, outbox.Config{Source: "https://shop.example"})
	must(t, err)
	c.ours, err = httpcall.New(httpcall.Config{Outbox: c.box, Topic: topic})
	must(t, err)
	c.create(`CREATE TABLE report (name VARCHAR(100))`)
	return c
}

func openSQLite(c *caller) {
	var ahead atomic.Int64
	s, err := sqlite.Open(c.Context(), filepath.Join(c.TempDir(), "caller.db"),
		sqlite.WithClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }))
	must(c, err)
	c.Cleanup(func() { must(c, s.Close()) })
	c.store, c.advance = s, func(d time.Duration) { ahead.Add(int64(d)) }
}

func openPostgres(c *caller) {
	db, err := sql.Open("pgx", servers.Postgres(c).SchemaURL(c))
	must(c, err)
	c.Cleanup(func() { _ = db.Close() })
	s, err := postgres.NewSQL(c.Context(), db)
	must(c, err)
	c.Cleanup(func() { must(c, s.Close()) })
	c.store, c.advance = s, postgres.NewTestClock(c, s).Advance
}

func openMariaDB(c *caller) {
	url := servers.MariaDB(c).DatabaseURL(c)
	db, err := mysql.OpenDB(url)
	must(c, err)
	c.Cleanup(func() { _ = db.Close() })
	c.create = func(statement string) { // which would end a transaction
		_, err := db.ExecContext(c.Context(), statement)
		must(c, err)
	}
	s, err := mysql.Open(c.Context(), url, mysql.WithLogger(quiet))
	must(c, err)
	c.Cleanup(func() { must(c, s.Close()) })
	c.store, c.advance = s, mysql.NewTestClock(c, s).Advance
}

// request is one with a key, or without one if that is empty.
func request(t testing.TB, key, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return r
}

// enqueue enqueues requests, each in a transaction of its own.
func (c *caller) enqueue(requests ...*http.Request) (ids []string) {
	c.Helper()
	for _, r := range requests {
		id := ""
		must(c, c.store.InTx(c.Context(), func(ctx context.Context) (err error) {
			id, err = c.ours.Enqueue(ctx, onceward.Tx(ctx), r)
			return err
		}))
		ids = append(ids, id)
	}
	return ids
}

// pause is how long a message is left alone at most after a delivery that failed.
const pause = time.Minute

// worker returns a worker over the store, or over another one.
func (c *caller) worker(config httpcall.Config, over ...outbox.Store) *outbox.Worker {
	c.Helper()
	config.Outbox, config.Topic = c.box, topic
	if config.Transport == nil {
		config.Transport = transport(c, time.Hour, &http.Transport{DisableKeepAlives: true})
	}
	made, err := httpcall.New(config)
	must(c, err)
	route := made.Route()
	route.MinBackoff, route.MaxBackoff = pause, pause
	w, err := outbox.NewWorker(append(over, outbox.Store(c.store))[0], outbox.WorkerConfig{
		Routes: map[string]outbox.Route{topic: route}, Logger: quiet, Grace: time.Millisecond,
	})
	must(c, err)
	return w
}

// run delivers what is due.
func (c *caller) run(w *outbox.Worker, want outbox.Report) {
	c.Helper()
	if got, err := w.RunOnce(c.Context()); err != nil || got != want {
		c.Errorf("I18: a run came to %+v, %v, want %+v", got, err, want)
	}
}

// finish delivers until nothing waits.
func (c *caller) finish(w *outbox.Worker) {
	c.Helper()
	for {
		_, err := w.RunOnce(c.Context())
		must(c, err)
		stats, err := c.store.MessageStats(c.Context())
		must(c, err)
		if stats.Waiting == 0 {
			return
		}
		c.advance(pause)
	}
}

// operation returns an operation as it is kept, and how far its message is.
func (c *caller) operation(id string) (httpcall.Operation, outbox.State) {
	c.Helper()
	found, err := c.store.Messages(c.Context(), outbox.Filter{ID: id})
	must(c, err)
	if len(found) != 1 {
		c.Fatalf("there are %d messages %s", len(found), id)
	}
	o, err := httpcall.OperationOf(&found[0])
	must(c, err)
	return o, found[0].State
}

// wants checks what became of an operation: the status of its answer, or 0 if there is none.
func (c *caller) wants(id string, state outbox.State, status int) httpcall.Operation {
	c.Helper()
	o, got := c.operation(id)
	if got != state || o.Answer.Status != status || (o.Outcome == client.OutcomeAnswered) != (status != 0) {
		c.Errorf("I18: the operation is %s, %s with status %d (%s); want %s with %d", got, o.Outcome, o.Answer.Status,
			o.LastError, state, status)
	}
	return o
}

// writes is an OnSettled that writes into the table of the application, in the transaction that ends the message.
func (c *caller) writes(ctx context.Context, o httpcall.Operation) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO report (name) VALUES ('`+o.ID+` `+o.Outcome.String()+`')`)
	return err
}

// reported returns what OnSettled has written.
func (c *caller) reported() (names []string) {
	c.Helper()
	must(c, c.store.InTx(c.Context(), func(ctx context.Context) error {
		names = nil
		rows, err := onceward.Tx(ctx).QueryContext(ctx, `SELECT name FROM report ORDER BY name`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			name := ""
			if err := rows.Scan(&name); err != nil {
				return err
			}
			names = append(names, name)
		}
		return rows.Err()
	}))
	return names
}

// wantReported checks what OnSettled has written, and how often.
func (c *caller) wantReported(want ...string) {
	c.Helper()
	slices.Sort(want)
	if got := c.reported(); !slices.Equal(got, want) {
		c.Errorf("I18: the reports are %q, want %q", got, want)
	}
}

// service is a server that counts what it is sent.
type service struct {
	*httptest.Server
	mu   sync.Mutex
	seen []http.Header
}

// newService starts a server. The first requests are answered by the handlers, and all others with 201.
func newService(t *testing.T, handlers ...http.HandlerFunc) *service {
	s := &service{}
	s.Server = httptest.NewServer(s.handler(handlers))
	t.Cleanup(s.Close)
	return s
}

// inProcess returns a service without a network and the transport to it, for tests in the time of synctest.
func inProcess(t *testing.T, handlers ...http.HandlerFunc) (*service, *client.Transport) {
	s := &service{Server: &httptest.Server{URL: "http://pay.test"}}
	h := s.handler(handlers)
	return s, transport(t, time.Hour, roundTripper(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		if r.Body == nil {
			r.Body = http.NoBody
		}
		h.ServeHTTP(w, r)
		return w.Result(), r.Context().Err()
	}))
}

type roundTripper func(r *http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (s *service) handler(handlers []http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		n := len(s.seen)
		s.seen = append(s.seen, r.Header.Clone())
		s.mu.Unlock()
		if n < len(handlers) {
			handlers[n](w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Location", "/1")
		w.Header().Set("Set-Cookie", "session=1")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(append([]byte("made of "), body...))
	}
}

// sent are the values that a header had in all requests.
func (s *service) sent(name string) (values []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, header := range s.seen {
		values = append(values, header.Get(name))
	}
	return values
}

// wantOneKey: all requests had the same key, and the same time of the first sending.
func (s *service) wantOneKey(t testing.TB, requests int) {
	t.Helper()
	for _, name := range []string{"Idempotency-Key", "Idempotency-First-Sent"} {
		values := s.sent(name)
		if len(values) != requests || len(slices.Compact(values)) != 1 || values[0] == "" {
			t.Errorf("I18: %d requests were to have one %s: %q", requests, name, values)
		}
	}
}

func fails(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

// transport sends each operation once.
func transport(t testing.TB, window time.Duration, base http.RoundTripper) *client.Transport {
	t.Helper()
	profile := client.ProfileIETF()
	profile.Window = window
	made, err := client.New(client.Config{Base: base, MaxAttempts: 1, Profile: profile})
	must(t, err)
	return made
}
