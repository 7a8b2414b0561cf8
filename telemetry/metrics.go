package telemetry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// metrics are the instruments of a [Telemetry].
type metrics struct {
	made   []Metric
	routes *routes
	topics *names // and the names of consumers
	turns  *names // of workers, in a map of their own: many topics do not use up their places

	reservations *counter
	executions   *counter
	executing    *counter // in nanoseconds
	settlements  *counter
	storeCalls   *histogram
	reserved     *gathered // the series of storeCalls for successful reservations
	heartbeats   *histogram
	storeErrors  *counter
	fencedWrites *counter
	leasesLost   *counter
	zombiesSwept *counter

	recordsReaped      *counter
	executionsPurged   *counter
	reconcileScheduled *counter
	reconcileResolved  *counter
	reconcileFailed    *counter
	deliveries         *counter
	deliveryDuration   *histogram
	consumed           *counter
	breakerChanges     *counter
	rejected           *counter
	problems           *counter
	unprotected        *counter
	bypassed           *counter
	unusedTransactions *counter
	secondConnections  *counter
	frontLookups       *counter
	frontFailures      *counter
	webhooks           *counter
	ledgerFindings     *counter
	ledgerWindows      *counter
	workerRuns         *counter

	duplicates *topScopes
	mismatches *topScopes
	byScope    *topScopes // nil unless Config.ScopeLabels is set

	oldestReplay atomic.Int64 // the age of the oldest answer that was replayed, in nanoseconds

	breaker  atomic.Pointer[string] // the state; nil if none is known
	workers  workers
	exported exported

	client *clientMetrics
}

func newMetrics(meter metric.Meter, config *Config) (*metrics, error) {
	b := &builder{meter: meter}
	m := &metrics{routes: new(routes), topics: new(names), turns: new(names)}
	m.reservations = b.counter("onceward_reservations", "Reservations by the store's decision.", "route", "decision")
	m.duplicates = newTopScopes(config.TopScopes, 1)
	m.mismatches = newTopScopes(config.TopScopes, 1)
	b.scopes(m.duplicates, "onceward_duplicates",
		"Requests with a known key: replayed, in flight, or unknown.")
	b.scopes(m.mismatches, "onceward_mismatches", "Requests whose key was used for another request.")
	if config.ScopeLabels {
		m.byScope = newTopScopes(config.TopScopes, len(decisions))
		b.decisionsByScope(m.byScope)
	}
	b.oldestReplay(m)
	m.executions = b.counter("onceward_executions", "Executions of handlers.", "route", "outcome")
	m.executing = b.spent("onceward_execution", "Total time of executions.", "route")
	m.settlements = b.counter("onceward_attempts_settled", "Settled attempts by the record's state.",
		"route", "state")
	m.storeCalls = b.histogram("onceward_store_call_duration", "Calls to the store.",
		"call", "outcome")
	m.reserved = m.storeCalls.get(labels{"reserve", "ok"})
	m.heartbeats = b.histogram("onceward_heartbeat_delay", "Delay of heartbeats: pauses of the process.")
	m.storeErrors = b.counter("onceward_store_errors", "Calls that failed because of the store.",
		"call", "reason")
	for _, call := range []string{"reserve", "transact"} {
		for _, reason := range []string{"not_sent", "timeout", "unavailable"} {
			m.storeErrors.add(0, call, reason) // so that Prometheus sees the first failure as an increase
		}
	}
	m.fencedWrites = b.counter("onceward_fenced_writes", "Refused writes of attempts that are not current.",
		"route")
	m.leasesLost = b.counter("onceward_leases_lost", "Owners that lost the right to execute.", "route")
	b.activeLeases(&m.exported)
	m.zombiesSwept = b.counter("onceward_zombies_swept", "Records with a lost owner, made unknown by the sweeper.")
	m.recordsReaped = b.counter("onceward_records_reaped",
		"Expired records removed; a soft reaper counts marking and removal.")
	m.executionsPurged = b.counter("onceward_executions_purged",
		"Old entries removed from the audit of executions.")
	m.reconcileScheduled = b.counter("onceward_reconcile_scheduled",
		"Outcomes that became unknown; without a route if the sweeper found them.", "route")
	m.reconcileResolved = b.counter("onceward_reconcile_resolved", "Unknown outcomes that were settled.",
		"route", "outcome")
	m.reconcileFailed = b.counter("onceward_reconcile_failed", "Questions after an unknown outcome without a result.",
		"route", "outcome")
	m.deliveries = b.counter("onceward_outbox_deliveries", "Deliveries of messages.", "topic", "outcome")
	m.deliveryDuration = b.histogram("onceward_outbox_delivery_duration", "Time of deliveries.", "topic")
	m.consumed = b.counter("onceward_consumed_events", "Events that consumers handled.", "consumer", "outcome")
	m.breakerChanges = b.counter("onceward_breaker_changes", "Changes of the circuit breaker.", "to")
	b.breakerState(m)
	m.rejected = b.counter("onceward_rejected_requests", "Requests refused before a reservation.",
		"route", "code")
	m.problems = b.counter("onceward_problems", "Problems answered after a reservation.",
		"route", "code")
	m.unprotected = b.counter("onceward_unprotected_requests", "Requests without a key, where it is optional.",
		"route")
	m.unusedTransactions = b.counter("onceward_unused_transactions",
		"Commits of transactional handlers that never asked for their transaction.", "route")
	m.secondConnections = b.counter("onceward_second_connections",
		"Transactional handlers that asked their pool for another connection.", "route")
	m.bypassed = b.counter("onceward_bypassed_answers", "Answers that bypassed the guard.", "route")
	m.frontLookups = b.counter("onceward_front_lookups", "Look-ups in a tiered store's front.", "result")
	m.frontFailures = b.counter("onceward_front_failures", "Failures of a tiered store's front.", "call")
	m.webhooks = b.counter("onceward_webhooks", "Webhooks received.", "outcome")
	m.ledgerFindings = b.counter("onceward_ledger_findings", "Differences between the ledgers.",
		"kind")
	m.ledgerWindows = b.counter("onceward_ledger_windows", "Due windows of a ledger comparison.", "outcome")
	m.workerRuns = b.counter("onceward_worker_runs", "Turns of background workers.", "worker", "outcome")
	b.workerGauges(&m.workers)
	b.storeGauges(&m.exported)
	m.client = newClientMetrics(b, config)
	b.collectHistograms()
	m.made = b.made
	return m, b.err()
}

// decisions are the values of the label decision, in the order of decisionIndex.
var decisions = [...]string{
	"created", "retried", "resumed", "recreated", "repeated", "replay", "in_progress", "mismatch", "unknown", "refused",
}

// decisionIndex returns the index of a decision in decisions.
func decisionIndex(e *onceward.DecidedEvent) int {
	switch e.Decision {
	case store.DecisionExecute:
		return int(min(max(e.Origin, store.OriginCreated), store.OriginRepeated) - store.OriginCreated)
	case store.DecisionReplay:
		return decidedReplay
	case store.DecisionInProgress:
		return decidedInProgress
	case store.DecisionMismatch:
		return decidedMismatch
	case store.DecisionUnknown:
		return decidedUnknown
	default:
		return decidedRefused
	}
}

// These are the indexes of the decisions that grant nothing. The decisions that grant the right to execute come before
// them, in the order of [store.Origin].
const (
	decidedReplay = int(store.OriginRepeated) + iota
	decidedInProgress
	decidedMismatch
	decidedUnknown
	decidedRefused
)

func (m *metrics) decided(ctx context.Context, e *onceward.DecidedEvent) {
	i := decisionIndex(e)
	r := m.routes.get(e.Operation)
	m.reservations.addAt(&r.decided[i], 1, r.label, decisions[i])
	m.storeCalls.recordAt(ctx, m.reserved, e.Elapsed)
	switch i {
	case decidedReplay, decidedInProgress, decidedUnknown:
		if !e.Waited { // a request that waited was already counted
			m.duplicates.add(e.Scope, 0)
		}
	case decidedMismatch:
		m.mismatches.add(e.Scope, 0)
	}
	if i == decidedReplay {
		raise(&m.oldestReplay, int64(e.Age))
	}
	if m.byScope != nil {
		m.byScope.add(e.Scope, i)
	}
}

// raise sets n to least, unless n is larger.
func raise(n *atomic.Int64, least int64) {
	for now := n.Load(); now < least; now = n.Load() {
		if n.CompareAndSwap(now, least) {
			return
		}
	}
}

// oldestReplay registers the gauge that shows how long clients continue to send a request: a retention must be longer.
func (b *builder) oldestReplay(m *metrics) {
	gauge := b.seconds("onceward_oldest_replay_age",
		"Age of the oldest answer replayed since the process started.")
	b.callback(func(_ context.Context, o metric.Observer) error {
		o.ObserveFloat64(gauge, time.Duration(m.oldestReplay.Load()).Seconds())
		return nil
	}, gauge)
}

// outcomes are the values of the label outcome of executions, in the order of outcomeIndex.
var outcomes = [...]string{"ok", "panic", "5xx", "4xx", "3xx", "2xx", "unknown", "failed"}

// outcomeIndex returns the index of an execution's outcome in outcomes.
func outcomeIndex(e *onceward.ExecutedEvent) int {
	switch {
	case e.Unknown:
		return 6
	case e.Panicked:
		return 1
	case e.Failed:
		return 7
	case e.Status >= 500:
		return 2
	case e.Status >= 400:
		return 3
	case e.Status >= 300:
		return 4
	case e.Status >= 200:
		return 5
	default:
		return 0
	}
}

func (m *metrics) executed(e *onceward.ExecutedEvent) {
	r, i := m.routes.get(e.Operation), outcomeIndex(e)
	m.executions.addAt(&r.executed[i], 1, r.label, outcomes[i])
	m.executing.addAt(&r.spent, int64(e.Elapsed), r.label)
}

func (m *metrics) storeCalled(ctx context.Context, e *onceward.StoreCalledEvent) {
	outcome := "ok"
	switch {
	case e.Err == nil:
	case errors.Is(e.Err, store.ErrFenced):
		outcome = "fenced"
	default:
		outcome = "error"
	}
	m.storeCalls.record(ctx, e.Elapsed, e.Call, outcome)
	if e.Call == "extend" {
		m.heartbeats.record(ctx, e.Delay)
	}
}

// reasonOf returns why a call failed, for the label reason.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, store.ErrNotSent):
		return "not_sent"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, store.ErrUnreadable):
		return "unreadable"
	default:
		return "unavailable"
	}
}

// settledStates is the number of states that a record can be left in, and StateNone for a rejected request.
const settledStates = int(store.StateExpired) + 1

func (m *metrics) settled(e *onceward.SettledEvent) {
	r, state := m.routes.get(e.Operation), e.State.String()
	if e.State == store.StateNone {
		state = "rejected"
	}
	m.settlements.addAt(&r.settled[e.State], 1, r.label, state)
	if e.State == store.StateUnknown && !e.Unwritten { // unwritten: nothing waits, or another node counts it
		m.reconcileScheduled.add(1, r.label)
	}
}

func (m *metrics) reconciled(e *reconcile.ReconciledEvent) {
	route := m.routes.name(e.Operation)
	switch e.Outcome {
	case "postponed", "dead letter", "hanging":
		m.reconcileFailed.add(1, route, underscored(e.Outcome))
	case "returned":
	default:
		m.reconcileResolved.add(1, route, underscored(e.Outcome))
	}
}

// underscored makes a label of words.
func underscored(words string) string {
	b := []byte(words)
	for i, c := range b {
		if c == ' ' {
			b[i] = '_'
		}
	}
	return string(b)
}

func (m *metrics) delivered(ctx context.Context, e *outbox.DeliveredEvent) {
	topic := m.topics.name(e.Topic)
	m.deliveries.add(1, topic, underscored(e.Outcome))
	if e.Elapsed > 0 {
		m.deliveryDuration.record(ctx, e.Elapsed, topic)
	}
}

func (m *metrics) handled(e *inbox.HandledEvent) {
	outcome := "repeated"
	switch {
	case e.Err != nil:
		outcome = "failed"
	case e.Applied:
		outcome = "applied"
	}
	consumer := m.topics.name(e.Consumer)
	m.consumed.add(1, consumer, outcome)
	m.worked(&onceward.WorkerEvent{
		Worker: "consumer " + consumer, Backlog: e.Backlog, Oldest: e.Sent, Elapsed: e.Elapsed, Err: e.Err,
	})
}

func hitOrMiss(hit bool) string {
	if hit {
		return "hit"
	}
	return "miss"
}

// workers is what is known of the workers of this process.
type workers struct {
	mu sync.Mutex
	by map[string]*worker
}

// worker is one of them.
type worker struct {
	name    string
	success time.Time
	backlog int
	oldest  time.Time
}

func (m *metrics) worked(e *onceward.WorkerEvent) {
	name, outcome := m.turns.name(e.Worker), "ok"
	if e.Err != nil {
		outcome = "failed"
	}
	m.workerRuns.add(1, name, outcome)
	m.workers.mu.Lock()
	defer m.workers.mu.Unlock()
	w := m.workers.by[name]
	if w == nil {
		if m.workers.by == nil {
			m.workers.by = make(map[string]*worker)
		}
		w = &worker{name: name}
		m.workers.by[name] = w
	}
	if e.Err == nil {
		w.success, w.backlog, w.oldest = time.Now(), e.Backlog, e.Oldest
	}
}

// all returns them in the order of their names.
func (w *workers) all() (all []worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, each := range w.by {
		all = append(all, *each)
	}
	slices.SortFunc(all, func(a, b worker) int { return cmp.Compare(a.name, b.name) })
	return all
}

func (b *builder) workerGauges(all *workers) {
	success := b.seconds("onceward_worker_last_success_timestamp", "When a worker's turn last succeeded.", "worker")
	backlog := b.gauge("onceward_worker_backlog", "Due work when the worker last looked, if known.", "worker")
	oldest := b.seconds("onceward_worker_oldest_age", "Age of the oldest due work.", "worker")
	b.callback(func(_ context.Context, o metric.Observer) error {
		for _, w := range all.all() {
			of := metric.WithAttributes(attribute.String("worker", w.name))
			if w.success.IsZero() {
				continue
			}
			o.ObserveFloat64(success, float64(w.success.UnixMilli())/1000, of)
			if w.backlog >= 0 {
				o.ObserveInt64(backlog, int64(w.backlog), of)
			}
			o.ObserveFloat64(oldest, ageOf(w.oldest, w.success), of)
		}
		return nil
	}, success, backlog, oldest)
}

// ageOf is how old something was at a time, in seconds; zero if there was nothing.
func ageOf(since, at time.Time) float64 {
	if since.IsZero() {
		return 0
	}
	return max(at.Sub(since), 0).Seconds()
}
