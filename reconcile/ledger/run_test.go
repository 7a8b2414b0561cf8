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
)

func TestAWindowIsComparedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		var events []onceward.ObserverEvent
		cfg := config(newStore(), "a=1 b=2 c=3", "a=1 b=9 d=4", &got)
		cfg.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) { events = append(events, e) })

		name := "test 1999-12-31T11:00:00Z/1999-12-31T12:00:00Z"
		want := ledger.Summary{Run: name, Provider: 3, Local: 3, Matched: 1, Differs: 1, MissingHere: 1, MissingThere: 1}
		if s, err := run(t, cfg); s != want || err != nil {
			t.Fatalf("%+v, %v; want %+v", s, err, want)
		}
		if words := got.take(); words != "differs b, missing here c, missing there d" {
			t.Errorf("found %q", words)
		}
		told := []onceward.ObserverEvent{
			onceward.LedgerFindingEvent{Run: name, Kind: "differs", Key: "b"},
			onceward.LedgerFindingEvent{Run: name, Kind: "missing here", Key: "c"},
			onceward.LedgerFindingEvent{Run: name, Kind: "missing there", Key: "d"},
			onceward.LedgerWindowEvent{Run: name, Outcome: "compared"},
		}
		if !slices.Equal(events, told) {
			t.Errorf("the observer was told %+v, want %+v", events, told)
		}

		// The ledgers have changed since: the window is not compared again.
		cfg.Local = source(nil)
		if compared, err := newComparer(t, cfg).RunOnce(t.Context()); len(compared) != 0 || err != nil {
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
	cfg := config(newStore(), "a=1", "a=2", &got)
	for _, scope := range []string{"", "another"} {
		cfg.Scope = scope
		if _, err := run(t, cfg); err != nil {
			t.Fatal(err)
		}
	}
	if found := got.take(); found != "differs a, differs a" || len(got.different()) != 1 {
		t.Errorf("compared twice: %q with %d IDs, want 1", found, len(got.different()))
	}
	cfg.Name = "another"
	if _, err := run(t, cfg); err != nil || len(got.different()) != 2 {
		t.Errorf("another comparison: %d IDs, want 2 (%v)", len(got.different()), err)
	}
}

// TestEdges: what is on one side only counts as a finding in the inner part of the window, which is closed at its
// beginning and open at its end, so that those of windows that overlap lie side by side.
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
		cfg := config(newStore(), "", "", &got)
		cfg.Grace, cfg.Since = grace, window.From.Add(grace)
		twice := ledger.Entry{Key: "only there", At: test.at}
		cfg.Provider = source([]ledger.Entry{{Key: "differs", Value: "1", At: test.at}, twice, twice})
		cfg.Local = source([]ledger.Entry{{Key: "differs", Value: "2", At: test.at}, {Key: "only here", At: test.at}})
		s, err := run(t, cfg)
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
	store := newStore()
	var got report
	cfg := config(store, "a", "a", &got)
	reached, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	slow := cfg
	slow.Provider = breaking(list("a"), func() { close(reached); <-goOn }, 0)
	go func() {
		_, err := newComparer(t, slow).RunOnce(t.Context())
		done <- err
	}()
	await(t, "the turn of the first node", reached)
	cfg.Provider = func(context.Context, ledger.Window, string) iter.Seq2[ledger.Entry, error] {
		t.Error("the second node runs too")
		return stream(nil, nil)
	}
	second := newComparer(t, cfg)
	if _, err := second.RunOnce(t.Context()); !errors.Is(err, onceward.ErrInProgress) {
		t.Errorf("the second node: %v", err)
	}
	if status, err := second.Status(t.Context()); err != nil || len(status.Uncompared) != 1 {
		t.Errorf("meanwhile the status is %+v, %v", status, err)
	}
	close(goOn)
	if err := await(t, "the end of the first node's turn", done); err != nil {
		t.Error(err)
	}
	if compared, err := second.RunOnce(t.Context()); err != nil || len(compared) != 0 {
		t.Errorf("the second node later: %+v, %v", compared, err)
	}
}

func TestConfigMustMakeSense(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*ledger.Config){
		"Store":     func(c *ledger.Config) { c.Store = nil },
		"0 bytes":   func(c *ledger.Config) { c.Name = "" },
		"129 bytes": func(c *ledger.Config) { c.Name = strings.Repeat("x", 129) },
		"Provider":  func(c *ledger.Config) { c.Provider = nil },
		"Local":     func(c *ledger.Config) { c.Local = nil },
		"negative":  func(c *ledger.Config) { c.Grace = -1 },
		"no count":  func(c *ledger.Config) { c.Windows = -1 },
	} {
		cfg := config(newStore(), "a", "a", &report{})
		change(&cfg)
		if _, err := ledger.NewComparer(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	cfg := config(newStore(), "a", "a", &report{})
	cfg.Name = strings.Repeat("x", 128)
	if _, err := run(t, cfg); err != nil {
		t.Errorf("the longest name: %v", err)
	}
}
