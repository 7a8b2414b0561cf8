package reconcile_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/memory"
)

func interpretNothing(context.Context, *onceward.Record, []onceward.Notice) (reconcile.Answer, error) {
	return reconcile.StillUnknown("nothing yet"), nil
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := reconcile.Rule{Resolver: &oracle{}}
	with := func(r reconcile.Rule) reconcile.Config {
		return reconcile.Config{Rules: map[string]reconcile.Rule{transfers: r}}
	}
	for name, c := range map[string]struct {
		config reconcile.Config
		want   string
	}{
		"nothing":               {reconcile.Config{}, "Rules is missing"},
		"a rule of nothing":     {with(reconcile.Rule{}), `"POST /transfers" has neither`},
		"a default of nothing":  {reconcile.Config{Default: &reconcile.Rule{}}, `"all others" has neither`},
		"a source alone":        {with(reconcile.Rule{Resolver: &oracle{}, Source: "bank"}), "both Source and Interpret"},
		"an interpreter alone":  {with(reconcile.Rule{Interpret: interpretNothing}), "both Source and Interpret"},
		"a negative arrival":    {with(reconcile.Rule{Resolver: &oracle{}, Arrival: -1}), "negative Arrival"},
		"a negative interval":   {reconcile.Config{Default: &good, Interval: -time.Second}, "-1s"},
		"a negative pause":      {reconcile.Config{Default: &good, Pause: -1}, "duration"},
		"a negative long pause": {reconcile.Config{Default: &good, LongestPause: -1}, "duration"},
		"a negative timeout":    {reconcile.Config{Default: &good, Timeout: -1}, "duration"},
		"negative retentions":   {reconcile.Config{Default: &good, KeepNotices: -1}, "duration"},
		"pauses of centuries":   {reconcile.Config{Default: &good, LongestPause: math.MaxInt64}, "duration"},
		"a negative audit":      {reconcile.Config{Default: &good, KeepAudit: -1}, "duration"},
		"a negative limit":      {reconcile.Config{Default: &good, Limit: -1}, "Limit"},
		"negative concurrency":  {reconcile.Config{Default: &good, Concurrency: -1}, "Concurrency"},
	} {
		poller, err := reconcile.NewPoller(memory.New(), c.config)
		if err == nil || poller != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, c.want)
		}
	}
	for name, config := range map[string]reconcile.Config{
		"a rule":       with(good),
		"a default":    {Default: &good},
		"notices only": with(reconcile.Rule{Source: "bank", Interpret: interpretNothing}),
	} {
		if _, err := reconcile.NewPoller(memory.New(), config); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStoresThatCannot(t *testing.T) {
	t.Parallel()
	all := memory.New()
	asks := reconcile.Config{Default: &reconcile.Rule{Resolver: &oracle{}}}
	hears := reconcile.Config{Default: &reconcile.Rule{Source: "bank", Interpret: interpretNothing}}
	type lists struct {
		onceward.Store
		onceward.Lister
	}
	type settles struct {
		onceward.Store
		onceward.Reconciler
	}
	type both struct {
		onceward.Store
		onceward.Lister
		onceward.Reconciler
	}
	type busts struct {
		both
		onceward.Buster
	}
	two := both{all, all, all}
	for name, c := range map[string]struct {
		store         onceward.Store
		config        reconcile.Config
		poller, bench bool
	}{
		"a bare store":                     {store: struct{ onceward.Store }{all}, config: asks},
		"none at all":                      {store: nil, config: asks},
		"one that only lists":              {store: lists{all, all}, config: asks},
		"one that only settles":            {store: settles{all, all}, config: asks},
		"one that does both":               {store: two, config: asks, poller: true},
		"one without notices":              {store: two, config: hears},
		"one without an audit":             {store: busts{two, all}, config: asks, poller: true},
		"one with an audit but no notices": {store: auditing{busts{two, all}, all}, config: asks, poller: true, bench: true},
		"all":                              {store: all, config: hears, poller: true, bench: true},
	} {
		if _, err := reconcile.NewPoller(c.store, c.config); (err == nil) != c.poller || err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: a poller got %v", name, err)
		}
		if _, err := reconcile.NewDesk(c.store); (err == nil) != c.bench || err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: a desk got %v", name, err)
		}
	}
}

// auditing adds an audit to a store that has none.
type auditing struct {
	deskless
	onceward.Auditor
}

// deskless is what a desk needs, but for the audit.
type deskless interface {
	onceward.Store
	onceward.Lister
	onceward.Reconciler
	onceward.Buster
}

// TestBareStoreIsReconciled: without an audit, notices and findings, a poller settles all the same.
func TestBareStoreIsReconciled(t *testing.T) {
	inTime(t, func(t *testing.T) {
		all := memory.New()
		store := struct {
			onceward.Store
			onceward.Lister
			onceward.Reconciler
		}{all, all, all}
		lose(t, store, "k")
		run(t, newPoller(t, store, reconcile.Rule{Resolver: always(reconcile.Completed(paid, ""))}, reconcile.Config{}), reconcile.Report{Completed: 1})
		wantState(t, store, "k", onceward.StateCompleted)
	})
}

// TestRulesAreCopied: who changes the map afterwards changes nothing.
func TestRulesAreCopied(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		lose(t, store, "k")
		rules := map[string]reconcile.Rule{transfers: {Resolver: always(reconcile.Completed(paid, ""))}}
		poller := newPoller(t, store, reconcile.Rule{}, reconcile.Config{Rules: rules})
		delete(rules, transfers)
		ask(t, poller, "k", reconcile.Report{Completed: 1})
	})
}
