package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func interpretNothing(context.Context, *store.Record, []store.ExternalEvent) (reconcile.Answer, error) {
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
		"a default of nothing":  {reconcile.Config{DefaultRule: &reconcile.Rule{}}, `"all others" has neither`},
		"a source alone":        {with(reconcile.Rule{Resolver: &oracle{}, Source: "bank"}), "both Source and Interpret"},
		"an interpreter alone":  {with(reconcile.Rule{Interpret: interpretNothing}), "both Source and Interpret"},
		"a negative arrival":    {with(reconcile.Rule{Resolver: &oracle{}, Arrival: -1}), "negative Arrival"},
		"a negative interval":   {reconcile.Config{DefaultRule: &good, Interval: -time.Second}, "-1s"},
		"a negative pause":      {reconcile.Config{DefaultRule: &good, MinBackoff: -1}, "Config.MinBackoff is -1ns"},
		"a negative long pause": {reconcile.Config{DefaultRule: &good, MaxBackoff: -1}, "Config.MaxBackoff is"},
		"a negative timeout":    {reconcile.Config{DefaultRule: &good, Timeout: -1}, "Config.Timeout is"},
		"negative retentions": {
			reconcile.Config{DefaultRule: &good, KeepExternalEvents: -1},
			"Config.KeepExternalEvents is",
		},
		"pauses of centuries":  {reconcile.Config{DefaultRule: &good, MaxBackoff: math.MaxInt64}, "Config.MaxBackoff is"},
		"a negative audit":     {reconcile.Config{DefaultRule: &good, KeepAudit: -1}, "Config.KeepAudit is"},
		"a negative limit":     {reconcile.Config{DefaultRule: &good, MaxAttempts: -1}, "MaxAttempts"},
		"negative concurrency": {reconcile.Config{DefaultRule: &good, Concurrency: -1}, "Concurrency"},
		"a negative share":     {reconcile.Config{DefaultRule: &good, PerOperation: -1}, "PerOperation"},
	} {
		poller, err := reconcile.NewPoller(guard, memory.New(), c.config)
		if err == nil || poller != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, c.want)
		}
	}
	for name, config := range map[string]reconcile.Config{
		"a rule":               with(good),
		"a default":            {DefaultRule: &good},
		"external events only": with(reconcile.Rule{Source: "bank", Interpret: interpretNothing}),
	} {
		if _, err := reconcile.NewPoller(guard, memory.New(), config); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGuardIsRequired(t *testing.T) {
	t.Parallel()
	config := reconcile.Config{DefaultRule: &reconcile.Rule{Resolver: &oracle{}}}
	_, pollerErr := reconcile.NewPoller(nil, memory.New(), config)
	_, operatorErr := reconcile.NewOperator(nil, memory.New())
	for _, err := range []error{pollerErr, operatorErr} {
		if err == nil || !strings.Contains(err.Error(), "there is no guard") {
			t.Errorf("without a guard: %v", err)
		}
	}
}

func TestStoresThatCannot(t *testing.T) {
	t.Parallel()
	all := memory.New()
	asks := reconcile.Config{DefaultRule: &reconcile.Rule{Resolver: &oracle{}}}
	hears := reconcile.Config{DefaultRule: &reconcile.Rule{Source: "bank", Interpret: interpretNothing}}
	type lists struct {
		store.Store
		store.Lister
	}
	type settles struct {
		store.Store
		store.Reconciler
	}
	type both struct {
		store.Store
		store.Lister
		store.Reconciler
	}
	type busts struct {
		both
		store.Buster
	}
	two := both{all, all, all}
	for name, c := range map[string]struct {
		store            store.Store
		config           reconcile.Config
		poller, operator bool
	}{
		"a bare store":                {store: struct{ store.Store }{all}, config: asks},
		"none at all":                 {store: nil, config: asks},
		"one that only lists":         {store: lists{all, all}, config: asks},
		"one that only settles":       {store: settles{all, all}, config: asks},
		"one that does both":          {store: two, config: asks, poller: true},
		"one without external events": {store: two, config: hears},
		"one without an audit":        {store: busts{two, all}, config: asks, poller: true},
		"one with an audit but no external events": {
			store: auditing{busts{two, all}, all}, config: asks, poller: true,
			operator: true,
		},
		"all": {store: all, config: hears, poller: true, operator: true},
	} {
		if _, err := reconcile.NewPoller(guard, c.store, c.config); (err == nil) != c.poller || err != nil &&
			!errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: a poller got %v", name, err)
		}
		if _, err := reconcile.NewOperator(guard, c.store); (err == nil) != c.operator || err != nil &&
			!errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: an operator got %v", name, err)
		}
	}
}

// auditing adds an audit to a store that has none.
type auditing struct {
	noOperator
	store.Auditor
}

// auditless is what an operator needs, but for the audit.
type noOperator interface {
	store.Store
	store.Lister
	store.Reconciler
	store.Buster
}

// TestBareStoreIsReconciled: without an audit, external events and late completions, a poller settles anyway.
func TestBareStoreIsReconciled(t *testing.T) {
	inTime(t, func(t *testing.T) {
		all := memory.New()
		s := struct {
			store.Store
			store.Lister
			store.Reconciler
		}{all, all, all}
		lose(t, s, "k")
		run(t, newPoller(t, s, reconcile.Rule{Resolver: always(reconcile.Completed(paid, ""))}, reconcile.Config{}),
			reconcile.Report{Completed: 1})
		wantState(t, s, "k", store.StateCompleted)
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

// TestRunChecksTheNamesOfRules: a rule for an operation that no route has would wait for records that never come. The
// routes may be built after the poller.
func TestRunChecksTheNamesOfRules(t *testing.T) {
	t.Parallel()
	s := memory.New()
	var log strings.Builder
	config := onceward.Config{
		Scope: onceward.SingleScope("tenant"), Secret: []byte("the secret of the tests"), Operations: []string{"nightly job"},
		Logger: quiet,
	}
	guard, err := onceward.New(s, config)
	must(t, err)
	poller := func(names ...string) *reconcile.Poller {
		rules := make(map[string]reconcile.Rule)
		for _, name := range names {
			rules[name] = hearing(nil)
		}
		p, err := reconcile.NewPoller(guard, s, reconcile.Config{
			Rules: rules, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		must(t, err)
		return p
	}
	right, wrong := poller(transfers, "nightly job"), poller("POST /transfer")
	mux := onceward.NewMux()
	mux.Handle(transfers, guard.Handler(http.NotFoundHandler(), onceward.Reserved(onceward.FailureUnknown)))

	err = wrong.Run(t.Context())
	if !errors.Is(err, onceward.ErrMisconfigured) || !strings.Contains(err.Error(), `the nearest is "POST /transfers"`) {
		t.Errorf("section 1: a poller with a wrong name returns %v", err)
	}
	if !strings.Contains(log.String(), "does not run") {
		t.Errorf("section 1: the log says %q", log.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := right.Run(ctx); err != nil {
		t.Errorf("section 1: a poller whose context ended returns %v", err)
	}
}
