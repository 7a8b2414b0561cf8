package boltstore_test

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/boltstore"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/storetest"
)

// TestStore proves the store. Its clock stands still until the suite moves it, and a restart opens the file again.
func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) storetest.Instance {
			var clock atomic.Int64
			clock.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
			now := func() time.Time { return time.UnixMicro(clock.Load()).UTC() }
			file := filepath.Join(t.TempDir(), "onceward.bolt")
			s := open(t, file, now)
			return storetest.Instance{
				Store:   s,
				Advance: func(d time.Duration) { clock.Add(d.Microseconds()) },
				Reopen: func(t testing.TB) store.Store {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = open(t, file, now)
					return s
				},
			}
		},
	})
}

// TestStoreOnTheRealClock runs what depends on time as it runs on a server, whose clock no test can move.
func TestStoreOnTheRealClock(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Groups: []string{"Expiry", "Lost", "Repeats"},
		Open: func(t testing.TB) storetest.Instance {
			return storetest.Instance{Store: open(t, filepath.Join(t.TempDir(), "onceward.bolt"), time.Now)}
		},
	})
}

func open(t testing.TB, file string, now func() time.Time) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(file, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
