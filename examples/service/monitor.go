package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
)

// monitor is what others see of a replica: whether it lives, whether it wants requests, and what it has done.
type monitor struct {
	draining atomic.Bool

	mu     sync.Mutex
	counts map[string]int64 // by the name and the labels of a counter
}

func newMonitor() *monitor { return &monitor{counts: make(map[string]int64)} }

// handler answers probes and scrapes. Live says that the process works at all: it must not ask the store, or an outage
// of that would have all replicas restarted for nothing. Ready says whether to send requests.
func (m *monitor) handler(probe func(context.Context) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /live", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if m.draining.Load() {
			http.Error(w, "it is shutting down", http.StatusServiceUnavailable)
		} else if err := probe(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /metrics", m.write)
	return mux
}

// drain is the worker that stops first: from then on the replica is not ready, and is left alone for as long as load
// balancers go on sending requests.
func (m *monitor) drain(d time.Duration) onceward.Worker {
	return onceward.WorkerFunc(func(ctx context.Context) error {
		<-ctx.Done()
		m.draining.Store(true)
		time.Sleep(d)
		return nil
	})
}

// Observe implements [onceward.Observer]. Operations are few and known; keys and scopes have no place in labels.
func (m *monitor) Observe(_ context.Context, e onceward.ObserverEvent) {
	switch e := e.(type) {
	case onceward.DecidedEvent:
		m.add("decided", e.Operation, e.Decision.String(), 1)
	case onceward.SettledEvent:
		m.add("settled", e.Operation, e.State.String(), 1)
	case onceward.RejectedEvent:
		m.add("rejected", e.Operation, e.Code, 1)
	case onceward.StoreFailedEvent:
		m.add("store_failed", e.Operation, e.Call, 1)
	case onceward.FencedEvent:
		m.add("fenced", e.Operation, "", 1)
	case onceward.LeaseLostEvent:
		m.add("lease_lost", e.Operation, "", 1)
	case reconcile.ReconciledEvent:
		m.add("reconciled", e.Operation, e.Outcome, 1)
	case outbox.DeliveredEvent:
		m.add("delivered", e.Topic, e.Outcome, 1)
	case janitor.SweptEvent:
		m.add("swept", "", "", int64(e.Count))
	case janitor.ReapedEvent:
		m.add("reaped", "", "", int64(e.Count))
	}
}

func (m *monitor) add(event, operation, outcome string, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[fmt.Sprintf("onceward_%s_total{operation=%q,outcome=%q}", event, operation, outcome)] += n
}

// write shows the counters in the text format of Prometheus.
func (m *monitor) write(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	counts := maps.Clone(m.counts)
	m.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintln(w, name, counts[name])
	}
}
