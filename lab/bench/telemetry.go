package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/telemetry"
)

// The ways through a guard on PostgreSQL, with and without a telemetry.
const (
	unobservedFirst  = "Onceward: Do, transactional, one insert"
	observedFirst    = "Onceward: Do, transactional, one insert, with telemetry"
	unobservedReplay = "Onceward: Do, replay"
	observedReplay   = "Onceward: Do, replay, with telemetry"
)

// telemetryContests are all comparisons of the suite.
var telemetryContests = []pgContest{
	{16, durably, []string{unobservedFirst, observedFirst}, []comparison{
		{name: "telemetry-first-c16", way: observedFirst, rival: unobservedFirst},
	}},
	{16, durably, []string{unobservedReplay, observedReplay}, []comparison{
		{name: "telemetry-replay-c16", way: observedReplay, rival: unobservedReplay},
	}},
}

// The ways differ by two percent or three, and turns by ten: there are so many times as many turns as in other suites,
// and so much shorter ones.
const (
	telemetryRounds = 12
	telemetryTurn   = 3
)

// measureTelemetry compares what metrics and traces cost.
func measureTelemetry(ctx context.Context, o *options, r *report) (err error) {
	s, err := openServer(ctx, o, "shared_buffers=1GB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	turns := *o
	turns.rounds, turns.time = o.rounds*telemetryRounds, o.time/telemetryTurn
	r.note("%s", s.about)
	r.note("metrics are read each %s, and of %d operations one is in a trace that is sampled; %d turns of %s each",
		scrapeEvery, sampledOf, turns.rounds*turnsARound, turns.time)
	return s.compete(ctx, &turns, r, "Operations a second on "+s.about, telemetryContests)
}

// sampledOf is how many operations there are for one that is in a sampled trace.
const sampledOf = 100

// spanContexts puts operations into traces of their callers: both ways have them, and telemetry alone has a use for
// them.
var spanContexts = func() (contexts [sampledOf]trace.SpanContext) {
	for i := range contexts {
		config := trace.SpanContextConfig{TraceID: trace.TraceID{1, byte(i)}, SpanID: trace.SpanID{1, byte(i)}, Remote: true}
		if i == 0 {
			config.TraceFlags = trace.FlagsSampled
		}
		contexts[i] = trace.NewSpanContext(config)
	}
	return contexts
}()

func called(ctx context.Context) context.Context {
	return trace.ContextWithRemoteSpanContext(ctx, spanContexts[rand.N(sampledOf)])
}

// discardSpans is where spans go.
type discardSpans struct{}

func (discardSpans) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discardSpans) Shutdown(context.Context) error                             { return nil }

// observe gives a guard all that telemetry has.
func observe(config *onceward.Config) (stop func() error, err error) {
	meters, page, err := telemetry.Prometheus()
	if err != nil {
		return nil, err
	}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(discardSpans{}))
	t, err := telemetry.New(telemetry.Config{MeterProvider: meters, TracerProvider: tracers})
	if err != nil {
		return nil, err
	}
	config.Observer, config.Propagator = t, t
	done := make(chan struct{})
	go func() {
		ticker := time.NewTicker(scrapeEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				scrape(page)
			case <-done:
				return
			}
		}
	}()
	return func() error {
		close(done)
		return tracers.Shutdown(context.Background())
	}, nil
}

// scrapeEvery is how often metrics are read: more often than most servers do.
const scrapeEvery = 5 * time.Second

// scrape reads the metrics, as Prometheus does.
func scrape(page http.Handler) {
	page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil))
}

// openObserved opens a guard, with telemetry or without, and says what to do with it.
func openObserved(
	observed bool, open func(ctx context.Context, s *pgSite, st pgStore, guard *onceward.Guard) (*arena, error),
) func(ctx context.Context, s *pgSite) (*arena, error) {
	return func(ctx context.Context, s *pgSite) (*arena, error) {
		st, err := openStore(ctx, s)
		if err != nil {
			return nil, err
		}
		config := onceward.Config{Secret: []byte("a secret of enough random bytes ")}
		stop := func() error { return nil }
		if observed {
			if stop, err = observe(&config); err != nil {
				return nil, err
			}
		}
		guard, err := onceward.New(st, config)
		if err != nil {
			return nil, err
		}
		a, err := open(ctx, s, st, guard)
		if err != nil {
			return nil, err
		}
		a.close = func() error { return errors.Join(stop(), st.Close()) }
		return a, nil
	}
}

// doPayment books a payment once under a key.
func doPayment(ctx context.Context, guard *onceward.Guard, key string, replayed bool) error {
	call := onceward.Call{Scope: "tenant", Key: key, Operation: "pay", Payload: orderBytes}
	result, err := guard.Do(called(ctx), call, func(ctx context.Context) ([]byte, error) {
		return []byte(answer), oneRow.work(ctx, storeTx(ctx))
	}, transactionalOption)
	if err == nil && (result.Replayed != replayed || len(result.Value) != len(answer)) {
		err = fmt.Errorf("the result was %+v", result)
	}
	return err
}

var transactionalOption = onceward.Transactional()

// observedFirsts are operations that are executed.
func observedFirsts(ctx context.Context, s *pgSite, st pgStore, guard *onceward.Guard) (*arena, error) {
	return &arena{
		operate: func(ctx context.Context) error { return doPayment(ctx, guard, newKey(), false) },
		check:   func(ctx context.Context, done int64) error { return oneRow.checkRecords(ctx, s, done) },
	}, errors.Join(oneRow.create(ctx, s), fillRecords(ctx, s, st))
}

// observedReplays are operations that were executed before.
func observedReplays(ctx context.Context, s *pgSite, _ pgStore, guard *onceward.Guard) (*arena, error) {
	if err := oneRow.create(ctx, s); err != nil {
		return nil, err
	}
	keys := newKeys(replayedKeys)
	for _, key := range keys {
		if err := doPayment(ctx, guard, key, false); err != nil {
			return nil, err
		}
	}
	return &arena{
		operate: func(ctx context.Context) error { return doPayment(ctx, guard, keys[rand.N(len(keys))], true) },
		check:   func(ctx context.Context, _ int64) error { return s.expect(ctx, int64(replayedKeys), pgRecords) },
	}, nil
}
