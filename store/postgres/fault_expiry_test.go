package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// expiring is a route whose answers are about to expire, and a reaper that does not rest.
type expiring struct {
	*site
	store *postgres.Store
	route http.Handler
	move  func(time.Duration)
	stop  func()
	// reaps counts the rounds of the reaper, reaped what it took.
	reaps, reaped atomic.Int64
}

var bothModes = map[string]onceward.Option{
	"transactional": onceward.Transactional(), "reserved": onceward.Reserved(onceward.FailureUnknown),
}

func newExpiring(t *testing.T, mode string) *expiring {
	t.Helper()
	e := &expiring{site: newSite(t, servers.Postgres(t))}
	e.store = e.site.store(t, pgxHandle, e.url)
	e.move = postgres.NewTestClock(t, e.store).Advance
	var runs atomic.Int64
	e.route = guardOver(t, e.store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := onceward.FromContext(r.Context()).Key()
		var err error
		if mode == "transactional" {
			err = insertPgx(r.Context(), key)
		} else {
			_, err = e.insert(r.Context(), key)
		}
		if err != nil {
			t.Errorf("the handler failed: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "run ", runs.Add(1))
	}, bothModes[mode], onceward.Retain(time.Hour))
	return e
}

// startReaper lets a hard and a soft reaper run, which take one record at a time.
func (e *expiring) startReaper(t *testing.T) {
	t.Helper()
	over := make(chan struct{})
	var reapers sync.WaitGroup
	for _, soft := range []bool{false, true} {
		reapers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					n, err := e.store.Reap(context.Background(), 1, soft)
					if err != nil {
						t.Errorf("reap: %v", err)
						return
					}
					e.reaps.Add(1)
					e.reaped.Add(int64(n))
				}
			}
		})
	}
	e.stop = sync.OnceFunc(func() {
		close(over)
		reapers.Wait()
	})
	t.Cleanup(e.stop)
}

// leave moves the clock so that a record has only so long to live.
func (e *expiring) leave(t *testing.T, key string, d time.Duration) {
	t.Helper()
	due, _ := e.due(t, e.store.RecordID(accountID(key)))
	e.move(due.Sub(e.storeClock(t)) - d)
}

// TestReaperAgainstReplays is scenario 23: whatever the reaper does, an answer is replayed until it expires.
func TestReaperAgainstReplays(t *testing.T) {
	t.Parallel()
	for mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			e := newExpiring(t, mode)
			e.feed(t, 100)
			first := post(e.route, "key")
			first.want(t, http.StatusCreated, false, "section 6")
			due, _ := e.due(t, e.store.RecordID(accountID("key")))
			e.startReaper(t)
			replays := 0
			replay := func() (intime bool) {
				r := post(e.route, "key")
				if !e.storeClock(t).Before(due) {
					return false // it may have been asked too late
				}
				replays++
				if r.status != http.StatusCreated || !r.replayed() || r.body != first.body {
					t.Fatalf("scenario 23: before its expiry the answer was %d, replayed %t, %q", r.status, r.replayed(), r.body)
				}
				return true
			}
			await.That(t, "replays and the reaper compete", func() bool {
				return replay() && replays >= 5 && e.reaped.Load() >= 5
			})
			e.leave(t, "key", 300*time.Millisecond)
			for replay() {
			}
			e.stop()
			t.Logf("%d replays beside %d rounds of the reapers, which took %d records", replays, e.reaps.Load(), e.reaped.Load())
		})
	}
}

// feed makes records that expire at once, for the reaper to take.
func (e *expiring) feed(t *testing.T, n int) {
	t.Helper()
	var makers sync.WaitGroup
	for i := range n {
		makers.Go(func() {
			r := booking(fmt.Sprint("expired-", i))
			r.Retention = time.Millisecond
			v, err := e.store.Reserve(t.Context(), r)
			if err == nil {
				_, err = e.store.Complete(t.Context(), store.Claim{ID: r.ID, Attempt: v.Record.Attempt},
					&store.Completion{Response: store.Response{Status: http.StatusOK}})
			}
			if err != nil {
				t.Errorf("feed: %v", err)
			}
		})
	}
	makers.Wait()
}

// TestExpiryDuringARetry is scenario 22: a retry that arrives as the record expires is answered with the old answer or
// executed again, and the new answer stays.
func TestExpiryDuringARetry(t *testing.T) {
	t.Parallel()
	for mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			e := newExpiring(t, mode)
			keys := []string{"key-1", "key-2", "key-3", "key-4"}
			old := make(map[string]string)
			for _, key := range keys {
				first := post(e.route, key)
				first.want(t, http.StatusCreated, false, "section 6")
				old[key] = first.body
			}
			e.leave(t, keys[0], 200*time.Millisecond)
			e.startReaper(t)
			var clients sync.WaitGroup
			for _, key := range keys {
				clients.Go(func() { e.retryOver(t, key, old[key]) })
			}
			clients.Wait()
			e.stop()
			for _, key := range keys {
				e.wantRows(t, key, 2, "scenario 22: once before the expiry, and once after")
			}
		})
	}
}

// retryOver retries until the answer has changed, and a few times more.
func (e *expiring) retryOver(t *testing.T, key, answer string) {
	changes, after := 0, 0
	for end := time.Now().Add(await.Limit); after < 5; {
		r := post(e.route, key)
		switch {
		case r.status != http.StatusCreated:
			t.Errorf("scenario 22: %s was answered %d %q", key, r.status, r.body)
			return
		case r.replayed() && r.body == answer:
		case !r.replayed() && r.body != answer && changes == 0:
			changes, answer = 1, r.body
		default:
			t.Errorf("scenario 22: %s was answered %q, replayed %t, where %q was the answer", key, r.body, r.replayed(), answer)
			return
		}
		after += changes
		if time.Now().After(end) {
			t.Errorf("%s did not expire", key)
			return
		}
	}
}

// slowClock makes every look at the store's clock take a while, so that a lease which counts from the reply is told
// apart from one that counts from the sending.
func (s *site) slowClock(t testing.TB, pause time.Duration) {
	t.Helper()
	exec(t, s.admin, fmt.Sprintf(`CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
		BEGIN
			PERFORM pg_sleep(%f);
			RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
		END $$`, pause.Seconds()))
}

// due is when the lease of a record ends, or the record expires, and what the server's clock shows.
func (s *site) due(t testing.TB, id string) (due, now time.Time) {
	t.Helper()
	var micros int64
	must(t, s.admin.QueryRow(context.Background(),
		`SELECT due, clock_timestamp() FROM onceward_record WHERE id = $1::uuid`, id).Scan(&micros, &now))
	return time.UnixMicro(micros), now
}

// awaitHeartbeats waits until a lease was extended so many times.
func (s *site) awaitHeartbeats(t testing.TB, id string, times int) {
	t.Helper()
	last, _ := s.due(t, id)
	for range times {
		await.That(t, "the lease is extended", func() bool {
			due, _ := s.due(t, id)
			extended := due.After(last)
			last = due
			return extended
		})
	}
}

// TestHeartbeatsLost cuts a store off while a handler of its runs (scenario 3): while the handler has a lease by its own
// clock it has one by the server's clock, and one that asks before its effect makes none (scenario 2).
func TestHeartbeatsLost(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "a lease of 45 seconds runs out, which a busy machine does not reach between two heartbeats")
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	st := s.store(t, pgxHandle, proxy.URL())
	s.slowClock(t, 300*time.Millisecond)
	id := st.RecordID(accountID("key"))
	running := make(chan struct{})
	var due, held time.Time // held is when the handler last had a lease
	var cause error
	route := guardOver(t, st).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(running)
		for r.Context().Err() == nil {
			now := time.Now() // the server has this clock too
			if onceward.FromContext(r.Context()).CheckLease() == nil {
				held = now
			}
			time.Sleep(time.Millisecond) // the test is not the only one that needs a processor
		}
		due, _ = s.due(t, id)
		cause = context.Cause(r.Context())
		if onceward.FromContext(r.Context()).CheckLease() == nil {
			_, _ = s.insert(context.Background(), "key")
		}
		proxy.Refuse(false) // so that it can be said at once that the outcome is unknown
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(45*time.Second))
	done := make(chan httpReply, 1)
	go func() { done <- post(route, "key") }()
	await.Value(t, "the handler", running)
	s.awaitHeartbeats(t, id, 1)
	proxy.Refuse(true)
	proxy.DropAll()
	await.Value(t, "the answer", done).wantProblem(t, http.StatusInternalServerError, "outcome-unknown", "E2: a lost lease")
	if !errors.Is(cause, onceward.ErrLeaseLost) || !held.Before(due) {
		t.Errorf("S5: the context ended for %v, and the lease that was over at %s was held at %s", cause, due, held)
	}
	s.wantRows(t, "key", 0, "the handler asked before its effect")
	past := s.store(t, pgxHandle, s.url) // a connection of the other may have been begun when it was refused
	wantStateOf(t, past, "key", store.StateUnknown, "E2")
}

// TestHeartbeatsComeBack cuts a store off for less than a lease: the handler need not know.
func TestHeartbeatsComeBack(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "a heartbeat of a lease that outlasts a busy machine comes after seconds")
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	st := s.store(t, pgxHandle, proxy.URL())
	id := st.RecordID(accountID("key"))
	running, goOn := make(chan struct{}), make(chan struct{})
	route := guardOver(t, st).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-goOn
		if err := errors.Join(r.Context().Err(), onceward.FromContext(r.Context()).CheckLease()); err != nil {
			t.Errorf("S5: the lease was kept, and the handler was told %v", err)
		}
		w.WriteHeader(http.StatusCreated)
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(30*time.Second))
	done := make(chan httpReply, 1)
	go func() { done <- post(route, "key") }()
	await.Value(t, "the handler", running)
	refused := make(chan struct{})
	proxy.CutRequest(func(sql string) bool {
		if !ofStore(sql) {
			return false
		}
		close(refused) // the next heartbeat is lost, and the one that follows at once
		return true
	})
	proxy.CutRequest(ofStore)
	await.Value(t, "the heartbeat that is lost", refused)
	s.awaitHeartbeats(t, id, 1)
	close(goOn)
	await.Value(t, "the answer", done).want(t, http.StatusCreated, false, "S5")
	wantStateOf(t, st, "key", store.StateCompleted, "S5")
	if n := proxy.Sprung(); n != 2 {
		t.Errorf("%d heartbeats were lost, want 2", n)
	}
}

// Scenario 4: node clocks an hour apart. Only the store's clock counts, so it is the one that is moved.

// storeClock is what the store's clock shows.
func (s *site) storeClock(t testing.TB) time.Time {
	t.Helper()
	var micros int64
	must(t, s.admin.QueryRow(t.Context(), `SELECT onceward_now()`).Scan(&micros))
	return time.UnixMicro(micros)
}

// wantBetween checks a time that the store gave out, so long after a moment between two.
func wantBetween(t testing.TB, got, from, to time.Time, later time.Duration, rule string) {
	t.Helper()
	const rounding = time.Second
	if got.Before(from.Add(later-rounding)) || got.After(to.Add(later+rounding)) {
		t.Errorf("%s: it is %s, want %s after a moment between %s and %s", rule, got, later, from, to)
	}
}

var clockOffsets = map[string]time.Duration{"an hour ahead": time.Hour, "an hour behind": -time.Hour}

func TestNodeClocksApart(t *testing.T) {
	t.Parallel()
	for name, ahead := range clockOffsets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, servers.Postgres(t))
			store := s.store(t, pgxHandle, s.url)
			move := postgres.NewTestClock(t, store).Advance
			move(ahead)
			if nightly.Runs() {
				liveOwnerIsNotSwept(t, s, store)
			}
			lostOwnerIsSwept(t, s, store, move)
			answersExpire(t, s, store, move)
			extendedLeaseIsNotSwept(t, store, move)
		})
	}
}

// extendedLeaseIsNotSwept lets an owner extend its lease before the lease is over by the store's clock.
func extendedLeaseIsNotSwept(t *testing.T, st *postgres.Store, move func(time.Duration)) {
	t.Helper()
	v, err := st.Reserve(t.Context(), booking("extended")) // for a minute
	must(t, err)
	claim := store.Claim{ID: accountID("extended"), Attempt: v.Record.Attempt}
	for range 4 {
		move(40 * time.Second)
		must(t, st.Extend(t.Context(), claim, time.Minute))
		if n, err := st.Sweep(t.Context(), 10); n != 0 || err != nil {
			t.Errorf("scenario 4: an owner that extends its lease was swept: %d (%v)", n, err)
		}
	}
}

// liveOwnerIsNotSwept lets a handler live for longer than a lease under a sweeper that does not rest. The lease outlasts
// a busy machine between two heartbeats, of which there are three a lease.
func liveOwnerIsNotSwept(t *testing.T, s *site, store *postgres.Store) {
	t.Helper()
	running, goOn := make(chan struct{}), make(chan struct{})
	route := guardOver(t, store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-goOn
		if err := onceward.FromContext(r.Context()).CheckLease(); err != nil {
			t.Errorf("S5: a live owner was told %v", err)
		}
		w.WriteHeader(http.StatusCreated)
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(30*time.Second))
	done := make(chan httpReply, 1)
	go func() { done <- post(route, "live") }()
	await.Value(t, "the handler", running)
	stop := make(chan struct{})
	swept := make(chan int, 1)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				swept <- n
				return
			case <-time.After(5 * time.Millisecond):
				one, err := store.Sweep(t.Context(), 10)
				if err != nil {
					t.Errorf("sweep: %v", err)
				}
				n += one
			}
		}
	}()
	s.awaitHeartbeats(t, store.RecordID(accountID("live")), 4)
	close(stop)
	if n := await.Value(t, "the sweeper", swept); n != 0 {
		t.Errorf("scenario 4: a live owner was swept %d times", n)
	}
	post(route, "live").wantProblem(t, http.StatusConflict, "in-progress", "scenario 4")
	close(goOn)
	await.Value(t, "the answer", done).want(t, http.StatusCreated, false, "scenario 4")
}

// lostOwnerIsSwept lets a lease run out by the store's clock, and not before.
func lostOwnerIsSwept(t *testing.T, s *site, st *postgres.Store, move func(time.Duration)) {
	t.Helper()
	from := s.storeClock(t)
	v, err := st.Reserve(t.Context(), booking("lost")) // for a minute
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("reserve: got (%s, %v)", v.Decision, err)
	}
	wantBetween(t, v.Record.LeaseUntil, from, s.storeClock(t), time.Minute, "S3: the end of a lease")
	move(30 * time.Second)
	if n, err := st.Sweep(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("S3: swept %d (%v) before the lease was over", n, err)
	}
	move(31 * time.Second)
	if n, err := st.Sweep(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("S3: swept %d (%v) when the lease was over, want 1", n, err)
	}
	wantStateOf(t, st, "lost", store.StateUnknown, "S3")
}

// answersExpire lets answers of both modes expire by the store's clock, and not before.
func answersExpire(t *testing.T, s *site, st *postgres.Store, move func(time.Duration)) {
	t.Helper()
	p := &payer{handle: pgxHandle, value: "paid"}
	from := s.storeClock(t)
	v, err := st.Transact(t.Context(), booking("paid"), p.work) // kept for an hour
	wantVerdict(t, v, err, store.DecisionExecute, 1, "S3")
	to := s.storeClock(t)
	wantBetween(t, v.Record.ExpiresAt, from, to, time.Hour, "S2: the expiry of an answer")
	wantBetween(t, v.Record.CreatedAt, from, to, 0, "S3: the creation of a record")
	move(59 * time.Minute)
	if n, err := st.Reap(t.Context(), 10, false); n != 0 || err != nil {
		t.Errorf("I12: reaped %d (%v) before the expiry", n, err)
	}
	v, err = st.Transact(t.Context(), booking("paid"), p.work)
	wantVerdict(t, v, err, store.DecisionReplay, 1, "S3: before the expiry")
	move(2 * time.Minute)
	v, err = st.Transact(t.Context(), booking("paid"), p.work)
	wantVerdict(t, v, err, store.DecisionExecute, 2, "S3: past the expiry")
	if v.Origin != store.OriginRecreated {
		t.Errorf("section 4: the record was %s, want recreated", v.Origin)
	}
	move(61 * time.Minute)
	if n, err := st.Reap(t.Context(), 10, false); n != 1 || err != nil {
		t.Errorf("B2: reaped %d (%v) past the expiry, want 1", n, err)
	}
	if nightly.Runs() {
		wantStateOf(t, st, "live", store.StateCompleted, "S3: this one is kept for a day")
	}
	wantStateOf(t, st, "lost", store.StateUnknown, "I12")
}
