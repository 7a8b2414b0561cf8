package webhook

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// Event describes a delivery to the receiver. Every provider has another format, so [Config] has a Parse that finds it.
type Event struct {
	// ID is the sender's id of the event: the same in every delivery of it, and never another event's. It must be taken
	// from the signed part, otherwise a recorded delivery could be made to look new. It is required.
	ID string
	// Subject identifies the effect, in the form that the reconciler uses: a downstream key or the provider's own id. It
	// is required, because an event without one would never be found.
	Subject string
	// Scope is the scope that the event concerns, for [ScopeOfEvent]. Like the ID it must be taken from the signed part.
	Scope string
	// At is when it happened by the sender's clock. If it is zero, the time of receipt is used, and the order is the order
	// of arrival.
	At time.Time
}

// ErrIgnored is returned by a Parse for an event that is not needed, such as an event of a kind that is not handled. It
// is answered like a success, so that the sender does not send it again, and is not kept.
var ErrIgnored = errors.New("webhook: the event is of no interest")

// ParseJSON returns a Parse for senders of JSON: the body is decoded into a T, a struct with the few fields that
// matter, and find makes the [Event] from it. A body that is not one JSON value of that shape is refused.
func ParseJSON[T any](
	find func(header http.Header, payload T) (Event, error),
) func(http.Header, []byte) (Event, error) {
	return func(header http.Header, body []byte) (Event, error) {
		var payload T
		if err := json.Unmarshal(body, &payload); err != nil {
			return Event{}, fmt.Errorf("webhook: the body cannot be decoded: %w", err)
		}
		return find(header, payload)
	}
}

// Latest returns the external event that counts, and false if there is none. The external events are from one source
// and about one subject, as [store.ExternalEventKeeper] returns them. Deliveries come in any order: the event that
// happened last by the sender's clock counts, and an older one that arrives later is ignored. Between two events with
// the same time the greater event id decides. That does not show which came last, but every node decides alike; if it
// matters, query the sender for the current state.
func Latest(events []store.ExternalEvent) (store.ExternalEvent, bool) {
	if len(events) == 0 {
		return store.ExternalEvent{}, false
	}
	return slices.MaxFunc(events, func(a, b store.ExternalEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.EventID, b.EventID))
	}), true
}

// Scope sets whose records a sender may settle: a signature proves the sender, and the scope sets its rights. The zero
// value is refused.
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

// OneScope returns the scope of a sender whose secret one tenant has: it settles only that tenant's records.
func OneScope(scope string) Scope { return Scope{kind: scopeOne, name: scope} }

// ScopeOfEvent returns the scope of a sender that reports for many tenants and names the tenant, such as a platform
// that puts the account into each event: Parse finds [Event].Scope. An event without one is refused.
func ScopeOfEvent() Scope { return Scope{kind: scopeOfEvent} }

// AllScopes returns the scope of a sender whose secret no tenant has: the provider of the service's own account. It
// settles records of every scope. If Parse finds an [Event].Scope anyway, the event only settles records of that scope.
func AllScopes() Scope { return Scope{kind: scopeAll} }

// check refuses a scope that does not define whose records may be settled.
func (s Scope) check() error {
	switch {
	case s.kind == scopeMissing:
		return errors.New("webhook: Config.Scope is missing: it sets whose records the sender may settle; " +
			"see OneScope, ScopeOfEvent and AllScopes")
	case s.kind == scopeOne && s.name == "":
		return errors.New("webhook: the scope of OneScope is empty")
	default:
		return nil
	}
}

// bind returns the scope that an event counts for, or that it counts for all.
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
	// Scope is the tenant's scope.
	Scope string
	// Scheme verifies the tenant's signatures.
	Scheme Scheme
}

// sender returns how a delivery is verified, and whose records it may settle.
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
