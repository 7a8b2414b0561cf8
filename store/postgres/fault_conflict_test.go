package postgres_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 14: the server undoes a transaction because of its neighbours, and the store runs the work again.

// change adds one to a row in the way that goes with the handle.
func (h handle) change(ctx context.Context, row string) (err error) {
	const add = `UPDATE balance SET amount = amount + 1 WHERE account = $1`
	if h.name == sqlHandle.name {
		_, err = onceward.Tx(ctx).ExecContext(ctx, add, row)
	} else {
		_, err = postgres.Tx(ctx).Exec(ctx, add, row)
	}
	return err
}

// transfer is a handler that changes two rows, in the order that its key says, and answers with the number of its run. In
// its first run it waits between the two until everybody has changed the first.
type transfer struct {
	testing.TB
	handle handle
	both   *meeting
	runs   atomic.Int64
}

func (x *transfer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	run := x.runs.Add(1)
	key := onceward.FromContext(r.Context()).Key()
	from, to := key[:1], key[1:]
	err := x.handle.change(r.Context(), from)
	if run <= 2 {
		x.both.meet(x)
	}
	if err == nil {
		err = x.handle.change(r.Context(), to)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "run ", run)
}

func TestDeadlockIsRunAgain(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			exec(t, s.admin, `CREATE TABLE balance (account TEXT PRIMARY KEY, amount INT NOT NULL)`)
			exec(t, s.admin, `INSERT INTO balance VALUES ('a', 0), ('b', 0)`)
			// A server looks for deadlocks after a second; these sessions do not wait so long.
			store := s.store(t, h, s.url+"&deadlock_timeout=50ms")
			x := &transfer{TB: t, handle: h, both: newMeeting(2)}
			route := guardOver(t, store).Handler(x, onceward.Transactional())
			replies := make(map[string]chan httpReply)
			for _, key := range []string{"ab", "ba"} {
				done := make(chan httpReply, 1)
				replies[key] = done
				go func() { done <- post(route, key) }()
			}
			for key, done := range replies {
				first := await(t, "an answer", done)
				first.want(t, http.StatusCreated, false, "scenario 14")
				again := post(route, key)
				again.want(t, http.StatusCreated, true, "I3")
				if again.body != first.body {
					t.Errorf("I3: %s was told %q, and then %q", key, first.body, again.body)
				}
			}
			if n := x.runs.Load(); n < 3 {
				t.Errorf("there were %d runs: nobody was undone", n)
			}
			var a, b int
			must(t, s.admin.QueryRow(t.Context(), `SELECT min(amount), max(amount) FROM balance`).Scan(&a, &b))
			if a != 2 || b != 2 {
				t.Errorf("I1: the rows were changed %d and %d times, want 2 each", a, b)
			}
		})
	}
}

// failAtCommit makes commits of the business table fail by a deferred trigger, as serialisation failures do, with the code,
// so many times. The count is a sequence, which no rollback takes back.
func (s *site) failAtCommit(t testing.TB, code string, times int) {
	t.Helper()
	exec(t, s.admin, `CREATE SEQUENCE tries`)
	exec(t, s.admin, fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('tries') <= %d THEN
				RAISE EXCEPTION 'not now' USING ERRCODE = '%s';
			END IF;
			RETURN NULL;
		END $$`, times, code))
	exec(t, s.admin, `CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON business
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()`)
}

const always = 1_000_000

func TestSerializationFailureAtCommit(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		for _, code := range []string{"40001", "40P01"} {
			t.Run(h.name+"/"+code, func(t *testing.T) {
				s := newSite(t, servers.Postgres(t))
				s.failAtCommit(t, code, 1)
				st := s.store(t, h, s.url)
				p := &payer{handle: h, value: "paid"}
				v, err := st.Transact(t.Context(), booking("paid"), p.work)
				wantVerdict(t, v, err, store.DecisionExecute, 2, "the transaction is run again")
				s.wantRows(t, "paid", 1, "I1")
				v, err = st.Transact(t.Context(), booking("paid"), p.work)
				wantVerdict(t, v, err, store.DecisionReplay, 2, "I3")
			})
		}
	}
}

// TestSerializationFailureForEver ends some day: nothing was executed, and a retry may.
func TestSerializationFailureForEver(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			s.failAtCommit(t, "40001", always)
			st := s.store(t, h, s.url)
			p := &payer{handle: h, value: "paid"}
			_, err := st.Transact(t.Context(), booking("paid"), p.work)
			wantNotExecuted(t, err, "scenario 14")
			s.wantRows(t, "paid", 0, "I4")
			wantStateOf(t, st, "paid", store.StateNone, "I4")
			tried := p.runs.Load()
			if tried < 2 || tried > 20 {
				t.Errorf("the work was run %d times, want a few", tried)
			}
			exec(t, s.admin, `DROP TRIGGER fail ON business`)
			v, err := st.Transact(t.Context(), booking("paid"), p.work)
			wantVerdict(t, v, err, store.DecisionExecute, int(tried)+1, "the retry runs afresh")
			s.wantRows(t, "paid", 1, "I1")
		})
	}
}

// TestRefusedAtCommit has a deferred constraint or trigger of the application refuse: the work is undone, and not repeated at
// once, because the server would likely refuse it again. Some of the codes are those of the store's own statements, too.
func TestRefusedAtCommit(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"check": "23514", "unique": "23505", "not null": "23502", "division by zero": "22012", "raised": "P0001",
		"two rows": "21000", "a check of a view": "44000",
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			s.failAtCommit(t, code, always)
			st := s.store(t, pgxHandle, s.url)
			p := &payer{handle: pgxHandle, value: "paid"}
			_, err := st.Transact(t.Context(), booking("paid"), p.work)
			wantWorkRefused(t, err, "the commit was refused")
			s.wantRows(t, "paid", 0, "I4")
			wantStateOf(t, st, "paid", store.StateNone, "I4")
			p.wantRuns(t, 1, "it would be refused again")
			err = st.InTx(t.Context(), func(ctx context.Context) error { return insertPgx(ctx, "consumed") })
			wantWorkRefused(t, err, "a consumer is to count it")
			s.wantRows(t, "consumed", 0, "I10")
		})
	}
}

// TestNotRefusedAtCommit has deferred triggers fail for reasons that are not in what was written: it may help to wait.
func TestNotRefusedAtCommit(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"a missing table": "42P01", "a full disk": "53100", "a lock": "55P03"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			s.failAtCommit(t, code, always)
			store := s.store(t, pgxHandle, s.url)
			_, err := store.Transact(t.Context(), booking("paid"), (&payer{handle: pgxHandle, value: "paid"}).work)
			wantNotExecuted(t, err, "the commit failed")
			s.wantRows(t, "paid", 0, "I4")
		})
	}
}
