package telemetry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// TestPrometheus is the rest of the proof of [TestDemo], with what cannot be caused from outside of the demo: the
// payments system in this process, with a route that ends in each way, workers that look when the test says so, and a
// breaker. It has the attempts that are fenced, refused, released or without an outcome at will, records that expire
// and those of lost owners, the dead letters, the breaker, and each expression of the dashboard.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "Prometheus scrapes for a minute; TestAlertRules checks the rules")
	w := newWorld(t)
	w.wantMetrics(w.load())
	w.wantDashboard()
	w.wantNoAlert()
	w.wantAlerts(
		fault{w.giveUp, []string{"DeadLetters"}},
		fault{func() { w.reserve("abandoned", time.Millisecond, never) }, []string{"LostOwners"}},
		fault{w.loseStore, []string{"ReservationsFail", "BreakerOpen", "OldestUnknown"}}, // the last: it cannot be counted
	)
	must(t, w.postgres.Restart())
}

// ledger is what the load has done, as expressions of PromQL and the values that they have to have.
type ledger map[string]float64

func (l ledger) reservations(route, decision string, n int) {
	l[fmt.Sprintf(`sum(onceward_reservations_total{route=%q,decision=%q})`, route, decision)] = float64(n)
}

// load causes each thing that M1 counts, and returns how often.
func (w *world) load() ledger {
	w.Helper()
	l := make(ledger)
	w.loadPayments(l)
	w.loadBookings(l)
	w.loadChores(l)
	w.loadWorkers(l)
	l[`sum(onceward_store_errors_total) or vector(0)`] = 0
	l[`onceward_breaker_state{state="closed"}`] = 1
	l[`onceward_breaker_state{state="open"}`] = 0
	return l
}

const payment = "POST /payments"

// loadPayments pays, repeats and contradicts: transactional mode, the outbox, and counts by scope.
func (w *world) loadPayments(l ledger) {
	const ofAlice, ofBob, mismatches, without = 10, 5, 3, 2
	for i := range ofAlice {
		w.pay(http.StatusCreated, "alice", fmt.Sprint("pay-", i), 100)
		w.pay(http.StatusCreated, "alice", fmt.Sprint("pay-", i), 100)
		w.pay(http.StatusCreated, "alice", fmt.Sprint("pay-", i), 100)
	}
	for i := range ofBob {
		w.pay(http.StatusCreated, "bob", fmt.Sprint("pay-", i), 100)
		w.pay(http.StatusCreated, "bob", fmt.Sprint("pay-", i), 100)
	}
	for i := range mismatches {
		w.pay(http.StatusUnprocessableEntity, "alice", fmt.Sprint("pay-", i), 200)
	}
	var code string
	for range without {
		code = w.pay(http.StatusBadRequest, "alice", "", 100).code
	}
	l.reservations(payment, "created", ofAlice+ofBob)
	l.reservations(payment, "replay", 2*ofAlice+ofBob)
	l.reservations(payment, "mismatch", mismatches)
	l[`onceward_duplicates_total{scope="bob"}`] = ofBob
	l[`onceward_mismatches_total{scope="alice"}`] = mismatches
	l[`onceward_mismatches_total{scope="other"}`] = 0
	l[fmt.Sprintf(`onceward_rejected_requests_total{code=%q}`, code)] = without
	l[`sum(onceward_executions_total{route="POST /payments",outcome="2xx"})`] = ofAlice + ofBob
	l[`sum(onceward_store_call_duration_seconds_count{call="commit",outcome="ok"})`] = ofAlice + ofBob
	l[`sum(onceward_attempts_settled_total{route="POST /payments",state="completed"})`] = ofAlice + ofBob
	awaitSeen(w, "all payments are charged", func() (bool, string) {
		page, err := (&provider.Client{URL: w.bank}).List(w.Context(), time.Time{}, "", 1000)
		return err == nil && len(page.Data) == ofAlice+ofBob, fmt.Sprint(len(page.Data), err)
	})
	l[`sum(onceward_outbox_deliveries_total{topic="charges",outcome="done"})`] = ofAlice + ofBob
	l[`onceward_outbox_depth`], l[`onceward_outbox_dead_letters`] = 0, 0
	l[`onceward_outbox_oldest_age_seconds`] = 0
}

// loadBookings lets the provider fail once in a phased operation, which is suspended, and resumed by a retry.
func (w *world) loadBookings(l ledger) {
	w.setFaults(provider.Rule{
		Match: provider.Match{Method: http.MethodPost}, Kind: provider.ErrorBefore, Status: 503, Times: 1,
	})
	const body = `{"item":"concert","price":4500}`
	first := w.send(http.MethodPost, "/bookings", "alice", "book", body)
	if first.status == http.StatusCreated {
		w.Fatal("the provider has not failed")
	}
	waiting := 0
	awaitSeen(w, "the booking goes on", func() (bool, string) {
		r := w.send(http.MethodPost, "/bookings", "alice", "book", body)
		if r.status != http.StatusCreated {
			waiting++
		}
		return r.status == http.StatusCreated, fmt.Sprint(r)
	})
	w.setFaults()
	l.reservations("POST /bookings", "created", 1)
	l.reservations("POST /bookings", "resumed", 1)
	l[`sum(onceward_reservations_total{route="POST /bookings",decision="in_progress"}) or vector(0)`] = float64(waiting)
	// Those of alice are the replays of payments, and of chores what loadChores sends.
	l[`onceward_duplicates_total{scope="alice"}`] = float64(20 + waiting + unknowns + 1)
}

// unknowns is how many chores end in an unknown outcome.
const unknowns = 3

// loadChores ends operations of reserved mode in each way.
func (w *world) loadChores(l ledger) {
	const fine, released = 4, 2
	for i := range fine {
		w.do(http.StatusCreated, fmt.Sprint("fine-", i), "ok")
	}
	for i := range released {
		w.do(http.StatusServiceUnavailable, fmt.Sprint("released-", i), "release")
		w.do(http.StatusCreated, fmt.Sprint("released-", i), "release")
	}
	w.do(http.StatusInternalServerError, "busted", "bust")
	w.expire("expired")
	w.do(http.StatusCreated, "expired", "ok")
	w.holdOne()
	_, err := w.guard.Resume(w.Context(), &store.Record{
		ID: store.ID{Scope: "alice", Key: "gone"}, Operation: choresRoute, Fingerprint: store.Fingerprint{Secret: 1},
		DownstreamSecret: w.downstreamSecret(),
	}, func(context.Context) ([]byte, error) { return nil, nil },
		onceward.Reserved(onceward.FailureUnknown), onceward.OnLost(onceward.LostResume))
	if err == nil {
		w.Fatal("what is gone was resumed")
	}
	for i := range unknowns { // last, because an alert looks at how long they stay
		w.do(http.StatusInternalServerError, fmt.Sprint("unknown-", i), "unknown")
		w.do(http.StatusConflict, fmt.Sprint("unknown-", i), "unknown")
	}
	l.reservations(choresRoute, "created", fine+released+unknowns+2)
	l.reservations(choresRoute, "retried", released)
	l.reservations(choresRoute, "unknown", unknowns)
	l.reservations(choresRoute, "recreated", 1)
	l.reservations(choresRoute, "in_progress", 1)
	l.reservations(choresRoute, "refused", 1)
	l[`sum(onceward_attempts_settled_total{route="POST /chores",state="failed_retryable"})`] = released
	l[`sum(onceward_attempts_settled_total{route="POST /chores",state="unknown"})`] = unknowns + 1
	l[`onceward_fenced_writes_total{route="POST /chores"}`] = 1
	l[`onceward_reconcile_scheduled_total{route="POST /chores"}`] = unknowns // of the busted one nothing waits
	l[`sum(onceward_store_call_duration_seconds_count{call="release"})`] = released
	l[`sum(onceward_store_call_duration_seconds_count{call="abandon"})`] = unknowns
	l[`sum(onceward_store_call_duration_seconds_count{call="complete",outcome="fenced"})`] = 1
}

// holdOne executes for as long as a duplicate of it, and a scrape, take: both see it.
func (w *world) holdOne() {
	w.chores.hold = make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.do(http.StatusCreated, "held", "hold")
	}()
	awaitSeen(w, "the held one holds its lease", func() (bool, string) {
		return w.guard.ActiveLeases() == 1, fmt.Sprint(w.guard.ActiveLeases())
	})
	w.do(http.StatusConflict, "held", "hold")
	w.awaitValue(`onceward_active_leases`, 1)
	close(w.chores.hold)
	<-done
}

// reserve makes a record as an owner does that then is lost.
func (w *world) reserve(key string, lease, retention time.Duration) store.Claim {
	w.Helper()
	id := store.ID{Scope: "alice", Key: key}
	v, err := w.db.Reserve(w.Context(), &store.Reservation{
		ID: id, Operation: choresRoute, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
		Lease: lease, Retention: retention, DownstreamSecret: w.downstreamSecret(),
	})
	must(w, err)
	return store.Claim{ID: id, Attempt: v.Record.Attempt}
}

// downstreamSecret is the id of the guard's own, which a record needs to be settled.
func (w *world) downstreamSecret() uint32 {
	w.Helper()
	rec, err := w.db.Get(w.Context(), store.ID{Scope: "alice", Key: "fine-0"})
	must(w, err)
	return rec.DownstreamSecret
}

// expire makes a settled record whose retention is over.
func (w *world) expire(key string) {
	w.Helper()
	claim := w.reserve(key, time.Minute, time.Millisecond)
	_, err := w.db.Complete(w.Context(), claim, &store.Completion{Response: store.Response{Status: 200}})
	must(w, err)
	time.Sleep(2 * time.Millisecond)
}

// loadWorkers lets a sweeper, a reaper and a poller find what was left for them.
func (w *world) loadWorkers(l ledger) {
	const zombies, expired = 2, 3
	for i := range zombies {
		w.reserve(fmt.Sprint("zombie-", i), time.Millisecond, never)
	}
	for i := range expired {
		w.expire(fmt.Sprint("reaped-", i))
	}
	config := janitor.Config{Observer: w.system.Counters(), Logger: quiet}
	sweeper, err := janitor.NewSweeper(w.db, config)
	must(w, err)
	_, err = sweeper.RunOnce(w.Context())
	must(w, err)
	reaper, err := janitor.NewReaper(w.db, config)
	must(w, err)
	_, err = reaper.RunOnce(w.Context())
	must(w, err)
	report := w.reconcile(20, reconcile.ResolverFunc(func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
		if rec.Key == "unknown-0" && rec.ReconcileCount == 1 {
			return reconcile.StillUnknown("not yet"), nil
		}
		return reconcile.Completed(store.Response{Status: http.StatusCreated}, ""), nil
	}), unknowns+zombies)
	l[`onceward_zombies_swept_total`] = zombies
	l[`onceward_records_reaped_total`] = expired
	l[`onceward_reconcile_scheduled_total{route=""}`] = zombies
	l[`sum(onceward_reconcile_resolved_total{route="POST /chores",outcome="completed"})`] = float64(report.Completed)
	l[`sum(onceward_reconcile_failed_total{route="POST /chores",outcome="postponed"})`] = 1
	l[`onceward_worker_backlog{worker="sweeper"}`] = 0
	l[`count(onceward_worker_last_success_timestamp_seconds{worker=~"sweeper|reaper|resumer|poller|outbox|exporter"})`] = 6
	l[`onceward_dead_letters`], l[`onceward_oldest_unknown_age_seconds`] = 0, 0
	l[`onceward_lost_owners`], l[`onceward_oldest_lost_owner_age_seconds`] = 0, 0
	stats, err := w.db.Stats(w.Context())
	must(w, err)
	for state, n := range stats.Records {
		l[fmt.Sprintf(`onceward_records{state=%q}`, state)] = float64(n)
	}
}

// reconcile asks after unknown outcomes until so many are settled.
func (w *world) reconcile(attempts int, resolver reconcile.Resolver, settled int) (all reconcile.Report) {
	w.Helper()
	poller, err := reconcile.NewPoller(w.guard, w.db, reconcile.Config{
		Rules:      map[string]reconcile.Rule{choresRoute: {Resolver: resolver}},
		MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond, MaxAttempts: attempts, Interval: never,
		Observer: w.system.Counters(), Logger: quiet,
	})
	must(w, err)
	awaitSeen(w, "unknown outcomes are settled", func() (bool, string) {
		report, err := poller.RunOnce(w.Context())
		must(w, err)
		all.Completed += report.Completed
		all.DeadLetters += report.DeadLetters
		return all.Completed+all.DeadLetters >= settled, fmt.Sprintf("%+v", all)
	})
	return all
}

// value is what an expression says; it reports false if that is nothing.
func (s *scraped) value(expression string) (float64, bool) {
	s.Helper()
	samples, err := s.prometheus.Query(s.Context(), expression)
	must(s, err)
	if len(samples) != 1 {
		return 0, false
	}
	return samples[0].Value, true
}

func (s *scraped) awaitValue(expression string, want float64) {
	s.Helper()
	awaitSeen(s, fmt.Sprint(expression, " is ", want), func() (bool, string) {
		got, ok := s.value(expression)
		return ok && got == want, fmt.Sprint(got, ok)
	})
}

// awaitScrape waits until Prometheus has scraped what is so now.
func (s *scraped) awaitScrape() {
	s.Helper()
	now := float64(time.Now().UnixMilli()) / 1000
	awaitSeen(s, "Prometheus scrapes again", func() (bool, string) {
		at, ok := s.value(`timestamp(up)`)
		return ok && at > now, fmt.Sprint(at, " after ", now)
	})
}

// wantMetrics waits until Prometheus has scraped what the ledger says, and sees that it stays so.
func (s *scraped) wantMetrics(l ledger) {
	s.Helper()
	for range 2 { // a counter that moves further would not come back
		s.awaitScrape()
		left := maps.Clone(l)
		awaitSeen(s, "Prometheus shows what the ledger says", func() (bool, string) {
			var differ []string
			for expression, want := range left {
				if got, ok := s.value(expression); ok && got == want {
					delete(left, expression)
				} else {
					differ = append(differ, fmt.Sprintf("%s is %v, want %v", expression, got, want))
				}
			}
			return len(left) == 0, "M1: " + strings.Join(differ, "\n")
		})
	}
}

// wantDashboard runs each expression of the dashboard. One without data has a panel that says why.
func (s *scraped) wantDashboard() {
	s.Helper()
	text, err := os.ReadFile("../../../telemetry/dashboard/onceward.json")
	must(s, err)
	var dashboard struct {
		Panels []struct {
			ID                       int
			Type, Title, Description string
			Targets                  []struct{ Expr string }
		}
	}
	must(s, json.Unmarshal(text, &dashboard))
	fill := strings.NewReplacer("$__rate_interval", "10s", "$job", "payments")
	expressions := 0
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && (panel.Description == "" || len(panel.Targets) == 0) {
			s.Errorf("M4: panel %q has no description or no expression", panel.Title)
		}
		for _, target := range panel.Targets {
			expressions++
			awaitSeen(s, fmt.Sprintf("panel %q shows something for %s", panel.Title, target.Expr), func() (bool, string) {
				samples, err := s.prometheus.Query(s.Context(), fill.Replace(target.Expr))
				must(s, err) // also where there is nothing to show the expression is one that Prometheus takes
				// Nothing is there for now, or by design.
				return len(samples) > 0 || strings.Contains(panel.Description, "Empty"), "nothing"
			})
		}
	}
	if expressions < 25 {
		s.Errorf("M4: the dashboard has %d expressions", expressions)
	}
}
