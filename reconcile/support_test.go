package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

const transfers = "POST /transfers"

var (
	errDown = fmt.Errorf("%w: the test pulled the plug", store.ErrUnavailable)
	quiet   = slog.New(slog.DiscardHandler)
	paid    = store.Response{Status: 201, Body: []byte("paid")}
	zoe     = reconcile.By{Who: "zoe", Why: "the bank told me"}
)

// guard derives the downstream keys of the tests, and guardSecret is the id of its secret, as records keep it.
var guard, guardSecret = newGuard("the secret of the tests")

func newGuard(secret string) (*onceward.Guard, uint32) {
	s, ctx := memory.New(), context.Background()
	guard, err := onceward.New(s, onceward.Config{Secret: []byte(secret), Logger: quiet})
	if err != nil {
		panic(err)
	}
	_, err = guard.Do(ctx, onceward.Call{Key: "k", Operation: "nothing"},
		func(context.Context) ([]byte, error) { return nil, nil },
		onceward.Reserved(onceward.FailureUnknown))
	if err != nil {
		panic(err)
	}
	rec, err := s.Get(ctx, store.ID{Key: "k"})
	if err != nil {
		panic(err)
	}
	return guard, rec.DownstreamSecret
}

// downstreamKey returns the downstream key of a step of a key.
func downstreamKey(key, step string) string {
	derived, err := guard.DownstreamKey(&store.Record{ID: idOf(key), DownstreamSecret: guardSecret}, step)
	if err != nil {
		panic(err)
	}
	return derived
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inTime runs a test whose time passes only while all goroutines wait.
func inTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

func idOf(key string) store.ID { return store.ID{Scope: "tenant", Key: key} }

// start gives the right to execute: the first time, or again after a release.
func start(t *testing.T, store store.Store, operation, key string) store.Claim {
	t.Helper()
	return startIn(t, store, operation, idOf(key))
}

func startIn(t *testing.T, s store.Store, operation string, id store.ID) store.Claim {
	t.Helper()
	v, err := s.Reserve(t.Context(), &store.Reservation{
		ID: id, Operation: operation, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
		Lease: time.Minute, Retention: 24 * time.Hour, DownstreamSecret: guardSecret,
	})
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("the reservation of %s got %s, %v", id.Key, v.Decision, err)
	}
	return store.Claim{ID: id, Attempt: v.Record.Attempt}
}

// lose makes a record whose outcome is unknown, and which is due.
func lose(t *testing.T, store store.Store, key string) store.Claim {
	t.Helper()
	return loseAt(t, store, transfers, key)
}

func loseAt(t *testing.T, store store.Store, operation, key string) store.Claim {
	t.Helper()
	return abandon(t, store, start(t, store, operation, key))
}

// loseIn is lose for a record of any scope.
func loseIn(t *testing.T, store store.Store, id store.ID) {
	t.Helper()
	abandon(t, store, startIn(t, store, transfers, id))
}

func abandon(t *testing.T, store store.Store, claim store.Claim) store.Claim {
	t.Helper()
	must(t, store.Abandon(t.Context(), claim, "no answer came"))
	return claim
}

func record(t *testing.T, store store.Store, key string) store.Record {
	t.Helper()
	rec, err := store.Get(t.Context(), idOf(key))
	must(t, err)
	return rec
}

func wantState(t *testing.T, store store.Store, key string, want store.State) {
	t.Helper()
	if rec := record(t, store, key); rec.State != want {
		t.Fatalf("%s is %s (%s), want %s", key, rec.State, rec.LastError, want)
	}
}

// wantUntouched makes sure that no poller has asked after a record, as far as the record knows.
func wantUntouched(t *testing.T, s store.Store, key string) {
	t.Helper()
	rec := record(t, s, key)
	if rec.State != store.StateUnknown || rec.ReconcileCount != 0 || rec.LastError != "no answer came" ||
		rec.ReconcileAt.After(time.Now()) {
		t.Errorf("%s is %s after %d attempts, due %s, %q, want it as it was", key, rec.State, rec.ReconcileCount,
			rec.ReconcileAt, rec.LastError)
	}
}

// newPoller returns a poller with one rule for all operations, unless there are rules.
func newPoller(t *testing.T, store store.Store, rule reconcile.Rule, config reconcile.Config) *reconcile.Poller {
	t.Helper()
	if config.Rules == nil && config.DefaultRule == nil {
		config.Rules = map[string]reconcile.Rule{transfers: rule}
	}
	if config.Logger == nil {
		config.Logger = quiet
	}
	poller, err := reconcile.NewPoller(guard, store, config)
	must(t, err)
	return poller
}

func ask(t *testing.T, poller *reconcile.Poller, key string, want reconcile.Report) {
	t.Helper()
	if got, err := poller.Reconcile(t.Context(), idOf(key)); err != nil || got != want {
		t.Fatalf("asking after %s came to %+v, %v, want %+v", key, got, err, want)
	}
}

func run(t *testing.T, poller *reconcile.Poller, want reconcile.Report) {
	t.Helper()
	if got, err := poller.RunOnce(t.Context()); err != nil || got != want {
		t.Fatalf("a run came to %+v, %v, want %+v", got, err, want)
	}
}

// oracle is a resolver that counts its questions. Without a function it knows nothing.
type oracle struct {
	answer func(ctx context.Context, rec *store.Record) (reconcile.Answer, error)

	mu    sync.Mutex
	asked []string
}

func (o *oracle) Resolve(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
	o.mu.Lock()
	o.asked = append(o.asked, rec.Key)
	o.mu.Unlock()
	if o.answer == nil {
		return reconcile.StillUnknown("the bank is still at it"), nil
	}
	return o.answer(ctx, rec)
}

func (o *oracle) wantAsked(t *testing.T, want int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.asked) != want {
		t.Fatalf("the resolver was asked %d times (%s), want %d", len(o.asked), o.asked, want)
	}
}

// always is a resolver with one answer.
func always(a reconcile.Answer) *oracle {
	return &oracle{answer: func(context.Context, *store.Record) (reconcile.Answer, error) { return a, nil }}
}

// journal collects an observer's events.
type journal struct {
	mu     sync.Mutex
	events []reconcile.ReconciledEvent
}

func (j *journal) Observe(_ context.Context, e onceward.ObserverEvent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e.(reconcile.ReconciledEvent))
}

func (j *journal) outcomes() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var words []string
	for _, e := range j.events {
		words = append(words, e.Outcome)
	}
	return strings.Join(words, ", ")
}

// faulty is a store whose calls can be made to do something else first. A call that is given an error ends with it.
type faulty struct {
	*memory.Store
	before func(call string) error
}

func (f *faulty) fails(call string) error {
	if f.before == nil {
		return nil
	}
	return f.before(call)
}

func (f *faulty) Get(ctx context.Context, id store.ID) (store.Record, error) {
	if err := f.fails("get"); err != nil {
		return store.Record{}, err
	}
	return f.Store.Get(ctx, id)
}

func (f *faulty) List(ctx context.Context, filter store.Filter) ([]store.Record, error) {
	if err := f.fails("list"); err != nil {
		return nil, err
	}
	return f.Store.List(ctx, filter)
}

func (f *faulty) AddAudit(ctx context.Context, e store.AuditEntry) error {
	if err := f.fails("audit"); err != nil {
		return err
	}
	return f.Store.AddAudit(ctx, e)
}

func (f *faulty) ExternalEvents(ctx context.Context, filter store.ExternalEventFilter) ([]store.ExternalEvent, error) {
	if err := f.fails("external events"); err != nil {
		return nil, err
	}
	return f.Store.ExternalEvents(ctx, filter)
}

func (f *faulty) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	if err := f.fails("resolve"); err != nil {
		return err
	}
	return f.Store.ResolveCompleted(ctx, c, done)
}

// Postpone ends also when its context has ended, as a write does that is under way.
func (f *faulty) Postpone(ctx context.Context, c store.Claim, p store.Postponement) error {
	return f.Store.Postpone(context.WithoutCancel(ctx), c, p)
}

// audit returns the audit of a key, one line for each act, without unsuccessful attempts.
func audit(t *testing.T, auditor store.Auditor, key string) string {
	t.Helper()
	entries, err := auditor.Audit(t.Context(), idOf(key))
	must(t, err)
	var lines []string
	for _, e := range entries {
		if strings.HasPrefix(e.Action, "reconcile attempt ") {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s: %s, %s [%s]", e.Actor, e.Action, e.Reason, e.Outcome))
	}
	return strings.Join(lines, "\n")
}

// giveUp makes a dead letter of an unknown record.
func giveUp(t *testing.T, s store.Reconciler, c store.Claim) {
	t.Helper()
	must(t, s.BeginReconcile(t.Context(), c, 0, time.Hour))
	must(t, s.Postpone(t.Context(), c, store.Postponement{Count: 1, Wait: time.Hour, MaxAttempts: 1, Reason: "gave up"}))
}
