package storetest_test

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

// harness opens stores in memory whose clocks stand still until the suite moves them. That it is the model of all
// stores is proven here and not beside it, because its module does not depend on this one.
var harness = storetest.Harness{
	Open: func(testing.TB) storetest.Instance {
		var clock atomic.Int64
		clock.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
		return storetest.Instance{
			Store:   memory.New(memory.WithClock(func() time.Time { return time.UnixMicro(clock.Load()).UTC() })),
			Advance: func(d time.Duration) { clock.Add(d.Microseconds()) },
		}
	},
}

func TestMemory(t *testing.T) { storetest.Run(t, harness) }

// TestMemoryOnTheRealClock runs the suite as it runs on a server, whose clock no test can move.
func TestMemoryOnTheRealClock(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(testing.TB) storetest.Instance { return storetest.Instance{Store: memory.New()} },
	})
}

func BenchmarkMemory(b *testing.B) { storetest.Bench(b, harness) }
