package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/telemetry"
)

// monitor is what others see of a replica: whether it lives, whether it wants requests, and what it has done. To see
// traces too, give the telemetry a TracerProvider, and put the middleware of OpenTelemetry around the routes.
type monitor struct {
	*telemetry.Telemetry // told by all parts
	metrics              http.Handler
	draining             atomic.Bool
}

func newMonitor() (*monitor, error) {
	meters, metrics, err := telemetry.Prometheus()
	if err != nil {
		return nil, err
	}
	t, err := telemetry.New(telemetry.Config{MeterProvider: meters})
	return &monitor{Telemetry: t, metrics: metrics}, err
}

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
	mux.Handle("GET /metrics", m.metrics)
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
