package telemetry_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
	"github.com/onceward/onceward/telemetry"
)

// order is what the traced operation carries.
type order struct {
	Charge string `json:"charge"`
}

// shop is a process: a store of its own on the same file, a telemetry, and one phased operation that ends in a message.
type shop struct {
	telemetry *telemetry.Telemetry
	tracer    trace.Tracer
	store     *sqlite.Store
	guard     *onceward.Guard
	orders    *phase.Operation[order]
	outbox    *outbox.Outbox
	handler   http.Handler
}

const (
	ordersRoute = "POST /orders"
	traceLease  = time.Hour
)

// clock is that of the stores: it goes on by more than a lease when the test says so.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// newShop starts a process whose calls to the provider do this.
func newShop(
	t *testing.T, file string, clock *clock, spans *tracetest.InMemoryExporter, settleTimeout time.Duration,
	charge func(s *shop) error,
) *shop {
	t.Helper()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	s := &shop{tracer: provider.Tracer("shop")}
	var err error
	s.telemetry, err = telemetry.New(telemetry.Config{TracerProvider: provider})
	must(t, err)
	s.store, err = sqlite.Open(t.Context(), file, sqlite.WithClock(clock.now))
	must(t, err)
	t.Cleanup(func() { _ = s.store.Close() }) // one of them is closed by the test
	s.guard, err = onceward.New(s.store, onceward.Config{
		Scope: onceward.SingleScope("alice"), Secret: []byte("a secret of the tests, long enough"),
		Observer: s.telemetry, Propagator: s.telemetry, Logger: quiet,
		StoreTimeout: await.Limit, SettleTimeout: settleTimeout,
		Defaults: []onceward.Option{onceward.Lease(traceLease)},
	})
	must(t, err)
	s.outbox, err = outbox.New(s.store, outbox.Config{Guard: s.guard, Propagator: s.telemetry})
	must(t, err)
	s.orders = phase.Must(phase.New(phase.Definition[order]{
		Name: ordersRoute,
		Steps: []phase.Step[order]{
			phase.External("charge", func(_ context.Context, key string, o *order) error {
				o.Charge = key
				return charge(s)
			}).Repeat(),
			phase.Local("send", func(ctx context.Context, o *order) error {
				_, err := s.outbox.Add(ctx, onceward.Tx(ctx), outbox.Message{
					Topic: "orders", Type: "order.charged", Payload: []byte(`{}`),
				})
				return err
			}),
		},
		Answer: func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
	}))
	mux := http.NewServeMux()
	mux.Handle(ordersRoute, s.orders.Handler(s.guard, func(*http.Request) (*order, error) { return new(order), nil }))
	s.handler = s.traced(mux)
	return s
}

// traced puts each request into a trace of its own, as the middleware of OpenTelemetry does.
func (s *shop) traced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := s.tracer.Start(r.Context(), "request")
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *shop) order() int {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{}`))
	r.Header.Set("Idempotency-Key", "the-order")
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w.Code
}

// TestTraceOfOneOperation follows one payment through a crash, a retry that meets it in progress, the resumer of
// another process, the outbox, a broker and a consumer, and at last a replay (M2): one operation id is on all of it,
// and each attempt is linked to the first one, in whose trace the rest of the work goes on.
func TestTraceOfOneOperation(t *testing.T) {
	t.Parallel()
	spans, clock := tracetest.NewInMemoryExporter(), new(clock)
	file := filepath.Join(t.TempDir(), "shop.db")
	crashing := newShop(t, file, clock, spans, time.Millisecond, func(s *shop) error {
		// For all that the store can see, the process is gone from here on.
		return errors.Join(s.store.Close(), errors.New("the process is gone"))
	})
	living := newShop(t, file, clock, spans, await.Limit, func(*shop) error { return nil })
	stream := newStream(t)

	if status := crashing.order(); status < 400 {
		t.Fatalf("the process that crashed has answered %d", status)
	}
	first := named(spans, "request")[0].SpanContext
	if status := living.order(); status != http.StatusConflict {
		t.Fatalf("a retry while the first attempt is in progress: %d", status)
	}
	clock.ahead.Store(int64(2 * traceLease)) // the lease of the first attempt is over
	resumer, err := phase.NewResumer(living.guard, living.store, phase.ResumerConfig{
		Operations: []phase.Resumable{living.orders}, Observer: living.telemetry, Logger: quiet,
	})
	must(t, err)
	awaitSeen(t, "the resumer has gone on with it", func() (bool, string) {
		report, err := resumer.RunOnce(t.Context())
		must(t, err)
		return report.Finished == 1, ""
	})
	living.deliver(t, stream)
	living.consume(t, stream)
	if status := living.order(); status != http.StatusCreated {
		t.Fatalf("the replay: %d", status)
	}
	wantOneOperation(t, spans, first)
}

// wantOneOperation checks what the exporter got.
func wantOneOperation(t *testing.T, spans *tracetest.InMemoryExporter, first trace.SpanContext) {
	t.Helper()
	id := store.ID{Scope: "alice", Key: "the-order"}.Hash()
	var decisions []string
	for _, span := range spans.GetSpans() {
		if !strings.HasPrefix(span.Name, "onceward ") {
			continue
		}
		if got := attributeOf(span, "onceward.key_hash"); got != id {
			t.Errorf("M2: %s has the operation id %q, want %q", span.Name, got, id)
		}
		if span.EndTime.Before(span.StartTime) {
			t.Errorf("M2: %s ends before it begins", span.Name)
		}
		if span.Name != "onceward reserve" {
			continue
		}
		decision := attributeOf(span, "onceward.decision")
		decisions = append(decisions, decision)
		linked := slices.ContainsFunc(span.Links, func(l sdktrace.Link) bool {
			return l.SpanContext.TraceID() == first.TraceID() && l.SpanContext.SpanID() == first.SpanID()
		})
		if linked != (decision != "created") {
			t.Errorf("M2: the decision %q is linked to the first attempt: %v", decision, linked)
		}
	}
	if want := []string{"created", "in_progress", "resumed", "replay"}; !slices.Equal(decisions, want) {
		t.Errorf("M2: decisions %q, want %q", decisions, want)
	}
	for _, name := range []string{"onceward deliver", "onceward consume", "handled by the consumer"} {
		found := named(spans, name)
		if len(found) != 1 || found[0].SpanContext.TraceID() != first.TraceID() {
			t.Errorf("M2: %s is not in the trace of the first attempt: %+v", name, found)
		}
	}
	executions := named(spans, "onceward execute")
	if len(executions) != 2 || executions[1].SpanContext.TraceID() != first.TraceID() {
		t.Errorf("M2: the resumed attempt is not in the trace of the first: %+v", executions)
	}
}

func named(spans *tracetest.InMemoryExporter, name string) (found []tracetest.SpanStub) {
	for _, span := range spans.GetSpans() {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

func attributeOf(span tracetest.SpanStub, key string) string {
	for _, a := range span.Attributes {
		if string(a.Key) == key {
			return a.Value.AsString()
		}
	}
	return ""
}

// newStream starts a broker in this process, with a stream.
func newStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	s, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	})
	must(t, err)
	go s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(await.Limit) {
		t.Fatal("the broker does not start")
	}
	conn, err := natsgo.Connect(s.ClientURL(), natsgo.Timeout(await.Limit))
	must(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(await.Limit))
	must(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"orders"}})
	must(t, err)
	return js
}

// deliver lets an outbox worker publish the message.
func (s *shop) deliver(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	publisher, err := nats.NewPublisher(nats.PublisherConfig{JetStream: js})
	must(t, err)
	worker, err := outbox.NewWorker(s.store, outbox.WorkerConfig{
		Routes:   map[string]outbox.Route{"orders": {Handler: outbox.Publish(publisher)}},
		Observer: s.telemetry, Propagator: s.telemetry, Logger: quiet,
	})
	must(t, err)
	report, err := worker.RunOnce(t.Context())
	if err != nil || report.Delivered != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
}

// consume lets a consumer apply the event.
func (s *shop) consume(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	source, err := js.CreateOrUpdateConsumer(t.Context(), "SHOP", jetstream.ConsumerConfig{Durable: "mailer"})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	handled := make(chan struct{})
	consumer, err := nats.NewConsumer(nats.ConsumerConfig{
		Source: source, Inbox: inbox.New(s.store), Name: "mailer", Logger: quiet,
		Observer: s.telemetry, Propagator: s.telemetry,
		Handle: func(ctx context.Context, _ jetstream.Msg) error {
			_, span := s.tracer.Start(ctx, "handled by the consumer")
			span.End()
			close(handled)
			return nil
		},
	})
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx) }()
	await.Value(t, "the event", handled)
	stop()
	must(t, <-done)
}
