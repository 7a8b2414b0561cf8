package telemetry_test

import (
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
)

// TestDemo is the proof that operators see what happens, and are woken when they should be (M1, M4): the demo as users
// run it, a process of its own on PostgreSQL, under a load of many clients, scraped by a real Prometheus. Each metric
// that the load moves is by what its ledger says, which is made of the answers that the clients got, and each alert
// fires when its fault is caused, and not before. What cannot be caused from outside is in [TestPrometheus].
func TestDemo(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it compiles the program, and Prometheus scrapes for a minute; TestAlertRules checks the rules")
	d := startDemo(t)
	d.payAtOnce()
	d.refund()
	d.book()
	d.wantMetrics(d.total())
	d.wantNoAlert()
	d.wantAlerts(
		fault{d.probe, []string{"MismatchesByScope"}},
		fault{d.loop, []string{"DuplicatesByScope"}},
		fault{d.loseRefund, []string{"OldestUnknown"}},
		fault{d.strandMessage, []string{"OutboxAge"}},
		fault{d.loseStore, []string{"ReservationsFail"}},
	)
	d.awaitValue(`sum(onceward_store_errors_total{call="transact"})`, 10) // what loseStore sent
}

// demo is the program, and what was done with it.
type demo struct {
	scraped
	mu     sync.Mutex
	ledger ledger
}

// startDemo builds the program, and starts it.
func startDemo(t *testing.T) *demo {
	t.Helper()
	program := filepath.Join(t.TempDir(), "onceward")
	build := exec.Command("go", "build", "-race=false", "-ldflags=-s -w", "-o", program, "../../../cmd/onceward")
	if built := proctest.Run(t, build); built.Code != 0 {
		t.Fatalf("the program does not build: %s", built.Stderr)
	}
	d := &demo{scraped: scraped{TB: t, postgres: servers.NewPostgres(t, "fsync=off")}, ledger: make(ledger)}
	process := proctest.Start(t, exec.Command(program, "demo", "--no-load", "--addr", "127.0.0.1:0",
		"--store", d.postgres.URL(), "--dir", t.TempDir()))
	for line := ""; !strings.Contains(line, "Ctrl-C"); line = process.Hear("") {
		if url, found := strings.CutPrefix(line, "Listening on "); found {
			d.url = url
		}
		if at, found := strings.CutPrefix(line, "Its payment provider is at "); found {
			d.bank, _, _ = strings.Cut(at, ",")
		}
	}
	d.scrape()
	return d
}

// count adds to what an expression has to be.
func (d *demo) count(n float64, expression string, labels ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ledger[fmt.Sprintf(expression, labels...)] += n
}

func (d *demo) counted(expression string, labels ...any) float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ledger[fmt.Sprintf(expression, labels...)]
}

const (
	decided    = `onceward_reservations_total{route=%q,decision=%q}`
	executed   = `onceward_executions_total{route=%q,outcome=%q}`
	settled    = `onceward_attempts_settled_total{route=%q,state=%q}`
	storeCalls = `onceward_store_call_duration_seconds_count{call=%q,outcome="ok"}`
	problems   = `onceward_problems_total{route=%q,code=%q}`
	duplicates = `onceward_duplicates_total{scope=%q}`
	webhooks   = `onceward_webhooks_total{outcome=%q}`
	resolved   = `onceward_reconcile_resolved_total{route=%q,outcome=%q}`
)

var refunds = provider.Match{Method: http.MethodPost, Path: "/refunds"}

// enter enters an answer: what it was says what the store has decided.
func (d *demo) enter(route, account string, r reply) {
	decision := "created"
	switch {
	case r.replayed:
		decision = "replay"
	case r.status == http.StatusConflict:
		decision = "in_progress"
	case r.status == http.StatusUnprocessableEntity:
		decision = "mismatch"
	}
	if decision == "created" {
		d.ran(route, decision, "2xx", "completed", r)
		return
	}
	d.decide(route, decision, r)
	if decision == "mismatch" {
		d.count(1, `onceward_mismatches_total{scope=%q}`, account)
	} else {
		d.count(1, duplicates, account)
	}
}

// ran enters an execution, by how it ended and what state it left.
func (d *demo) ran(route, decision, outcome, state string, r reply) {
	d.decide(route, decision, r)
	d.count(1, executed, route, outcome)
	d.count(1, settled, route, state)
}

func (d *demo) decide(route, decision string, r reply) {
	d.count(1, storeCalls, "reserve")
	d.count(1, decided, route, decision)
	if r.code != "" {
		d.count(1, problems, route, r.code)
	}
}

// try pays, whatever comes of it.
func (d *demo) try(account, key string, amount int) reply {
	r := d.send(http.MethodPost, "/payments", account, key,
		fmt.Sprintf(`{"customer":"c1","amount":%d,"currency":"EUR"}`, amount))
	d.enter(payment, account, r)
	return r
}

// payAtOnce lets many clients pay, of whom each pair has the same keys, repeat and contradict themselves.
func (d *demo) payAtOnce() {
	const pairs, payments = 4, 4
	var clients sync.WaitGroup
	for i := range 2 * pairs {
		account := []string{"alice", "bob"}[i%2]
		clients.Go(func() {
			for n := range payments {
				key := fmt.Sprintf("pay-%d-%d", i/4, n)
				d.try(account, key, 100)
				d.try(account, key, 100)
			}
		})
	}
	clients.Wait()
	for i := range 3 {
		d.try("alice", "pay-0-0", 200+i)
	}
	r := d.pay(http.StatusBadRequest, "bob", "", 100)
	d.count(1, `onceward_rejected_requests_total{route=%q,code=%q}`, payment, r.code)
	d.try("alice", "pay-0", 100) // what the alerts are about
	d.try("bob", "pay-0", 100)
}

const (
	bookings    = "POST /bookings"
	refundRoute = "POST /payments/{id}/refund"
	delivered   = `onceward_outbox_deliveries_total{topic="charges",outcome=%q}`
)

// refund makes refunds that succeed, are refused for now, take long, and of which the answer is lost.
func (d *demo) refund() {
	of := d.try("alice", "to-refund", 100).location
	payments := d.counted(decided, payment, "created")
	d.count(payments, delivered, "done")
	d.awaitValue(fmt.Sprintf(delivered, "done"), payments)
	send := func(key string) reply {
		return d.send(http.MethodPost, of+"/refund", "alice", key, `{"amount":1}`)
	}
	d.enter(refundRoute, "alice", send("fine"))
	d.enter(refundRoute, "alice", send("fine"))
	d.count(1, webhooks, "kept")

	d.setFaults(provider.Rule{Match: refunds, Kind: provider.ErrorBefore, Status: 503, Times: 1})
	d.ran(refundRoute, "created", "5xx", "failed_retryable", send("refused"))
	d.count(1, storeCalls, "release")
	d.ran(refundRoute, "retried", "2xx", "completed", send("refused"))
	d.count(1, webhooks, "kept")

	d.setFaults(provider.Rule{Match: refunds, Kind: provider.Hold, Name: "held"})
	held := make(chan reply)
	go func() { held <- send("held") }()
	d.awaitValue(`onceward_active_leases`, 1)
	d.enter(refundRoute, "alice", send("held"))
	d.setFaults()
	d.enter(refundRoute, "alice", <-held)
	d.count(1, webhooks, "kept")
	d.count(0, `onceward_active_leases`)

	d.setFaults(provider.Rule{Match: refunds, Kind: provider.ErrorAfter, Times: 1},
		provider.Rule{Match: refunds, Kind: provider.WebhookDrop, Times: 1})
	d.ran(refundRoute, "created", "unknown", "unknown", send("lost"))
	d.count(1, storeCalls, "abandon")
	d.count(1, `onceward_reconcile_scheduled_total{route=%q}`, refundRoute)
	d.count(1, resolved, refundRoute, "completed")
	d.awaitValue(fmt.Sprintf(resolved, refundRoute, "completed"), 1)
	d.enter(refundRoute, "alice", send("lost"))
}

// book lets the provider fail in the middle of a booking, with which the resumer goes on.
func (d *demo) book() {
	send := func() reply {
		return d.send(http.MethodPost, "/bookings", "alice", "book", `{"item":"concert","price":4500}`)
	}
	d.setFaults(provider.Rule{
		Match: provider.Match{Method: http.MethodPost, Path: "/charges"}, Kind: provider.ErrorBefore, Status: 503, Times: 1,
	})
	d.decide(bookings, "created", send())
	d.decide(bookings, "resumed", reply{})
	d.count(1, settled, bookings, "completed")
	d.awaitValue(fmt.Sprintf(settled, bookings, "completed"), 1)
	d.enter(bookings, "alice", send())
}

// total is the ledger, with what follows from it.
func (d *demo) total() ledger {
	payments := d.counted(settled, payment, "completed")
	others := d.counted(settled, refundRoute, "completed") + d.counted(settled, bookings, "completed")
	d.count(payments, storeCalls, "commit")
	d.count(others, storeCalls, "complete")
	maps.Copy(d.ledger, ledger{
		`onceward_records{state="completed"}`:                  payments + others + 1, // the poller has settled one
		`onceward_records{state="unknown"}`:                    0,
		`onceward_records{state="in_progress"}`:                0,
		`onceward_dead_letters`:                                0,
		`onceward_oldest_unknown_age_seconds`:                  0,
		`onceward_outbox_depth`:                                0,
		`onceward_outbox_oldest_age_seconds`:                   0,
		`onceward_outbox_dead_letters`:                         0,
		`onceward_zombies_swept_total`:                         0,
		`sum(onceward_store_errors_total)`:                     0,
		`sum(onceward_outbox_delivery_duration_seconds_count)`: d.counted(delivered, "done"),
		`sum(onceward_execution_seconds_total) > bool 0`:       1,
		`onceward_oldest_replay_age_seconds > bool 0`:          1,
		`count(onceward_worker_last_success_timestamp_seconds{worker=~"sweeper|reaper|resumer|poller|outbox|exporter"})`: 6,
		`sum(onceward_worker_runs_total{outcome="failed"}) or vector(0)`:                                                 0,
	})
	return d.ledger
}

// loseRefund lets the answer to a refund be lost, and those to all questions after it.
func (d *demo) loseRefund() {
	of := d.pay(http.StatusCreated, "alice", "to-refund", 100).location
	d.setFaults(provider.Rule{Match: refunds, Kind: provider.ErrorAfter},
		provider.Rule{Match: refunds, Kind: provider.WebhookDrop},
		provider.Rule{Match: provider.Match{Method: http.MethodGet}, Kind: provider.ErrorBefore, Status: 503})
	d.send(http.MethodPost, of+"/refund", "alice", "never-told", `{"amount":1}`)
	d.awaitValue(`onceward_records{state="unknown"}`, 1)
}
