package stores_test

import (
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/store/storetest"
)

// stopped is a clock that a test moves.
type stopped struct {
	mu  sync.Mutex
	now time.Time
}

func (c *stopped) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stopped) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// TestSealedStoresConform: a sealed store is as good as the store inside, also where that has transactions and an outbox.
func TestSealedStoresConform(t *testing.T) {
	t.Parallel()
	nightly.Only(t, conformanceOfWrappers)
	for name, suite := range map[string]storetest.Harness{
		"sqlite": {
			Open: sqliteInstance,
		},
		"postgres": {
			Open: postgresInstance, Features: storetest.Features{ConcurrentTx: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, suite)
		})
	}
}
