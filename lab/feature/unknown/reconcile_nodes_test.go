package unknown_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// nodeStore is a store as one node has it.
type nodeStore interface {
	store.Store
	Close() error
}

// onNodes runs a test with the stores of several nodes, which are on one database.
func onNodes(t *testing.T, nodes int, test func(t *testing.T, stores []store.Store)) {
	t.Helper()
	for name, database := range map[string]func(t *testing.T) func() (nodeStore, error){
		"sqlite": func(t *testing.T) func() (nodeStore, error) {
			file := filepath.Join(t.TempDir(), "records.db")
			return func() (nodeStore, error) { return sqlite.Open(t.Context(), file) }
		},
		"postgres": func(t *testing.T) func() (nodeStore, error) {
			url := servers.Postgres(t).SchemaURL(t)
			return func() (nodeStore, error) { return postgres.Open(t.Context(), url) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := database(t)
			var stores []store.Store
			for range nodes {
				store, err := open()
				must(t, err)
				t.Cleanup(func() { _ = store.Close() })
				stores = append(stores, store)
			}
			test(t, stores)
		})
	}
}

// TestFiveNodes: five pollers that look all the time ask as often about a record as one does, and with the same pauses.
// Each attempt is made once, and by one of them (B6).
func TestFiveNodes(t *testing.T) {
	t.Parallel()
	onNodes(t, 5, func(t *testing.T, stores []store.Store) {
		const records, limit, pause = 4, 6, 200 * time.Millisecond
		guard := newGuard(t, stores[0])
		for i := range records {
			lose(t, guard, fmt.Sprint("k", i))
		}
		began := time.Now()
		asked := &bank{answer: func(ctx context.Context, _ *store.Record) (reconcile.Answer, error) {
			select { // long enough for the other nodes to look
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
			return reconcile.StillUnknown("the bank is still at it"), nil
		}}
		// Not a context that ends: drivers close a connection that is in a query later than the test waits.
		var over atomic.Bool
		var nodes sync.WaitGroup
		defer nodes.Wait()
		defer over.Store(true)
		for _, store := range stores {
			poller := newPoller(t, newGuard(t, store), store, reconcile.Rule{Resolver: asked}, reconcile.Config{
				MinBackoff: pause, MaxBackoff: pause, MaxAttempts: limit, Timeout: await.Limit,
			})
			nodes.Go(func() {
				for !over.Load() {
					if _, err := poller.RunOnce(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for i := range records {
			key := fmt.Sprint("k", i)
			await.That(t, key+" is given up", func() bool { return record(t, stores[0], key).DeadLetter })
		}
		// There are as many pauses as attempts but one, and half of each may be left out.
		if took, least := time.Since(began), (limit-1)*pause/2; took < least {
			t.Errorf("they were given up after %s, want the pauses of one node, %s at least", took, least)
		}
		over.Store(true)
		nodes.Wait()
		for i := range records {
			key := fmt.Sprint("k", i)
			if got, want := fmt.Sprint(asked.attempts[key]), "[1 2 3 4 5 6]"; got != want {
				t.Errorf("%s was asked after at the attempts %s, want %s", key, got, want)
			}
		}
	})
}
