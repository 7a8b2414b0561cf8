package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// Config configures a [Poller].
type Config struct {
	// Rules say how to settle, by the name of the operation, such as "POST /transfers". Required, unless there is a Default.
	Rules map[string]Rule
	// Default is for operations without a rule of their own. Default: none; such records become dead letters.
	Default *Rule

	// Interval is the time between two looks at the store. Default: 10 s.
	Interval time.Duration
	// Pause is the longest time until the next try after the first one that learned nothing. It doubles with each, up to
	// LongestPause. Up to half of it is left out at random. Default: 10 s, and 15 min or Pause if that is longer.
	Pause        time.Duration
	LongestPause time.Duration
	// Limit is the number of tries after which a record becomes a dead letter. Default: 20.
	Limit int
	// Timeout bounds what it takes to learn about a record once: Interpret, the Resolver and OwnerGone. Default: 30 s.
	Timeout time.Duration
	// Concurrency is how many records are asked after at one time. Default: 4.
	Concurrency int
	// KeepNotices is how long notices are kept. Default: 30 days.
	KeepNotices time.Duration
	// KeepAudit is how long audit entries are kept. Default: 400 days.
	KeepAudit time.Duration

	// Actor is the name under which settlements are written to the audit. Default: reconciler.
	Actor string
	// Observer is told of each record. Default: nobody.
	Observer onceward.Observer
	// Logger gets what an operator should know. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Rules) == 0 && c.Default == nil {
		return c, errors.New("reconcile: Config.Rules is missing: it says how the operations of a route are settled")
	}
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
	}{
		{&c.Interval, 10 * time.Second},
		{&c.Pause, 10 * time.Second},
		{&c.LongestPause, max(15*time.Minute, c.Pause)},
		{&c.Timeout, 30 * time.Second},
		{&c.KeepNotices, 30 * 24 * time.Hour},
		{&c.KeepAudit, 400 * 24 * time.Hour},
	} {
		if *d.value < 0 || *d.value > onceward.MaxRetention {
			return c, fmt.Errorf("reconcile: a duration of %s in the configuration", *d.value)
		}
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	c.Rules = maps.Clone(c.Rules)
	if c.Limit < 0 || c.Concurrency < 0 {
		return c, errors.New("reconcile: Limit and Concurrency cannot be negative")
	}
	if c.Limit == 0 {
		c.Limit = 20
	}
	if c.Concurrency == 0 {
		c.Concurrency = 4
	}
	if c.Actor == "" {
		c.Actor = "reconciler"
	}
	if c.Observer == nil {
		c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {})
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// Poller asks after unknown operations until they are settled. Any number of nodes may run one: to settle twice in the same
// way is harmless, and to settle what has moved on is refused by the store.
type Poller struct {
	config  Config
	store   onceward.Store
	settler onceward.Reconciler
	lister  onceward.Lister
	notices onceward.NoticeKeeper // nil if the store keeps none
	auditor onceward.Auditor      // likewise
	gone    departures

	mu        sync.Mutex
	lettersAt time.Time // when dead letters were last looked after
}

// NewPoller returns a poller. The store must be an [onceward.Reconciler] and an [onceward.Lister], and for rules with a
// Source an [onceward.NoticeKeeper]; if it is not, the error is [errors.ErrUnsupported].
func NewPoller(store onceward.Store, config Config) (*Poller, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Poller{config: config, store: store}
	var settles, lists bool
	p.settler, settles = store.(onceward.Reconciler)
	p.lister, lists = store.(onceward.Lister)
	if !settles || !lists {
		return nil, fmt.Errorf("reconcile: the store cannot be reconciled: %w", errors.ErrUnsupported)
	}
	p.notices, _ = store.(onceward.NoticeKeeper)
	p.auditor, _ = store.(onceward.Auditor)
	if err := p.checkRules(); err != nil {
		return nil, err
	}
	return p, nil
}

// checkRules refuses rules that could never settle anything.
func (p *Poller) checkRules() error {
	check := func(name string, r *Rule) error {
		switch {
		case r.Resolver == nil && r.Interpret == nil:
			return fmt.Errorf("reconcile: the rule for %q has neither a Resolver nor Interpret", name)
		case (r.Interpret == nil) != (r.Source == ""):
			return fmt.Errorf("reconcile: the rule for %q needs both Source and Interpret for notices, or neither", name)
		case r.Source != "" && p.notices == nil:
			return fmt.Errorf("reconcile: the rule for %q has a Source, but the store keeps no notices: %w", name, errors.ErrUnsupported)
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
	if p.config.Default != nil {
		return check("all others", p.config.Default)
	}
	return nil
}

// rule is that of an operation, or nil.
func (p *Poller) rule(operation string) *Rule {
	if rule, ok := p.config.Rules[operation]; ok {
		return &rule
	}
	return p.config.Default
}

// pause is the time before the next try: longer with each, and never the same for two.
func (p *Poller) pause(tries int) time.Duration {
	pause := min(p.config.Pause, p.config.LongestPause)
	for ; tries > 0 && pause < p.config.LongestPause; tries-- {
		pause = min(2*pause, p.config.LongestPause)
	}
	return pause/2 + rand.N(pause/2+1)
}

// Run reconciles now and then until the context ends. Failures are logged, and it goes on.
func (p *Poller) Run(ctx context.Context) {
	for {
		if _, err := p.RunOnce(ctx); err != nil && ctx.Err() == nil {
			p.config.Logger.WarnContext(ctx, "reconcile: not everything could be asked after", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(p.config.Interval/2 + rand.N(p.config.Interval)):
		}
	}
}
