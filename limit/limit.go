// Package limit bounds what one scope may ask for (L1): how many new keys it makes, how many it has at one time, and
// how often it asks for a status or sends another request under a key that was used. Replays are free.
//
//	limiter, err := limit.New(limit.Config{Limits: limit.Limits{
//		NewKeys:    limit.Rate{Limit: 600, Window: time.Minute},
//		ActiveKeys: 100_000,
//	}})
//	guard, err := onceward.New(store, onceward.Config{Limiter: limiter, …})
//
// What is over the limit is answered with 429 and the time after which to come again; nothing is executed or stored.
//
// A limiter counts in its own process. With Config.Counters the nodes of a service share one count, see [Counters].
package limit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
)

// Rate is how many of something are allowed in a time. It is a bucket: the Limit can be used at once, and comes back
// evenly over the Window.
type Rate struct {
	// Limit is how many are allowed; a negative number allows none. Default: no limit.
	Limit int
	// Window is the time in which the whole Limit comes back. Default: one minute.
	Window time.Duration
}

// Limits are those of one scope. The zero value has none.
type Limits struct {
	// NewKeys is how many requests may make a new key. Default: no limit.
	NewKeys Rate
	// ActiveKeys is how many keys a scope may have that have not expired; a negative number allows none. A key counts
	// from its first request for the retention of its route, and up to a sixteenth of that longer, because ends are
	// rounded up; see [Limiter.CountOut] for one that is to count no more before that. Default: no limit.
	ActiveKeys int
	// Lookups is how many questions for a status are answered. Default: no limit.
	Lookups Rate
	// Mismatches is how many requests are told that their key belongs to another one. While it is used up, a scope's new
	// keys are refused like those that belong to another request, so that the answer does not tell one from the other; a
	// negative number refuses no new keys. Default: no limit.
	Mismatches Rate
}

// Config configures a [Limiter].
type Config struct {
	// Limits are those of each scope, unless For is set. Default: none.
	Limits Limits
	// For returns the limits of a scope, such as by the plan that a customer pays for. It is called for each request,
	// must be quick, and may return other limits than before: they count at once. Default: Limits.
	For func(scope string) Limits
	// MaxScopes is how many scopes are remembered, at about 250 bytes each, and up to 600 more where ActiveKeys is set.
	// What is idle goes as others come. Past the number those that have used the least go too, and start afresh when they
	// come back. Default: 250,000.
	MaxScopes int
	// Counters holds the counts that nodes share. Default: none, each process counts for itself.
	Counters Counters
	// Nodes is how many nodes share the Counters. While these cannot be asked, each node allows a scope that part of its
	// limits. Default: 1.
	Nodes int
	// CounterTimeout is how long a request waits for the Counters. Default: 250 ms.
	CounterTimeout time.Duration
	// Logger is told when the Counters cannot be asked, and when they can again. Default: [slog.Default].
	Logger *slog.Logger
}

// The defaults of Config.
const (
	defaultWindow         = time.Minute
	defaultMaxScopes      = 250_000
	defaultCounterTimeout = 250 * time.Millisecond
)

func (c Config) withDefaults() (Config, error) {
	if c.MaxScopes < 0 || c.Nodes < 0 || c.CounterTimeout < 0 {
		return c, errors.New("limit: MaxScopes, Nodes and CounterTimeout cannot be negative")
	}
	for name, rate := range map[string]Rate{
		"NewKeys": c.Limits.NewKeys, "Lookups": c.Limits.Lookups, "Mismatches": c.Limits.Mismatches,
	} {
		if rate.Window < 0 {
			return c, fmt.Errorf("limit: the Window of %s cannot be negative", name)
		}
	}
	if c.For == nil {
		limits := c.Limits
		c.For = func(string) Limits { return limits }
	}
	if c.MaxScopes == 0 {
		c.MaxScopes = defaultMaxScopes
	}
	if c.Nodes == 0 {
		c.Nodes = 1
	}
	if c.CounterTimeout == 0 {
		c.CounterTimeout = defaultCounterTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// Limiter is an [onceward.Limiter]. Make one for each guard, or share it.
type Limiter struct {
	config Config
	local  *local
	shared *shared // nil without counters
}

var _ onceward.Limiter = (*Limiter)(nil)

// New returns a limiter, or an error that says what in the configuration cannot be right.
func New(config Config) (*Limiter, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Limiter{config: config, local: newLocal(config.MaxScopes)}
	if config.Counters != nil {
		l.shared = newShared(&l.config, l.local)
	}
	return l, nil
}

// Close gives back what this node took from the shared counters and did not use. Call it when no more requests come.
// Without it an unused part of the limit of active keys is lost for as long as a key is kept.
func (l *Limiter) Close(ctx context.Context) error {
	if l.shared == nil {
		return nil
	}
	return l.shared.close(ctx)
}

// TakeKey implements [onceward.Limiter].
func (l *Limiter) TakeKey(ctx context.Context, scope string, retention time.Duration) *onceward.LimitError {
	limits := l.config.For(scope)
	if limits.Mismatches.Limit > 0 {
		if refused := l.mismatchesUsedUp(scope, limits.Mismatches); refused != nil {
			return refused
		}
	}
	return l.take(ctx, &ask{
		scope: scope, name: onceward.LimitNewKeys, rate: limits.NewKeys, active: limits.ActiveKeys, retention: retention,
	})
}

// ReturnKey implements [onceward.Limiter].
func (l *Limiter) ReturnKey(scope string, retention time.Duration, ran bool) {
	limits := l.config.For(scope)
	a := &ask{
		scope: scope, name: onceward.LimitNewKeys, rate: limits.NewKeys, active: limits.ActiveKeys, retention: retention,
	}
	switch {
	case a.unlimited():
	case l.shared != nil:
		l.shared.giveBack(a, ran)
	default:
		l.local.giveBack(a, ran)
	}
}

// CountOut stops counting an active key of a scope before its time, the oldest of them. It is for a key that an
// operator has removed, and for one that has become a dead letter (B3) before its retention is over: call it for each
// reconcile.ReconciledEvent whose Outcome is "dead letter".
func (l *Limiter) CountOut(ctx context.Context, scope string) error {
	a := &ask{scope: scope, name: onceward.LimitNewKeys, active: l.config.For(scope).ActiveKeys}
	switch {
	case a.active == 0:
		return nil
	case l.shared != nil:
		_, err := l.shared.ask(ctx, Take{Scope: scope, Name: a.name, Active: a.active, Unused: 1, UnusedEnd: OldestEnd})
		return err
	default:
		l.local.countOut(scope)
		return nil
	}
}

// Lookup implements [onceward.Limiter].
func (l *Limiter) Lookup(ctx context.Context, scope string) *onceward.LimitError {
	return l.take(ctx, &ask{scope: scope, name: onceward.LimitLookups, rate: l.config.For(scope).Lookups})
}

// Mismatch implements [onceward.Limiter].
func (l *Limiter) Mismatch(ctx context.Context, scope string) *onceward.LimitError {
	return l.take(ctx, &ask{scope: scope, name: onceward.LimitMismatches, rate: l.config.For(scope).Mismatches})
}

// mismatchesUsedUp returns the refusal that the next mismatch would get, or nil.
func (l *Limiter) mismatchesUsedUp(scope string, rate Rate) *onceward.LimitError {
	a := &ask{scope: scope, name: onceward.LimitMismatches, rate: rate}
	switch {
	case a.unlimited():
		return nil
	case l.shared != nil:
		return l.shared.usedUp(a)
	default:
		return l.local.usedUp(a)
	}
}

func (l *Limiter) take(ctx context.Context, a *ask) *onceward.LimitError {
	switch {
	case a.unlimited():
		return nil
	case l.shared != nil:
		return l.shared.take(ctx, a)
	default:
		return l.local.take(a)
	}
}

// ask is what is asked for: one of a scope's allowance under the limits of the moment.
type ask struct {
	scope     string
	name      string
	rate      Rate
	active    int
	retention time.Duration
}

// unlimited also fills in the defaults.
func (a *ask) unlimited() bool {
	if a.rate.Window <= 0 {
		a.rate.Window = defaultWindow
	}
	if a.active == 0 {
		a.retention = 0
	}
	return a.rate.Limit == 0 && a.active == 0
}

// share is what is asked for under a part of the limits, at least one where any is allowed.
func (a *ask) share(nodes int) *ask {
	part := *a
	part.rate.Limit = divide(a.rate.Limit, nodes)
	part.active = divide(a.active, nodes)
	return &part
}

func divide(limit, nodes int) int {
	if limit <= 0 {
		return limit
	}
	return max(1, limit/nodes)
}

// refusedBy is the error for the limit that stands in the way.
func (a *ask) refusedBy(name string, after time.Duration) *onceward.LimitError {
	if name == onceward.LimitActiveKeys {
		return &onceward.LimitError{Name: name, Limit: max(a.active, 0), After: after}
	}
	return &onceward.LimitError{Name: name, Limit: max(a.rate.Limit, 0), Window: a.rate.Window, After: after}
}
