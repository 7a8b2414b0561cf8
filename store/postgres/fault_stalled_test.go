package postgres_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Something is stuck: a record is locked by a session that does not go on, a connection is silent, the server is
// frozen. That may cost the one request that meets it, for a bounded time, and no other.

// stuck makes a heartbeat of a store get stuck, and returns how to let go.
type stuck func(t *testing.T, s *site, proxy *servers.Proxy, store *postgres.Store, key string) (letGo func())

var waysToGetStuck = map[string]stuck{
	"the record is locked": func(t *testing.T, s *site, _ *servers.Proxy, store *postgres.Store, key string) func() {
		tx, err := s.admin.Begin(t.Context())
		must(t, err)
		_, err = tx.Exec(t.Context(), `SELECT FROM onceward_record WHERE id = $1::uuid FOR UPDATE`,
			store.RecordID(accountID(key)))
		must(t, err)
		return func() { _ = tx.Rollback(context.Background()) }
	},
	"the connection is silent": func(_ *testing.T, _ *site, proxy *servers.Proxy, _ *postgres.Store, _ string) func() {
		return proxy.HoldReply(ofStore)
	},
}

// TestStuckRequestHoldsUpNobodyElse has one heartbeat stuck, and others ask for other keys in the time that a guard
// gives.
func TestStuckRequestHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	for name, getStuck := range waysToGetStuck {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			proxy := servers.NewProxy(t, s.url)
			st := s.store(t, pgxHandle, proxy.URL(), postgres.LockTimeout("1h"))
			v, err := st.Reserve(t.Context(), booking("stuck"))
			must(t, err)
			sent := counting(proxy)
			letGo := getStuck(t, s, proxy, st, "stuck")
			extended := make(chan error, 1)
			go func() {
				extended <- st.Extend(context.Background(), store.Claim{ID: accountID("stuck"), Attempt: v.Record.Attempt},
					time.Minute)
			}()
			await.That(t, "the heartbeat is under way", func() bool { return sent.Load() > 0 })
			if v, err := st.Reserve(t.Context(), booking("another")); err != nil || v.Decision != store.DecisionExecute {
				t.Errorf("another key got (%s, %v), want the right to execute", v.Decision, err)
			}
			select {
			case err := <-extended:
				t.Errorf("the heartbeat that was stuck had ended (%v): the other key may have waited for it", err)
				return
			default:
			}
			letGo()
			must(t, await.Value(t, "the end of the heartbeat", extended))
		})
	}
}

// TestStoppedInMidChangeLosesItsLock has a store stop while it holds the lock of a record's row, as a process that is
// stopped or cut off would. E8: no path leaves a key locked past its lease, but for a bounded time of idleness.
func TestStoppedInMidChangeLosesItsLock(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the server ends the session after ten seconds")
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	stopped, other := s.store(t, pgxHandle, proxy.URL()), s.store(t, pgxHandle, s.url)
	r := booking("key")
	r.Lease = time.Second
	v, err := stopped.Reserve(t.Context(), r)
	must(t, err)
	goOn := proxy.HoldReply(matching(`FOR NO KEY UPDATE`))
	released := make(chan error, 1)
	go func() {
		released <- stopped.Release(context.Background(), store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, "never mind")
	}()
	awaitCaught(t, proxy, 1)
	await.That(t, "E8: the record is free, whose lease is over", func() bool {
		v, err = other.Reserve(t.Context(), booking("key"))
		return err == nil && v.Decision == store.DecisionUnknown
	})
	goOn()
	if err := await.Value(t, "the end of the release", released); err == nil {
		t.Error("S6: the release landed although the record was unknown by then")
	}
}

// TestFrozenServer has a server accept and not answer. A transaction that has not begun ends with the caller's time, on
// a connection that was used before and on one that is new to the store.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	server := servers.NewPostgres(t)
	for name, used := range map[string]bool{"used connection": true, "new connection": false} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, server)
			config, err := pgxpool.ParseConfig(s.url)
			must(t, err)
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			must(t, err)
			t.Cleanup(pool.Close)
			store, err := postgres.New(t.Context(), pool, quiet)
			must(t, err)
			t.Cleanup(func() { must(t, store.Close()) })
			_, err = store.Reserve(t.Context(), booking("warm"))
			must(t, err)
			must(t, pool.Ping(t.Context()))
			if used {
				p := &payer{handle: pgxHandle, value: "warm"}
				_, err := store.Transact(t.Context(), booking("before"), p.work)
				must(t, err)
			}
			must(t, server.Pause())
			ended := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
				defer cancel()
				p := &payer{handle: pgxHandle, value: "paid"}
				_, err := store.Transact(ctx, booking("key"), p.work)
				ended <- err
			}()
			err = await.Value(t, "the end of the transaction, with the caller's time", ended)
			must(t, server.Resume())
			wantNotExecuted(t, err, "the server did not answer")
			s.wantRows(t, "paid", 0, "I4")
		})
	}
}

// Scenarios 1 and 2: an owner that is stopped, and comes back when it is the owner no more.

// TestStoppedOwnerCompletesLate stops an owner between its effect and its answer.
func TestStoppedOwnerCompletesLate(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	owner, other := startTeller(t, s, time.Hour), startTeller(t, s, time.Hour)
	first := owner.starts(t, "/reserved", "key", "after")
	must(t, owner.Pause())
	mustSend(t, other.url+"/reserved", "key").wantProblem(t, http.StatusConflict, "in-progress", "the lease lasts")
	exec(t, s.admin, `UPDATE onceward_record SET due = 1`) // the lease is over
	await.That(t, "the outcome is unknown", func() bool {
		return mustSend(t, other.url+"/reserved", "key").code() == "outcome-unknown"
	})
	mustSend(t, other.url+"/reserved", "key").wantProblem(t, http.StatusConflict, "outcome-unknown", "scenario 1")
	must(t, owner.Resume())
	owner.Tell("go on")
	late := await.Value(t, "the owner's answer", first)
	late.want(t, http.StatusCreated, false, "section 4: the same attempt, finishing late")
	again := mustSend(t, other.url+"/reserved", "key")
	again.want(t, http.StatusCreated, true, "section 4: the same attempt, finishing late")
	if again.body != late.body {
		t.Errorf("I3: the owner was told %q, the retry %q", late.body, again.body)
	}
	s.wantRows(t, "key", 1, "I1")
}

// TestStoppedOwnerMakesNoEffect stops an owner between its intent and its effect.
func TestStoppedOwnerMakesNoEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	other := startTeller(t, s, time.Hour)
	owner, key, first := startHolding(t, s, "/reserved", "before")
	must(t, owner.Pause())
	await.That(t, "the outcome is unknown", func() bool {
		return mustSend(t, other.url+"/reserved", key).code() == "outcome-unknown"
	})
	owner.Tell("go on")
	must(t, owner.Resume())
	if late := await.Value(t, "the owner's answer", first); late.status != http.StatusInternalServerError || late.replayed() {
		t.Errorf("scenario 2: the owner was answered %d %q", late.status, late.body)
	}
	mustSend(t, other.url+"/reserved", key).wantProblem(t, http.StatusConflict, "outcome-unknown", "E2: a lost lease")
	s.wantRows(t, key, 0, "S5: the handler asked before its effect")
}

// TestStoppedTransactionLosesItsLock stops an owner in mid-transaction. The server puts it out after a bounded time,
// and that takes six seconds with the lease of a teller.
func TestStoppedTransactionLosesItsLock(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the server ends the transaction after six seconds")
	s := newSite(t, servers.Postgres(t))
	other := startTeller(t, s, time.Hour)
	owner, key, first := startHolding(t, s, "/transactional", "after")
	must(t, owner.Pause())
	var retry httpReply
	await.That(t, "the lock is free", func() bool {
		retry = mustSend(t, other.url+"/transactional", key)
		return retry.code() != "in-progress"
	})
	retry.want(t, http.StatusCreated, false, "E1: a node that stops loses its lock")
	owner.Tell("go on")
	must(t, owner.Resume())
	late := await.Value(t, "the owner's answer", first)
	// Its time is over and its connection is gone: whichever it notices first. If it asks what became of its commit, it
	// finds the other's answer.
	switch code := late.code(); {
	case late.replayed():
		if late.body != retry.body {
			t.Errorf("I3: the owner was told %q, the retry %q", late.body, retry.body)
		}
	case late.status != http.StatusServiceUnavailable || code != "store-unavailable" && code != "deadline-exceeded":
		t.Errorf("E1: its transaction was undone: got %d %q, want 503 or the answer of the retry", late.status, late.body)
	}
	again := mustSend(t, owner.url+"/transactional", key)
	again.want(t, http.StatusCreated, true, "I3")
	if again.body != retry.body {
		t.Errorf("I3: the retry was told %q, and then %q", retry.body, again.body)
	}
	s.wantRows(t, key, 1, "I1")
	st := s.store(t, pgxHandle, s.url)
	wantStateOf(t, st, key, store.StateCompleted, "I2")
}

// TestSilentServerDoesNotStopAWorker: the connection of a claim stays open and says nothing more, as when the server's
// machine has vanished. The worker takes another one, long before the system gives the connection up.
func TestSilentServerDoesNotStopAWorker(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the worker takes a quarter of a minute to give the connection up")
	for statement, part := range map[string]string{"claim": "outbox_claim", "promote": "DELETE FROM"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			workPastSilence(t, statement, part)
		})
	}
}

// workPastSilence has a worker deliver although the reply to a statement never comes.
func workPastSilence(t *testing.T, statement, part string) {
	u := newOutboxTest(t, "")
	proxy := servers.NewProxy(t, u.url)
	store, err := postgres.Open(t.Context(), proxy.URL(), quiet)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	release := proxy.HoldReply(func(sql string) bool { return strings.Contains(sql, part) })
	t.Cleanup(release)
	delivered := make(chan string, 10)
	worker, err := outbox.NewWorker(store, outbox.WorkerConfig{
		Lease: time.Second, Poll: 10 * time.Millisecond,
		Routes: map[string]outbox.Route{statement: {Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			delivered <- d.Type
			return outbox.Result{}, nil
		}}},
	})
	must(t, err)
	caught := proxy.Sprung()
	u.add(statement, "1", statement)
	working, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		worker.Run(working)
	}()
	awaitCaught(t, proxy, caught+1)
	await.Value(t, "a delivery, after the reply to a "+statement+" was lost in silence", delivered)
	stop()
	<-over
}

// Scenario 47: hundreds of requests are refused in an outage. They leave no work behind that hammers the server, and
// a grant whose reply was lost is released when it is back.
func TestRefusedRequestsLeaveTheServerAlone(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it watches for five seconds")
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	st := s.store(t, pgxHandle, proxy.URL())
	direct := s.store(t, pgxHandle, s.url)
	runs := 0
	h := guardOver(t, st).HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.WriteHeader(http.StatusCreated)
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(5*time.Minute))
	post(h, "before").want(t, http.StatusCreated, false, "the server is up")

	proxy.Refuse(true)
	proxy.CutReply(matching(`onceward_record`))
	post(h, "lost").wantProblem(t, http.StatusServiceUnavailable, "store-unavailable", "L2")
	wantStateOf(t, direct, "lost", store.StateInProgress, "the grant had landed")
	proxy.DropAll()
	const requests = 400
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			post(h, fmt.Sprint("k", i)).wantProblem(t, http.StatusServiceUnavailable, "store-unavailable", "L2")
		})
	}
	all.Wait()
	refused, began := proxy.Connections(), time.Now()
	time.Sleep(5 * time.Second) // what is measured is how often the server is asked in that time
	took := time.Since(began)
	if n := proxy.Connections() - refused; n > int(8*took.Seconds()) {
		t.Errorf("L2: %d attempts to connect in the %s after %d requests were refused, want a few", n, took, requests)
	}

	proxy.Refuse(false)
	await.That(t, "the lost grant is released", func() bool {
		rec, err := direct.Get(t.Context(), accountID("lost"))
		return err == nil && rec.State == store.StateRetryable
	})
	post(h, "lost").want(t, http.StatusCreated, false, "S9: a retry executes")
	if runs != 2 {
		t.Errorf("I1: %d runs, want 2", runs)
	}
}
