package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestAWindowIsComparedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		var events []onceward.ObserverEvent
		config := config(newStore(), "a=1 b=2 c=3", "a=1 b=9 d=4", &got)
		config.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) { events = append(events, e) })

		name := "test 1999-12-31T11:00:00Z/1999-12-31T12:00:00Z"
		want := ledger.Summary{Run: name, Provider: 3, Local: 3, Matched: 1, Differs: 1, MissingHere: 1, MissingThere: 1}
		if s, err := run(t, config); s != want || err != nil {
			t.Fatalf("%+v, %v; want %+v", s, err, want)
		}
		if words := got.take(); words != "differs b, missing here c, missing there d" {
			t.Errorf("found %q", words)
		}
		told := []onceward.ObserverEvent{
			ledger.FindingEvent{Run: name, Kind: "differs", Key: "b"},
			ledger.FindingEvent{Run: name, Kind: "missing here", Key: "c"},
			ledger.FindingEvent{Run: name, Kind: "missing there", Key: "d"},
			ledger.WindowEvent{Run: name, Outcome: "compared"},
		}
		if !slices.Equal(events, told) {
			t.Errorf("the observer was told %+v, want %+v", events, told)
		}

		// The ledgers have changed since: the window is not compared again.
		config.Local = source(nil)
		if compared, err := newComparer(t, config).RunOnce(t.Context()); len(compared) != 0 || err != nil {
			t.Errorf("again: %+v, %v", compared, err)
		}
		if words := got.take(); words != "" {
			t.Errorf("found again: %q", words)
		}
	})
}

func TestTheSameDifferenceHasTheSameID(t *testing.T) {
	t.Parallel()
	var got report
	config := config(newStore(), "a=1", "a=2", &got)
	for _, scope := range []string{"", "another"} {
		config.Scope = scope
		if _, err := run(t, config); err != nil {
			t.Fatal(err)
		}
	}
	if found := got.take(); found != "differs a, differs a" || len(got.different()) != 1 {
		t.Errorf("compared twice: %q with %d IDs, want 1", found, len(got.different()))
	}
	config.Name = "another"
	if _, err := run(t, config); err != nil || len(got.different()) != 2 {
		t.Errorf("another comparison: %d IDs, want 2 (%v)", len(got.different()), err)
	}
}

// TestEdges: an entry on one side only counts as a finding in the inner part of the window, which is closed at its
// beginning and open at its end, so that the inner parts of overlapping windows are adjacent.
func TestEdges(t *testing.T) {
	t.Parallel()
	const grace = 10 * time.Minute
	for _, test := range []struct {
		at   time.Time
		edge bool
	}{
		{window.From.Add(-time.Second), true},
		{window.From, true},
		{window.From.Add(grace - 1), true},
		{window.From.Add(grace), false},
		{window.To.Add(-grace - 1), false},
		{window.To.Add(-grace), true},
		{window.To, true},
		{time.Time{}, false},
	} {
		var got report
		config := config(newStore(), "", "", &got)
		config.Grace, config.Since = grace, window.From.Add(grace)
		twice := ledger.Entry{Key: "only there", At: test.at}
		config.Provider = source([]ledger.Entry{{Key: "differs", Value: "1", At: test.at}, twice, twice})
		config.Local = source([]ledger.Entry{{Key: "differs", Value: "2", At: test.at}, {Key: "only here", At: test.at}})
		s, err := run(t, config)
		want := ledger.Summary{Run: s.Run, Provider: 3, Local: 2, Differs: 1, Duplicates: 1, MissingHere: 1, MissingThere: 1}
		if test.edge {
			want.MissingHere, want.MissingThere, want.AtEdge = 0, 0, 2
		}
		if s != want || err != nil {
			t.Errorf("at %s: %+v, %v; want %+v", test.at, s, err, want)
		}
	}
}

// TestOnlyOneNodeRuns: while a node is comparing, another one gets an error and reads nothing from its sources.
func TestOnlyOneNodeRuns(t *testing.T) {
	t.Parallel()
	store := newStore()
	var got report
	config := config(store, "a", "a", &got)
	reached, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	slow := config
	slow.Provider = breaking(list("a"), func() { close(reached); <-goOn }, 0)
	go func() {
		_, err := newComparer(t, slow).RunOnce(t.Context())
		done <- err
	}()
	await.Value(t, "the turn of the first node", reached)
	config.Provider = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
		t.Error("the second node runs too")
		return stream(nil, nil)
	}
	second := newComparer(t, config)
	if _, err := second.RunOnce(t.Context()); !errors.Is(err, onceward.ErrInProgress) {
		t.Errorf("the second node: %v", err)
	}
	if status, err := second.Status(t.Context()); err != nil || len(status.Uncompared) != 1 {
		t.Errorf("meanwhile the status is %+v, %v", status, err)
	}
	close(goOn)
	if err := await.Value(t, "the end of the first node's turn", done); err != nil {
		t.Error(err)
	}
	if compared, err := second.RunOnce(t.Context()); err != nil || len(compared) != 0 {
		t.Errorf("the second node later: %+v, %v", compared, err)
	}
}

func TestConfigMustMakeSense(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*node){
		"store":     func(n *node) { n.store = nil },
		"0 bytes":   func(c *node) { c.Name = "" },
		"129 bytes": func(c *node) { c.Name = strings.Repeat("x", 129) },
		"Provider":  func(c *node) { c.Provider = nil },
		"Local":     func(c *node) { c.Local = nil },
		"negative":  func(c *node) { c.Grace = -1 },
		"no count":  func(c *node) { c.Windows = -1 },
	} {
		config := config(newStore(), "a", "a", &report{})
		change(&config)
		if _, err := ledger.NewComparer(config.store, config.Config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	config := config(newStore(), "a", "a", &report{})
	config.Name = strings.Repeat("x", 128)
	if _, err := run(t, config); err != nil {
		t.Errorf("the longest name: %v", err)
	}
}

// This file tests the reasons for which a run stops, and what each means for the attempt that continues.

// TestASourceOutOfOrderStartsOver: what it came to before cannot be trusted.
func TestASourceOutOfOrderStartsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		config := config(newStore(), "a b c", "a b c", &got)
		config.SaveEvery = 1
		config.Local = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
			return stream(list("a c b"), nil)
		}
		var order *ledger.OrderError
		if s, err := run(t, config); !errors.As(err, &order) || s.Findings() != 0 || s.Matched != 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		time.Sleep(ledger.DefaultMinBackoff)
		config.Local = source(list("a b c"))
		if s, err := run(t, config); err != nil || s.Matched != 3 || s.Findings() != 0 {
			t.Errorf("in order: %+v, %v", s, err)
		}
	})
}

// TestASourceMustBeginBehind: one that starts from the beginning would be counted twice.
func TestASourceMustBeginBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		config := config(newStore(), "a b c", "a b c", &got)
		config.Provider = breaking(list("a b c"), nil, 2)
		if _, err := run(t, config); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		time.Sleep(ledger.DefaultMinBackoff)
		config.Local = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
			return stream(list("a b c"), nil)
		}
		var order *ledger.OrderError
		want := ledger.OrderError{Side: ledger.SideLocal, Before: "a", Key: "a"}
		if _, err := run(t, config); !errors.As(err, &order) || *order != want {
			t.Errorf("%v, want %v", err, &want)
		}
	})
}

// TestTheContextStopsARun: the engine does not pass it on, but a node that stops must not compare for hours. Another
// one continues immediately.
func TestTheContextStopsARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		ctx, cancel := context.WithCancelCause(t.Context())
		config := config(newStore(), someProvider, someLocal, &got)
		config.Provider = breaking(list(someProvider), func() { cancel(errAway); synctest.Wait() }, 5)
		if _, err := newComparer(t, config).RunOnce(ctx); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		s, err := run(t, config)
		requireSame(t, "another node", &got, s, err)
	})
}

func TestTheDeadlineStopsARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		config := config(newStore(), someProvider, someLocal, &got)
		config.Provider = breaking(list(someProvider), func() { time.Sleep(10 * time.Minute) }, 3, 7)
		config.Deadline = time.Minute
		for attempt := range 2 {
			if _, err := run(t, config); !errors.Is(err, store.ErrDeadline) {
				t.Errorf("attempt %d: %v", attempt, err)
			}
			time.Sleep(ledger.DefaultMinBackoff << attempt)
		}
		s, err := run(t, config)
		requireSame(t, "the third attempt", &got, s, err)
	})
}

// TestAReportThatFailsIsRepeated: no finding is lost because its report failed.
func TestAReportThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		config := config(newStore(), someProvider, someLocal, &got)
		failed := make(map[string]bool)
		config.Report = func(ctx context.Context, f ledger.Finding) error {
			if !failed[f.ID] {
				failed[f.ID] = true
				return errAway
			}
			return got.Report(ctx, f)
		}
		config.MinBackoff = time.Microsecond
		for attempts := range 9 {
			if _, err := run(t, config); !errors.Is(err, errAway) {
				t.Error(err)
			}
			time.Sleep(config.MinBackoff << attempts)
		}
		s, err := run(t, config)
		requireSame(t, "with a report that fails", &got, s, err)
	})
}

// This file is about runs that are interrupted, and what a later attempt makes of them.

// These two sides have every kind of finding, duplicates beside each other and keys that are no text.
const (
	someProvider = "a=1 b=1 b=2 b=2 c=1 d=1 e=1 f=1 f=1 \xff=1 \xff\x01=1 \xff\x02=1"
	someLocal    = "a=1 b=1 c=2 c=2 c=3 e=1 f=1 g=1 \xff=2 \xff\x01=1 \xff\x02=1"
)

// uninterrupted is what the two sides come to if nothing goes wrong.
func uninterrupted(t *testing.T) ([]string, ledger.Summary) {
	t.Helper()
	var got report
	s, err := run(t, config(newStore(), someProvider, someLocal, &got))
	if err != nil || s.Findings() != 9 {
		t.Fatalf("%+v, %v", s, err)
	}
	return got.different(), s
}

// requireSame compares what an interrupted run came to.
func requireSame(t *testing.T, name string, got *report, s ledger.Summary, err error) {
	t.Helper()
	words, want := uninterrupted(t)
	if s != want || err != nil {
		t.Errorf("%s: %+v, %v; want %+v", name, s, err, want)
	}
	if found := got.different(); !slices.Equal(found, words) {
		t.Errorf("%s: found %q, want %q", name, found, words)
	}
}

// TestRunGoesOnAfterAFailure interrupts a run at each entry of each side, by an error and by a panic, on one node, and
// continues it on another.
func TestRunGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	for i := range len(list(someProvider)) {
		for _, breaks := range []func(){nil, func() { panic("the test panics") }} {
			for _, side := range []ledger.Side{ledger.SideProvider, ledger.SideLocal} {
				name := fmt.Sprint(side, " breaks at ", i, ", panic ", breaks != nil)
				synctest.Test(t, func(t *testing.T) {
					var got report
					store := newStore()
					first := config(store, someProvider, someLocal, &got)
					second := config(store, someProvider, someLocal, &got)
					if side == ledger.SideProvider {
						first.Provider = breaking(list(someProvider), breaks, i)
					} else {
						first.Local = breaking(list(someLocal), breaks, min(i, len(list(someLocal))-1))
					}
					_, err := run(t, first)
					if broken := err != nil && strings.Contains(err.Error(), "the test p"); !broken {
						t.Errorf("%s: %v", name, err)
					}
					time.Sleep(ledger.DefaultMinBackoff - 1)
					if compared, err := newComparer(t, second).RunOnce(t.Context()); len(compared) != 0 || err != nil {
						t.Errorf("%s: before the pause is over: %v, %v", name, compared, err)
					}
					time.Sleep(time.Nanosecond)
					s, err := run(t, second)
					requireSame(t, name, &got, s, err)
				})
			}
		}
	}
}

// TestOnlyTheKeyAtHandIsComparedAgain: a failure is no reason to start over, even before the first of the regular
// recovery points.
func TestOnlyTheKeyAtHandIsComparedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		config := config(newStore(), someProvider, someLocal, &got)
		var afters []string
		broken := breaking(list(someProvider), nil, 8) // the second f
		config.Provider = func(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
			afters = append(afters, after)
			return broken(ctx, w, after)
		}
		s, err := run(t, config)
		if s.Provider != 7 || s.Local != 6 || !errors.Is(err, errAway) {
			t.Errorf("%+v, %v; want what it came to before f", s, err)
		}
		want := "duplicate b provider 2, duplicate b provider 2, duplicate c local 2, duplicate c local 3, " +
			"differs c, missing here d"
		if words := got.take(); words != want {
			t.Errorf("found %q, want %q", words, want)
		}
		time.Sleep(ledger.DefaultMinBackoff)
		s, err = run(t, config)
		requireSame(t, "the second attempt", &got, s, err)
		if words := got.take(); words != "duplicate f provider 1, missing there g, differs \xff" {
			t.Errorf("the second attempt found %q", words)
		}
		if !slices.Equal(afters, []string{"", "e"}) {
			t.Errorf("the source was asked for what is behind %q", afters)
		}
	})
}

// mortal is the store as a process sees it that dies: from then on nothing arrives.
type mortal struct {
	*memory.Store
	checkpoints atomic.Int64
	diesAfter   int64
}

var errDead = fmt.Errorf("%w: the process is dead", store.ErrUnavailable)

func (m *mortal) dead() bool { return m.checkpoints.Load() >= m.diesAfter }

func (m *mortal) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	if m.dead() {
		return errDead
	}
	m.checkpoints.Add(1)
	return m.Store.Checkpoint(ctx, c, p)
}

func (m *mortal) Release(ctx context.Context, c store.Claim, reason string) error {
	if m.dead() {
		return errDead
	}
	return m.Store.Release(ctx, c, reason)
}

func (m *mortal) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if m.dead() {
		return errDead
	}
	return m.Store.Extend(ctx, c, lease)
}

// TestRunGoesOnAfterADeath lets the owner die at each recovery point: later entries are compared and reported again.
func TestRunGoesOnAfterADeath(t *testing.T) {
	t.Parallel()
	for points := int64(1); points < 5; points++ { // the first is that the window is due
		synctest.Test(t, func(t *testing.T) {
			var got report
			store := newStore()
			first := config(&mortal{Store: store, diesAfter: points}, someProvider, someLocal, &got)
			first.SaveEvery = 4
			if _, err := run(t, first); !errors.Is(err, errDead) {
				t.Errorf("the first owner: %v", err)
			}
			time.Sleep(time.Minute)
			s, err := run(t, config(store, someProvider, someLocal, &got))
			name := fmt.Sprint("dead after ", points)
			requireSame(t, name, &got, s, err)
			if n := len(got.words); n <= len(got.different()) {
				t.Errorf("%s: %d reports: the test did not interrupt between a report and a recovery point", name, n)
			}
		})
	}
}
