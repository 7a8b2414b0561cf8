package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/telemetry"
)

// tracing is a node whose spans are kept, and which samples or not.
func tracing(
	t *testing.T, sampler sdktrace.Sampler, configure ...func(*telemetry.Config),
) (*node, *tracetest.InMemoryExporter, trace.Tracer) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sampler))
	configure = append(configure, func(c *telemetry.Config) { c.TracerProvider = provider })
	return newNode(t, configure...), spans, provider.Tracer("test")
}

var decided = onceward.DecidedEvent{ID: id, Operation: "job", Decision: store.DecisionReplay}

// TestTracesThatAreNotSampled holds that they cost no span, no header and no room in a record.
func TestTracesThatAreNotSampled(t *testing.T) {
	t.Parallel()
	n, spans, tracer := tracing(t, sdktrace.NeverSample())
	ctx, span := tracer.Start(t.Context(), "request")
	for _, each := range []context.Context{ctx, t.Context()} {
		n.Observe(each, decided)
		if got := n.TraceID(each); got != "" {
			t.Errorf("M2: %q is kept", got)
		}
	}
	span.End()
	if got := spans.GetSpans(); len(got) != 0 {
		t.Errorf("M2: %+v", got)
	}
}

// TestTraceOfARecord holds that a record leads back to the first execution, and that nothing else is taken for one.
func TestTraceOfARecord(t *testing.T) {
	t.Parallel()
	n, spans, tracer := tracing(t, sdktrace.AlwaysSample())
	ctx, span := tracer.Start(t.Context(), "request")
	kept := n.TraceID(ctx)
	if len(kept) != 48 {
		t.Fatalf("M2: %q is kept", kept)
	}
	continued := trace.SpanContextFromContext(n.Continue(t.Context(), kept))
	if first := span.SpanContext(); continued.TraceID() != first.TraceID() || continued.SpanID() != first.SpanID() ||
		!continued.IsSampled() {
		t.Errorf("M2: %+v, want %+v", continued, first)
	}
	for _, other := range []string{"", "4bf92f3577b34da6a3ce929d0e0e4736", kept[:47] + "x", kept + "0"} {
		if trace.SpanContextFromContext(n.Continue(t.Context(), other)).IsValid() {
			t.Errorf("M2: %q is taken for a trace", other)
		}
	}
	if again := n.Continue(ctx, n.TraceID(ctx)); again != ctx {
		t.Error("M2: a context that is in a trace was taken out of it")
	}
	n.Observe(t.Context(), reconcile.ReconciledEvent{ID: id, Operation: "job", Outcome: "completed", TraceID: kept})
	n.Observe(t.Context(), reconcile.ReconciledEvent{ID: id, Operation: "job", Outcome: "completed"})
	if got := spans.GetSpans(); len(got) != 1 || got[0].SpanContext.TraceID() != span.SpanContext().TraceID() {
		t.Errorf("M2: what the poller learned is in the trace of the record: %+v", got)
	}
}

// TestHeadersOfMessages holds that what is injected can be extracted, with the operation that the message is of.
func TestHeadersOfMessages(t *testing.T) {
	t.Parallel()
	n, _, tracer := tracing(t, sdktrace.AlwaysSample())
	ctx, span := tracer.Start(t.Context(), "request")
	headers := make(map[string]string)
	hash := store.ID{Scope: "s", Key: "k"}.Hash()
	for _, other := range []string{strings.Repeat("x", 1<<20), strings.ToUpper(hash), hash[1:] + "\xff"} {
		n.Inject(n.Extract(ctx, map[string]string{"onceward-operation": other}), headers)
		if headers["onceward-operation"] != "" {
			t.Errorf("M2: %d bytes that are no hash are handed on", len(other))
		}
	}
	n.Inject(n.Extract(ctx, map[string]string{"onceward-operation": hash}), headers)
	if headers["onceward-operation"] != hash || headers["traceparent"] == "" {
		t.Errorf("M2: %v", headers)
	}
	got := trace.SpanContextFromContext(n.Extract(t.Context(), headers))
	if got.TraceID() != span.SpanContext().TraceID() {
		t.Errorf("M2: %v", got)
	}
}

// TestTextsOfSpansCanBeExported: what others have said is neither long nor without a meaning in UTF-8.
func TestTextsOfSpansCanBeExported(t *testing.T) {
	t.Parallel()
	n, spans, tracer := tracing(t, sdktrace.AlwaysSample())
	ctx, _ := tracer.Start(t.Context(), "request")
	n.Observe(ctx, inbox.HandledEvent{
		Consumer: "c\xff", EventID: "e\xff", Err: errors.New(strings.Repeat("\xff", 1<<20)),
	})
	texts := []string{spans.GetSpans()[0].Status.Description}
	for _, a := range spans.GetSpans()[0].Attributes {
		texts = append(texts, fmt.Sprint(a.Value.AsInterface()))
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || len(text) > 2000 {
			t.Errorf("M2: %d bytes: %q", len(text), text[:min(len(text), 50)])
		}
	}
}

// TestSpansOfExecutionsEndWithTheHandler: an execution is reported after its commit, which its span does not contain.
func TestSpansOfExecutionsEndWithTheHandler(t *testing.T) {
	t.Parallel()
	n, spans, tracer := tracing(t, sdktrace.AlwaysSample())
	ctx, _ := tracer.Start(t.Context(), "request")
	ended := time.Now().Add(-time.Minute)
	n.Observe(ctx, onceward.ExecutedEvent{ID: id, Operation: "job", Elapsed: time.Second, EndedAt: ended})
	got := spans.GetSpans()
	if len(got) != 1 || !got[0].EndTime.Equal(ended) || !got[0].StartTime.Equal(ended.Add(-time.Second)) {
		t.Errorf("M2: the execution ended at %s: %+v", ended, got)
	}
}
