package telemetry_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/telemetry"
)

// propagating is a base transport that hands the trace on, as otelhttp does.
type propagating struct{ http.RoundTripper }

func (p propagating) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	propagation.TraceContext{}.Inject(r.Context(), propagation.HeaderCarrier(r.Header))
	return p.RoundTripper.RoundTrip(r)
}

// payments is a service that is protected by a guard, with its own telemetry. Requests get past it first, and what
// that answers is not the guard's.
func payments(t *testing.T, service *node, past func(w http.ResponseWriter, r *http.Request) (answered bool)) string {
	t.Helper()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope:  func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil },
		Secret: []byte("the secret of the tests"), Logger: slog.New(slog.DiscardHandler), Observer: service.Telemetry,
		StoreTimeout: await.Limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	guarded := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	}), onceward.OperationName("pay"), onceward.Reserved(onceward.FailureUnknown))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		if r = r.WithContext(ctx); !past(w, r) {
			guarded.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// pay sends an operation and returns its status, or 0 without an answer.
func pay(ctx context.Context, t *testing.T, caller *node, url, key string) int {
	t.Helper()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	c, err := client.NewClient(client.Config{
		Base: propagating{base}, Observer: caller.Telemetry, MaxAttempts: 3, MinBackoff: 1, MaxBackoff: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(client.WithKey(ctx, key), http.MethodPost, url+"/secret", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "alice")
	resp, err := c.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestCallerAndService sends operations to a guard: both sides count them, and both are found by one trace and one
// hash.
func TestCallerAndService(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	caller, spans, tracer := tracing(t, sdktrace.AlwaysSample(), func(c *telemetry.Config) {
		c.ClientScope = func(r *http.Request) string { return r.Header.Get("Authorization") }
		c.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	service, served, _ := tracing(t, sdktrace.AlwaysSample())
	failures := 0
	url := payments(t, service, func(w http.ResponseWriter, _ *http.Request) bool {
		failures++
		if failures == 1 {
			panic(http.ErrAbortHandler) // the connection is cut
		}
		if failures == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return failures <= 2
	})
	ctx, root := tracer.Start(t.Context(), "checkout")
	for range 2 {
		if status := pay(ctx, t, caller, url, "the-key"); status != http.StatusCreated {
			t.Fatalf("M1: status %d", status)
		}
	}
	caller.want(t,
		`onceward_client_operations_total{host="",outcome="answered"} 2`,
		`onceward_client_operations_total{host="",outcome="unknown"} 0`,
		`onceward_client_replays_total{host=""} 1`,
		`onceward_client_operation_duration_seconds_count{host=""} 2`,
		`onceward_client_attempts_total{host="",result="error"} 1`,
		`onceward_client_attempts_total{host="",result="5xx"} 1`,
		`onceward_client_attempts_total{host="",result="2xx"} 2`,
		`onceward_client_waits_total{reason="error"} 1`,
		`onceward_client_waits_total{reason="status_503"} 1`,
	)
	hash, names := attributeOf(served.GetSpans()[0], "onceward.key_hash"), ""
	for _, span := range append(spans.GetSpans(), served.GetSpans()...) {
		if got := attributeOf(span, "onceward.key_hash"); got != hash || hash == "" {
			t.Errorf("M2: %s has the hash %q, and the service %q", span.Name, got, hash)
		}
		if span.SpanContext.TraceID() != root.SpanContext().TraceID() || span.EndTime.Before(span.StartTime) {
			t.Errorf("M2: %+v is not in the trace of the caller", span)
		}
	}
	for _, span := range spans.GetSpans() {
		names += fmt.Sprintln(span.Name, attributeOf(span, "onceward.attempt")+attributeOf(span, "onceward.attempts"),
			attributeOf(span, "http.response.status_code"), attributeOf(span, "onceward.outcome"), span.Status.Code)
	}
	want := "onceward attempt 1   Error\nonceward attempt 2 503  Unset\nonceward attempt 3 201  Unset\n" +
		"onceward call 3 201 answered Unset\nonceward attempt 1 201  Unset\nonceward call 1 201 answered Unset\n"
	if names != want {
		t.Errorf("M2: the spans are\n%swant\n%s", names, want)
	}
	everywhere := caller.scrape(t) + logged.String() + fmt.Sprintf("%+v", spans.GetSpans())
	for _, secret := range []string{"the-key", "/secret"} {
		if strings.Contains(everywhere, secret) {
			t.Errorf("M3: %s is shown", secret)
		}
	}
	if !strings.Contains(logged.String(), `msg="onceward: called" key_hash=`+hash) {
		t.Errorf("M3: %s", logged.String())
	}
}

func attributeOf(span tracetest.SpanStub, name string) string {
	for _, a := range span.Attributes {
		if string(a.Key) == name {
			return fmt.Sprint(a.Value.AsInterface())
		}
	}
	return ""
}

// TestCallerWithoutAnAnswer counts operations by what is known of them, and by host if that is asked for.
func TestCallerWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	caller, spans, tracer := tracing(t, sdktrace.AlwaysSample(), func(c *telemetry.Config) { c.ClientHosts = true })
	url := payments(t, newNode(t), func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	ctx, _ := tracer.Start(t.Context(), "checkout")
	pay(ctx, t, caller, url, "1")
	pay(ctx, t, caller, closed.URL, "2")
	pay(ctx, t, caller, url, "a bad\nkey")
	host, gone := strings.TrimPrefix(url, "http://"), strings.TrimPrefix(closed.URL, "http://")
	caller.want(t,
		fmt.Sprintf(`onceward_client_operations_total{host=%q,outcome="unknown"} 1`, host),
		fmt.Sprintf(`onceward_client_operations_total{host=%q,outcome="not_executed"} 1`, gone),
		fmt.Sprintf(`onceward_client_operations_total{host=%q,outcome="not_executed"} 1`, host),
		fmt.Sprintf(`onceward_client_attempts_total{host=%q,result="5xx"} 3`, host),
		fmt.Sprintf(`onceward_client_attempts_total{host=%q,result="error"} 3`, gone),
	)
	for _, span := range spans.GetSpans() {
		if span.Name == "onceward call" && span.Status.Code != codes.Error ||
			strings.Contains(span.Status.Description, "0x0a") {
			t.Errorf("M2: %+v", span)
		}
	}
}

// TestClientLabelsAreBounded: neither many hosts nor the words of a service become series without end.
func TestClientLabelsAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *telemetry.Config) { c.ClientHosts = true })
	n.ObserveClient(t.Context(), client.WaitEvent{Reason: strings.Repeat("x", 1<<16)})
	for i := range 2000 {
		r := httptest.NewRequest(http.MethodPost, fmt.Sprintf("http://shop-%d.example/", i), nil)
		n.ObserveClient(t.Context(), client.FinishedEvent{Request: r, Key: "key", Outcome: client.OutcomeAnswered})
		n.ObserveClient(t.Context(), client.WaitEvent{Request: r, Key: "key", Reason: fmt.Sprint("code-", i)})
	}
	n.ObserveClient(t.Context(), client.FinishedEvent{Request: &http.Request{}})
	page := n.scrape(t)
	if strings.Contains(page, "xxxx") {
		t.Error("a long text is shown as a reason")
	}
	if series := strings.Count(page, "\nonceward_client_waits_total{"); series != 501 {
		t.Errorf("%d series of waits", series)
	}
	if series := strings.Count(page, "\nonceward_client_operations_total{"); series != 2*501 {
		t.Errorf("%d series of operations", series)
	}
	n.want(t, `onceward_client_waits_total{reason="other"} 1501`)
}

// TestCallOutsideOfATrace: an operation whose trace is not sampled has no spans.
func TestCallOutsideOfATrace(t *testing.T) {
	t.Parallel()
	n, spans, tracer := tracing(t, sdktrace.AlwaysSample())
	ctx, call := tracer.Start(t.Context(), "call")
	finished := client.FinishedEvent{
		Request: httptest.NewRequest(http.MethodPost, "http://shop.example/", nil), Key: "key", Outcome: client.OutcomeAnswered,
	}
	n.ObserveClient(ctx, finished)
	n.ObserveClient(t.Context(), finished)
	unsampled := call.SpanContext().WithTraceFlags(0)
	n.ObserveClient(trace.ContextWithSpanContext(t.Context(), unsampled), finished)
	got := spans.GetSpans()
	if len(got) != 1 || got[0].Parent.SpanID() != call.SpanContext().SpanID() {
		t.Errorf("M2: %+v", got)
	}
}
