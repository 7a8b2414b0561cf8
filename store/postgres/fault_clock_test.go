package postgres_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 4: node clocks an hour apart. Only the store's clock counts, so it is the one that is moved.

// movableClock makes the store's clock run beside that of the machine, and returns how to move it. The table has a key, so
// that a function which forbids sequential scans does not make the server compile a plan each time.
func (s *site) movableClock(t testing.TB, ahead time.Duration) (move func(time.Duration)) {
	t.Helper()
	exec(t, s.admin, `CREATE TABLE clock_offset (id int PRIMARY KEY, micros bigint NOT NULL)`)
	exec(t, s.admin, `INSERT INTO clock_offset VALUES (1, $1)`, ahead.Microseconds())
	var schema string
	must(t, s.admin.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
	exec(t, s.admin, fmt.Sprintf(`CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE AS
		'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + micros FROM %s.clock_offset WHERE id = 1'`, schema))
	return func(d time.Duration) {
		exec(t, s.admin, `UPDATE clock_offset SET micros = micros + $1`, d.Microseconds())
	}
}

// storeClock is what the store's clock shows.
func (s *site) storeClock(t testing.TB) time.Time {
	t.Helper()
	var micros int64
	must(t, s.admin.QueryRow(t.Context(), `SELECT onceward_now()`).Scan(&micros))
	return time.UnixMicro(micros)
}

// wantAbout checks a time that the store gave out.
func wantAbout(t testing.TB, got, want time.Time, rule string) {
	t.Helper()
	if off := got.Sub(want).Abs(); off > 30*time.Second {
		t.Errorf("%s: it is %s, which is %s off", rule, got, off)
	}
}

var clockOffsets = map[string]time.Duration{"an hour ahead": time.Hour, "an hour behind": -time.Hour}

func TestNodeClocksApart(t *testing.T) {
	t.Parallel()
	for name, ahead := range clockOffsets {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			store := s.store(t, pgxHandle, s.url)
			move := s.movableClock(t, ahead)
			liveOwnerIsNotSwept(t, s, store)
			lostOwnerIsSwept(t, s, store, move)
			answersExpire(t, s, store, move)
		})
	}
}

// liveOwnerIsNotSwept lets a handler live for several leases under a sweeper that does not rest.
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
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(600*time.Millisecond))
	done := make(chan httpReply, 1)
	go func() { done <- post(route, "live") }()
	await(t, "the handler", running)
	stop := make(chan struct{})
	swept := make(chan int, 1)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				swept <- n
				return
			default:
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
	if n := await(t, "the sweeper", swept); n != 0 {
		t.Errorf("scenario 4: a live owner was swept %d times", n)
	}
	post(route, "live").wantProblem(t, http.StatusConflict, "in-progress", "scenario 4")
	close(goOn)
	await(t, "the answer", done).want(t, http.StatusCreated, false, "scenario 4")
}

// lostOwnerIsSwept lets a lease run out by the store's clock, and not before.
func lostOwnerIsSwept(t *testing.T, s *site, st *postgres.Store, move func(time.Duration)) {
	t.Helper()
	v, err := st.Reserve(t.Context(), booking("lost")) // for a minute
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("reserve: got (%s, %v)", v.Decision, err)
	}
	wantAbout(t, v.Record.LeaseUntil, s.storeClock(t).Add(time.Minute), "S3: the end of a lease")
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
	v, err := st.Transact(t.Context(), booking("paid"), p.work) // kept for an hour
	wantVerdict(t, v, err, store.DecisionExecute, 1, "S3")
	wantAbout(t, v.Record.ExpiresAt, s.storeClock(t).Add(time.Hour), "S2: the expiry of an answer")
	wantAbout(t, v.Record.CreatedAt, s.storeClock(t), "S3: the creation of a record")
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
	wantStateOf(t, st, "live", store.StateCompleted, "S3: this one is kept for a day")
	wantStateOf(t, st, "lost", store.StateUnknown, "I12")
}
