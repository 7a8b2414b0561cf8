// Package telemetry turns the events that Onceward sends to its observers into OpenTelemetry metrics and spans (SPEC
// M1, M2), and into log lines (M3). [Prometheus] returns a handler from which Prometheus reads the metrics.
//
//	meters, metrics, err := telemetry.Prometheus()
//	t, err := telemetry.New(telemetry.Config{MeterProvider: meters})
//	guard, err := onceward.New(store, onceward.Config{…, Observer: t, Propagator: t})
//	mux.Handle("GET /metrics", metrics)
//
// A [Telemetry] is an [onceward.Observer] and an [onceward.Propagator]: pass it to the guard, the workers, the outbox
// and the consumers. On the caller's side it is a [client.Observer]. An [Exporter] counts what is in the store, on one
// node at a time. The directory alerts holds rules for Prometheus, the directory dashboard holds a dashboard for
// Grafana, and docs/telemetry.md is the guide.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store/tiered"
)

// DefaultTopScopes is the default number of scopes that have their own series.
const DefaultTopScopes = 20

// maxTopScopes is the largest Config.TopScopes. It bounds the number of series of one process.
const maxTopScopes = 1000

// Config configures a [Telemetry]. The zero value uses the global providers of OpenTelemetry.
type Config struct {
	// MeterProvider makes the instruments; [Prometheus] returns one. Default: [otel.GetMeterProvider].
	MeterProvider metric.MeterProvider
	// TracerProvider makes the spans. Default: [otel.GetTracerProvider].
	TracerProvider trace.TracerProvider
	// Propagator writes traces into the headers of messages and reads them. Default: the headers traceparent and
	// tracestate of W3C Trace Context.
	Propagator propagation.TextMapPropagator

	// TopScopes is the number of scopes that have their own series in metrics by scope. All other scopes are counted
	// together, as "other". At most 1000. Default: [DefaultTopScopes].
	TopScopes int
	// ScopeLabels means that the decisions of reservations are counted by scope too. Default: only duplicates and
	// mismatches are.
	ScopeLabels bool

	// ClientHosts means that a caller's operations are counted by the host that they are sent to. The first 500 hosts
	// have their own series. Default: all hosts are counted together.
	ClientHosts bool
	// ClientScope returns the scope under which the service stores the key of a caller's request, such as the caller's
	// tenant in the service. With it the spans and logs of the caller and of the service contain the same hash of the
	// key. Default: none, and the caller's hash differs from the service's.
	ClientScope func(request *http.Request) string

	// Logger logs each event: common events at debug level, and rare changes, such as the state of a breaker, at info
	// level. The guard and the workers log failures themselves. Default: none.
	Logger *slog.Logger
	// LogKeys means that these lines contain scopes and keys as well as the hash. Default: only the hash.
	LogKeys bool
}

var _ client.Observer = (*Telemetry)(nil)

// Telemetry is an [onceward.Observer], an [onceward.Propagator] and a [client.Observer]. It is safe for concurrent use.
type Telemetry struct {
	config  Config
	metrics *metrics
	tracer  trace.Tracer
}

// scopeName is the name of the instrumentation scope in OpenTelemetry.
const scopeName = "github.com/onceward/onceward/telemetry"

// New returns a telemetry, or an error that describes what is wrong with the configuration.
func New(config Config) (*Telemetry, error) {
	if config.TopScopes < 0 || config.TopScopes > maxTopScopes {
		return nil, fmt.Errorf("telemetry: Config.TopScopes is %d: it must be from 1 to %d, or 0 for %d",
			config.TopScopes, maxTopScopes, DefaultTopScopes)
	}
	if config.TopScopes == 0 {
		config.TopScopes = DefaultTopScopes
	}
	if config.MeterProvider == nil {
		config.MeterProvider = otel.GetMeterProvider()
	}
	if config.TracerProvider == nil {
		config.TracerProvider = otel.GetTracerProvider()
	}
	if config.Propagator == nil {
		config.Propagator = propagation.TraceContext{}
	}
	m, err := newMetrics(config.MeterProvider.Meter(scopeName), &config)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return &Telemetry{config: config, metrics: m, tracer: config.TracerProvider.Tracer(scopeName)}, nil
}

// Observe implements [onceward.Observer]. Most requests are in no sampled trace. Their measurements get an empty
// context, because looking up the span in the context again for each measurement would cost as much as the
// measurements.
func (t *Telemetry) Observe(ctx context.Context, event onceward.ObserverEvent) {
	if trace.SpanContextFromContext(ctx).IsSampled() {
		t.metrics.observe(ctx, event)
		t.trace(ctx, event)
	} else {
		t.metrics.observe(context.Background(), event)
		if e, ok := event.(reconcile.ReconciledEvent); ok {
			t.reconcileSpan(ctx, &e) // in the trace of its record
		}
	}
	if t.config.Logger != nil {
		t.log(ctx, event)
	}
}

// observe measures an event.
func (m *metrics) observe(ctx context.Context, event onceward.ObserverEvent) {
	switch e := event.(type) {
	case onceward.DecidedEvent:
		m.decided(ctx, &e)
	case onceward.ExecutedEvent:
		m.executed(&e)
	case onceward.StoreCalledEvent:
		m.storeCalled(ctx, &e)
	case onceward.SettledEvent:
		m.settled(&e)
	case outbox.DeliveredEvent:
		m.delivered(ctx, &e)
	case inbox.HandledEvent:
		m.handled(&e)
	case reconcile.ReconciledEvent:
		m.reconciled(&e)
	case onceward.WorkerEvent:
		m.worked(&e)
	default:
		m.observeRare(event)
	}
}

// observeRare counts events that most requests do not cause.
func (m *metrics) observeRare(event onceward.ObserverEvent) {
	switch e := event.(type) {
	case onceward.FencedEvent:
		m.fencedWrites.add(1, m.routes.name(e.Operation))
	case onceward.LeaseLostEvent:
		m.leasesLost.add(1, m.routes.name(e.Operation))
	case onceward.StoreFailedEvent:
		m.storeErrors.add(1, e.Call, reasonOf(e.Err))
	case onceward.RejectedEvent:
		m.rejected.add(1, m.routes.name(e.Operation), e.Code)
	case onceward.ProblemEvent:
		m.problems.add(1, m.routes.name(e.Operation), e.Code)
	case onceward.BypassedEvent:
		m.bypassed.add(1, m.routes.name(e.Operation))
	case onceward.UnusedTransactionEvent:
		m.unusedTransactions.add(1, m.routes.name(e.Operation))
	case onceward.SecondConnectionEvent:
		m.secondConnections.add(1, m.routes.name(e.Operation))
	case onceward.UnprotectedEvent:
		m.unprotected.add(1, m.routes.name(e.Operation))
	case janitor.SweptEvent:
		m.zombiesSwept.add(int64(e.Count))
		m.reconcileScheduled.add(int64(e.Count), "")
	case janitor.ReapedEvent:
		m.recordsReaped.add(int64(e.Count))
	case janitor.PurgedEvent:
		m.executionsPurged.add(int64(e.Count))
	case breakerChange:
		m.breakerChanged(e)
	case tiered.LookedUpEvent:
		m.frontLookups.add(1, hitOrMiss(e.Hit))
	case tiered.FrontFailedEvent:
		m.frontFailures.add(1, e.Call)
	case webhook.ReceivedEvent:
		m.webhooks.add(1, e.Outcome)
	case ledger.FindingEvent:
		m.ledgerFindings.add(1, e.Kind)
	case ledger.WindowEvent:
		m.ledgerWindows.add(1, e.Outcome)
	}
}
