package webhook

import (
	"errors"
	"net/http"
)

// Scope says whose records a sender may settle: a signature proves who speaks, and this says for whom. The zero value
// says nothing, and is refused.
type Scope struct {
	kind scopeKind
	name string
}

type scopeKind uint8

const (
	scopeMissing scopeKind = iota
	scopeOne
	scopeOfEvent
	scopeAll
)

// OneScope is for a sender that one tenant has the secret of: it settles that tenant's records alone.
func OneScope(scope string) Scope { return Scope{kind: scopeOne, name: scope} }

// ScopeOfEvent is for a sender that speaks for many tenants and says for which one, such as a platform that puts the
// account into each event: Parse finds [Event].Scope. An event without one is refused.
func ScopeOfEvent() Scope { return Scope{kind: scopeOfEvent} }

// AllScopes is for a sender whose secret no tenant has: the provider of an account that is the service's own. It
// settles records of every scope. If Parse finds an [Event].Scope all the same, the event settles those of that one
// alone.
func AllScopes() Scope { return Scope{kind: scopeAll} }

// check refuses what does not say whose records may be settled.
func (s Scope) check() error {
	switch {
	case s.kind == scopeMissing:
		return errors.New("webhook: Config.Scope is missing: it says whose records the sender may settle; see OneScope, ScopeOfEvent and AllScopes")
	case s.kind == scopeOne && s.name == "":
		return errors.New("webhook: the scope of OneScope is empty")
	default:
		return nil
	}
}

// bind says which scope an event counts for, or that it counts for all.
func (s Scope) bind(e *Event) (scope string, all bool, err error) {
	switch {
	case s.kind == scopeAll:
		return e.Scope, e.Scope == "", nil
	case s.kind == scopeOfEvent && e.Scope == "":
		return "", false, errors.New("webhook: the event names no scope")
	case s.kind == scopeOne && e.Scope != "" && e.Scope != s.name:
		return "", false, errors.New("webhook: the event names a scope that is not the sender's")
	case s.kind == scopeOne:
		return s.name, false, nil
	default:
		return e.Scope, false, nil
	}
}

// Tenant is one of many senders at one endpoint: it signs with a secret of its own, and settles its own records.
type Tenant struct {
	// Scope is the tenant's.
	Scope string
	// Scheme verifies its signatures.
	Scheme Scheme
}

// sender finds out how a delivery is verified, and whose records it may settle.
func (c *Config) sender(r *http.Request) (Scheme, Scope, error) {
	if c.Tenant == nil {
		return c.Scheme, c.Scope, nil
	}
	tenant, err := c.Tenant(r)
	if err == nil && (tenant.Scheme == nil || tenant.Scope == "") {
		err = errors.New("webhook: Config.Tenant returned a tenant without a scheme or a scope")
	}
	return tenant.Scheme, OneScope(tenant.Scope), err
}
