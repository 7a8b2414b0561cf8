package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/store"
)

// clientMetrics are the instruments of the caller's side.
type clientMetrics struct {
	byHost  bool
	hosts   names
	reasons names // of waits: some reasons come from services

	operations *counter
	replays    *counter
	durations  *histogram
	attempts   *counter
	polls      *counter
	waits      *counter
}

func newClientMetrics(b *builder, config *Config) *clientMetrics {
	m := &clientMetrics{byHost: config.ClientHosts}
	m.operations = b.counter("onceward_client_operations", "Operations of a caller.",
		"host", "outcome")
	m.replays = b.counter("onceward_client_replays", "Operations answered with a stored answer.",
		"host")
	m.durations = b.histogram("onceward_client_operation_duration",
		"Time of operations, with all attempts and waits.", "host")
	m.attempts = b.counter("onceward_client_attempts", "Attempts to send operations.",
		"host", "result")
	m.polls = b.counter("onceward_client_polls", "Questions for the status of operations under way.",
		"host", "result")
	m.waits = b.counter("onceward_client_waits", "Waits before an operation is sent again, or asked for.",
		"reason")
	return m
}

// ObserveClient implements [client.Observer].
func (t *Telemetry) ObserveClient(ctx context.Context, event client.Event) {
	switch e := event.(type) {
	case client.AttemptEvent:
		t.clientAttempt(ctx, &e)
	case client.WaitEvent:
		t.metrics.client.waits.add(1, t.metrics.client.reason(e.Reason))
	case client.FinishedEvent:
		t.clientFinished(ctx, &e)
	}
}

// host returns the label for a host, or the empty string, which is no label, unless Config.ClientHosts is set.
func (m *clientMetrics) host(host string) string {
	if !m.byHost {
		return ""
	}
	return m.hosts.name(strings.ToLower(host))
}

// target returns the URL of a request, or an empty URL for a request that was refused because it has none.
func target(request *http.Request) *url.URL {
	if request.URL == nil {
		return new(url.URL)
	}
	return request.URL
}

// maxReason is the largest length of a wait's reason that becomes a label: a longer text is no code.
const maxReason = 64

// reason returns the label for the reason of a wait.
func (m *clientMetrics) reason(reason string) string {
	if len(reason) > maxReason {
		return other
	}
	return underscored(m.reasons.name(reason))
}

// resultOf returns the label for the result of an attempt.
func resultOf(e *client.AttemptEvent) string {
	switch {
	case e.Err != nil:
		return "error"
	case e.Status >= 500:
		return "5xx"
	case e.Status >= 400:
		return "4xx"
	case e.Status >= 300:
		return "3xx"
	default:
		return "2xx"
	}
}

func (t *Telemetry) clientAttempt(ctx context.Context, e *client.AttemptEvent) {
	m, name := t.metrics.client, "onceward attempt"
	count := m.attempts
	if e.Polled {
		count, name = m.polls, "onceward poll"
	}
	count.add(1, m.host(target(e.Request).Host), resultOf(e))
	if trace.SpanContextFromContext(ctx).IsSampled() {
		t.span(ctx, name, trace.SpanKindClient, e.Elapsed, e.Err, "",
			t.called(e.Request, e.Key, e.Status, attemptName.Int(e.Attempt)))
	}
}

func (t *Telemetry) clientFinished(ctx context.Context, e *client.FinishedEvent) {
	m, host := t.metrics.client, t.metrics.client.host(target(e.Request).Host)
	m.operations.add(0, host, client.OutcomeUnknown.String()) // so that Prometheus sees the first one as an increase
	m.operations.add(1, host, e.Outcome.String())
	if e.Replayed {
		m.replays.add(1, host)
	}
	m.durations.record(ctx, e.Elapsed, host)
	if trace.SpanContextFromContext(ctx).IsSampled() {
		t.span(ctx, "onceward call", trace.SpanKindInternal, e.Elapsed, unanswered(e), "",
			t.called(e.Request, e.Key, e.Status, attribute.Int("onceward.attempts", e.Attempts),
				outcome.String(e.Outcome.String()), attribute.Bool("onceward.replayed", e.Replayed)))
	}
	if t.config.Logger != nil && t.config.Logger.Enabled(ctx, slog.LevelDebug) {
		t.logRecord(ctx, "onceward: called", t.callerID(e.Request, e.Key), "", int64(e.Attempts),
			slog.String("host", target(e.Request).Host), slog.String("outcome", e.Outcome.String()),
			slog.Int("status", e.Status), slog.Bool("replayed", e.Replayed), elapsed(e.Elapsed))
	}
}

// unanswered returns why an operation has no answer, without the key.
func unanswered(e *client.FinishedEvent) error {
	switch {
	case errors.Is(e.Err, client.ErrBadKey):
		return client.ErrBadKey // without the errors that wrap it: they may quote the key
	case e.Err == nil && e.Outcome != client.OutcomeAnswered:
		return errors.New("the outcome is " + e.Outcome.String())
	default:
		return e.Err
	}
}

// callerID returns the ID of the service's record of an operation, as far as the caller knows it.
func (t *Telemetry) callerID(request *http.Request, key string) store.ID {
	id := store.ID{Key: key}
	if t.config.ClientScope != nil {
		id.Scope = t.config.ClientScope(request)
	}
	return id
}

// called returns the attributes of a caller's span.
func (t *Telemetry) called(
	request *http.Request, key string, status int, more ...attribute.KeyValue,
) []attribute.KeyValue {
	more = append(more, keyHash.String(t.callerID(request, key).Hash()),
		attribute.String("http.request.method", request.Method),
		attribute.String("server.address", target(request).Hostname()))
	if status != 0 {
		more = append(more, attribute.Int("http.response.status_code", status))
	}
	return more
}
