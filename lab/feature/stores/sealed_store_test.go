package stores_test

import (
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/store/storetest"
)

// TestSealedStoresConform: a sealed store is as good as the store inside, also where that has transactions and an
// outbox.
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
