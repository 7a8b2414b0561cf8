package unknown_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(servers.Tests{M: m})) }

const transfers = "POST /transfers"

var (
	quiet = slog.New(slog.DiscardHandler)
	paid  = store.Response{Status: 201, Body: []byte("paid")}
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func idOf(key string) store.ID { return store.ID{Scope: "tenant", Key: key} }

func newGuard(t *testing.T, s store.Store) *onceward.Guard {
	t.Helper()
	guard, err := onceward.New(s, onceward.Config{
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, Logger: quiet,
	})
	must(t, err)
	return guard
}

// lose makes a record whose outcome is unknown, and which is due. What is given is done in the attempt, with
// the key that the other system is sent.
func lose(t *testing.T, guard *onceward.Guard, key string, during ...func(downstreamKey string)) {
	t.Helper()
	id := idOf(key)
	call := onceward.Call{Scope: id.Scope, Key: id.Key, Operation: transfers}
	_, err := guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
		for _, do := range during {
			do(onceward.FromContext(ctx).DownstreamKey("transfer"))
		}
		return nil, errors.New("no answer came")
	}, onceward.Reserved(onceward.FailureUnknown))
	if !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Fatalf("%s ended in %v, want its outcome unknown", key, err)
	}
}

func record(t *testing.T, s store.Store, key string) store.Record {
	t.Helper()
	rec, err := s.Get(t.Context(), idOf(key))
	must(t, err)
	return rec
}

func newPoller(
	t *testing.T, guard *onceward.Guard, s store.Store, rule reconcile.Rule, config reconcile.Config,
) *reconcile.Poller {
	t.Helper()
	config.Rules, config.Logger = map[string]reconcile.Rule{transfers: rule}, quiet
	poller, err := reconcile.NewPoller(guard, s, config)
	must(t, err)
	return poller
}

// bank is a resolver that counts the questions about each key.
type bank struct {
	answer func(ctx context.Context, rec *store.Record) (reconcile.Answer, error)

	mu sync.Mutex
	// attempts are the numbers of the questions, by key.
	attempts map[string][]int
}

// Resolve implements [reconcile.Resolver].
func (b *bank) Resolve(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
	b.mu.Lock()
	if b.attempts == nil {
		b.attempts = make(map[string][]int)
	}
	b.attempts[rec.Key] = append(b.attempts[rec.Key], rec.ReconcileCount)
	b.mu.Unlock()
	return b.answer(ctx, rec)
}
