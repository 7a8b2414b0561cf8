// Package reconcile settles unknown outcomes: operations of which it is not known whether they took effect, because
// their owner died, or because the system that it called did not answer (rule B3).
//
//	poller, err := reconcile.NewPoller(guard, store, reconcile.Config{Rules: map[string]reconcile.Rule{
//		"POST /transfers": {Resolver: reconcile.ResolverFunc(askTheBank), Deduplicates: true},
//	}})
//	err = onceward.Run(ctx, poller, guard.Server(server, listener, grace))
//
// A [Poller] queries a [Resolver], which usually queries the other system by the downstream key, repeatedly with a
// growing backoff, until there is an answer or a limit is reached. Then the record is a dead letter, and waits for a
// person, who uses an [Operator]. Package webhook receives the other system's own reports, and settles records in the
// same way; package ledger compares the books of both sides.
//
// For a phased operation only a step is settled: the operation continues from there. See [Step].
//
// That the other system does not know an operation proves little: the request may still be on its way, or its owner may
// be paused and about to send it. See [Rule] on when it counts.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/fair"
	"github.com/onceward/onceward/store"
)

// Config configures a [Poller].
type Config struct {
	// Rules define how operations are settled, by name, such as "POST /transfers". [Poller.Run] checks the names.
	// Required, unless there is a DefaultRule.
	Rules map[string]Rule
	// DefaultRule is for operations without a rule of their own. Default: none; such records become dead letters.
	DefaultRule *Rule

	// Interval is the time between two looks at the store. Default: 10 s.
	Interval time.Duration
	// MinBackoff is the longest pause after the first attempt that did not find the outcome. It doubles with each attempt,
	// up to MaxBackoff. Up to half of it is left out at random. Default: 10 s, and 15 min or MinBackoff if that is longer.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// MaxAttempts is the number of attempts after which a record becomes a dead letter. Default: 20.
	MaxAttempts int
	// Timeout bounds one query about a record: Interpret, the Resolver and OwnerGone, whose context then ends. A query
	// that does not return anyway is logged, counted (see [Report]) and not waited for. Default: 30 s.
	Timeout time.Duration
	// Concurrency is how many records are queried at the same time, and PerOperation how many of them may be of one
	// operation; one scope gets half of that, rounded up. An operation whose provider hangs delays only itself, as long as
	// Concurrency is more than the places of all operations that hang. Default: 64, and 8 or, if that is less, half of
	// Concurrency, rounded up.
	Concurrency  int
	PerOperation int
	// KeepExternalEvents is how long external events are kept. Default: 30 days.
	KeepExternalEvents time.Duration
	// KeepAudit is how long audit entries are kept. Default: 400 days.
	KeepAudit time.Duration

	// Actor is the name under which settlements are written to the audit. Default: reconciler.
	Actor string
	// Observer receives a [ReconciledEvent] for each record, and an [onceward.WorkerEvent] for each look at the store.
	// Default: none.
	Observer onceward.Observer
	// Logger logs what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Rules) == 0 && c.DefaultRule == nil {
		return c, errors.New("reconcile: Config.Rules is missing: it defines how the operations of a route are settled")
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{
		{"Interval", &c.Interval, 10 * time.Second},
		{"MinBackoff", &c.MinBackoff, 10 * time.Second},
		{"MaxBackoff", &c.MaxBackoff, max(15*time.Minute, c.MinBackoff)},
		{"Timeout", &c.Timeout, 30 * time.Second},
		{"KeepExternalEvents", &c.KeepExternalEvents, 30 * 24 * time.Hour},
		{"KeepAudit", &c.KeepAudit, 400 * 24 * time.Hour},
	} {
		if *d.value < 0 || *d.value > onceward.MaxRetention {
			return c, fmt.Errorf("reconcile: Config.%s is %s: it must be between 0 and %s",
				d.name, *d.value, onceward.MaxRetention)
		}
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	c.Rules = maps.Clone(c.Rules)
	if c.MaxAttempts < 0 {
		return c, errors.New("reconcile: MaxAttempts cannot be negative")
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 20
	}
	bounds, err := fair.Bounds{Total: c.Concurrency, PerOperation: c.PerOperation}.WithDefaults()
	if err != nil {
		return c, fmt.Errorf("reconcile: %w", err)
	}
	c.Concurrency, c.PerOperation = bounds.Total, bounds.PerOperation
	if c.Actor == "" {
		c.Actor = "reconciler"
	}
	if c.Observer == nil {
		c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {})
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Observer = guardedObserver{c.Observer, c.Logger}
	return c, nil
}

// Poller queries unknown operations until they are settled. Any number of nodes may run one: an attempt is claimed
// before it is made, settling twice in the same way is harmless, and the store refuses to settle a record that has
// changed.
type Poller struct {
	config  Config
	guard   *onceward.Guard
	store   store.Store
	settler store.Reconciler
	lister  store.Lister
	events  store.ExternalEventKeeper // nil if the store keeps none
	auditor store.Auditor             // nil if the store keeps none
	gone    goneOwners
	pool    *fair.Pool

	mu        sync.Mutex
	lettersAt time.Time // when dead letters were last checked
}

// errNoGuard is returned for a poller or an operator that cannot derive the downstream keys of an operation.
var errNoGuard = errors.New("reconcile: there is no guard: " +
	"it derives the downstream keys by which other systems know an operation")

// NewPoller returns a poller. The store must be the guard's own, a [store.Reconciler] and a [store.Lister], and for
// rules with a Source a [store.ExternalEventKeeper]; if it is not, the error is [errors.ErrUnsupported].
func NewPoller(guard *onceward.Guard, s store.Store, config Config) (*Poller, error) {
	if guard == nil {
		return nil, errNoGuard
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Poller{config: config, guard: guard, store: s}
	var settles, lists bool
	p.settler, settles = store.As[store.Reconciler](s)
	p.lister, lists = store.As[store.Lister](s)
	if !settles || !lists {
		return nil, fmt.Errorf("reconcile: the store cannot be reconciled: %w", errors.ErrUnsupported)
	}
	p.events, _ = store.As[store.ExternalEventKeeper](s)
	p.auditor, _ = store.As[store.Auditor](s)
	if err := p.checkRules(); err != nil {
		return nil, err
	}
	p.pool = p.newPool()
	return p, nil
}

// checkRules refuses rules that could never settle anything.
func (p *Poller) checkRules() error {
	check := func(name string, r *Rule) error {
		switch {
		case r.Resolver == nil && r.Interpret == nil:
			return fmt.Errorf("reconcile: the rule for %q has neither a Resolver nor Interpret", name)
		case (r.Interpret == nil) != (r.Source == ""):
			return fmt.Errorf("reconcile: the rule for %q needs both Source and Interpret for external events, or neither", name)
		case r.Source != "" && p.events == nil:
			return fmt.Errorf("reconcile: the rule for %q has a Source, but the store keeps no external events: %w",
				name, errors.ErrUnsupported)
		case r.Arrival < 0:
			return fmt.Errorf("reconcile: the rule for %q has a negative Arrival", name)
		default:
			return nil
		}
	}
	for name, rule := range p.config.Rules {
		if err := check(name, &rule); err != nil {
			return err
		}
	}
	if p.config.DefaultRule != nil {
		return check("all others", p.config.DefaultRule)
	}
	return nil
}

// rule returns the rule of an operation, or nil.
func (p *Poller) rule(operation string) *Rule {
	if rule, ok := p.config.Rules[operation]; ok {
		return &rule
	}
	return p.config.DefaultRule
}
