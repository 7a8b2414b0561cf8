package storetest_test

import (
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
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
	nightly.Only(t, "it waits for many leases; TestMemoryOnAClockThatJumps waits for few")
	storetest.Run(t, storetest.Harness{
		Open: func(testing.TB) storetest.Instance { return storetest.Instance{Store: memory.New()} },
	})
}

// TestMemoryOnAClockThatJumps runs the suite as it runs on a server whose machine stands still now and then, for longer
// than the leases and retentions that are meant to run out: no verdict of the suite may rest on how fast a machine is.
func TestMemoryOnAClockThatJumps(t *testing.T) {
	for name, jump := range map[string]func() time.Duration{
		"at each look": func() time.Duration { return 45 * time.Millisecond },
		"now and then": func() time.Duration {
			return time.Duration(max(0, rand.IntN(800)-600)) * time.Millisecond
		},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{Open: func(testing.TB) storetest.Instance {
				var ahead atomic.Int64
				return storetest.Instance{Store: memory.New(memory.WithClock(func() time.Time {
					return time.Now().Add(time.Duration(ahead.Add(int64(jump()))))
				}))}
			}})
		})
	}
}

func BenchmarkMemory(b *testing.B) { storetest.Bench(b, harness) }
