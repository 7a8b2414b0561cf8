// Package monitor monitors the reference payments system with OpenTelemetry: metrics for Prometheus, and spans.
package monitor

import (
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/telemetry"
)

// Config configures a [Monitor].
type Config struct {
	// TracerProvider receives the spans of requests that are in a trace. Default: the global provider of OpenTelemetry.
	TracerProvider trace.TracerProvider
	// Export is the time between two counts of the store's contents. Default: [telemetry.DefaultExportInterval].
	Export time.Duration
}

// Monitor is the [payments.Monitor] of one system.
type Monitor struct {
	*telemetry.Telemetry
	config Config
	page   http.Handler
}

var _ payments.Monitor = (*Monitor)(nil)

// New returns a monitor whose metrics have their own registry.
func New(config Config) (*Monitor, error) {
	meters, page, err := telemetry.Prometheus()
	if err != nil {
		return nil, err
	}
	made, err := telemetry.New(telemetry.Config{MeterProvider: meters, TracerProvider: config.TracerProvider})
	if err != nil {
		return nil, err
	}
	return &Monitor{Telemetry: made, config: config, page: page}, nil
}

// ServeHTTP serves the metrics.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.page.ServeHTTP(w, r) }

// Exporter returns the worker that counts the store's contents.
func (m *Monitor) Exporter(s store.Store, guard *onceward.Guard, logger *slog.Logger) (onceward.Worker, error) {
	return m.Telemetry.Exporter(telemetry.ExporterConfig{
		Store: s, Guard: guard, Interval: m.config.Export, Logger: logger,
	})
}
