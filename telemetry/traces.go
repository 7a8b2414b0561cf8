package telemetry

import (
	"context"
	"encoding/hex"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// These are the attributes of spans. The hash of the key is the same on all spans of an operation, in all traces.
const (
	keyHash     = attribute.Key("onceward.key_hash")
	routeName   = attribute.Key("onceward.route")
	attemptName = attribute.Key("onceward.attempt")
	decision    = attribute.Key("onceward.decision")
	outcome     = attribute.Key("onceward.outcome")
)

// operationHeader is the message header that carries the hash of the operation's key to the consumers.
const operationHeader = "onceward-operation"

// operationKey is the context key of the hash that a message carried.
type operationKey struct{}

// TraceID implements [onceward.Propagator]. It returns the ids of the trace and of the span, concatenated, or the empty
// string for a trace that is not sampled, because nothing could be found by it.
func (t *Telemetry) TraceID(ctx context.Context) string {
	in := trace.SpanContextFromContext(ctx)
	if !in.IsSampled() || !in.IsValid() {
		return ""
	}
	var digits [2 * (len(trace.TraceID{}) + len(trace.SpanID{}))]byte
	traceID, spanID := in.TraceID(), in.SpanID()
	hex.Encode(digits[:], traceID[:])
	hex.Encode(digits[2*len(traceID):], spanID[:])
	return string(digits[:])
}

// firstSpan parses a result of TraceID. It returns false for anything else, such as a trace without a span, which other
// propagators may have stored.
func firstSpan(traceID string) (trace.SpanContext, bool) {
	var config trace.SpanContextConfig
	traceDigits := 2 * len(config.TraceID)
	if len(traceID) != traceDigits+2*len(config.SpanID) {
		return trace.SpanContext{}, false
	}
	_, traceErr := hex.Decode(config.TraceID[:], []byte(traceID[:traceDigits]))
	_, spanErr := hex.Decode(config.SpanID[:], []byte(traceID[traceDigits:]))
	config.TraceFlags, config.Remote = trace.FlagsSampled, true
	first := trace.NewSpanContext(config)
	return first, traceErr == nil && spanErr == nil && first.IsValid()
}

// Continue implements [onceward.Propagator]. Work that continues without its caller is in the trace of the first
// execution, unless the context is already in a trace.
func (t *Telemetry) Continue(ctx context.Context, traceID string) context.Context {
	first, ok := firstSpan(traceID)
	if !ok || trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, first)
}

// Inject implements [onceward.Propagator].
func (t *Telemetry) Inject(ctx context.Context, headers map[string]string) {
	t.config.Propagator.Inject(ctx, propagation.MapCarrier(headers))
	if hash := operationOf(ctx); hash != "" && trace.SpanContextFromContext(ctx).IsSampled() {
		headers[operationHeader] = hash
	}
}

// operationOf returns the hash of the key of the operation that a context belongs to: the handler's operation, or the
// operation of a message.
func operationOf(ctx context.Context) string {
	if op := onceward.FromContext(ctx); op != nil {
		return store.ID{Scope: op.Scope(), Key: op.Key()}.Hash()
	}
	hash, _ := ctx.Value(operationKey{}).(string)
	return hash
}

// Extract implements [onceward.Propagator].
func (t *Telemetry) Extract(ctx context.Context, headers map[string]string) context.Context {
	ctx = t.config.Propagator.Extract(ctx, propagation.MapCarrier(headers))
	if hash := headers[operationHeader]; isHash(hash) {
		ctx = context.WithValue(ctx, operationKey{}, hash)
	}
	return ctx
}

// isHash reports whether a text has the form of a hash of [store.ID.Hash]. The sender of a message writes its headers:
// any other text must become neither an attribute nor a header of the next message.
func isHash(text string) bool {
	if len(text) != hashDigits {
		return false
	}
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// hashDigits is the number of digits of [store.ID.Hash].
var hashDigits = len(store.ID{}.Hash())

// trace makes the span of an event in a sampled trace.
func (t *Telemetry) trace(ctx context.Context, event onceward.ObserverEvent) {
	switch e := event.(type) {
	case onceward.DecidedEvent:
		t.decisionSpan(ctx, &e)
	case onceward.ExecutedEvent:
		t.executionSpan(ctx, &e)
	case onceward.StoreCalledEvent:
		t.storeSpan(ctx, &e)
	case outbox.DeliveredEvent:
		t.deliverySpan(ctx, &e)
	case inbox.HandledEvent:
		t.consumerSpan(ctx, &e)
	case reconcile.ReconciledEvent:
		t.reconcileSpan(ctx, &e)
	}
}

// span makes a span that ends now. The caller has checked that the context is in a sampled trace: a span outside all
// traces would show nothing that the metrics do not show.
func (t *Telemetry) span(
	ctx context.Context, name string, kind trace.SpanKind, elapsed time.Duration, err error, first string,
	attributes []attribute.KeyValue,
) {
	t.spanUntil(ctx, time.Now(), name, kind, elapsed, err, first, attributes)
}

// spanUntil makes a span that ended at the given time.
func (t *Telemetry) spanUntil(
	ctx context.Context, end time.Time, name string, kind trace.SpanKind, elapsed time.Duration, err error, first string,
	attributes []attribute.KeyValue,
) {
	for i, a := range attributes {
		if a.Value.Type() == attribute.STRING {
			attributes[i] = a.Key.String(plain(a.Value.AsString()))
		}
	}
	options := []trace.SpanStartOption{
		trace.WithSpanKind(kind), trace.WithTimestamp(end.Add(-elapsed)), trace.WithAttributes(attributes...),
	}
	if link, ok := firstSpan(first); ok {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: link}))
	}
	_, span := t.tracer.Start(ctx, name, options...)
	if err != nil {
		span.SetStatus(codes.Error, plain(err.Error()))
	}
	span.End(trace.WithTimestamp(end))
}

// maxSpanText is the largest size of a text in a span: the text of a panic contains a stack, the text of an error a
// provider's message.
const maxSpanText = 500

// plain returns a text as a span can contain it: short, and valid UTF-8. Exporters refuse a span with invalid UTF-8,
// such as the id of an external event, together with all spans that are sent with it.
func plain(text string) string {
	if len(text) > maxSpanText {
		text = text[:maxSpanText] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// identified returns the attributes of all spans about a record.
func identified(id store.ID, route string, attempt int64, more ...attribute.KeyValue) []attribute.KeyValue {
	return append(more, keyHash.String(id.Hash()), routeName.String(route), attemptName.Int64(attempt))
}

// decisionSpan makes the span of a reservation. A reservation after the first one of its operation is linked to the
// first execution.
func (t *Telemetry) decisionSpan(ctx context.Context, e *onceward.DecidedEvent) {
	what, first := decisions[decisionIndex(e)], e.TraceID
	if e.Decision == store.DecisionExecute && (e.Origin == store.OriginCreated || e.Origin == store.OriginRecreated) {
		first = "" // this is the first execution
	}
	t.span(ctx, "onceward reserve", trace.SpanKindClient, e.Elapsed, nil, first,
		identified(e.ID, e.Operation, e.Attempt, decision.String(what)))
}

func (t *Telemetry) executionSpan(ctx context.Context, e *onceward.ExecutedEvent) {
	attributes := identified(e.ID, e.Operation, e.Attempt, attribute.Bool("onceward.panicked", e.Panicked),
		attribute.Bool("onceward.unknown", e.Unknown))
	if e.Status != 0 {
		attributes = append(attributes, attribute.Int("http.response.status_code", e.Status))
	}
	t.spanUntil(ctx, e.EndedAt, "onceward execute", trace.SpanKindInternal, e.Elapsed, nil, "", attributes)
}

func (t *Telemetry) storeSpan(ctx context.Context, e *onceward.StoreCalledEvent) {
	t.span(ctx, "onceward "+e.Call, trace.SpanKindClient, e.Elapsed, e.Err, "",
		identified(e.ID, e.Operation, e.Attempt))
}

func (t *Telemetry) deliverySpan(ctx context.Context, e *outbox.DeliveredEvent) {
	attributes := []attribute.KeyValue{
		attribute.String("messaging.destination.name", e.Topic), attribute.String("messaging.message.id", e.Message),
		outcome.String(e.Outcome), attemptName.Int(e.Attempts),
	}
	if e.ID != (store.ID{}) {
		attributes = append(attributes, keyHash.String(e.ID.Hash()))
	}
	t.span(ctx, "onceward deliver", trace.SpanKindProducer, e.Elapsed, e.Err, "", attributes)
}

func (t *Telemetry) consumerSpan(ctx context.Context, e *inbox.HandledEvent) {
	attributes := []attribute.KeyValue{
		attribute.String("messaging.consumer.group.name", e.Consumer),
		attribute.String("messaging.message.id", e.EventID), attribute.Bool("onceward.applied", e.Applied),
	}
	if hash := operationOf(ctx); hash != "" {
		attributes = append(attributes, keyHash.String(hash))
	}
	t.span(ctx, "onceward consume", trace.SpanKindConsumer, e.Elapsed, e.Err, "", attributes)
}

// reconcileSpan makes the span of a query about an unknown outcome, in the trace of the first execution.
func (t *Telemetry) reconcileSpan(ctx context.Context, e *reconcile.ReconciledEvent) {
	ctx = t.Continue(ctx, e.TraceID)
	if trace.SpanContextFromContext(ctx).IsSampled() {
		t.span(ctx, "onceward reconcile", trace.SpanKindInternal, 0, e.Err, e.TraceID,
			identified(e.ID, e.Operation, e.Attempt, outcome.String(e.Outcome)))
	}
}
