package storetest

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// frontMutants are the promises that a front can break.
var frontMutants = []string{
	"tombstones keep nothing out", "tombstones do not end", "what is invalidated stays", "a later value is taken",
	"ends do not count", "the clock runs ahead", "the clock stands still", "long names are cut", "scope and key run together",
	"a shorter tombstone is taken",
}

// brokenFront is a front in memory that breaks a promise.
type brokenFront struct {
	*tiered.Memory
	broken string
	start  time.Time
	forgot atomic.Int64 // how often it has forgotten all that it holds
}

func (f *brokenFront) name(id store.ID) store.ID {
	switch {
	case f.broken == "long names are cut" && len(id.Key) > 250:
		id.Key = id.Key[:250]
	case f.broken == "scope and key run together":
		id = store.ID{Key: id.Scope + id.Key}
	case f.broken == "a shorter tombstone is taken":
		id.Scope += fmt.Sprint("\x00", f.forgot.Load())
	}
	return id
}

func (f *brokenFront) Now() time.Time {
	switch f.broken {
	case "the clock runs ahead":
		return f.Memory.Now().Add(time.Second)
	case "the clock stands still":
		return f.start
	default:
		return f.Memory.Now()
	}
}

func (f *brokenFront) Get(ctx context.Context, id store.ID) ([]byte, error) {
	return f.Memory.Get(ctx, f.name(id))
}

func (f *brokenFront) Add(ctx context.Context, id store.ID, value []byte, end time.Time) error {
	switch f.broken {
	case "a later value is taken":
		if held, _ := f.Memory.Get(ctx, id); len(held) > 0 {
			_ = f.Memory.Invalidate(ctx, id, 0)
		}
	case "ends do not count":
		end = end.Add(2 * calm)
	}
	return f.Memory.Add(ctx, f.name(id), value, end)
}

func (f *brokenFront) Invalidate(ctx context.Context, id store.ID, lasting time.Duration) error {
	switch f.broken {
	case "tombstones keep nothing out":
		lasting = 0
	case "tombstones do not end":
		lasting += calm
	case "a shorter tombstone is taken":
		if lasting < calm {
			f.forgot.Add(1)
		}
	case "what is invalidated stays":
		return nil
	}
	return f.Memory.Invalidate(ctx, f.name(id), lasting)
}

// TestFronts shows that the suite passes a front that keeps what it promises.
func TestFronts(t *testing.T) {
	t.Parallel()
	open := func(clock func() time.Time) tiered.Front {
		memory := tiered.NewMemory(tiered.MemoryConfig{Clock: clock})
		if broken := os.Getenv(mutantVariable); broken != "" {
			return &brokenFront{Memory: memory, broken: broken, start: clock()}
		}
		return memory
	}
	t.Run("memory", func(t *testing.T) {
		RunFront(t, func(testing.TB) FrontInstance {
			var moved atomic.Int64
			return FrontInstance{
				Front:   open(func() time.Time { return time.Unix(1_800_000_000, 0).Add(time.Duration(moved.Load())) }),
				Advance: func(d time.Duration) { moved.Add(int64(d)) },
			}
		})
	})
	t.Run("real clock", func(t *testing.T) {
		RunFront(t, func(testing.TB) FrontInstance { return FrontInstance{Front: open(time.Now)} })
	})
}

var failedFrontTest = regexp.MustCompile(`(?m)^\s+--- FAIL: TestFronts/\w+/front/(\S+)`)

// TestFrontMutants shows that the suite fails fronts that break a promise.
func TestFrontMutants(t *testing.T) {
	t.Parallel()
	for _, broken := range frontMutants {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			run := proctest.Run(t, proc.Self(mutantVariable, broken, "-test.run=^TestFronts$/^memory$"))
			caught := failedFrontTest.FindStringSubmatch(run.Stdout + run.Stderr)
			if run.Code == 0 || caught == nil {
				t.Fatalf("a front that breaks this promise passed:\n%s%s", run.Stdout, run.Stderr)
			}
			t.Logf("caught by %s", caught[1])
		})
	}
}
