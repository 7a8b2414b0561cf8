// Package webhook receives what other systems tell by themselves about an effect, so that an outcome that is unknown
// here can be settled without asking.
//
// A [Receiver] is an [http.Handler] for the deliveries of one sender. It verifies the signature over the raw body,
// keeps the event as a [store.ExternalEvent], and only then applies it. That order is what makes deliveries harmless
// however they come:
//
//   - early, before the record or while it is in progress: the external event is kept, and the reconciler reads it before it asks;
//   - twice: the id of the event is known, and nothing is kept again;
//   - out of order: [Latest] tells which external event counts;
//   - forged, or recorded and played again: refused before anything is parsed;
//   - about another tenant's operation, signed by a tenant that may not speak for it: kept, and settles nothing. [Config] has to
//     say whose records the sender may settle.
//
// How a sender signs is a [Scheme]: [Timestamped], [StandardWebhooks], [HMAC] or one's own.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// The defaults of [Config].
const (
	DefaultMaxBody      = 1 << 20
	DefaultStoreTimeout = 5 * time.Second
	DefaultApplyTimeout = 5 * time.Second
)

// Config says whose deliveries a [Receiver] takes and what it does with them. Source, Keeper and Parse are required,
// and either Scheme and Scope or Tenant.
type Config struct {
	// Source is the name of the sender. Event ids are unique within it and a scope, and the reconciler asks for
	// external events by it.
	Source string
	// Scheme verifies the signature.
	Scheme Scheme
	// Scope says whose records the sender may settle: [OneScope], [ScopeOfEvent] or [AllScopes].
	Scope Scope
	// Tenant is for one endpoint of many tenants who have a secret each. It finds, from the path or a header, whose
	// delivery a request claims to be: the claim counts if the signature is that tenant's. For a tenant that does not
	// exist it returns [ErrSignature], which is answered with 401; any other error is answered with 503.
	Tenant func(r *http.Request) (Tenant, error)
	// Keeper is the store that keeps the external events.
	Keeper store.ExternalEventKeeper
	// Parse finds the event in a delivery whose signature is good. It must not change the body. For an event that is
	// none of our business it returns [ErrIgnored]; any other error is answered with 400. See [ParseJSON].
	Parse func(header http.Header, body []byte) (Event, error)
	// Apply acts on an external event, after it has been kept. Default: nothing is done, and the reconciler reads the
	// external event later.
	//
	// Apply must be idempotent and safe to be called by several deliveries at a time. It is called for a duplicate too,
	// since the first delivery may have been kept by a process that died before it applied it. Nor is the external
	// event always the latest: what Apply decides by is the [Latest] of all that are kept about the subject, or what
	// the sender says when asked. An external event that is early is no error: it is kept, so return nil.
	//
	// An error is logged and observed, and the delivery is still answered as a success: it is kept, so nothing is lost.
	Apply func(ctx context.Context, n store.ExternalEvent) error
	// MaxBody is how many bytes a body may have. Default: [DefaultMaxBody].
	MaxBody int64
	// StoreTimeout is how long the keeping may take. Default: [DefaultStoreTimeout].
	StoreTimeout time.Duration
	// ApplyTimeout is how long Apply may take. Default: [DefaultApplyTimeout].
	ApplyTimeout time.Duration
	// Observer is told of every delivery: an [onceward.ReceivedEvent] with "kept", "duplicate", "refused" (it was
	// answered with a 4xx) or "failed" (the fault is ours). An Apply that fails is a "failed" of its own, after the
	// "kept" or "duplicate". An event that Parse ignores is not told. Default: none.
	Observer onceward.Observer
	// Logger gets what was refused and what failed, with the reason but never with the body. Default: [slog.Default].
	Logger *slog.Logger
	// Now is the clock that timestamps are compared with, for tests. Default: [time.Now].
	Now func() time.Time
}

// check finds what is missing or makes no sense.
func (c *Config) check() error {
	var wrong []error
	for _, field := range []struct {
		name   string
		absent bool
	}{{"Source", c.Source == ""}, {"Keeper", c.Keeper == nil}, {"Parse", c.Parse == nil}, {"Scheme", c.Scheme == nil && c.Tenant == nil}} {
		if field.absent {
			wrong = append(wrong, fmt.Errorf("webhook: Config.%s is missing", field.name))
		}
	}
	if c.Tenant == nil {
		wrong = append(wrong, c.Scope.check())
	} else if c.Scheme != nil || c.Scope.kind != scopeMissing {
		wrong = append(wrong, errors.New("webhook: Config has a Tenant, which brings its own Scheme and Scope: leave those out"))
	}
	if c.MaxBody < 0 || c.StoreTimeout < 0 || c.ApplyTimeout < 0 {
		wrong = append(wrong, errors.New("webhook: MaxBody, StoreTimeout and ApplyTimeout must not be negative"))
	}
	return errors.Join(wrong...)
}

func (c Config) withDefaults() Config {
	if c.Apply == nil {
		c.Apply = func(context.Context, store.ExternalEvent) error { return nil }
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	if c.StoreTimeout == 0 {
		c.StoreTimeout = DefaultStoreTimeout
	}
	if c.ApplyTimeout == 0 {
		c.ApplyTimeout = DefaultApplyTimeout
	}
	if c.Observer == nil {
		c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {})
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}
