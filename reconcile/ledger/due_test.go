package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/memory"
)

// This file is about windows that are due: which there are, by whose clock, and that none is forgotten.

// effects are entries of the provider alone, one for each step of time.
func effects(from time.Time, step time.Duration, n int) (entries []ledger.Entry) {
	for i := range n {
		entries = append(entries, ledger.Entry{Key: fmt.Sprintf("%05d", i), At: from.Add(time.Duration(i) * step)})
	}
	return entries
}

// requireAll checks that all entries were reported.
func requireAll(t *testing.T, got *report, entries []ledger.Entry) {
	t.Helper()
	if n := len(got.different()); n != len(entries) {
		t.Errorf("%d of %d effects were reported", n, len(entries))
	}
}

// status returns the status, which can be had.
func status(t *testing.T, c *ledger.Comparer) ledger.Status {
	t.Helper()
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAnOutageForgetsNothing: the provider is away for a week, and another node continues. Until then each window is
// visible.
func TestAnOutageForgetsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().UTC()
		store, got := memory.New(), &report{}
		l := &ledgers{entries: effects(began.Add(12*time.Hour), day, 10)}
		var logged bytes.Buffer
		config := l.config(store, got)
		config.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		stop := inBackground(t, newComparer(t, config))
		time.Sleep(12 * time.Hour)
		l.setDown(true)
		l.take()
		time.Sleep(7 * day)
		stop()
		asked, _ := l.take()
		requireRetries(t, asked)
		s := status(t, newComparer(t, config))
		if len(s.Uncompared) != 7 {
			t.Fatalf("%d windows are uncompared, want 7", len(s.Uncompared))
		}
		for i, u := range s.Uncompared {
			end := began.Add(time.Duration(i+1) * day)
			ours := u.Window.To.Equal(end) && u.Since.Equal(end.Add(time.Hour))
			if !ours || u.Attempts < 5 || !strings.Contains(u.Why, "plug") {
				t.Errorf("uncompared is %+v, want the window until %s", u, end)
			}
		}
		l.setDown(false)
		defer inBackground(t, newComparer(t, config))()
		time.Sleep(4 * day)
		synctest.Wait()
		requireAll(t, got, l.entries)
		if s := status(t, newComparer(t, config)); len(s.Uncompared) != 0 {
			t.Errorf("still uncompared are %+v", s.Uncompared)
		}
		for _, want := range []string{"could not be compared", "pulled the plug", "attempts=4", "the two sides differ"} {
			if !strings.Contains(logged.String(), want) {
				t.Errorf("the log does not say %q", want)
			}
		}
	})
}

// requireRetries checks that the pauses after the first failure double, up to an hour.
func requireRetries(t *testing.T, asked []time.Time) {
	t.Helper()
	if len(asked) < 10 {
		t.Fatalf("only %d attempts", len(asked))
	}
	least := ledger.DefaultMinBackoff
	for i := range 9 {
		if pause := asked[i+1].Sub(asked[i]); pause < least || pause > least+least/20+1 {
			t.Errorf("pause %d is %s, want %s and a twentieth more at most", i, pause, least)
		}
		least = min(2*least, time.Hour)
	}
}

// TestNoNodeRan: all nodes are down for four months, and the reaper is not.
func TestNoNodeRan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, got := memory.New(), &report{}
		l := &ledgers{entries: effects(time.Now().Add(12*time.Hour), day, 120)}
		first := newComparer(t, l.config(store, got))
		if _, err := first.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(121 * day)
		if reaped, err := store.Reap(t.Context(), 100, false); reaped != 0 || err != nil {
			t.Errorf("reaped %d, %v", reaped, err)
		}
		if s := status(t, first); len(s.Uncompared) != 100 || s.Uncompared[0].Attempts != 0 {
			t.Errorf("%d windows are uncompared, want as many as are shown", len(s.Uncompared))
		}
		defer inBackground(t, newComparer(t, l.config(store, got)))()
		time.Sleep(time.Minute)
		synctest.Wait()
		requireAll(t, got, l.entries)
	})
}

// TestMoreThanTheJournalHolds: what has no room in it stays due.
func TestMoreThanTheJournalHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got := &report{}
		l := &ledgers{entries: effects(time.Now(), time.Minute, 150), down: true}
		config := l.config(memory.New(), got)
		config.Interval, config.Settle, config.Grace, config.Windows = time.Minute, time.Minute, 10*time.Second, 200
		config.Since = time.Now()
		comparer := newComparer(t, config)
		time.Sleep(3 * time.Hour)
		if _, err := comparer.RunOnce(t.Context()); !errors.Is(err, errAway) {
			t.Error(err)
		}
		if n := len(status(t, comparer).Uncompared); n != 100 {
			t.Errorf("%d windows are shown as uncompared, want 100", n)
		}
		l.setDown(false)
		for range 3 {
			time.Sleep(ledger.DefaultMinBackoff)
			if _, err := comparer.RunOnce(t.Context()); err != nil {
				t.Error(err)
			}
		}
		requireAll(t, got, l.entries)
		if n := len(status(t, comparer).Uncompared); n != 0 {
			t.Errorf("%d windows are still uncompared", n)
		}
	})
}

// TestWindowsOfARun are bounded, and the others are left to the next one.
func TestWindowsOfARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ledgers{}
		config := l.config(memory.New(), &report{})
		config.Windows, config.Since = 3, time.Now().Add(-7*day-ledger.DefaultGrace)
		comparer := newComparer(t, config)
		for _, want := range []int{3, 3, 0} {
			if compared, err := comparer.RunOnce(t.Context()); err != nil || len(compared) != want {
				t.Errorf("compared %d windows, %v; want %d", len(compared), err, want)
			}
		}
		_, windows := l.take()
		for i, w := range windows {
			if want := time.Now().Add(time.Duration(i-6) * day); !w.To.Equal(want) {
				t.Errorf("window %d ends at %s, want %s", i, w.To, want)
			}
		}
	})
}

// TestClocksOfNodesDecideNothing: they are ahead of the store, or slow. Each effect is known to the provider only from
// its time on by the store's clock: a window that is compared before it has ended does not see it.
func TestClocksOfNodesDecideNothing(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-25 * time.Hour, -time.Hour, 0, time.Hour, 25 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			clock := func() time.Time { return time.Now().Add(-ahead) }
			store, got := memory.New(memory.WithClock(clock)), &report{}
			entries := effects(clock().Add(30*time.Minute), time.Hour, 99)
			provider := func(_ context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
				seen := slices.DeleteFunc(behind(slices.Clone(entries), after), func(e ledger.Entry) bool {
					return e.At.Before(w.From) || !e.At.Before(w.To) || e.At.After(clock())
				})
				return stream(seen, nil)
			}
			for range 2 {
				config := (&ledgers{}).config(store, got)
				config.Interval, config.Settle, config.Provider = time.Hour, time.Minute, provider
				defer inBackground(t, newComparer(t, config))()
			}
			time.Sleep(101 * time.Hour)
			synctest.Wait()
			requireAll(t, got, entries)
		})
	}
}

// offset is how far the store's clock is ahead. It is read by heartbeats too.
type offset struct{ ahead atomic.Int64 }

func (o *offset) set(ahead time.Duration) { o.ahead.Store(int64(ahead)) }

func (o *offset) clock() time.Time { return time.Now().Add(time.Duration(o.ahead.Load())) }

// TestTheStoresClockStepsBack: what was compared while it was ahead, or could not be, is compared again when it has
// ended.
func TestTheStoresClockStepsBack(t *testing.T) {
	t.Parallel()
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var ahead offset
			store, got := memory.New(memory.WithClock(ahead.clock)), &report{}
			entries := effects(time.Now().Add(-10*time.Hour), time.Hour, 99)
			l := &ledgers{down: down, entries: entries[:10]}
			config := l.config(store, got)
			config.Since = entries[0].At
			defer inBackground(t, newComparer(t, config))()
			time.Sleep(time.Second)
			ahead.set(50 * time.Hour)
			time.Sleep(70 * time.Minute)
			if until := status(t, newComparer(t, config)).Until; until.Before(time.Now().Add(40 * time.Hour)) {
				t.Fatalf("compared is until %s: the test sets nothing back", until)
			}
			ahead.set(-30 * time.Minute)
			l.mu.Lock()
			l.entries, l.down = entries, false
			l.mu.Unlock()
			time.Sleep(7 * day)
			synctest.Wait()
			requireAll(t, got, entries)
			if s := status(t, newComparer(t, config)); len(s.Uncompared) != 0 {
				t.Errorf("still uncompared are %+v", s.Uncompared)
			}
		})
	}
}

// TestTheStoresClockIsFarAhead: it is ahead for longer than the journal remembers how it moved on, and by more windows
// than it holds. What had not ended when they were compared is compared when it has.
func TestTheStoresClockIsFarAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ahead offset
		store, got := memory.New(memory.WithClock(ahead.clock)), &report{}
		entries := effects(time.Now().Add(-10*time.Hour), time.Hour, 99)
		l := &ledgers{entries: entries[:10]}
		config := l.config(store, got)
		config.Since = entries[0].At
		comparer := newComparer(t, config)
		ahead.set(400 * day)
		for range 60 {
			if _, err := comparer.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if until := status(t, comparer).Until; until.Before(time.Now().Add(390 * day)) {
			t.Fatalf("compared is until %s: the test sets nothing back", until)
		}
		ahead.set(0)
		l.mu.Lock()
		l.entries = entries
		l.mu.Unlock()
		defer inBackground(t, comparer)()
		time.Sleep(7 * day)
		synctest.Wait()
		requireAll(t, got, entries)
	})
}

// TestWhatFailedByAClockThatWasAhead: what has ended is tried again soon, and what has not is not due.
func TestWhatFailedByAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ahead offset
		l := &ledgers{down: true}
		comparer := newComparer(t, l.config(memory.New(memory.WithClock(ahead.clock)), &report{}))
		for _, by := range []time.Duration{0, 50 * time.Hour} {
			ahead.set(by)
			if _, err := comparer.RunOnce(t.Context()); !errors.Is(err, errAway) {
				t.Fatal(err)
			}
		}
		if n := len(status(t, comparer).Uncompared); n != 4 {
			t.Fatalf("%d windows are uncompared, want those of four days", n)
		}
		ahead.set(0)
		l.setDown(false)
		// After an hour the next window has settled too.
		for _, want := range []struct{ compared, left int }{{0, 1}, {2, 0}} {
			if compared, err := comparer.RunOnce(t.Context()); len(compared) != want.compared || err != nil {
				t.Errorf("compared %+v, %v; want %d", compared, err, want.compared)
			}
			if due := status(t, comparer).Uncompared; len(due) != want.left {
				t.Errorf("uncompared are %+v, want %d", due, want.left)
			}
			time.Sleep(time.Hour)
		}
	})
}

// TestTheFirstRun: where a comparison begins, and that this is not forgotten.
func TestTheFirstRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		midnight := time.Now()
		for name, test := range map[string]struct {
			since time.Time
			want  int
		}{
			"the last window":       {want: 1},
			"three days ago":        {midnight.Add(-3 * day), 2},
			"tomorrow":              {midnight.Add(day), 0},
			"far too long ago":      {midnight.Add(-1000 * day), 100},
			"within a window":       {midnight.Add(-day - time.Hour), 1},
			"shortly before an end": {midnight.Add(-day - time.Minute), 0},
		} {
			l := &ledgers{}
			config := l.config(memory.New(), &report{})
			config.Since = test.since
			comparer := newComparer(t, config)
			if n := len(status(t, comparer).Uncompared); n != test.want {
				t.Errorf("%s: %d windows are due, want %d", name, n, test.want)
			}
			if _, err := comparer.RunOnce(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		l := &ledgers{}
		config := l.config(memory.New(), &report{})
		for _, test := range []struct {
			since time.Duration
			want  int
		}{{0, 1}, {-day, 0}, {-5 * day, 4}, {-5 * day, 0}, {-2 * day, 0}} {
			config.Since = time.Time{}
			if test.since != 0 {
				config.Since = midnight.Add(test.since)
			}
			if compared, err := newComparer(t, config).RunOnce(t.Context()); len(compared) != test.want || err != nil {
				t.Errorf("since %s: %d windows were compared, %v; want %d", test.since, len(compared), err, test.want)
			}
		}
	})
}

// deploy is what one changes about the windows, and the looks that follow before the next.
type deploy struct {
	interval, grace, settle time.Duration
	looks                   []look
}

// look is a run of the comparison after some time, with the provider up or down.
type look struct {
	pass time.Duration
	down bool
}

func drawDeploys(t *rapid.T) []deploy {
	minutes := func(name string, least, most int) time.Duration {
		return time.Duration(rapid.IntRange(least, most).Draw(t, name)) * time.Minute
	}
	deploys := make([]deploy, rapid.IntRange(1, 4).Draw(t, "deploys"))
	for i := range deploys {
		d := &deploys[i]
		d.interval, d.grace, d.settle = minutes("interval", 100, 2000), minutes("grace", 1, 200), minutes("settle", 1, 500)
		d.looks = make([]look, rapid.IntRange(1, 4).Draw(t, "looks"))
		for k := range d.looks {
			d.looks[k] = look{minutes("pass", 1, 500), rapid.Bool().Draw(t, "down")}
		}
	}
	return deploys
}

// play compares through the deploys, and then to the end. It returns how many effects there were, and were reported.
func play(t *testing.T, deploys []deploy) (effected, reported int, err error) {
	began := time.Now()
	store, got := memory.New(), &report{}
	l := &ledgers{entries: effects(began, 11*time.Minute, 200)}
	config := l.config(store, got)
	config.Since = began
	for _, d := range deploys {
		config.Interval, config.Grace, config.Settle = d.interval, d.grace, d.settle
		for _, look := range d.looks {
			time.Sleep(look.pass)
			l.setDown(look.down)
			if _, err := newComparer(t, config).RunOnce(t.Context()); err != nil && !look.down {
				return 0, 0, err
			}
		}
	}
	time.Sleep(30 * day)
	l.setDown(false)
	config.Interval = day
	comparer := newComparer(t, config)
	for {
		compared, err := comparer.RunOnce(t.Context())
		if err != nil || len(compared) == 0 {
			return len(l.entries), len(got.different()), err
		}
	}
}

// TestDeploysLeaveNoGap: each of them changes what it likes about the windows, also while some are uncompared.
func TestDeploysLeaveNoGap(t *testing.T) {
	t.Parallel()
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		deploys := drawDeploys(t)
		var effected, reported int
		var err error
		synctest.Test(outer, func(t *testing.T) { effected, reported, err = play(t, deploys) })
		if err != nil || reported != effected {
			t.Fatalf("%d of %d effects were reported (%v)", reported, effected, err)
		}
	})
}
