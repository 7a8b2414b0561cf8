// Package limit bounds the requests of one scope (rule L1): how many new keys it makes, how many it has at one time,
// and how often it sends a status request or another request with a used key. Replays are free.
//
//	limiter, err := limit.New(limit.Config{Limits: limit.Limits{
//		NewKeys:    limit.Rate{Limit: 600, Window: time.Minute},
//		ActiveKeys: 100_000,
//	}})
//	guard, err := onceward.New(store, onceward.Config{Limiter: limiter, …})
//
// A request over the limit is answered with 429 and the time before a retry; nothing is executed or stored.
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

// Rate is a number allowed in a time. It is a bucket: the Limit can be used at once, and refills evenly over the
// Window.
type Rate struct {
	// Limit is the number allowed; a negative number allows none. Default: no limit.
	Limit int
	// Window is the time in which the whole Limit refills. Default: one minute.
	Window time.Duration
}

// Limits are the limits of one scope. The zero value has none.
type Limits struct {
	// NewKeys limits the requests that make a new key. Default: no limit.
	NewKeys Rate
	// ActiveKeys limits the keys of a scope that have not expired; a negative number allows none. A key counts from its
	// first request for the retention of its route, and up to a sixteenth longer, because ends are rounded up; see
	// [Limiter.CountOut] for counting a key out earlier. Default: no limit.
	ActiveKeys int
	// Lookups limits the status requests. Default: no limit.
	Lookups Rate
	// Mismatches limits the answers that a key belongs to another request. While it is used up, a scope's new keys are
	// refused like keys of another request, so that the answer does not reveal which keys exist; a negative number refuses
	// no new keys. Default: no limit.
	Mismatches Rate
}

// Config configures a [Limiter].
type Config struct {
	// Limits are the limits of each scope, unless For is set. Default: none.
	Limits Limits
	// For returns the limits of a scope, for example by the customer's plan. It is called for each request, must be quick,
	// and may return changed limits, which apply immediately. Default: Limits.
	For func(scope string) Limits
	// MaxScopes is how many scopes are remembered, at about 250 bytes each, and up to 600 more if ActiveKeys is set. Idle
	// scopes are removed as others are added. At the maximum, scopes with the lowest use are removed too, and start again
	// at zero. Default: 250,000.
	MaxScopes int
	// Counters holds the counts that nodes share. Default: none, each process counts on its own.
	Counters Counters
	// Nodes is the number of nodes that share the Counters. While the Counters are unavailable, each node allows a
	// scope its part of the limits. Default: 1.
	Nodes int
	// CounterTimeout is how long a request waits for the Counters. Default: 250 ms.
	CounterTimeout time.Duration
	// Logger logs when the Counters become unavailable, and available again. Default: [slog.Default].
	Logger *slog.Logger
}

// These are the defaults of Config.
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

// New returns a limiter, or an error that describes what in the configuration is wrong.
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

// Close returns what this node took from the shared counters and did not use. Call it after the last request. Without
// it an unused part of the limit of active keys is lost for as long as a key is kept.
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
	return l.take(ctx, &demand{
		scope: scope, name: onceward.LimitNewKeys, rate: limits.NewKeys, active: limits.ActiveKeys, retention: retention,
	})
}

// ReturnKey implements [onceward.Limiter].
func (l *Limiter) ReturnKey(scope string, retention time.Duration, ran bool) {
	limits := l.config.For(scope)
	a := &demand{
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

// CountOut removes the oldest active key of a scope from the count early. It is for a key that an operator has removed,
// and for a key whose record has become a dead letter (rule B3) before its retention is over: call it for each
// reconcile.ReconciledEvent whose Outcome is "dead letter".
func (l *Limiter) CountOut(ctx context.Context, scope string) error {
	a := &demand{scope: scope, name: onceward.LimitNewKeys, active: l.config.For(scope).ActiveKeys}
	switch {
	case a.active == 0:
		return nil
	case l.shared != nil:
		_, err := l.shared.query(ctx, Take{Scope: scope, Name: a.name, Active: a.active, Unused: 1, UnusedEnd: OldestEnd})
		return err
	default:
		l.local.countOut(scope)
		return nil
	}
}

// Lookup implements [onceward.Limiter].
func (l *Limiter) Lookup(ctx context.Context, scope string) *onceward.LimitError {
	return l.take(ctx, &demand{scope: scope, name: onceward.LimitLookups, rate: l.config.For(scope).Lookups})
}

// Mismatch implements [onceward.Limiter].
func (l *Limiter) Mismatch(ctx context.Context, scope string) *onceward.LimitError {
	return l.take(ctx, &demand{scope: scope, name: onceward.LimitMismatches, rate: l.config.For(scope).Mismatches})
}

// mismatchesUsedUp returns the refusal of the next mismatch, or nil.
func (l *Limiter) mismatchesUsedUp(scope string, rate Rate) *onceward.LimitError {
	a := &demand{scope: scope, name: onceward.LimitMismatches, rate: rate}
	switch {
	case a.unlimited():
		return nil
	case l.shared != nil:
		return l.shared.usedUp(a)
	default:
		return l.local.usedUp(a)
	}
}

func (l *Limiter) take(ctx context.Context, a *demand) *onceward.LimitError {
	switch {
	case a.unlimited():
		return nil
	case l.shared != nil:
		return l.shared.take(ctx, a)
	default:
		return l.local.take(a)
	}
}

// demand is a request for one unit of a scope's allowance under the current limits.
type demand struct {
	scope     string
	name      string
	rate      Rate
	active    int
	retention time.Duration
}

// unlimited reports whether there is no limit. It also fills in the defaults.
func (a *demand) unlimited() bool {
	if a.rate.Window <= 0 {
		a.rate.Window = defaultWindow
	}
	if a.active == 0 {
		a.retention = 0
	}
	return a.rate.Limit == 0 && a.active == 0
}

// share returns the demand under a part of the limits, at least one if any is allowed.
func (a *demand) share(nodes int) *demand {
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

// refusedBy returns the error for the reached limit.
func (a *demand) refusedBy(name string, after time.Duration) *onceward.LimitError {
	if name == onceward.LimitActiveKeys {
		return &onceward.LimitError{Name: name, Limit: max(a.active, 0), After: after}
	}
	return &onceward.LimitError{Name: name, Limit: max(a.rate.Limit, 0), Window: a.rate.Window, After: after}
}
