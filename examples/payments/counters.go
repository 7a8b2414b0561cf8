package payments

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/reconcile/webhook"
)

// Counters count the engine's events in this process. They are an
// [onceward.Observer], and a handler that returns them as JSON.
type Counters struct {
	next []onceward.Observer

	mu     sync.Mutex
	counts map[string]int64
}

// newCounters returns counters that pass events to further observers. Nil observers are left out.
func newCounters(next ...onceward.Observer) *Counters {
	next = slices.DeleteFunc(next, func(o onceward.Observer) bool { return o == nil })
	return &Counters{next: next, counts: make(map[string]int64)}
}

// Observe implements [onceward.Observer].
func (c *Counters) Observe(ctx context.Context, e onceward.ObserverEvent) {
	if name, n := counted(e); n > 0 {
		c.add(name, n)
	}
	for _, next := range c.next {
		next.Observe(ctx, e)
	}
}

func (c *Counters) add(name string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[name] += n
}

// Counts returns the current counters.
func (c *Counters) Counts() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// ServeHTTP implements [http.Handler].
func (c *Counters) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, c.Counts())
}

// counted returns the counter of an event, and how much the event adds to it.
func counted(e onceward.ObserverEvent) (name string, n int64) {
	switch e := e.(type) {
	case onceward.DecidedEvent:
		return "decided " + e.Decision.String(), 1
	case onceward.ExecutedEvent:
		return "executions", 1
	case onceward.SettledEvent:
		return "ended " + e.State.String(), 1
	case reconcile.ReconciledEvent:
		return "reconciled " + e.Outcome, 1
	case outbox.DeliveredEvent:
		return "delivered " + e.Outcome, 1
	case onceward.RejectedEvent:
		return "rejected " + e.Code, 1
	case webhook.ReceivedEvent:
		return "webhooks " + e.Outcome, 1
	case ledger.FindingEvent:
		return "ledger " + e.Kind, 1
	case ledger.WindowEvent:
		return "ledger windows " + e.Outcome, 1
	case janitor.SweptEvent:
		return "swept", int64(e.Count)
	case janitor.ReapedEvent:
		return "reaped", int64(e.Count)
	case onceward.FencedEvent:
		return "fenced", 1
	case onceward.LeaseLostEvent:
		return "leases lost", 1
	case onceward.StoreFailedEvent:
		return "store failures", 1
	default:
		return "", 0
	}
}
