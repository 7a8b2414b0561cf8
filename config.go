package onceward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// ScopeFunc names the security boundary that a request's key lives in, from authentication: a tenant, an account, a token.
// It must not look at the body. An error that wraps [ErrUnauthenticated], or an empty scope, is answered with 401, any other
// error with 503; nothing is executed.
type ScopeFunc func(r *http.Request) (string, error)

// SingleScope is for a service with one caller: all keys share one scope.
func SingleScope(scope string) ScopeFunc {
	return func(*http.Request) (string, error) { return scope, nil }
}

// Profile is a set of answers.
type Profile uint8

const (
	// IETF answers a mismatch with 422, as the IETF draft does. This is the default.
	IETF Profile = iota
	// Stripe answers a mismatch with 400.
	Stripe
)

// Config configures a [Guard].
type Config struct {
	// Scope names the scope of a request. It is required for handlers; [Guard.Do] is told its scope.
	Scope ScopeFunc
	// Secret keys the fingerprints: at least 16 random bytes, the same on every node and over restarts. Required.
	Secret []byte
	// OldSecrets are those that records may still have been made with. Keep each for the longest retention. Default: none.
	OldSecrets [][]byte
	// Profile chooses between the two sets of answers. Default: IETF.
	Profile Profile
	// Keys says which keys are accepted. Default: see [KeyRules].
	Keys KeyRules
	// ReplayedHeader is the name of the header that marks a replay. Default: Idempotent-Replayed.
	ReplayedHeader string
	// Defaults are options for every route, which the route's own options override. Default: none.
	Defaults []Option
	// MaxWaiters is how many requests may wait at one time for an operation in flight; more are answered with 409 at once.
	// Default: 1024.
	MaxWaiters int
	// StoreTimeout bounds each call to the store. Default: 5 s; less than 1 ms is refused.
	StoreTimeout time.Duration
	// SettleTimeout bounds how long storing an answer is tried before the outcome is given up as unknown. Default: 15 s.
	SettleTimeout time.Duration
	// TraceID returns the id of the trace that a context belongs to; it is kept with the record. Default: none.
	TraceID func(ctx context.Context) string
	// Observer is told what happens. Default: nobody.
	Observer Observer
	// Logger gets what an operator should know: outcomes that became unknown, refused writes. Default: slog.Default().
	Logger *slog.Logger
}

// The defaults of Config.
const (
	defaultReplayedHeader = "Idempotent-Replayed"
	defaultMaxWaiters     = 1024
	defaultStoreTimeout   = 5 * time.Second
	leastStoreTimeout     = time.Millisecond
	defaultSettleTimeout  = 15 * time.Second
)

func (c Config) withDefaults() (Config, error) {
	keys, err := c.Keys.withDefaults()
	if err != nil {
		return c, err
	}
	c.Keys = keys
	if c.Profile > Stripe {
		return c, fmt.Errorf("onceward: profile %d does not exist: use onceward.IETF or onceward.Stripe", c.Profile)
	}
	if c.MaxWaiters < 0 || c.StoreTimeout < 0 || c.SettleTimeout < 0 {
		return c, errors.New("onceward: MaxWaiters, StoreTimeout and SettleTimeout cannot be negative")
	}
	if c.ReplayedHeader == "" {
		c.ReplayedHeader = defaultReplayedHeader
	}
	c.ReplayedHeader = http.CanonicalHeaderKey(c.ReplayedHeader)
	if c.MaxWaiters == 0 {
		c.MaxWaiters = defaultMaxWaiters
	}
	if c.StoreTimeout == 0 {
		c.StoreTimeout = defaultStoreTimeout
	}
	if c.StoreTimeout < leastStoreTimeout {
		return c, fmt.Errorf("onceward: no store answers within a StoreTimeout of %s; the least is %s",
			c.StoreTimeout, leastStoreTimeout)
	}
	if c.SettleTimeout == 0 {
		c.SettleTimeout = defaultSettleTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}
