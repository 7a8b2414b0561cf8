package payments_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/payments/items"
	"github.com/onceward/onceward/examples/payments/monitor"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/dynamodb"
	"github.com/onceward/onceward/storeurl"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

const (
	hookSecret = "the secret of the webhooks"
	testSecret = "a secret of the tests, long enough"
	alice      = "the token of alice"
	bob        = "the token of bob"
	// longest is how long a test waits for something that has to come.
	longest = await.Limit
	// never is longer than any test, and soon is for those that wait for the work in the background.
	never = time.Hour
	soon  = 50 * time.Millisecond
)

// settings are what tests change of a world before it begins.
type settings struct {
	payments.Config
	faults []provider.Rule
	store  []storeurl.Option
	// idle leaves the work in the background out.
	idle bool
	// between stands between the system and the provider, if it is set: it gets the URL of the provider and returns its
	// own.
	between func(url string) string
}

// world is a database, a provider, and a system between them that is reached over HTTP.
type world struct {
	testing.TB
	url      string // of the database
	db       *storeurl.Database
	bank     *provider.Server
	settings settings
	system   *payments.System
	server   *httptest.Server
}

// databases are those that the system runs on, with the same statements.
var databases = []string{"sqlite", "postgres", "mysql"}

// onStores runs a test in a world on each database.
func onStores(t *testing.T, change func(*settings), test func(t *testing.T, w *world)) {
	t.Helper()
	for _, kind := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, storeOf(t, kind), change))
		})
	}
}

// stories are tests that share a world.
type stories map[string]func(w *world)

// onStores runs the stories on each store, all at one time.
func (s stories) onStores(t *testing.T, change func(*settings)) {
	t.Helper()
	onStores(t, change, func(t *testing.T, w *world) {
		for name, story := range s {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				mine := *w
				mine.TB = t
				story(&mine)
			})
		}
	})
}

// storeOf returns the URL of an empty store.
func storeOf(t testing.TB, kind string) string {
	t.Helper()
	switch kind {
	case "postgres":
		return servers.Postgres(t).SchemaURL(t)
	case "mysql":
		return servers.MariaDB(t).DatabaseURL(t)
	case "dynamodb":
		s := servers.DynamoDB(t)
		return "dynamodb://" + s.Name(t) + "?region=eu-central-1&endpoint=" + s.URL()
	default:
		return filepath.Join(t.TempDir(), "payments.db")
	}
}

func newWorld(t testing.TB, url string, change func(*settings)) *world {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	s := settings{
		Config: payments.Config{
			Secret: []byte(testSecret), WebhookSecret: hookSecret,
			Tokens: map[string]string{alice: "alice", bob: "bob"}, Logger: quiet,
			Timing: payments.Timing{
				Lease: 10 * longest, Call: longest, Store: longest, Arrival: 100 * time.Millisecond, Look: never,
				Backoff: 20 * time.Millisecond,
			},
		},
		store: []storeurl.Option{storeurl.WithLogger(quiet)},
	}
	if change != nil {
		change(&s)
	}
	bank, err := provider.Start(context.WithoutCancel(t.Context()), provider.Config{
		Dedup: true, LedgerPath: filepath.Join(t.TempDir(), "ledger"), Faults: provider.Faults{Rules: s.faults},
	})
	must(t, err)
	t.Cleanup(func() { must(t, bank.Close()) })
	s.Provider = bank.URL
	if s.between != nil {
		s.Provider = s.between(bank.URL)
	}
	w := &world{TB: t, url: url, bank: bank, settings: s}
	w.opens()
	bank.SetWebhook(provider.Webhook{URL: w.server.URL + "/events", Secret: hookSecret})
	return w
}

// opens starts the system of the world.
func (w *world) opens() {
	w.Helper()
	if strings.HasPrefix(w.url, "dynamodb:") {
		w.openItems()
	} else {
		db, err := storeurl.Open(w.Context(), w.url, w.settings.store...)
		must(w, err)
		w.Cleanup(func() { _ = db.Close() }) // a test may have closed it
		w.db = db
		w.settings.Database, w.settings.MySQL = db, db.Engine() == storeurl.MySQL
	}
	w.settings.Monitor = newMonitor(w)
	var err error
	w.system, err = payments.New(w.Context(), w.settings.Config)
	must(w, err)
	w.server = httptest.NewServer(w.system)
	w.Cleanup(w.server.Close)
	if !w.settings.idle {
		w.work(w.system)
	}
}

// newMonitor makes a monitor of OpenTelemetry. It is for one system.
func newMonitor(t testing.TB) payments.Monitor {
	t.Helper()
	m, err := monitor.New(monitor.Config{})
	must(t, err)
	return m
}

// openItems opens a store on DynamoDB, with a table for items beside it.
func (w *world) openItems() {
	w.Helper()
	s, err := dynamodb.Open(w.Context(), w.url, dynamodb.WithLogger(w.settings.Logger))
	must(w, err)
	w.Cleanup(func() { must(w, s.Close()) })
	client, err := dynamodb.Client(w.Context(), w.url)
	must(w, err)
	table, _, _ := strings.Cut(strings.TrimPrefix(w.url, "dynamodb://"), "?")
	w.settings.Items = &items.Storage{Store: s, Client: client, Table: table + "_items"}
}

// work lets a system work in the background until the test ends.
func (w *world) work(system *payments.System) {
	ctx, stop := context.WithCancel(context.WithoutCancel(w.Context()))
	done := make(chan error, 1)
	go func() { done <- system.Work(ctx) }()
	w.Cleanup(func() {
		stop()
		must(w, <-done)
	})
}

// beside is another system on the same database and the same provider.
func (w *world) beside(change func(*settings)) *world {
	w.Helper()
	other := *w
	if change != nil {
		change(&other.settings)
	}
	other.opens()
	return &other
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reply is an answer over HTTP.
type reply struct {
	testing.TB
	status int
	header http.Header
	body   string
}

var client = &http.Client{Timeout: longest, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}

// send makes a request; without a token or a key if they are empty. A key cannot have spaces, so they are written as
// dashes.
func (w *world) send(method, path, token, key, body string) reply {
	w.Helper()
	r, err := w.try(method, path, token, key, body)
	must(w, err)
	return r
}

// try is send for goroutines, which must not end a test.
func (w *world) try(method, path, token, key, body string) (reply, error) {
	request, err := http.NewRequestWithContext(w.Context(), method, w.server.URL+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", strings.ReplaceAll(key, " ", "-"))
	}
	return w.do(request)
}

func (w *world) do(request *http.Request) (reply, error) {
	response, err := client.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return reply{w.TB, response.StatusCode, response.Header, string(body)}, err
}

// post sends what alice asks for.
func (w *world) post(path, key, body string) reply {
	w.Helper()
	return w.send(http.MethodPost, path, alice, key, body)
}

// want checks the status and a part of the body.
func (r reply) want(status int, part string) reply {
	r.Helper()
	if r.status != status || !strings.Contains(r.body, part) {
		r.Fatalf("the answer is %d %s, want %d with %q", r.status, r.body, status, part)
	}
	return r
}

// wantReplay checks that an answer is an earlier one, byte for byte.
func (r reply) wantReplay(of reply) {
	r.Helper()
	if r.status != of.status || r.body != of.body || r.header.Get("Idempotent-Replayed") != "true" {
		r.Fatalf("the retry got %d %s %v, want a replay of %d %s", r.status, r.body, r.header, of.status, of.body)
	}
	for _, name := range []string{"Content-Type", "Location"} {
		if r.header.Get(name) != of.header.Get(name) {
			r.Errorf("%s of the retry is %q, want %q", name, r.header.Get(name), of.header.Get(name))
		}
	}
}

// decode reads the body.
func decode[T any](r reply) (value T) {
	r.Helper()
	decoder := json.NewDecoder(strings.NewReader(r.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&value); err != nil {
		r.Fatalf("%v in %s", err, r.body)
	}
	return value
}

// eventually waits for what the background brings.
func (w *world) eventually(what string, done func() bool) {
	w.Helper()
	await.That(w, "the test sees "+what, done)
}

// number asks the database for one.
func (w *world) number(query string, args ...any) (n int) {
	w.Helper()
	must(w, w.db.Reads().QueryRowContext(w.Context(), w.db.Bind(query), args...).Scan(&n))
	return n
}

// wantCharges checks how often the provider has charged for a reference.
func (w *world) wantCharges(reference string, want int) {
	w.Helper()
	if charges := w.bank.Charges(reference); len(charges) != want {
		w.Errorf("there are %d charges for %q, want %d: %+v", len(charges), reference, want, charges)
	}
}
