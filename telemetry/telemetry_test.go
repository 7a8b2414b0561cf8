package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/telemetry"
)

// node is a process with a telemetry and its page of metrics.
type node struct {
	*telemetry.Telemetry
	page http.Handler
}

func newNode(t testing.TB, configure ...func(*telemetry.Config)) *node {
	t.Helper()
	meters, page, err := telemetry.Prometheus()
	if err != nil {
		t.Fatal(err)
	}
	config := telemetry.Config{MeterProvider: meters}
	for _, each := range configure {
		each(&config)
	}
	tel, err := telemetry.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return &node{tel, page}
}

// scrape returns the page of metrics.
func (n *node) scrape(t testing.TB) string {
	t.Helper()
	return n.scrapeAs(t, "text/plain")
}

// scrapeAs returns the page in one of its forms.
func (n *node) scrapeAs(t testing.TB, accept string) string {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	n.page.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatal(w.Code, err)
	}
	return string(body)
}

// want looks for lines in the page.
func (n *node) want(t testing.TB, lines ...string) {
	t.Helper()
	page := n.scrape(t)
	for _, line := range lines {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("no line %q in\n%s", line, page)
		}
	}
}

var id = store.ID{Scope: "tenant", Key: "key"}

// everything is one event of each kind.
var everything = []onceward.ObserverEvent{
	onceward.DecidedEvent{ID: id, Operation: "job", Decision: store.DecisionExecute, Origin: store.OriginCreated},
	onceward.DecidedEvent{ID: id, Operation: "job", Decision: store.DecisionReplay, Age: 2 * time.Hour},
	onceward.DecidedEvent{ID: id, Operation: "job", Decision: store.DecisionMismatch},
	onceward.ExecutedEvent{ID: id, Operation: "job", Status: 201, Elapsed: 1500 * time.Millisecond, EndedAt: time.Now()},
	onceward.SettledEvent{ID: id, Operation: "job", State: store.StateUnknown},
	onceward.FencedEvent{ID: id, Operation: "job"},
	onceward.LeaseLostEvent{ID: id, Operation: "job"},
	onceward.StoreCalledEvent{ID: id, Operation: "job", Call: "complete"},
	onceward.StoreCalledEvent{ID: id, Operation: "job", Call: "extend", Delay: 3 * time.Second},
	onceward.StoreFailedEvent{Operation: "job", Call: "reserve", Err: store.ErrUnavailable},
	onceward.RejectedEvent{Operation: "job", Code: "key-missing"},
	onceward.ProblemEvent{ID: id, Operation: "job", Code: "mismatch"},
	onceward.BypassedEvent{ID: id, Operation: "job"},
	onceward.UnprotectedEvent{Operation: "job"},
	onceward.UnusedTransactionEvent{Operation: "job"},
	onceward.SecondConnectionEvent{Operation: "job"},
	onceward.WorkerEvent{Worker: "resumer", Backlog: 3, Oldest: time.Now().Add(-time.Hour)},
	janitor.SweptEvent{Count: 2},
	janitor.ReapedEvent{Count: 5},
	janitor.PurgedEvent{Count: 7},
	reconcile.ReconciledEvent{ID: id, Operation: "job", Outcome: "completed"},
	reconcile.ReconciledEvent{ID: id, Operation: "job", Outcome: "dead letter"},
	outbox.DeliveredEvent{ID: id, Topic: "charges", Outcome: "dead letter", Elapsed: time.Millisecond},
	inbox.HandledEvent{Consumer: "mailer", Applied: true},
	breakerOpened{},
}

// breakerOpened is the event of a circuit breaker. lab/feature/telemetry has that of the real one.
type breakerOpened struct{}

func (breakerOpened) BreakerStates() (from, to string) { return "closed", "open" }

func TestEventsBecomeMetrics(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *telemetry.Config) { c.ScopeLabels = true })
	for _, e := range everything {
		n.Observe(t.Context(), e)
	}
	page := n.scrape(t) // a series begins at zero
	for _, line := range []string{
		`onceward_duplicates_total{scope="tenant"} 0`,
		`onceward_scope_reservations_total{decision="replay",scope="tenant"} 0`,
	} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("M1: the first scrape has no line %s", line)
		}
	}
	n.want(t,
		`onceward_oldest_replay_age_seconds 7200`,
		`onceward_heartbeat_delay_seconds_sum 3`,
		`onceward_heartbeat_delay_seconds_count 1`,
		`onceward_reservations_total{decision="created",route="job"} 1`,
		`onceward_reservations_total{decision="replay",route="job"} 1`,
		`onceward_reservations_total{decision="mismatch",route="job"} 1`,
		`onceward_scope_reservations_total{decision="replay",scope="tenant"} 1`,
		`onceward_duplicates_total{scope="tenant"} 1`,
		`onceward_duplicates_total{scope="other"} 0`,
		`onceward_mismatches_total{scope="tenant"} 1`,
		`onceward_executions_total{outcome="2xx",route="job"} 1`,
		`onceward_execution_seconds_total{route="job"} 1.5`,
		`onceward_attempts_settled_total{route="job",state="unknown"} 1`,
		`onceward_fenced_writes_total{route="job"} 1`,
		`onceward_leases_lost_total{route="job"} 1`,
		`onceward_store_call_duration_seconds_count{call="reserve",outcome="ok"} 3`,
		`onceward_store_call_duration_seconds_count{call="complete",outcome="ok"} 1`,
		`onceward_store_errors_total{call="reserve",reason="unavailable"} 1`,
		`onceward_rejected_requests_total{code="key-missing",route="job"} 1`,
		`onceward_problems_total{code="mismatch",route="job"} 1`,
		`onceward_zombies_swept_total 2`,
		`onceward_records_reaped_total 5`,
		`onceward_executions_purged_total 7`,
		`onceward_reconcile_scheduled_total{route="job"} 1`,
		`onceward_reconcile_scheduled_total{route=""} 2`,
		`onceward_reconcile_resolved_total{outcome="completed",route="job"} 1`,
		`onceward_reconcile_failed_total{outcome="dead_letter",route="job"} 1`,
		`onceward_outbox_deliveries_total{outcome="dead_letter",topic="charges"} 1`,
		`onceward_consumed_events_total{consumer="mailer",outcome="applied"} 1`,
		`onceward_breaker_state{state="open"} 1`,
		`onceward_breaker_state{state="closed"} 0`,
		`onceward_worker_backlog{worker="resumer"} 3`,
		`onceward_worker_runs_total{outcome="ok",worker="consumer mailer"} 1`,
	)
}

// TestHistogramsAreCompleteWhenRead holds that durations which are gathered are in the histogram whenever it is read,
// also while others measure, and that one of a sampled trace leads to it.
func TestHistogramsAreCompleteWhenRead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	decided := func(ctx context.Context) {
		n.Observe(ctx, onceward.DecidedEvent{ID: id, Operation: "job", Decision: store.DecisionReplay, Elapsed: time.Second})
	}
	counted := func(count, sum int) {
		t.Helper()
		n.want(t, fmt.Sprintf(`onceward_store_call_duration_seconds_count{call="reserve",outcome="ok"} %d`, count),
			fmt.Sprintf(`onceward_store_call_duration_seconds_sum{call="reserve",outcome="ok"} %d`, sum),
			fmt.Sprintf(`onceward_reservations_total{decision="replay",route="job"} %d`, count))
	}
	for i := range 3 {
		decided(t.Context())
		counted(i+1, i+1)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 250 {
				decided(t.Context())
			}
		})
	}
	for range 20 {
		n.scrape(t)
	}
	wg.Wait()
	counted(2003, 2003)
	sampled := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{15: 7}, SpanID: trace.SpanID{7: 7}, TraceFlags: trace.FlagsSampled,
	}))
	decided(sampled)
	counted(2004, 2004)
	if page := n.scrapeAs(t, "application/openmetrics-text"); !strings.Contains(page, `trace_id="00000000000000000000000000000007"`) {
		t.Errorf("no example of the trace in\n%s", page)
	}
}

// TestLabelsAreBounded holds that names of the application's making do not become series without end.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for i := range 2000 {
		n.Observe(t.Context(), onceward.UnprotectedEvent{Operation: fmt.Sprint("route ", i)})
	}
	if series := strings.Count(n.scrape(t), "onceward_unprotected_requests_total{"); series != 501 {
		t.Errorf("%d series", series)
	}
	n.want(t, `onceward_unprotected_requests_total{route="other"} 1500`)
	for _, name := range []string{"route 7", "route 1998", "route 1999"} {
		n.Observe(t.Context(), onceward.ExecutedEvent{ID: id, Operation: name, Status: 200})
	}
	n.want(t, `onceward_executions_total{outcome="2xx",route="route 7"} 1`,
		`onceward_executions_total{outcome="2xx",route="other"} 2`)
}

// TestTableOfMetrics holds the table in the documentation, and what it derives from names, to the metrics that exist.
func TestTableOfMetrics(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]string)
	rows := regexp.MustCompile("(?m)^\\| `(onceward_[a-z_]+)` \\| (.*) \\|$")
	for _, row := range rows.FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = row[2]
	}
	for _, m := range telemetry.Metrics() {
		kind := "gauge"
		switch {
		case strings.HasSuffix(m.Name, "_total"):
			kind = "counter"
		case strings.HasSuffix(m.Name, "_duration_seconds"), strings.HasSuffix(m.Name, "_delay_seconds"):
			kind = "histogram"
		}
		if m.Type != kind {
			t.Errorf("%s is a %s: docs/telemetry.md derives %s from its name", m.Name, m.Type, kind)
		}
		labels := "–"
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		want := labels + " | " + m.Help
		if got := documented[m.Name]; got != want {
			t.Errorf("docs/telemetry.md has %q, and the metric is\n| `%s` | %s |", got, m.Name, want)
		}
		delete(documented, m.Name)
	}
	for name := range documented {
		t.Errorf("docs/telemetry.md has %s, which does not exist", name)
	}
}

// TestLogKeepsAllDigitsOfAttempts: tokens are above 2^53, where readers of JSON that take numbers for floats round them.
func TestLogKeepsAllDigitsOfAttempts(t *testing.T) {
	t.Parallel()
	const token = 1<<60 + 1
	var out bytes.Buffer
	n := newNode(t, func(c *telemetry.Config) {
		c.Logger = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	id := store.ID{Scope: "the-tenant", Key: "the-key"}
	n.Observe(t.Context(), onceward.DecidedEvent{ID: id, Operation: "job", Attempt: token})
	n.Observe(t.Context(), reconcile.ReconciledEvent{ID: id, Operation: "job", Attempt: token, Outcome: "completed"})
	n.Observe(t.Context(), outbox.DeliveredEvent{ID: id, Topic: "charges", Outcome: "done", Attempts: 2})
	log := out.String()
	if strings.Count(log, `"attempt":"1152921504606846977"`) != 2 || strings.Count(log, `"attempts":2`) != 1 ||
		strings.Count(log, `"attempt":`) != 2 {
		t.Errorf("M3: %s", log)
	}
}

func TestLogHasNoKeys(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{false, true} {
		var out bytes.Buffer
		n := newNode(t, func(c *telemetry.Config) {
			c.LogKeys = asked
			c.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		secret := store.ID{Scope: "the-tenant", Key: "the-key"}
		n.Observe(t.Context(), onceward.DecidedEvent{ID: secret, Operation: "job", Decision: store.DecisionReplay})
		n.Observe(t.Context(), onceward.ExecutedEvent{ID: secret, Operation: "job"})
		n.Observe(t.Context(), onceward.SettledEvent{ID: secret, Operation: "job", State: store.StateCompleted})
		n.Observe(t.Context(), outbox.DeliveredEvent{ID: secret, Topic: "charges", Outcome: "done"})
		log := out.String()
		if strings.Contains(log, "the-key") != asked || strings.Contains(log, "the-tenant") != asked {
			t.Errorf("M3: asked for keys: %v:\n%s", asked, log)
		}
		if strings.Count(log, secret.Hash()) != 4 || !strings.Contains(log, "decision=replay") {
			t.Errorf("M3: %s", log)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := telemetry.New(telemetry.Config{TopScopes: 1001})
	if err == nil || !strings.Contains(err.Error(), "TopScopes") {
		t.Error(err)
	}
	n := newNode(t)
	for want, config := range map[string]telemetry.ExporterConfig{
		"Store":    {},
		"Interval": {Store: memory.New(), Interval: time.Millisecond},
	} {
		if _, err := n.Exporter(config); err == nil || !strings.Contains(err.Error(), "ExporterConfig."+want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	_, err = n.Exporter(telemetry.ExporterConfig{Store: struct{ store.Store }{memory.New()}})
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

// TestTelemetriesOfOneProvider add up, on one page. Exporters would hide each other's gauges: the second is refused.
func TestTelemetriesOfOneProvider(t *testing.T) {
	t.Parallel()
	meters, page, err := telemetry.Prometheus()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		each, err := telemetry.New(telemetry.Config{MeterProvider: meters})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range everything {
			each.Observe(t.Context(), e)
		}
		if _, err := each.Exporter(telemetry.ExporterConfig{Store: memory.New()}); err != nil {
			t.Error(err)
		}
		_, err = each.Exporter(telemetry.ExporterConfig{Store: memory.New()})
		if err == nil || !strings.Contains(err.Error(), "exporter already") {
			t.Errorf("a second exporter: %v", err)
		}
	}
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if line := `onceward_records_reaped_total 10`; w.Code != 200 || !strings.Contains(w.Body.String(), "\n"+line+"\n") {
		t.Errorf("%d, without the line %s:\n%s", w.Code, line, w.Body)
	}
}

// TestOneNodeExports holds that of all nodes one counts, that the others show nothing, and that another one takes over.
func TestOneNodeExports(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &counting{Store: memory.New(memory.WithClock(func() time.Time { return now }))}
	guard, err := onceward.New(s, onceward.Config{Secret: make([]byte, 16)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Do(ctx, onceward.Call{Scope: "s", Key: "k", Operation: "job"},
		func(context.Context) ([]byte, error) { return nil, nil }, onceward.Reserved(onceward.FailureStore)); err != nil {
		t.Fatal(err)
	}
	const line = `onceward_records{state="completed"} 1`
	var shown int
	for range 3 {
		n := newNode(t)
		e, err := n.Exporter(telemetry.ExporterConfig{Store: s, Guard: guard, Interval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := e.RunOnce(ctx); err != nil {
				t.Fatal(err)
			}
		}
		n.want(t, `onceward_active_leases 0`)
		if strings.Contains(n.scrape(t), "\n"+line+"\n") {
			shown++
			n.want(t, `onceward_dead_letters 0`, `onceward_oldest_unknown_age_seconds 0`)
		}
	}
	if shown != 1 || s.stats.Load() != 2 {
		t.Errorf("%d nodes show what is in the store, and asked %d times", shown, s.stats.Load())
	}
}

// TestLostOwnersAreShown: the only node has died in mid-operation, and no sweeper runs. The gauges show it (M1).
func TestLostOwnersAreShown(t *testing.T) {
	t.Parallel()
	s := memory.New(memory.WithClock(func() time.Time { return time.Now().Add(-20 * time.Minute) }))
	if _, err := s.Reserve(t.Context(), &store.Reservation{
		ID: store.ID{Scope: "s", Key: "k"}, Operation: "job", Fingerprints: make([]store.Fingerprint, 1),
		Nonce: store.Nonce{1}, Lease: time.Microsecond, Retention: time.Hour,
	}); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	e, err := n.Exporter(telemetry.ExporterConfig{Store: s, Interval: time.Hour})
	if err == nil {
		err = e.RunOnce(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	n.want(t, `onceward_records{state="in_progress"} 1`, `onceward_lost_owners 1`)
	if !regexp.MustCompile(`(?m)^onceward_oldest_lost_owner_age_seconds (1[2-9]\d\d|[2-9]\d{3})`).MatchString(n.scrape(t)) {
		t.Errorf("the age of the lost owner is not 20 minutes:\n%s", n.scrape(t))
	}
}

// counting counts how often a store was counted.
type counting struct {
	*memory.Store
	stats atomic.Int64
}

func (c *counting) Stats(ctx context.Context) (store.Stats, error) {
	c.stats.Add(1)
	return c.Store.Stats(ctx)
}

// TestAnotherNodeTakesOver lets two nodes run for an hour, of which the one in charge dies half-way: each minute is
// counted once, one node shows it at a time, and the other takes over within a term and a quarter.
func TestAnotherNodeTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Store: memory.New()}
		var nodes [2]*node
		var stop [2]context.CancelFunc
		var ended sync.WaitGroup
		for i := range nodes {
			nodes[i] = newNode(t)
			e, err := nodes[i].Exporter(telemetry.ExporterConfig{Store: s, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			var ctx context.Context
			ctx, stop[i] = context.WithCancel(t.Context())
			ended.Go(func() { _ = e.Run(ctx) }) // it returns nil, when the context has ended
			synctest.Wait()
		}
		shows := func(i int) bool { return strings.Contains(nodes[i].scrape(t), "\nonceward_dead_letters 0\n") }
		for minute := range 30 {
			time.Sleep(time.Minute)
			synctest.Wait()
			if !shows(0) || shows(1) || s.stats.Load() != int64(minute)+2 {
				t.Fatalf("after minute %d: %v and %v show, and %d counts", minute, shows(0), shows(1), s.stats.Load())
			}
		}
		stop[0]()
		time.Sleep(75 * time.Second)
		synctest.Wait()
		if shows(0) || !shows(1) {
			t.Errorf("the other node has not taken over: %v and %v show", shows(0), shows(1))
		}
		before := s.stats.Load()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if got := s.stats.Load() - before; got != 30 {
			t.Errorf("%d counts in 30 minutes", got)
		}
		stop[1]()
		ended.Wait()
	})
}

// TestClaimsOfAClockThatWasAhead: a node whose clock was ahead by an hour has claimed an hour, and is gone. What it has
// claimed further ahead than a term does not keep the others from counting, and terms are by the clock of the store.
func TestClaimsOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := func() time.Time { return time.Now().Add(-20 * time.Minute) } // the clocks of nodes are ahead of it
		s := memory.New(memory.WithClock(late))
		for minute := range 60 {
			term := late().Truncate(time.Minute).Add(time.Duration(minute+1) * time.Minute).UTC().Format(time.RFC3339)
			if _, err := s.AddExternalEvent(t.Context(), store.ExternalEvent{
				Source: "onceward exporter", EventID: term, Subject: term, AnyScope: true, Body: []byte("the other node"),
			}); err != nil {
				t.Fatal(err)
			}
		}
		n := newNode(t)
		e, err := n.Exporter(telemetry.ExporterConfig{Store: s, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = e.Run(ctx) }()
		defer synctest.Wait()
		defer stop()
		synctest.Wait()
		for minute := range 100 {
			shown := strings.Contains(n.scrape(t), "\nonceward_dead_letters 0\n")
			believed := minute == 1 || minute == 2 // in which this node waits for a quarter of a term
			if shown == believed {
				t.Errorf("minute %d: it is %v that the gauges are shown", minute, shown)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
	})
}

// TestNamesThatAreNoTextLeaveThePageReadable: Prometheus would get nothing at all for one such label.
func TestNamesThatAreNoTextLeaveThePageReadable(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Observe(t.Context(), onceward.DecidedEvent{
		ID: store.ID{Scope: "s\xff", Key: "k"}, Operation: "caf\xe9", Decision: store.DecisionReplay,
	})
	n.Observe(t.Context(), outbox.DeliveredEvent{Topic: "t\xff", Outcome: "done"})
	n.Observe(t.Context(), inbox.HandledEvent{Consumer: "c\xff"})
	n.want(t,
		"onceward_reservations_total{decision=\"replay\",route=\"caf\uFFFD\"} 1",
		"onceward_outbox_deliveries_total{outcome=\"done\",topic=\"t\uFFFD\"} 1",
		"onceward_consumed_events_total{consumer=\"c\uFFFD\",outcome=\"repeated\"} 1")
}

// TestManyTopicsLeaveTheWorkersTheirNames: alerts go by that of the exporter.
func TestManyTopicsLeaveTheWorkersTheirNames(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for i := range 501 {
		n.Observe(t.Context(), outbox.DeliveredEvent{Topic: fmt.Sprint("tenant ", i), Outcome: "done"})
	}
	n.Observe(t.Context(), onceward.WorkerEvent{Worker: "exporter"})
	n.want(t, `onceward_worker_runs_total{outcome="ok",worker="exporter"} 1`,
		`onceward_outbox_deliveries_total{outcome="done",topic="other"} 1`)
}

// failing is a store that cannot be counted at times.
type failing struct {
	*memory.Store
	fails atomic.Bool
}

func (f *failing) Stats(ctx context.Context) (store.Stats, error) {
	if f.fails.Load() {
		return store.Stats{}, store.ErrUnavailable
	}
	return f.Store.Stats(ctx)
}

// TestOneFailureLeavesTheGauges, or an alert that fires would be over, and fire again. What is too old is not shown.
func TestOneFailureLeavesTheGauges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, s := newNode(t), &failing{Store: memory.New()}
		e, err := n.Exporter(telemetry.ExporterConfig{Store: s, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = e.Run(ctx) }()
		defer synctest.Wait()
		defer stop()
		for minute, fails := range []bool{false, true, false, true, true, true, true} {
			s.fails.Store(fails)
			time.Sleep(time.Minute)
			synctest.Wait()
			if got, want := strings.Contains(n.scrape(t), "\nonceward_dead_letters 0\n"), minute < 5; got != want {
				t.Errorf("minute %d: it is %v that the gauges are shown", minute, got)
			}
		}
	})
}

// TestANodeThatCannotCountGivesWay: it can claim terms, and would keep all others from counting for ever.
func TestANodeThatCannotCountGivesWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		unfit := &failing{Store: s}
		unfit.fails.Store(true)
		nodes := [2]*node{newNode(t), newNode(t)}
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		for i, of := range []store.Store{unfit, s} {
			e, err := nodes[i].Exporter(telemetry.ExporterConfig{Store: of, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = e.Run(ctx) }()
			synctest.Wait()
		}
		time.Sleep(2*time.Minute + 20*time.Second)
		for minute := range 10 {
			synctest.Wait()
			if !strings.Contains(nodes[1].scrape(t), "\nonceward_dead_letters 0\n") {
				t.Errorf("minute %d: no gauges, because of a node that cannot count", minute)
			}
			time.Sleep(time.Minute)
		}
	})
}

// mute is a store whose abandonments are lost.
type mute struct{ store.Store }

func (mute) Abandon(context.Context, store.Claim, string) error { return store.ErrUnavailable }

// TestAnUnknownOutcomeIsScheduledOnce, by its owner, or, if that could not write it down, by the sweeper.
func TestAnUnknownOutcomeIsScheduledOnce(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(store.Store) store.Store{
		`onceward_reconcile_scheduled_total{route="job"} 1`: func(s store.Store) store.Store { return s },
		`onceward_reconcile_scheduled_total{route=""} 1`:    func(s store.Store) store.Store { return mute{s} },
	} {
		synctest.Test(t, func(t *testing.T) {
			n, s, logger := newNode(t), memory.New(), slog.New(slog.DiscardHandler)
			guard, err := onceward.New(wrap(s), onceward.Config{Secret: make([]byte, 16), Observer: n, Logger: logger})
			if err != nil {
				t.Fatal(err)
			}
			_, err = guard.Do(t.Context(), onceward.Call{Scope: "s", Key: "k", Operation: "job"},
				func(context.Context) ([]byte, error) { return nil, errors.New("lost") }, onceward.Reserved(onceward.FailureUnknown))
			if !errors.Is(err, store.ErrOutcomeUnknown) {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			sweeper, err := janitor.NewSweeper(s, janitor.Config{Observer: n, Logger: logger})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sweeper.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.want(t, name)
			var scheduled int
			for line := range strings.Lines(n.scrape(t)) {
				if strings.HasPrefix(line, "onceward_reconcile_scheduled_total") && strings.HasSuffix(line, " 1\n") {
					scheduled++
				}
			}
			if scheduled != 1 {
				t.Errorf("M1: it was scheduled %d times", scheduled)
			}
		})
	}
}

// TestUnknownExecutionsAreNotOK: an execution after which it is not known what was done counts as unknown, whatever it
// returned or wrote, and one that failed does not count as one that went well (M1).
func TestUnknownExecutionsAreNotOK(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	guard, err := onceward.New(memory.New(), onceward.Config{
		Secret: make([]byte, 16), Scope: onceward.SingleScope("s"), Observer: n, Logger: slog.New(slog.DiscardHandler),
		StoreTimeout: await.Limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, end := range map[string]error{
		"well": nil, "failed": errors.New("failed"), "lost": onceward.OutcomeUnknown(errors.New("lost")),
	} {
		_, _ = guard.Do(t.Context(), onceward.Call{Scope: "s", Key: key, Operation: "job"},
			func(context.Context) ([]byte, error) { return nil, end }, onceward.Reserved(onceward.FailureStore))
	}
	handler := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).Unknown()
		w.WriteHeader(http.StatusAccepted)
	}, onceward.Reserved(onceward.FailureStore), onceward.OperationName("POST page"))
	r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
	r.Header.Set("Idempotency-Key", "k")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	n.want(t, `onceward_executions_total{outcome="ok",route="job"} 1`,
		`onceward_executions_total{outcome="failed",route="job"} 1`,
		`onceward_executions_total{outcome="unknown",route="job"} 1`,
		`onceward_executions_total{outcome="unknown",route="POST page"} 1`)
	if strings.Contains(n.scrape(t), `onceward_executions_total{outcome="2xx",route="POST page"}`) {
		t.Error("M1: an unknown outcome counts as a good one too")
	}
}
