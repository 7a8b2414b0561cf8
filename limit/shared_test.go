package limit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/limit"
)

// counters are shared counters in memory, in which nothing refills: the number that they granted is to be counted.
type counters struct {
	mu     sync.Mutex
	used   map[string]int // by scope and name
	active map[string]int
	known  map[string]remembered // by taker and name
	takes  int
	last   limit.Take
	fault  func(ctx context.Context) error // keeps the counters from being asked
	reply  error                           // is what the caller gets, after all was done
}

// remembered is the last take of a taker.
type remembered struct {
	number int64
	grant  limit.Grant
}

func newCounters() *counters {
	return &counters{used: map[string]int{}, active: map[string]int{}, known: map[string]remembered{}}
}

func (c *counters) Take(ctx context.Context, t limit.Take) (g limit.Grant, err error) {
	time.Sleep(time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes++
	c.last = t
	if c.fault != nil {
		if err := c.fault(ctx); err != nil {
			return g, err
		}
	}
	key := t.Scope + " " + t.Name
	known := c.known[t.Taker+" "+key]
	switch {
	case t.Taker == "" || t.Number > known.number:
	case t.Number < known.number:
		return g, nil
	case known.grant.Granted > 0:
		return known.grant, c.reply
	default:
		t.Unused = 0
	}
	c.used[key] -= t.Unused
	c.active[key] -= t.Unused + t.Undone
	left, name := 1<<30, ""
	if t.Rate.Limit != 0 {
		left, name = max(0, t.Rate.Limit-c.used[key]), t.Name
	}
	if free := max(0, t.Active-c.active[key]); t.Active != 0 && free < left {
		left, name = free, onceward.LimitActiveKeys
	}
	g = limit.Grant{Granted: min(left, max(t.Need, min(t.Want, left/limit.PortionShare))), End: 7}
	if g.Granted == 0 && t.Need > 0 {
		g.Limit, g.After = name, time.Hour
	}
	c.used[key] += g.Granted
	c.active[key] += g.Granted
	c.known[t.Taker+" "+key] = remembered{t.Number, g}
	return g, c.reply
}

// lose lets replies be lost, or not any more.
func (c *counters) lose(reply error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reply = reply
}

func (c *counters) fail(fault func(ctx context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = fault
}

func (c *counters) count(scope string) (used, takes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used[scope+" "+onceward.LimitNewKeys], c.takes
}

// nodes returns limiters that share counters.
func nodes(t testing.TB, n int, shared limit.Counters, limits *limit.Limits) (all []*limit.Limiter) {
	t.Helper()
	for range n {
		all = append(all, newLimiter(t, limit.Config{
			For: func(string) limit.Limits { return *limits }, Counters: shared, Nodes: n,
		}))
	}
	return all
}

// spray lets callers on each node take keys of a scope until all of them have been refused once, and counts.
func spray(t testing.TB, all []*limit.Limiter, scope string, callers int) int {
	t.Helper()
	var taken atomic.Int64
	var crowd sync.WaitGroup
	for i := range callers {
		crowd.Go(func() {
			for all[i%len(all)].TakeKey(t.Context(), scope, day) == nil {
				taken.Add(1)
			}
		})
	}
	crowd.Wait()
	return int(taken.Load())
}

// TestNodesShareALimit: together they never allow more, and each low limit is used to the last.
func TestNodesShareALimit(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 2, 7, 100, 5000} {
		for name, limits := range map[string]limit.Limits{
			"new keys":    {NewKeys: limit.Rate{Limit: most, Window: 1000 * time.Hour}},
			"active keys": {ActiveKeys: most},
		} {
			t.Run(fmt.Sprint(most, " ", name), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					shared := newCounters()
					all := nodes(t, 4, shared, &limits)
					n := spray(t, all, "mallory", 16)
					time.Sleep(3 * time.Second) // what lay unused on one node is there for the others
					n += spray(t, all, "mallory", 16)
					time.Sleep(3 * time.Second)
					n += spray(t, all, "mallory", 1)
					if n != most {
						t.Errorf("L1: %d keys on four nodes, want exactly %d", n, most)
					}
					time.Sleep(3 * time.Second)
				})
			})
		}
	}
}

// TestFewRoundTrips: most requests use what the node holds, and what it does not use it gives back.
func TestFewRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		limits := limit.Limits{NewKeys: limit.Rate{Limit: 1_000_000, Window: time.Second}}
		l := nodes(t, 1, shared, &limits)[0]
		var crowd sync.WaitGroup
		for range 64 {
			crowd.Go(func() {
				for range 1000 {
					if refused := l.TakeKey(t.Context(), "alice", day); refused != nil {
						t.Error(refused)
					}
				}
			})
		}
		crowd.Wait()
		_, takes := shared.count("alice")
		if takes > 200 {
			t.Errorf("L1: %d round trips for 64,000 keys", takes)
		}
		time.Sleep(3 * time.Second)
		if used, _ := shared.count("alice"); used != 64_000 || l.Portions() != 0 {
			t.Errorf("L1: the counters say %d of 64000, and the node holds %d portions", used, l.Portions())
		}
	})
}

// TestRefusalsAreNotAskedFor again and again: a scope that is over its limit costs next to nothing.
func TestRefusalsAreNotAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		limits := limit.Limits{NewKeys: limit.Rate{Limit: 10, Window: 1000 * time.Hour}}
		l := nodes(t, 1, shared, &limits)[0]
		if n, _ := takeAll(t, l, "mallory"); n != 10 {
			t.Errorf("L1: %d keys", n)
		}
		_, before := shared.count("mallory")
		for range 100_000 {
			if refused := l.TakeKey(t.Context(), "mallory", day); refused == nil || refused.After != time.Hour ||
				refused.Name != onceward.LimitNewKeys || refused.Limit != 10 {
				t.Fatalf("L1: refused with %+v", refused)
			}
		}
		if _, after := shared.count("mallory"); after != before {
			t.Errorf("L1: %d round trips for what was refused already", after-before)
		}
		limits.NewKeys.Limit = 20 // counts at once
		if n, _ := takeAll(t, l, "mallory"); n != 10 {
			t.Errorf("L1: %d keys more after the limit was raised", n)
		}
		time.Sleep(3 * time.Second)
	})
}

// TestKeysComeBackToTheCounters also when the portion that they were taken from is long gone.
func TestKeysComeBackToTheCounters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		limits := limit.Limits{ActiveKeys: 100}
		l := nodes(t, 1, shared, &limits)[0]
		for range 10 {
			if refused := l.TakeKey(t.Context(), "alice", day); refused != nil {
				t.Fatal(refused)
			}
		}
		l.ReturnKey("alice", day, false)
		time.Sleep(time.Minute)
		l.ReturnKey("alice", day, false)
		time.Sleep(time.Minute)
		if used, _ := shared.count("alice"); used != 8 {
			t.Errorf("L1: the counters say %d, want 8", used)
		}
	})
}

func TestCloseGivesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		limits := limit.Limits{ActiveKeys: 100_000}
		l := nodes(t, 1, shared, &limits)[0]
		for range 100 {
			_ = l.TakeKey(t.Context(), "alice", day)
		}
		synctest.Wait()
		if used, _ := shared.count("alice"); used <= 100 {
			t.Errorf("the node holds nothing beyond what it used: %d", used)
		}
		time.Sleep(10 * time.Millisecond)
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if used, _ := shared.count("alice"); used != 100 {
			t.Errorf("L1: after Close the counters say %d, want 100", used)
		}
		time.Sleep(3 * time.Second)
	})
}

// TestCountersThatCannotBeAsked: each node allows its share then, neither nothing nor everything.
func TestCountersThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(ctx context.Context) error{
		"down":    func(context.Context) error { return errors.New("connection refused") },
		"hanging": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shared := newCounters()
				var log strings.Builder
				l := newLimiter(t, limit.Config{
					Limits:   limit.Limits{NewKeys: limit.Rate{Limit: 100, Window: 1000 * time.Hour}},
					Counters: shared, Nodes: 4, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				shared.fail(fault)
				started := time.Now()
				if n, _ := takeAll(t, l, "alice"); n != 25 {
					t.Errorf("L1: %d keys, want the share of this node, 25", n)
				}
				for i := range 100 {
					if refused := l.TakeKey(t.Context(), fmt.Sprint("scope", i), day); refused != nil {
						t.Errorf("L1: another scope: %v", refused)
					}
				}
				if waited := time.Since(started); waited > 300*time.Millisecond {
					t.Errorf("L1: requests waited for %s", waited)
				}
				_, before := shared.count("alice")
				time.Sleep(10 * time.Second)
				_, _ = takeAll(t, l, "alice")
				if _, takes := shared.count("alice"); takes > before+10 {
					t.Errorf("L1: %d tries in ten seconds to ask counters that are down", takes-before)
				}
				shared.fail(nil)
				time.Sleep(3 * time.Second)
				if n, _ := takeAll(t, l, "bob"); n != 100 {
					t.Errorf("L1: %d keys when the counters are back, want 100", n)
				}
				time.Sleep(3 * time.Second)
				if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "again") {
					t.Errorf("the log should tell of the beginning and the end:\n%s", log.String())
				}
				if n := l.Portions(); n != 0 {
					t.Errorf("%d portions are left", n)
				}
			})
		})
	}
}

// TestBorrowedKeysAreNotReturnedToTheCounters, which never gave them out.
func TestBorrowedKeysAreNotReturnedToTheCounters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		limits := limit.Limits{NewKeys: limit.Rate{Limit: 100, Window: 1000 * time.Hour}}
		l := nodes(t, 1, shared, &limits)[0]
		shared.fail(func(context.Context) error { return errors.New("down") })
		if refused := l.TakeKey(t.Context(), "alice", day); refused != nil {
			t.Fatal(refused)
		}
		l.ReturnKey("alice", day, false)
		shared.fail(nil)
		time.Sleep(5 * time.Second)
		if used, _ := shared.count("alice"); used != 0 {
			t.Errorf("L1: the counters say %d, want 0", used)
		}
	})
}

// TestLeavingWhileWaiting: a caller that leaves does not wait for counters that hang.
func TestLeavingWhileWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		limits := limit.Limits{NewKeys: limit.Rate{Limit: 100}}
		l := nodes(t, 1, shared, &limits)[0]
		shared.fail(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		started := time.Now()
		refused := l.TakeKey(ctx, "alice", day)
		if waited := time.Since(started); waited != 10*time.Millisecond {
			t.Errorf("waited for %s", waited)
		}
		if refused == nil {
			t.Error("L1: a caller that has left was given what the counters did not give")
		}
		time.Sleep(3 * time.Second)
	})
}

// TestLostRepliesTakeNothing: what the counters granted, and took back, in a reply that was lost, counts once. It is
// there for other callers long before the retention of the keys ends.
func TestLostRepliesTakeNothing(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int{"few": 10, "many": 100_000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shared := newCounters()
				limits := limit.Limits{ActiveKeys: most}
				l := nodes(t, 1, shared, &limits)[0]
				want := 0
				take := func() {
					for range 5 {
						if refused := l.TakeKey(t.Context(), "alice", day); refused == nil {
							want++
						}
					}
				}
				take()
				l.ReturnKey("alice", day, false)
				want--
				shared.lose(errors.New("the reply was lost"))
				time.Sleep(10 * time.Second) // what lay unused is given back
				before := want
				take() // from this node's share
				want = before
				time.Sleep(10 * time.Second)
				shared.lose(nil)
				time.Sleep(10 * time.Second)
				if used, _ := shared.count("alice"); used != want || l.Portions() != 0 {
					t.Errorf("L1: the counters say %d, want the %d keys that were granted; the node holds %d portions",
						used, want, l.Portions())
				}
			})
		})
	}
}

// TestCloseAfterALostReply gives back what the reply granted.
func TestCloseAfterALostReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		limits := limit.Limits{ActiveKeys: 1000}
		l := nodes(t, 1, shared, &limits)[0]
		shared.lose(errors.New("the reply was lost"))
		_ = l.TakeKey(t.Context(), "alice", day)
		shared.lose(nil)
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if used, _ := shared.count("alice"); used != 0 {
			t.Errorf("L1: after Close the counters say %d, want 0: the key was taken from the share of the node", used)
		}
	})
}

// TestCountersAreAskedNoMoreForWhatTheyForgot: a take whose reply was lost is not sent again without a limit.
func TestCountersAreAskedNoMoreForWhatTheyForgot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		limits := limit.Limits{ActiveKeys: 1000}
		l := nodes(t, 1, shared, &limits)[0]
		shared.fail(func(context.Context) error { return errors.New("connection refused") })
		_ = l.TakeKey(t.Context(), "alice", day)
		time.Sleep(limit.RepeatWithin + 10*time.Second)
		if _, takes := shared.count("alice"); l.Portions() != 0 || takes > int(limit.RepeatWithin/time.Second) {
			t.Errorf("L1: the node holds %d portions after %d takes, want none, and a take a second at most", l.Portions(), takes)
		}
	})
}

// TestLostTakesGetOld: with many scopes each is seldom asked for while the counters are down. A take that they may have
// forgotten is not sent again: they would take back a second time what came with it.
func TestLostTakesGetOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCounters()
		began := time.Now()
		shared.fault = func(context.Context) error {
			if since := time.Since(began); shared.last.Number <= 400 && since > limit.RepeatWithin+time.Second {
				t.Errorf("L1: the take %d was sent again after %s", shared.last.Number, since)
			}
			return errors.New("the reply was lost")
		}
		limits := limit.Limits{ActiveKeys: 1000}
		l := nodes(t, 1, shared, &limits)[0]
		var crowd sync.WaitGroup
		for n := range 400 {
			crowd.Go(func() { _ = l.TakeKey(t.Context(), strconv.Itoa(n), day) })
		}
		crowd.Wait()
		time.Sleep(2*limit.RepeatWithin + time.Minute)
		shared.fail(nil)
		time.Sleep(time.Minute)
		if l.Portions() != 0 {
			t.Errorf("L1: the node holds %d portions", l.Portions())
		}
	})
}
