package ledger_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/memory"
)

// config is one of a node that compares the two lists.
func config(t *testing.T, store onceward.Store, provider, local string, got *report) ledger.Config {
	t.Helper()
	return ledger.Config{
		Guard: newGuard(t, store), Name: "test", Logger: quiet,
		Provider: source(list(provider)), Local: source(list(local)), Report: got.Report,
	}
}

func TestRunIsDoneOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		var events []onceward.ObserverEvent
		cfg := config(t, memory.New(), "a=1 b=2 c=3", "a=1 b=9 d=4", &got)
		cfg.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) { events = append(events, e) })

		run := "test 1999-12-31T11:00:00Z/1999-12-31T12:00:00Z"
		want := ledger.Summary{Run: run, Provider: 3, Local: 3, Matched: 1, Differs: 1, MissingHere: 1, MissingThere: 1}
		if s, err := ledger.Run(t.Context(), cfg, window); s != want || err != nil {
			t.Fatalf("%+v, %v; want %+v", s, err, want)
		}
		if words := got.take(); words != "differs b, missing here c, missing there d" {
			t.Errorf("found %q", words)
		}
		told := []onceward.ObserverEvent{
			onceward.LedgerFindingEvent{Run: run, Kind: "differs", Key: "b"},
			onceward.LedgerFindingEvent{Run: run, Kind: "missing here", Key: "c"},
			onceward.LedgerFindingEvent{Run: run, Kind: "missing there", Key: "d"},
		}
		if !slices.Equal(events, told) {
			t.Errorf("the observer was told %+v, want %+v", events, told)
		}

		// The window in another zone is the same one. The ledgers have changed since: the run is not done again.
		time.Sleep(3 * ledger.DefaultInterval)
		cfg.Local = source(nil)
		there := time.FixedZone("there", 3600)
		again := ledger.Window{From: window.From.In(there), To: window.To.In(there)}
		want.Replayed = true
		if s, err := ledger.Run(t.Context(), cfg, again); s != want || err != nil {
			t.Errorf("again: %+v, %v; want %+v", s, err, want)
		}
		if words := got.take(); words != "" {
			t.Errorf("found again: %q", words)
		}
	})
}

func TestTheSameDifferenceHasTheSameID(t *testing.T) {
	t.Parallel()
	var got report
	cfg := config(t, memory.New(), "a=1", "a=2", &got)
	for _, w := range []ledger.Window{window, {From: window.From.Add(-time.Hour), To: window.To}} {
		if _, err := ledger.Run(t.Context(), cfg, w); err != nil {
			t.Fatal(err)
		}
	}
	if found := got.take(); found != "differs a, differs a" || len(got.different()) != 1 {
		t.Errorf("two windows: %q with %d IDs, want 1", found, len(got.different()))
	}
	cfg.Name = "another"
	if _, err := ledger.Run(t.Context(), cfg, window); err != nil || len(got.different()) != 2 {
		t.Errorf("another comparison: %d IDs, want 2 (%v)", len(got.different()), err)
	}
}

// TestEdges: what is on one side only counts as a finding in the inner part of the window, which is closed at its beginning
// and open at its end, so that those of windows that overlap lie side by side.
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
		cfg := config(t, memory.New(), "", "", &got)
		cfg.Grace = grace
		twice := ledger.Entry{Key: "only there", At: test.at}
		cfg.Provider = source([]ledger.Entry{{Key: "differs", Value: "1", At: test.at}, twice, twice})
		cfg.Local = source([]ledger.Entry{{Key: "differs", Value: "2", At: test.at}, {Key: "only here", At: test.at}})
		s, err := ledger.Run(t.Context(), cfg, window)
		want := ledger.Summary{Run: s.Run, Provider: 3, Local: 2, Differs: 1, Duplicates: 1, MissingHere: 1, MissingThere: 1}
		if test.edge {
			want.MissingHere, want.MissingThere, want.AtEdge = 0, 0, 2
		}
		if s != want || err != nil {
			t.Errorf("at %s: %+v, %v; want %+v", test.at, s, err, want)
		}
	}
}

// TestOnlyOneNodeRuns: while a node is at it, another one is told so and asks its sources nothing.
func TestOnlyOneNodeRuns(t *testing.T) {
	t.Parallel()
	store := memory.New()
	var got report
	cfg := config(t, store, "a", "a", &got)
	reached, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error)
	slow := cfg
	slow.Provider = breaking(list("a"), func() { close(reached); <-goOn }, 0)
	go func() {
		_, err := ledger.Run(t.Context(), slow, window)
		done <- err
	}()
	<-reached
	cfg.Guard = newGuard(t, store)
	cfg.Provider = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
		t.Error("the second node runs too")
		return stream(nil, nil)
	}
	if _, err := ledger.Run(t.Context(), cfg, window); !errors.Is(err, onceward.ErrInProgress) {
		t.Errorf("the second node: %v", err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s, err := ledger.Run(t.Context(), cfg, window); err != nil || !s.Replayed || s.Matched != 1 {
		t.Errorf("the second node later: %+v, %v", s, err)
	}
}

func TestConfigMustMakeSense(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*ledger.Config, *ledger.Window){
		"Guard":           func(c *ledger.Config, _ *ledger.Window) { c.Guard = nil },
		"0 bytes":         func(c *ledger.Config, _ *ledger.Window) { c.Name = "" },
		"129 bytes":       func(c *ledger.Config, _ *ledger.Window) { c.Name = strings.Repeat("x", 129) },
		"Provider":        func(c *ledger.Config, _ *ledger.Window) { c.Provider = nil },
		"Local":           func(c *ledger.Config, _ *ledger.Window) { c.Local = nil },
		"negative":        func(c *ledger.Config, _ *ledger.Window) { c.Grace = -1 },
		"no count":        func(c *ledger.Config, _ *ledger.Window) { c.Windows = -1 },
		"Windows of":      func(c *ledger.Config, _ *ledger.Window) { c.Windows = 1 << 20 },
		"twice the grace": func(_ *ledger.Config, w *ledger.Window) { w.From = w.To.Add(-2 * ledger.DefaultGrace) },
		"has not ended":   func(_ *ledger.Config, w *ledger.Window) { w.To = time.Now().Add(time.Minute) },
	} {
		cfg, w := config(t, memory.New(), "a", "a", &report{}), window
		change(&cfg, &w)
		if _, err := ledger.Run(t.Context(), cfg, w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := ledger.NewComparer(ledger.Config{}); err == nil {
		t.Error("a comparer of nothing")
	}
	cfg := config(t, memory.New(), "a", "a", &report{})
	cfg.Name = strings.Repeat("x", 128)
	precise := ledger.Window{From: window.From.Add(1), To: window.To.Add(1)}
	if _, err := ledger.Run(t.Context(), cfg, precise); err != nil {
		t.Errorf("the longest name: %v", err)
	}
}
