// Package telemetry turns what Onceward tells its observers into OpenTelemetry metrics and spans (SPEC M1, M2), which
// Prometheus reads at a handler of its own, and into lines of a log (M3).
//
//	meters, metrics, err := telemetry.Prometheus()
//	t, err := telemetry.New(telemetry.Config{MeterProvider: meters})
//	guard, err := onceward.New(store, onceward.Config{…, Observer: t, Propagator: t})
//	mux.Handle("GET /metrics", metrics)
//
// A [Telemetry] is an [onceward.Observer] and an [onceward.Propagator]: give it to the guard, the workers, the outbox
// and the consumers. At the caller's side it is a [client.Observer]. An [Exporter] beside them counts what is in the store, on one node at a time. The directories
// alerts and dashboard hold rules for Prometheus and a dashboard for Grafana, and docs/telemetry.md is the guide.
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

// DefaultTopScopes is how many scopes have a series of their own.
const DefaultTopScopes = 20

// maxTopScopes keeps the series of all scopes within what one process should show.
const maxTopScopes = 1000

// Config configures a [Telemetry]. The zero value uses what is set globally in OpenTelemetry.
type Config struct {
	// MeterProvider makes the instruments. [Prometheus] gives one. Default: [otel.GetMeterProvider].
	MeterProvider metric.MeterProvider
	// TracerProvider makes the spans. Default: [otel.GetTracerProvider].
	TracerProvider trace.TracerProvider
	// Propagator writes traces into the headers of messages and reads them. Default: traceparent and tracestate, as W3C
	// Trace Context has them.
	Propagator propagation.TextMapPropagator

	// TopScopes is how many scopes have a series of their own where metrics are by scope; all others are counted together,
	// as "other". At most 1000. Default: [DefaultTopScopes].
	TopScopes int
	// ScopeLabels counts the decisions of reservations by scope too. Default: duplicates and mismatches alone are.
	ScopeLabels bool

	// ClientHosts counts a caller's operations by the host that they are sent to, the first 500 for themselves. Default:
	// all together.
	ClientHosts bool
	// ClientScope is the scope by which the service keeps the key of a caller's request, such as the caller's tenant
	// there. With it the caller's spans and logs have the same hash of the key as those of the service. Default: none, and
	// the hash is the caller's own.
	ClientScope func(request *http.Request) string

	// Logger gets a line for each event: at debug level what is usual, at info level what changes slowly, such as the
	// state of a breaker. Failures the guard and the workers log themselves. Default: none.
	Logger *slog.Logger
	// LogKeys puts scopes and keys into these lines, beside the hash. Default: the hash alone.
	LogKeys bool
}

var _ client.Observer = (*Telemetry)(nil)

// Telemetry is an [onceward.Observer], an [onceward.Propagator] and a [client.Observer]. It is safe for concurrent use.
type Telemetry struct {
	config  Config
	metrics *metrics
	tracer  trace.Tracer
}

// scopeName is that of the instruments and the spans in OpenTelemetry.
const scopeName = "github.com/onceward/onceward/telemetry"

// New returns a telemetry, or says what is wrong with the configuration.
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

// Observe implements [onceward.Observer]. Most requests are in no sampled trace: there the context has nothing to say,
// and to ask it again for each measurement would cost as much as these do.
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

// observeRare counts events that are not on the path of most requests.
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
