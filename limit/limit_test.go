package limit_test

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

func newLimiter(t testing.TB, config limit.Config) *limit.Limiter {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	l, err := limit.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const day = 24 * time.Hour

// takeAll takes keys until one is refused, and returns how many there were, and the refusal.
func takeAll(t testing.TB, l *limit.Limiter, scope string) (n int, refused *onceward.LimitError) {
	t.Helper()
	for {
		if refused = l.TakeKey(t.Context(), scope, day); refused != nil {
			return n, refused
		}
		if n++; n > 1_000_000 {
			t.Fatal("L1: there is no limit")
		}
	}
}

func wantTaken(t testing.TB, l *limit.Limiter, scope string, want int, name string, after time.Duration) {
	t.Helper()
	n, refused := takeAll(t, l, scope)
	if n != want || refused.Name != name || (refused.After-after).Abs() > time.Microsecond {
		t.Errorf("L1: %s took %d keys, then: %v; want %d, then %s with %s", scope, n, refused, want, name, after)
	}
}

// TestRateOfNewKeys: the limit can be used at once, and comes back evenly; one scope does not feel another.
func TestRateOfNewKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Limits: limit.Limits{NewKeys: limit.Rate{Limit: 60, Window: time.Minute}}})
		wantTaken(t, l, "alice", 60, onceward.LimitNewKeys, time.Second)
		wantTaken(t, l, "bob", 60, onceward.LimitNewKeys, time.Second)
		time.Sleep(time.Second / 2)
		wantTaken(t, l, "alice", 0, onceward.LimitNewKeys, time.Second/2)
		time.Sleep(time.Second / 2)
		wantTaken(t, l, "alice", 1, onceward.LimitNewKeys, time.Second)
		time.Sleep(10 * time.Second)
		wantTaken(t, l, "alice", 10, onceward.LimitNewKeys, time.Second)
		time.Sleep(time.Hour)
		wantTaken(t, l, "alice", 60, onceward.LimitNewKeys, time.Second)
		l.ReturnKey("alice", day, false)
		l.ReturnKey("alice", day, false)
		wantTaken(t, l, "alice", 2, onceward.LimitNewKeys, time.Second)
	})
}

// TestActiveKeys: they count for their retention, and a sixteenth of it longer at most.
func TestActiveKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Limits: limit.Limits{ActiveKeys: 100}})
		time.Sleep(time.Hour)
		for range 50 {
			if refused := l.TakeKey(t.Context(), "alice", day); refused != nil {
				t.Fatal(refused)
			}
		}
		time.Sleep(12 * time.Hour)
		const part = day / 16
		wantTaken(t, l, "alice", 50, onceward.LimitActiveKeys, 12*time.Hour+part-time.Hour)
		l.ReturnKey("alice", day, false)
		wantTaken(t, l, "alice", 1, onceward.LimitActiveKeys, 12*time.Hour+part-time.Hour)
		time.Sleep(12 * time.Hour)
		if refused := l.TakeKey(t.Context(), "alice", day); refused == nil {
			t.Error("L1: a key was counted out before it expired")
		}
		time.Sleep(part)
		n, _ := takeAll(t, l, "alice")
		if n != 50 {
			t.Errorf("L1: when the first 50 keys have expired there is room for %d", n)
		}
		if refused := l.TakeKey(t.Context(), "bob", day); refused != nil {
			t.Error(refused)
		}
	})
}

// TestUndoneKeys: a key whose work was undone makes room among the active keys, and stays used of the rate.
func TestUndoneKeys(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]limit.Counters{"local": nil, "shared": newCounters()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, limit.Config{Counters: shared, Limits: limit.Limits{
					NewKeys: limit.Rate{Limit: 5, Window: 1000 * time.Hour}, ActiveKeys: 3,
				}})
				for range 3 {
					if refused := l.TakeKey(t.Context(), "alice", day); refused != nil {
						t.Fatal(refused)
					}
				}
				l.ReturnKey("alice", day, true)
				l.ReturnKey("alice", day, true)
				l.ReturnKey("alice", day, true)
				time.Sleep(time.Minute)
				for range 2 {
					if refused := l.TakeKey(t.Context(), "alice", day); refused != nil {
						t.Errorf("L1: keys that were undone still count: %v", refused)
					}
				}
				if refused := l.TakeKey(t.Context(), "alice", day); refused == nil || refused.Name != onceward.LimitNewKeys {
					t.Errorf("L1: after 5 runs of 5 the next is refused by %v, want the rate of new keys", refused)
				}
			})
		})
	}
}

// TestCountedOut: a key that is gone before its time makes room, and it is the oldest.
func TestCountedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Limits: limit.Limits{ActiveKeys: 2}})
		_ = l.TakeKey(t.Context(), "alice", day)
		time.Sleep(12 * time.Hour)
		_ = l.TakeKey(t.Context(), "alice", day)
		if err := l.CountOut(t.Context(), "alice"); err != nil {
			t.Error(err)
		}
		if n, _ := takeAll(t, l, "alice"); n != 1 {
			t.Errorf("B3: a dead letter makes room for %d keys", n)
		}
		time.Sleep(14 * time.Hour)
		if n, _ := takeAll(t, l, "alice"); n != 0 {
			t.Errorf("L1: %d keys more when the one expires that was counted out", n)
		}
	})
}

// TestBothLimits: what one of them refuses is not taken from the other.
func TestBothLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := limit.Limits{ActiveKeys: 5, NewKeys: limit.Rate{Limit: 10, Window: 10 * time.Second}}
		l := newLimiter(t, limit.Config{For: func(string) limit.Limits { return limits }})
		n, refused := takeAll(t, l, "alice")
		if n != 5 || refused.Name != onceward.LimitActiveKeys || refused.Limit != 5 || refused.Window != 0 {
			t.Errorf("L1: %d keys, then %+v", n, refused)
		}
		limits.ActiveKeys = 100
		n, refused = takeAll(t, l, "alice")
		if n != 5 || refused.Name != onceward.LimitNewKeys || refused.Limit != 10 || refused.Window != 10*time.Second {
			t.Errorf("L1: %d keys, then %+v", n, refused)
		}
		limits.NewKeys.Limit = 1000
		if n, _ := takeAll(t, l, "alice"); n != 90 {
			t.Errorf("L1: %d keys, want 90", n)
		}
	})
}

// TestLimitsChangeAtRunTime: a scope that is given more has it at once, and one that is given less waits.
func TestLimitsChangeAtRunTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		plan := map[string]int{"free": 10, "paid": 1000}
		l := newLimiter(t, limit.Config{For: func(scope string) limit.Limits {
			return limit.Limits{NewKeys: limit.Rate{Limit: plan[scope], Window: time.Minute}}
		}})
		if n, _ := takeAll(t, l, "free"); n != 10 {
			t.Errorf("L1: %d keys of the free plan", n)
		}
		if n, _ := takeAll(t, l, "paid"); n != 1000 {
			t.Errorf("L1: %d keys of the paid plan", n)
		}
		plan["free"] = 100
		if n, _ := takeAll(t, l, "free"); n != 90 {
			t.Errorf("L1: %d keys more after the limit was raised", n)
		}
		plan["free"] = 10
		n, refused := takeAll(t, l, "free")
		if n != 0 || refused.Limit != 10 {
			t.Errorf("L1: %d keys, then %+v, after the limit was lowered", n, refused)
		}
		plan["free"] = -1
		time.Sleep(time.Hour)
		if n, refused := takeAll(t, l, "free"); n != 0 || refused.Limit != 0 {
			t.Errorf("L1: %d keys where none are allowed, then %+v", n, refused)
		}
		plan["free"] = 0
		for range 10_000 {
			if refused := l.TakeKey(t.Context(), "free", day); refused != nil {
				t.Fatal(refused)
			}
		}
	})
}

func TestLookupsAndMismatches(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, limit.Config{Limits: limit.Limits{
		Lookups: limit.Rate{Limit: 3, Window: time.Hour}, Mismatches: limit.Rate{Limit: 2, Window: time.Hour},
	}})
	lookups, mismatches := 0, 0
	for range 10 {
		if l.Lookup(t.Context(), "alice") == nil {
			lookups++
		}
		if l.Mismatch(t.Context(), "alice") == nil {
			mismatches++
		}
		// Look-ups cost no new keys; mismatches do once they are used up.
		refused := l.TakeKey(t.Context(), "alice", day)
		if (refused != nil) != (mismatches == 2) || refused != nil && refused.Name != onceward.LimitMismatches {
			t.Errorf("L1: after %d mismatches a new key gets %v", mismatches, refused)
		}
	}
	if lookups != 3 || mismatches != 2 {
		t.Errorf("L1: %d look-ups and %d mismatches, want 3 and 2", lookups, mismatches)
	}
}

// TestSprayedKeysAtOnce: of many at once exactly the limit gets through, and the others feel nothing.
func TestSprayedKeysAtOnce(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, limit.Config{Limits: limit.Limits{NewKeys: limit.Rate{Limit: 1000, Window: 10_000 * time.Hour}}})
	var taken atomic.Int64
	var crowd sync.WaitGroup
	for range 32 {
		crowd.Go(func() {
			for range 3000 {
				if l.TakeKey(t.Context(), "mallory", day) == nil {
					taken.Add(1)
				}
			}
		})
	}
	for i := range 500 {
		if refused := l.TakeKey(t.Context(), fmt.Sprint("scope", i%5), day); refused != nil {
			t.Errorf("L1: another scope is refused: %v", refused)
		}
	}
	crowd.Wait()
	if n := taken.Load(); n != 1000 {
		t.Errorf("L1: %d keys, want exactly 1000", n)
	}
}

// TestMemoryIsBounded: millions of scopes leave no more than MaxScopes, and idle ones are removed.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		scopes := nightly.Either(3_000_000, 50_000)
		l := newLimiter(t, limit.Config{
			Limits:    limit.Limits{NewKeys: limit.Rate{Limit: 10, Window: time.Minute}, ActiveKeys: 100},
			MaxScopes: 6400,
		})
		for range 10 {
			_ = l.TakeKey(t.Context(), "alice", day)
		}
		for i := range scopes {
			_ = l.TakeKey(t.Context(), fmt.Sprint("scope", i), day)
			if i%1000 == 0 {
				_ = l.TakeKey(t.Context(), "alice", day)
			}
		}
		if n := l.Scopes(); n > 6400 || n < 3200 {
			t.Errorf("L1: %d scopes are remembered, want 6400 at most", n)
		}
		time.Sleep(2 * day)
		for i := range 2000 {
			_ = l.Lookup(t.Context(), fmt.Sprint("visitor", i)) // no limit, nothing to remember
		}
		_ = l.TakeKey(t.Context(), "bob", day)
		before := l.Scopes()
		for i := range 2 * before {
			_ = l.TakeKey(t.Context(), "bob", day)
			_ = l.TakeKey(t.Context(), fmt.Sprint("new", i%200), day)
		}
		if n := l.Scopes(); n >= before {
			t.Errorf("L1: of %d idle scopes and 201 new ones %d are left", before, n)
		}
	})
}

// TestThoseAtTheirLimitAreRemembered: they are not forgotten when thousands of others arrive.
func TestThoseAtTheirLimitAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Limits: limit.Limits{ActiveKeys: 100}, MaxScopes: 6400})
		if n, _ := takeAll(t, l, "mallory"); n != 100 {
			t.Fatalf("L1: %d keys", n)
		}
		for i := range 20_000 {
			time.Sleep(time.Second)
			_ = l.TakeKey(t.Context(), fmt.Sprint("scope", i), day)
		}
		if n, _ := takeAll(t, l, "mallory"); n != 0 {
			t.Errorf("L1: %d active keys more for a scope at its limit", n)
		}
	})
}

func TestAllowedCostsNoAllocation(t *testing.T) {
	l := newLimiter(t, limit.Config{Limits: limit.Limits{NewKeys: limit.Rate{Limit: 1 << 30}, ActiveKeys: 1 << 30}})
	ctx := t.Context()
	_ = l.TakeKey(ctx, "alice", day)
	if n := testing.AllocsPerRun(1000, func() {
		_ = l.TakeKey(ctx, "alice", day)
		l.ReturnKey("alice", day, false)
	}); n > 0 {
		t.Errorf("%v allocations for a key that is allowed", n)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]limit.Config{
		"scopes": {MaxScopes: -1}, "nodes": {Nodes: -1}, "timeout": {CounterTimeout: -1},
		"window": {Limits: limit.Limits{NewKeys: limit.Rate{Limit: 1, Window: -1}}},
	} {
		if _, err := limit.New(config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func BenchmarkTakeKey(b *testing.B) {
	l := newLimiter(b, limit.Config{Limits: limit.Limits{NewKeys: limit.Rate{Limit: 1 << 30}, ActiveKeys: 1 << 30}})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_ = l.TakeKey(b.Context(), "alice", day)
			l.ReturnKey("alice", day, false)
		}
	})
}
