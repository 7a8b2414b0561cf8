package onceward_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

// reserved is the mode of most tests.
var reserved = onceward.Reserved(onceward.FailureUnknown)

var testSecret = []byte("the secret of the tests")

// byToken takes the scope from the bearer token, as a service with authentication would.
func byToken(r *http.Request) (string, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return "", onceward.ErrUnauthenticated
	}
	return token, nil
}

func newGuard(t testing.TB, store store.Store, configure ...func(*onceward.Config)) *onceward.Guard {
	t.Helper()
	config := onceward.Config{
		Scope: byToken, Secret: testSecret, StoreTimeout: await.Limit, Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range configure {
		f(&config)
	}
	guard, err := onceward.New(store, config)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

// aliceID is the ID of a key of the default caller.
func aliceID(key string) store.ID { return store.ID{Scope: "alice", Key: key} }

// counted is a handler that knows how often it ran. Without a function of its own it answers 201 with that number.
type counted struct {
	runs atomic.Int64
	then http.HandlerFunc
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := c.runs.Add(1)
	if c.then != nil {
		c.then(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/payments/"+fmt.Sprint(n))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"execution":%d}`, n)
}

func (c *counted) wantRuns(t testing.TB, rule string, want int64) {
	t.Helper()
	if got := c.runs.Load(); got != want {
		t.Errorf("%s: the handler ran %d times, want %d", rule, got, want)
	}
}

// answer is what a client sees.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header // of one that came over the network
	body    string
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

func (a answer) want(t testing.TB, rule string, status int, replayed bool) {
	t.Helper()
	if a.status != status || a.replayed() != replayed {
		t.Errorf("%s: got %d, replayed %t, body %q; want %d, replayed %t", rule, a.status, a.replayed(), a.body, status,
			replayed)
	}
}

// instance is a random UUID.
var instance = regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// withoutInstance returns the answer without the name of the occurrence, in which all problems differ.
func (a answer) withoutInstance() answer {
	a.body = regexp.MustCompile(`"instance":"urn:uuid:[0-9a-f-]{36}",`).ReplaceAllString(a.body, "")
	return a
}

// wantProblem checks everything that all problems have in common (A1), and returns what was said.
func (a answer) wantProblem(t testing.TB, rule string, status int, code string) onceward.Problem {
	t.Helper()
	var p onceward.Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Errorf("%s: got %d with %q, which is no problem document: %v; want %d %s", rule, a.status, a.body, err,
			status, code)
		return p
	}
	if a.status != status || p.Status != status || p.Code != code {
		t.Errorf("%s: got status %d with problem %+v; want %d %s", rule, a.status, p, status, code)
	}
	if p.Type != onceward.DefaultProblemBase+p.Code || p.Title == "" || !instance.MatchString(p.Instance) {
		t.Errorf("A1: type, title or instance are missing in %s", a.body)
	}
	if got, want := a.header["Link"], "<"+p.Type+`>; rel="describedby"; type="text/html"`; !slices.Contains(got, want) {
		t.Errorf("A1: Link %q, want %s", got, want)
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("A1: Content-Type %q", got)
	}
	if got := a.header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("A1: Cache-Control %q", got)
	}
	return p
}

func (a answer) wantSame(t testing.TB, rule string, other answer) {
	t.Helper()
	if a.status != other.status || a.body != other.body ||
		a.header.Get("Content-Type") != other.header.Get("Content-Type") {
		t.Errorf("%s: got %d %q, want the same as %d %q", rule, a.status, a.body, other.status, other.body)
	}
}

// edit changes a request before it is sent.
type edit func(*http.Request)

func withHeader(name string, values ...string) edit {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
}

func as(caller string) edit { return withHeader("Authorization", "Bearer "+caller) }

// newRequest is a request of alice, to be served in this process. An empty key sends none.
func newRequest(method, target, key, body string, edits ...edit) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Pattern = "/" // as of a router; one that is there sets its own
	prepare(r, key, edits)
	return r
}

func prepare(r *http.Request, key string, edits []edit) {
	r.Header.Set("Authorization", "Bearer alice")
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, f := range edits {
		f(r)
	}
}

// serve lets a handler answer in this process.
func serve(h http.Handler, r *http.Request) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{status: w.Code, header: w.Result().Header, body: w.Body.String()}
}

// post is a POST of alice to /payments, served in this process.
func post(h http.Handler, key, body string, edits ...edit) answer {
	return serve(h, newRequest(http.MethodPost, "/payments", key, body, edits...))
}

// routed lets a handler be called as by a router, which sets the pattern.
func routed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Pattern = "/"
		h.ServeHTTP(w, r)
	})
}

// startServer serves on loopback until the test ends.
func startServer(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(routed(h))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// send is a POST of alice to /payments over the network.
func send(t testing.TB, server *httptest.Server, key, body string, edits ...edit) answer {
	t.Helper()
	a, err := trySend(t.Context(), server, key, body, edits...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func trySend(ctx context.Context, server *httptest.Server, key, body string, edits ...edit) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/payments", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	prepare(r, key, edits)
	res, err := server.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, trailer: res.Trailer, body: string(content)}, err
}

// faultyStore is the memory store with faults: a hook that is set is called instead of the method of its name.
type faultyStore struct {
	*memory.Store
	reserve    func(ctx context.Context, r *store.Reservation) (store.Verdict, error)
	extend     func(ctx context.Context, c store.Claim, lease time.Duration) error
	checkpoint func(ctx context.Context, c store.Claim, p store.Checkpoint) error
	complete   func(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error)
	release    func(ctx context.Context, c store.Claim, reason string) error
	abandon    func(ctx context.Context, c store.Claim, reason string) error
	reject     func(ctx context.Context, c store.Claim) error
	get        func(ctx context.Context, id store.ID) (store.Record, error)
}

func newFaultyStore() *faultyStore { return &faultyStore{Store: memory.New()} }

func (s *faultyStore) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	if s.reserve != nil {
		return s.reserve(ctx, r)
	}
	return s.Store.Reserve(ctx, r)
}

func (s *faultyStore) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if s.extend != nil {
		return s.extend(ctx, c, lease)
	}
	return s.Store.Extend(ctx, c, lease)
}

func (s *faultyStore) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	if s.checkpoint != nil {
		return s.checkpoint(ctx, c, p)
	}
	return s.Store.Checkpoint(ctx, c, p)
}

func (s *faultyStore) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	if s.complete != nil {
		return s.complete(ctx, c, done)
	}
	return s.Store.Complete(ctx, c, done)
}

func (s *faultyStore) Release(ctx context.Context, c store.Claim, reason string) error {
	if s.release != nil {
		return s.release(ctx, c, reason)
	}
	return s.Store.Release(ctx, c, reason)
}

func (s *faultyStore) Abandon(ctx context.Context, c store.Claim, reason string) error {
	if s.abandon != nil {
		return s.abandon(ctx, c, reason)
	}
	return s.Store.Abandon(ctx, c, reason)
}

func (s *faultyStore) Reject(ctx context.Context, c store.Claim) error {
	if s.reject != nil {
		return s.reject(ctx, c)
	}
	return s.Store.Reject(ctx, c)
}

func (s *faultyStore) Get(ctx context.Context, id store.ID) (store.Record, error) {
	if s.get != nil {
		return s.get(ctx, id)
	}
	return s.Store.Get(ctx, id)
}

// errDown is the error of a store that cannot answer.
var errDown = fmt.Errorf("%w: the test pulled the plug", store.ErrUnavailable)

// stateOf is the state that a key of alice is in.
func stateOf(t testing.TB, s store.Store, key string) store.State {
	t.Helper()
	rec, err := s.Get(context.Background(), aliceID(key))
	if err == store.ErrNotFound {
		return store.StateNone
	}
	if err != nil {
		t.Fatal(err)
	}
	return rec.State
}

func wantState(t testing.TB, rule string, store store.Store, key string, want store.State) {
	t.Helper()
	if got := stateOf(t, store, key); got != want {
		t.Errorf("%s: the record is %s, want %s", rule, got, want)
	}
}

// wantNothingStored checks that no record came into being.
func wantNothingStored(t testing.TB, rule string, s store.Lister) {
	t.Helper()
	records, err := s.List(context.Background(), store.Filter{})
	if err != nil || len(records) != 0 {
		t.Errorf("%s: %d records, error %v; want none", rule, len(records), err)
	}
}

// journal is an observer that remembers.
type journal struct {
	mu     sync.Mutex
	events []onceward.ObserverEvent
}

func (j *journal) Observe(_ context.Context, e onceward.ObserverEvent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

func observed[T onceward.ObserverEvent](j *journal) (found []T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		if event, ok := e.(T); ok {
			found = append(found, event)
		}
	}
	return found
}

func observedBy(j *journal) func(*onceward.Config) {
	return func(c *onceward.Config) { c.Observer = j }
}
