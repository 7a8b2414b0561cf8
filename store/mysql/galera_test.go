package mysql_test

import (
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/storetest"
)

// TestStoreOnGalera spreads the calls over three nodes: each goes to the next one. `make test-engines` runs all.
func TestStoreOnGalera(t *testing.T) {
	t.Parallel()
	among := &grounds{run: t, url: func(t testing.TB) string { return servers.SharedGalera(t).DatabaseURL(t) }}
	storetest.Run(t, storetest.Harness{
		Features: storetest.Features{ConcurrentTx: true},
		Groups:   servers.UnlessAllStores("Races", "Fencing"),
		Open:     func(t testing.TB) storetest.Instance { return instance(t, among, mysql.Spread) },
	})
}
