package callers_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/telemetry"
)

// TestTelemetryOfAWorker: what a worker does and what its journal holds is counted, and each sending is in the trace
// that the operation was enqueued in, at the service too.
func TestTelemetryOfAWorker(t *testing.T) {
	t.Parallel()
	j, s := openFile(t), newService(t, fails)
	spans := tracetest.NewInMemoryExporter()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	meters, page, err := telemetry.Prometheus()
	must(t, err)
	observer, err := telemetry.New(telemetry.Config{MeterProvider: meters, TracerProvider: tracers})
	must(t, err)

	ctx, enqueuing := tracers.Tracer("test").Start(t.Context(), "order")
	sent := request(t, "", s.URL, "it")
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(sent.Header))
	key := j.enqueue(t, sent)[0]
	j.enqueue(t, request(t, "unknown", "http://other.test", ""), request(t, "later", "http://other.test", ""))
	j.exec(t, `UPDATE onceward_journal SET state = 2, told = 1 WHERE key = 'unknown'`)
	j.exec(t, `UPDATE onceward_journal SET due = due + 3600000000, created_at = created_at - 7200000000
		WHERE key = 'later'`)

	sender, err := client.New(client.Config{
		Base: &http.Transport{DisableKeepAlives: true}, MaxAttempts: 1, Observer: observer,
	})
	must(t, err)
	w := newWorker(t, j, client.WorkerConfig{Transport: sender})
	runs(t, w)
	_, err = w.Wait(t.Context(), key)
	must(t, err)
	await.That(t, "the metrics of the worker are there", func() bool {
		recorder := httptest.NewRecorder()
		page.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		text := recorder.Body.String()
		for _, line := range []string{
			`onceward_client_durable_sendings_total{host="",state="pending"} 1`,
			`onceward_client_durable_sendings_total{host="",state="answered"} 1`,
			`onceward_client_operations_total{host="",outcome="answered"} 1`,
			`onceward_client_operations_total{host="",outcome="unknown"} 1`,
			`onceward_client_durable_oldest_age_seconds 72`, `onceward_client_durable_unknown 1`,
			`onceward_client_durable_pending `, `onceward_worker_runs_total{outcome="ok",worker="client"} `,
		} {
			if !strings.Contains(text, "\n"+line) {
				return false
			}
		}
		return true
	})
	traceID := enqueuing.SpanContext().TraceID()
	for _, value := range s.sent("Traceparent") {
		if !strings.Contains(value, traceID.String()) {
			t.Errorf("the service was sent the trace %q, want %s", value, traceID)
		}
	}
	found := spans.GetSpans()
	if len(found) != 4 {
		t.Errorf("two attempts in two sendings have %d spans", len(found))
	}
	for _, span := range found {
		if span.Parent.SpanID() != enqueuing.SpanContext().SpanID() || span.SpanContext.TraceID() != traceID {
			t.Errorf("%s is not in the trace of the enqueuing", span.Name)
		}
	}
}

// uncounted is a journal that must not be counted.
type uncounted struct {
	client.Journal
	t *testing.T
}

func (u uncounted) Stats(context.Context) (client.Stats, error) {
	u.t.Error("the journal is counted for no observer")
	return client.Stats{}, nil
}

// TestWorkerWithoutAnObserver asks its journal for nothing that no one sees.
func TestWorkerWithoutAnObserver(t *testing.T) {
	t.Parallel()
	j, s := openFile(t), newService(t)
	key := j.enqueue(t, request(t, "", s.URL, "it"))[0]
	w := newWorker(t, uncounted{j, t}, client.WorkerConfig{})
	runs(t, w)
	_, err := w.Wait(t.Context(), key)
	must(t, err)
}
