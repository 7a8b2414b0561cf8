package callers_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
	"github.com/onceward/onceward/telemetry"
)

// TestTelemetryOfADurableCall: each sending and each delivery is counted, and is in the trace that the operation was
// enqueued in.
func TestTelemetryOfADurableCall(t *testing.T) {
	t.Parallel()
	c, s := openCaller(t, openSQLite), newService(t, fails)
	spans := tracetest.NewInMemoryExporter()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	meters, page, err := telemetry.Prometheus()
	must(t, err)
	observer, err := telemetry.New(telemetry.Config{MeterProvider: meters, TracerProvider: tracers})
	must(t, err)
	box, err := outbox.New(c.store, outbox.Config{Propagator: observer})
	must(t, err)
	sender, err := client.New(client.Config{
		Base: &http.Transport{DisableKeepAlives: true}, MaxAttempts: 1, Observer: observer,
	})
	must(t, err)
	calls, err := httpcall.New(httpcall.Config{Outbox: box, Topic: topic, Transport: sender})
	must(t, err)

	ctx, enqueuing := tracers.Tracer("test").Start(t.Context(), "order")
	m, err := calls.Message(request(t, "", s.URL, "it"))
	must(t, err)
	must(t, c.store.InTx(ctx, func(ctx context.Context) error {
		_, err := box.Add(ctx, onceward.Tx(ctx), m)
		return err
	}))
	w, err := outbox.NewWorker(c.store, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{topic: calls.Route()}, Logger: quiet, Observer: observer,
		Propagator: observer,
	})
	must(t, err)
	c.finish(w)
	recorder := httptest.NewRecorder()
	page.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		`onceward_client_operations_total{host="",outcome="answered"} 1`,
		`onceward_client_operations_total{host="",outcome="unknown"} 1`,
		`onceward_outbox_deliveries_total{outcome="retry",topic="payments"} 1`,
		`onceward_outbox_deliveries_total{outcome="done",topic="payments"} 1`,
	} {
		if !strings.Contains(recorder.Body.String(), "\n"+line) {
			t.Errorf("M1: %s is missing in\n%s", line, recorder.Body)
		}
	}
	sendings := 0
	for _, span := range spans.GetSpans() {
		if span.SpanContext.TraceID() != enqueuing.SpanContext().TraceID() {
			t.Errorf("M2: %s is not in the trace of the enqueuing", span.Name)
		}
		if span.Name == "onceward attempt" {
			sendings++
		}
	}
	if sendings != 2 {
		t.Errorf("M2: two sendings have %d spans", sendings)
	}
}
