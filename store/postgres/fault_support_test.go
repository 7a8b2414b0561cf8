package postgres_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

var (
	bothHandles = []handle{pgxHandle, sqlHandle}
	// someHandles are both handles at night. On each change the suite, and the tests of lost commits, run on both.
	someHandles = nightly.Either(bothHandles, bothHandles[:1])
)

// among leaves all cases of a table but these to the night.
func among(t testing.TB, name string, cases ...string) {
	t.Helper()
	if !slices.Contains(cases, name) {
		nightly.Only(t, "other cases of the table run on each change")
	}
}

// site is a schema with a business table, and a way to look into it past every store and every proxy.
type site struct {
	url   string
	admin *pgxpool.Pool
	// options are those that each store of the site is opened with.
	options []postgres.Option
}

func newSite(t testing.TB, server *servers.PostgresServer) *site {
	t.Helper()
	url := server.SchemaURL(t)
	admin, err := pgxpool.New(context.Background(), url)
	must(t, err)
	t.Cleanup(admin.Close)
	exec(t, admin, `CREATE TABLE business (number bigint GENERATED ALWAYS AS IDENTITY, value TEXT NOT NULL)`)
	return &site{url: url, admin: admin}
}

// store opens a store at a URL, which may be that of a proxy, and closes it at the end.
func (s *site) store(t testing.TB, h handle, url string, options ...postgres.Option) *postgres.Store {
	t.Helper()
	store, closeHandle := h.open(t, url, append(options, s.options...)...)
	t.Cleanup(func() {
		must(t, store.Close())
		closeHandle()
	})
	return store
}

func (s *site) wantRows(t testing.TB, value string, want int, rule string) {
	t.Helper()
	var got int
	must(t, s.admin.QueryRow(context.Background(), `SELECT count(*) FROM business WHERE value = $1`, value).Scan(&got))
	if got != want {
		t.Errorf("%s: there are %d rows %q, want %d", rule, got, value, want)
	}
}

// insert adds a row as another system would: in no transaction of the store.
func (s *site) insert(ctx context.Context, value string) (number int64, err error) {
	err = s.admin.QueryRow(ctx, `INSERT INTO business (value) VALUES ($1) RETURNING number`, value).Scan(&number)
	return number, err
}

func accountID(key string) store.ID { return store.ID{Scope: "alice", Key: key} }

// booking asks for a key with a nonce of its own. The payload is the same each time.
func booking(key string) *store.Reservation {
	r := &store.Reservation{
		ID: accountID(key), Operation: "POST /payments",
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{1}}},
		Lease:        time.Minute, Retention: time.Hour,
	}
	_, _ = rand.Read(r.Nonce[:])
	return r
}

// payer is transactional work that adds a row and answers with the number of its run.
type payer struct {
	handle handle
	value  string
	runs   atomic.Int64
	// before is called in each run, if it is there, when the row is written.
	before func(run int64)
}

func (p *payer) work(ctx context.Context, _ store.Verdict) store.Settlement {
	run := p.runs.Add(1)
	if err := p.handle.insert(ctx, p.value); err != nil {
		return store.Settlement{Action: store.TxRollback}
	}
	if p.before != nil {
		p.before(run)
	}
	return store.Settlement{Action: store.TxCommit, Completion: store.Completion{
		Response: store.Response{Status: http.StatusCreated, Body: fmt.Appendf(nil, "run %d", run)},
	}}
}

func (p *payer) wantRuns(t testing.TB, want int64, rule string) {
	t.Helper()
	if got := p.runs.Load(); got != want {
		t.Errorf("%s: the work ran %d times, want %d", rule, got, want)
	}
}

// wantVerdict checks a transaction that has to be decided in the given way, with the answer of the given run.
func wantVerdict(t testing.TB, v store.Verdict, err error, want store.Decision, run int, rule string) {
	t.Helper()
	body := fmt.Sprintf("run %d", run)
	if err != nil || v.Decision != want || v.Record.State != store.StateCompleted ||
		string(v.Record.Response.Body) != body {
		t.Errorf("%s: got %s, %s with %q (%v); want %s, completed with %q",
			rule, v.Decision, v.Record.State, v.Record.Response.Body, err, want, body)
	}
}

func wantNotExecuted(t testing.TB, err error, rule string) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("%s: got %v, want ErrUnavailable", rule, err)
	}
}

// wantWorkRefused checks for an error by which nothing was executed, and which trying again does not mend.
func wantWorkRefused(t testing.TB, err error, rule string) {
	t.Helper()
	if !errors.Is(err, store.ErrWorkRefused) || errors.Is(err, store.ErrUnavailable) ||
		errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("%s: got %v, want ErrWorkRefused", rule, err)
	}
}

func wantStateOf(t testing.TB, s store.Store, key string, want store.State, rule string) {
	t.Helper()
	rec, err := s.Get(context.Background(), accountID(key))
	if err != nil && !errors.Is(err, store.ErrNotFound) || rec.State != want {
		t.Errorf("%s: the record of %q is %s (%v), want %s", rule, key, rec.State, err, want)
	}
}

// matching finds statements by a regular expression. One for COMMIT must not find READ COMMITTED.
func matching(pattern string) func(string) bool {
	return regexp.MustCompile(`(?i)` + pattern).MatchString
}

var isCommit = matching(`\bCOMMIT\b`)

// ofStore finds the statements by which a store reads and writes its tables.
func ofStore(sql string) bool {
	return strings.Contains(sql, "onceward_") && !strings.HasPrefix(sql, "LISTEN")
}

// counting counts the statements of a store that pass a proxy from now on, and leaves them alone.
func counting(proxy *servers.Proxy) *atomic.Int64 {
	passed := new(atomic.Int64)
	proxy.CutRequest(func(sql string) bool {
		if ofStore(sql) {
			passed.Add(1)
		}
		return false
	})
	return passed
}

// awaitCaught waits until the proxy has lost or kept so many.
func awaitCaught(t testing.TB, proxy *servers.Proxy, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	must(t, proxy.AwaitSprung(ctx, n))
}

// testConfig is the configuration of a guard that a busy machine does not make give up.
func testConfig() onceward.Config {
	return onceward.Config{
		Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"),
		Logger: slog.New(slog.DiscardHandler), StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	}
}

func guardOver(t testing.TB, store store.Store) *onceward.Guard {
	t.Helper()
	guard, err := onceward.New(store, testConfig())
	must(t, err)
	return guard
}

// httpReply is what a client sees.
type httpReply struct {
	status int
	header http.Header
	body   string
}

func (r httpReply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// code is that of a problem, or nothing.
func (r httpReply) code() string {
	var p onceward.Problem
	_ = json.Unmarshal([]byte(r.body), &p) // an answer of the handler is no problem
	return p.Code
}

func (r httpReply) want(t testing.TB, status int, replayed bool, rule string) {
	t.Helper()
	if r.status != status || r.replayed() != replayed {
		t.Errorf("%s: got %d, replayed %t, %q; want %d, replayed %t", rule, r.status, r.replayed(), r.body, status, replayed)
	}
}

func (r httpReply) wantProblem(t testing.TB, status int, code, rule string) {
	t.Helper()
	if r.status != status || r.code() != code {
		t.Errorf("%s: got %d %q, want %d %s", rule, r.status, r.body, status, code)
	}
	if status == http.StatusConflict && r.header.Get("Retry-After") == "" {
		t.Errorf("%s: a 409 without Retry-After", rule)
	}
}

// paymentRequest is the same each time but for its key.
func paymentRequest(key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Pattern = "POST /payments" // as a router sets it
	r.Header.Set("Idempotency-Key", key)
	return r
}

// post sends a payment to a handler in this process.
func post(h http.Handler, key string) httpReply {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, paymentRequest(key))
	return httpReply{status: w.Code, header: w.Result().Header, body: w.Body.String()}
}

// oneShot opens a connection for each request, so that the transport repeats none by itself.
var oneShot = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

// send sends a payment over the network.
func send(ctx context.Context, client *http.Client, url, key string, headers ...string) (httpReply, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"amount":1}`))
	if err != nil {
		return httpReply{}, err
	}
	r.Header.Set("Idempotency-Key", key)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := client.Do(r)
	if err != nil {
		return httpReply{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return httpReply{status: res.StatusCode, header: res.Header, body: string(body)}, err
}

func mustSend(t testing.TB, url, key string, headers ...string) httpReply {
	t.Helper()
	r, err := send(t.Context(), oneShot, url, key, headers...)
	must(t, err)
	return r
}

// payingRoute is a transactional route that adds a row named like the key and answers with the number of its run.
func payingRoute(t testing.TB, h handle, store store.Store, options ...onceward.Option) http.Handler {
	t.Helper()
	var runs atomic.Int64
	return guardOver(t, store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.insert(r.Context(), onceward.FromContext(r.Context()).Key()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "run ", runs.Add(1))
	}, append([]onceward.Option{onceward.Transactional()}, options...)...)
}

// holding begins a transaction that holds what a statement takes, until it is rolled back.
func holding(t testing.TB, pool *pgxpool.Pool, statement string) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // if the test did not get that far
	_, err = tx.Exec(t.Context(), statement)
	must(t, err)
	return tx
}
