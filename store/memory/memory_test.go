package memory_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(watchdog.Over(m).Run()) }

// harness opens stores whose clocks stand still until the suite moves them.
var harness = storetest.Harness{
	Open: func(testing.TB) storetest.Instance {
		var clock atomic.Int64
		clock.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
		return storetest.Instance{
			Store:   memory.New(memory.WithClock(func() time.Time { return time.UnixMicro(clock.Load()).UTC() })),
			Advance: func(d time.Duration) { clock.Add(d.Microseconds()) },
		}
	},
	Features: storetest.Features{
		Waits: true, Sweeps: true, Reaps: true, Reconciles: true, Busts: true, Lists: true, Findings: true, Notices: true,
		Audits: true, Clock: true,
	},
}

func TestStore(t *testing.T) { storetest.Run(t, harness) }

// TestStoreOnTheRealClock runs the suite as it runs on a server, whose clock nobody can move.
func TestStoreOnTheRealClock(t *testing.T) {
	onRealClock := harness
	onRealClock.Features.Clock = false
	onRealClock.Open = func(testing.TB) storetest.Instance { return storetest.Instance{Store: memory.New()} }
	storetest.Run(t, onRealClock)
}

func BenchmarkStore(b *testing.B) { storetest.Bench(b, harness) }
