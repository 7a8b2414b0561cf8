package redis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/limit"
	"github.com/onceward/onceward/store/redis"
)

// take asks counters, and fails the test if they cannot be asked.
func take(t testing.TB, c limit.Counters, ask limit.Take) limit.Grant {
	t.Helper()
	grant, err := c.Take(t.Context(), ask)
	must(t, err)
	return grant
}

func wantGranted(t testing.TB, c limit.Counters, ask limit.Take, want int, name string, after time.Duration) {
	t.Helper()
	g := take(t, c, ask)
	if g.Granted != want {
		t.Errorf("L1: %d are granted of %+v, want %d", g.Granted, ask, want)
	}
	if want == 0 && ask.Need > 0 && (g.Limit != name || g.After <= 0 || g.After > after) {
		t.Errorf("L1: refused by %s for %s, want by %s for %s at most", g.Limit, g.After, name, after)
	}
}

func TestCountersOfARate(t *testing.T) {
	t.Parallel()
	const window = 1000 * time.Hour // within which none comes back during a test
	c := fresh(t).Counters()
	ask := limit.Take{Scope: "alice", Name: onceward.LimitNewKeys, Rate: limit.Rate{Limit: 80, Window: window}}
	more := func(need, want, unused int) limit.Take {
		ask := ask
		ask.Need, ask.Want, ask.Unused = need, want, unused
		return ask
	}
	wantGranted(t, c, more(1, 1, 0), 1, "", 0)
	wantGranted(t, c, more(1, 1000, 0), 9, "", 0)   // an eighth of 79
	wantGranted(t, c, more(20, 1000, 0), 20, "", 0) // what is needed
	wantGranted(t, c, more(0, 5, 0), 5, "", 0)
	wantGranted(t, c, more(100, 100, 0), 45, "", 0)
	wantGranted(t, c, more(1, 1, 0), 0, onceward.LimitNewKeys, window/80)
	wantGranted(t, c, more(0, 10, 0), 0, "", 0)
	wantGranted(t, c, more(5, 5, 2), 2, "", 0) // what came back
	wantGranted(t, c, more(0, 0, 3), 0, "", 0)
	wantGranted(t, c, more(5, 5, 0), 3, "", 0)
	undone := more(1, 1, 0)
	undone.Undone = 1 // what was undone stays used
	wantGranted(t, c, undone, 0, onceward.LimitNewKeys, window/80)
	other := more(1, 1, 0)
	other.Scope = "bob"
	wantGranted(t, c, other, 1, "", 0)
	other = more(1, 1, 0)
	other.Name = onceward.LimitLookups
	wantGranted(t, c, other, 1, "", 0)
	other = more(5, 5, 0)
	other.Rate.Limit = 100 // the limit was raised
	wantGranted(t, c, other, 5, "", 0)
	other.Rate.Limit = -1
	wantGranted(t, c, other, 0, onceward.LimitNewKeys, window)
}

// TestCountersComeBack by the clock of the server.
func TestCountersComeBack(t *testing.T) {
	t.Parallel()
	c := fresh(t).Counters()
	ask := limit.Take{
		Scope: "alice", Name: onceward.LimitNewKeys, Rate: limit.Rate{Limit: 1000, Window: 10 * time.Second}, Need: 1000,
		Want: 1000,
	}
	started := time.Now()
	got := take(t, c, ask).Granted
	await.That(t, "L1: more come back", func() bool {
		got += take(t, c, ask).Granted
		return got >= 1020
	})
	if most := 1000 + int(time.Since(started)/(10*time.Millisecond)) + 1; got > most {
		t.Errorf("L1: %d in %s, want %d at most", got, time.Since(started), most)
	}
}

func TestCountersOfActiveKeys(t *testing.T) {
	t.Parallel()
	c := fresh(t).Counters()
	ask := limit.Take{
		Scope: "alice", Name: onceward.LimitNewKeys, Active: 10, Retention: time.Hour, Need: 4, Want: 4,
	}
	first := take(t, c, ask)
	if first.Granted != 4 || first.End == 0 {
		t.Errorf("L1: granted %+v", first)
	}
	back := ask
	back.Need, back.Want, back.Unused, back.UnusedEnd = 0, 0, 1, first.End
	wantGranted(t, c, back, 0, "", 0)
	ask.Need, ask.Want = 10, 10
	wantGranted(t, c, ask, 7, "", 0)
	wantGranted(t, c, ask, 0, onceward.LimitActiveKeys, 2*time.Hour)
	for _, end := range []int64{0, limit.OldestEnd} {
		back.UnusedEnd, back.Unused, back.Undone = end, back.Undone, back.Unused
		wantGranted(t, c, back, 0, "", 0)
		wantGranted(t, c, ask, 1, "", 0)
	}

	ask.Scope, ask.Retention = "bob", 500*time.Millisecond
	started := time.Now()
	wantGranted(t, c, ask, 10, "", 0)
	await.That(t, "L1: active keys are counted out", func() bool { return take(t, c, ask).Granted > 0 })
	if lasted := time.Since(started); lasted < ask.Retention {
		t.Errorf("L1: keys that are kept for %s counted for %s", ask.Retention, lasted)
	}
}

// TestCountersRepeatTakes whose reply was lost: they grant and take back once, and what is late changes nothing.
func TestCountersRepeatTakes(t *testing.T) {
	t.Parallel()
	c := fresh(t).Counters()
	ask := limit.Take{
		Scope: "alice", Name: onceward.LimitNewKeys, Active: 100, Retention: 24 * time.Hour, Need: 60, Want: 60,
		Taker: "node 1", Number: 7,
	}
	first := take(t, c, ask)
	if again := take(t, c, ask); again.Granted != 60 || again.End != first.End || first.Granted != 60 {
		t.Errorf("L1: a take was granted %+v, and its repetition %+v, want 60 once", first, again)
	}
	other := ask
	other.Taker, other.Number, other.Need, other.Want = "node 2", 1, 40, 40
	wantGranted(t, c, other, 40, "", 0)

	back := ask
	back.Number, back.Need, back.Want, back.Unused, back.UnusedEnd = 8, 0, 0, 10, first.End
	wantGranted(t, c, back, 0, "", 0)
	wantGranted(t, c, back, 0, "", 0)
	if late := take(t, c, ask); late.Granted != 0 { // number 7
		t.Errorf("L1: a take that came late was granted %+v", late)
	}
	other.Number, other.Need = 2, 100
	wantGranted(t, c, other, 10, "", 0) // what came back, once
}

// TestLostRepliesOnRedis take no place of an active key: a link breaks each time when the server has executed.
func TestLostRepliesOnRedis(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	inner := open(t, server.URL(), redis.WithPrefix(server.Prefix(t))).Counters()
	flaky := &forgetful{Counters: inner}
	newNode := func(c limit.Counters) *limit.Limiter {
		l, err := limit.New(limit.Config{
			Limits: limit.Limits{ActiveKeys: 50}, Counters: c, Logger: slog.New(slog.DiscardHandler), CounterTimeout: await.Limit,
		})
		must(t, err)
		return l
	}
	node, other := newNode(flaky), newNode(inner)
	flaky.lost.Store(true)
	for range 20 {
		_ = node.TakeKey(t.Context(), "mallory", 24*time.Hour) // granted, and not heard of, so from the share of this node
	}
	flaky.lost.Store(false)
	must(t, node.Close(t.Context()))
	n := 0
	for other.TakeKey(t.Context(), "mallory", 24*time.Hour) == nil {
		n++
	}
	if n != 50 {
		t.Errorf("L1: %d of 50 places are free when the replies of all takes were lost", n)
	}
	must(t, other.Close(t.Context()))
}

// forgetful are counters whose replies are lost.
type forgetful struct {
	limit.Counters
	lost atomic.Bool
}

// Take implements [limit.Counters].
func (f *forgetful) Take(ctx context.Context, ask limit.Take) (limit.Grant, error) {
	g, err := f.Counters.Take(ctx, ask)
	if f.lost.Load() {
		return limit.Grant{}, errors.New("the reply was lost")
	}
	return g, err
}

// TestOneRetryAfter: a limit that is used up returns the same time, whichever counter counts.
func TestOneRetryAfter(t *testing.T) {
	t.Parallel()
	const retention = 24 * time.Hour
	for name, limits := range map[string]limit.Limits{
		"active keys":          {ActiveKeys: 3},
		"no active keys":       {ActiveKeys: -1},
		"new keys":             {NewKeys: limit.Rate{Limit: 3, Window: 1000 * time.Hour}},
		"both":                 {ActiveKeys: 3, NewKeys: limit.Rate{Limit: 3, Window: 1000 * time.Hour}},
		"active keys run out":  {ActiveKeys: 2, NewKeys: limit.Rate{Limit: 3, Window: 1000 * time.Hour}},
		"new keys run out":     {ActiveKeys: 3, NewKeys: limit.Rate{Limit: 2, Window: 1000 * time.Hour}},
		"the rate allows none": {NewKeys: limit.Rate{Limit: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused := func(c limit.Counters) *onceward.LimitError {
				l, err := limit.New(limit.Config{
					Limits: limits, Counters: c, Logger: slog.New(slog.DiscardHandler), CounterTimeout: await.Limit,
				})
				must(t, err)
				for {
					if refused := l.TakeKey(t.Context(), "mallory", retention); refused != nil {
						must(t, l.Close(t.Context()))
						return refused
					}
				}
			}
			before := refused(nil) // the part of time in which keys are counted out may end between two of these
			shared := refused(fresh(t).Counters())
			after := refused(nil)
			const most = await.Limit
			near := func(a, b *onceward.LimitError) bool { return a.Name == b.Name && (a.After-b.After).Abs() < most }
			if !near(shared, before) && !near(shared, after) {
				t.Errorf("L1: shared counters refuse with %s after %s, the counts of a process with %s after %s",
					shared.Name, shared.After, before.Name, before.After)
			}
		})
	}
}

// TestCountersOnAClockThatWentBack give nothing away, and continue.
func TestCountersOnAClockThatWentBack(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	c := open(t, server.URL(), redis.WithPrefix(prefix)).Counters()
	ask := limit.Take{
		Scope: "alice", Name: onceward.LimitNewKeys, Rate: limit.Rate{Limit: 10, Window: 100 * time.Millisecond}, Need: 10,
		Want: 10,
	}
	ask.Rate.Window = time.Hour
	wantGranted(t, c, ask, 10, "", 0)
	keys, err := server.Do(t.Context(), "KEYS", prefix+":*:c:*")
	must(t, err)
	key := fmt.Sprint(keys.([]any)[0])
	_, err = server.Do(t.Context(), "HSET", key, "t", fmt.Sprint(time.Now().Add(24*time.Hour).UnixMicro()))
	must(t, err)
	wantGranted(t, c, ask, 0, onceward.LimitNewKeys, time.Hour)
	ask.Rate.Window = 10 * time.Millisecond
	time.Sleep(2 * ask.Rate.Window) // at least: on a slow machine it is longer, and as much comes back
	wantGranted(t, c, ask, 10, "", 0)
	if ttl, err := server.Do(t.Context(), "PTTL", key); err != nil || ttl == int64(-1) || ttl.(int64) > 10_000 {
		t.Errorf("the key lives for %v ms, err %v: a scope that is idle should be forgotten", ttl, err)
	}
}

// TestNodesShareLimitsOnRedis: together they never allow more than the limit, and with few round trips.
func TestNodesShareLimitsOnRedis(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]limit.Limits{
		"few":    {NewKeys: limit.Rate{Limit: 5, Window: 1000 * time.Hour}},
		"many":   {NewKeys: limit.Rate{Limit: 3000, Window: 1000 * time.Hour}},
		"active": {ActiveKeys: 3000},
		"both":   {NewKeys: limit.Rate{Limit: 3000, Window: 1000 * time.Hour}, ActiveKeys: 2000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servers.Redis(t)
			prefix := server.Prefix(t)
			most := max(limits.NewKeys.Limit, limits.ActiveKeys)
			if name == "both" {
				most = 2000
			}
			var nodes []*limit.Limiter
			for range 4 {
				l, err := limit.New(limit.Config{
					Limits: limits, Counters: open(t, server.URL(), redis.WithPrefix(prefix)).Counters(),
					Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), CounterTimeout: await.Limit,
				})
				must(t, err)
				nodes = append(nodes, l)
			}
			var taken atomic.Int64
			spray := func() {
				var crowd sync.WaitGroup
				for i := range 16 {
					crowd.Go(func() {
						for nodes[i%4].TakeKey(t.Context(), "mallory", 24*time.Hour) == nil {
							taken.Add(1)
						}
					})
				}
				crowd.Wait()
			}
			spray()
			if n := int(taken.Load()); n > most || n < most*3/4 {
				t.Errorf("L1: %d keys on four nodes, want no more than %d, and not much less", n, most)
			}
			for _, l := range nodes {
				must(t, l.Close(t.Context()))
			}
			await.That(t, "L1: all that was unused comes back", func() bool { // a refusal is believed for a second
				spray()
				return int(taken.Load()) >= most
			})
			if n := int(taken.Load()); n != most {
				t.Errorf("L1: %d keys when all that was unused came back, want exactly %d", n, most)
			}
		})
	}
}

// TestOneRoundTripForAPortion: the server runs one script for each call, and no other command comes to it.
func TestOneRoundTripForAPortion(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	c := open(t, server.URL()).Counters()
	ask := limit.Take{
		Scope: "alice", Name: onceward.LimitNewKeys, Rate: limit.Rate{Limit: 1000, Window: time.Hour}, Active: 1000,
		Retention: time.Hour, Need: 1, Want: 1,
	}
	take(t, c, ask)
	_, err := server.Do(t.Context(), "CONFIG", "RESETSTAT")
	must(t, err)
	for range 50 {
		take(t, c, ask)
	}
	stats, err := server.Do(t.Context(), "INFO", "commandstats")
	must(t, err)
	if text := fmt.Sprint(stats); !strings.Contains(text, "cmdstat_evalsha:calls=50,") || strings.Contains(text, "cmdstat_eval:") {
		t.Errorf("L1: 50 portions cost\n%s", text)
	}
}

// TestCountersOnACluster: all that one call needs is in one slot.
func TestCountersOnACluster(t *testing.T) {
	t.Parallel()
	cluster := servers.SharedRedisCluster(t)
	c := open(t, cluster.URL(), redis.WithPrefix(cluster.Name(t))).Counters()
	for i := range 20 {
		ask := limit.Take{
			Scope: fmt.Sprint("scope {", i, "}"), Name: onceward.LimitNewKeys, Rate: limit.Rate{Limit: 10, Window: time.Hour},
			Active: 5, Retention: time.Hour, Need: 7, Want: 7,
		}
		wantGranted(t, c, ask, 5, "", 0)
		wantGranted(t, c, ask, 0, onceward.LimitActiveKeys, 2*time.Hour)
	}
}
