package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/telemetry"
)

// monitor is the public state of a replica: whether it is alive, whether it is ready, and its metrics. To get
// traces too, give the telemetry a TracerProvider, and wrap the routes in the middleware of OpenTelemetry.
type monitor struct {
	*telemetry.Telemetry // observes all parts
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

// handler answers probes and scrapes. Live reports that the process works at all: it must not query the store, because
// otherwise an outage of the store would restart all replicas for nothing. Ready reports whether to send requests.
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

// drain returns the worker that stops first. The replica is then not
// ready, and waits while load balancers may still send requests.
func (m *monitor) drain(d time.Duration) onceward.Worker {
	return onceward.WorkerFunc(func(ctx context.Context) error {
		<-ctx.Done()
		m.draining.Store(true)
		time.Sleep(d)
		return nil
	})
}
