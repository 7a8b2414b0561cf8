package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 9: the connection is lost during COMMIT. No error of it is believed; the store is asked.

// commitFault is a store behind a proxy of its own, and one payment.
type commitFault struct {
	*site
	proxy *servers.Proxy
	store *postgres.Store
	payer
}

func newCommitFault(t *testing.T, s *site, h handle, value string) *commitFault {
	t.Helper()
	proxy := servers.NewProxy(t, s.url)
	return &commitFault{
		site: s, proxy: proxy, store: s.store(t, h, proxy.URL()), payer: payer{handle: h, value: value},
	}
}

// transact pays. Every try has a nonce of its own, as retries have.
func (f *commitFault) transact(t *testing.T) (store.Verdict, error) {
	return f.store.Transact(t.Context(), booking(f.value), f.work)
}

// ended is what a call that ran beside the test came to.
type ended struct {
	verdict store.Verdict
	err     error
}

// start pays beside the test.
func (f *commitFault) start(t *testing.T) <-chan ended {
	done := make(chan ended, 1)
	go func() {
		v, err := f.transact(t)
		done <- ended{v, err}
	}()
	return done
}

func TestReplyToCommitLost(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newCommitFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			f.proxy.CutReply(isCommit)
			v, err := f.transact(t)
			wantVerdict(t, v, err, store.DecisionExecute, 1, "the commit had landed")
			if n := f.proxy.Sprung(); n != 1 {
				t.Fatalf("%d answers were cut, want 1", n)
			}
			f.wantRows(t, "paid", 1, "I2")
			retry, err := f.transact(t)
			wantVerdict(t, retry, err, store.DecisionReplay, 1, "I3")
			f.wantRuns(t, 1, "I1")
			// What the owner was told is what is stored, also where the server had given it out.
			if v.Record.Attempt != retry.Record.Attempt || !v.Record.ExpiresAt.Equal(retry.Record.ExpiresAt) {
				t.Errorf("I3: the owner was told attempt %d until %s, a retry %d until %s",
					v.Record.Attempt, v.Record.ExpiresAt, retry.Record.Attempt, retry.Record.ExpiresAt)
			}
		})
	}
}

func TestRequestToCommitLost(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newCommitFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			f.proxy.CutRequest(isCommit)
			_, err := f.transact(t)
			wantNotExecuted(t, err, "the commit never arrived")
			if n := f.proxy.Sprung(); n != 1 {
				t.Fatalf("%d requests were cut, want 1", n)
			}
			f.wantRows(t, "paid", 0, "I4")
			wantStateOf(t, f.store, "paid", store.StateNone, "I4")
			v, err := f.transact(t)
			wantVerdict(t, v, err, store.DecisionExecute, 2, "the retry runs afresh")
			v, err = f.transact(t)
			wantVerdict(t, v, err, store.DecisionReplay, 2, "I3")
			f.wantRows(t, "paid", 1, "I1")
		})
	}
}

// TestCommitAnsweredLate has others ask while the owner does not know yet, and then the owner.
func TestCommitAnsweredLate(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		for _, fate := range []string{"the reply comes", "the connection goes"} {
			t.Run(h.name+"/"+fate, func(t *testing.T) {
				s := newSite(t, servers.Postgres(t))
				f := newCommitFault(t, s, h, "paid")
				release := f.proxy.HoldReply(isCommit)
				defer release()
				done := f.start(t)
				awaitCaught(t, f.proxy, 1)
				elsewhere := payer{handle: h, value: "paid"}
				v, err := s.store(t, h, s.url).Transact(t.Context(), booking("paid"), elsewhere.work)
				wantVerdict(t, v, err, store.DecisionReplay, 1, "it is committed, whether or not the owner knows")
				elsewhere.wantRuns(t, 0, "I1")
				if fate == "the reply comes" {
					release()
				} else {
					f.proxy.DropAll()
				}
				owner := await.Value(t, "the owner's answer", done)
				wantVerdict(t, owner.verdict, owner.err, store.DecisionExecute, 1, "the owner's own answer")
				f.wantRows(t, "paid", 1, "I1")
			})
		}
	}
}

// TestCommittedAnswerIsRewritten has an answer rewritten, as under another key, before its owner learns what became of
// the commit: it was executed, and is not said not to have been.
func TestCommittedAnswerIsRewritten(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	other := s.store(t, pgxHandle, s.url)
	f := newCommitFault(t, s, pgxHandle, "paid")
	t.Cleanup(f.proxy.HoldReply(isCommit))
	done := f.start(t)
	awaitCaught(t, f.proxy, 1)
	rec, err := other.Get(t.Context(), accountID("paid"))
	must(t, err)
	to := rec.Content()
	to.Response.Body = []byte("run 1 under another key")
	must(t, other.Rewrite(t.Context(), store.Claim{ID: rec.ID, Attempt: rec.Attempt}, rec.Content(), to))
	f.proxy.DropAll()
	owner := await.Value(t, "the owner's answer", done)
	if v := owner.verdict; owner.err != nil || v.Decision != store.DecisionReplay ||
		!v.Record.Response.Equal(&to.Response) {
		t.Errorf("E7: got %s with %q, %v; want the replay of what is stored", v.Decision, v.Record.Response.Body, owner.err)
	}
	f.wantRows(t, "paid", 1, "I2")
	f.wantRuns(t, 1, "I1")
}

// TestCommitNobodyAnswers waits until the store gives up by itself, so all of its cases wait together: the owner's
// connection goes silent, which leaves another way to ask; or no server can be asked at all.
func TestCommitNobodyAnswers(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it waits until the store gives up")
	s := newSite(t, servers.Postgres(t))
	var checks []func()
	for _, h := range someHandles {
		checks = append(checks, silent(t, s, h), unreachable(t, s, h, true), unreachable(t, s, h, false))
		checks = append(checks, unreachableStep(t, s, h, true), unreachableStep(t, s, h, false))
	}
	for _, check := range checks {
		check()
	}
}

// silent is a commit that landed, on a connection on which nothing comes any more.
func silent(t *testing.T, s *site, h handle) (check func()) {
	f := newCommitFault(t, s, h, "silent, "+h.name)
	t.Cleanup(f.proxy.HoldReply(isCommit))
	done := f.start(t)
	awaitCaught(t, f.proxy, 1)
	return func() {
		owner := await.Value(t, "the owner's answer", done)
		wantVerdict(t, owner.verdict, owner.err, store.DecisionExecute, 1, f.value)
		f.wantRows(t, f.value, 1, "I2")
	}
}

// unreachable is a commit that landed or did not, after which the server cannot be reached.
func unreachable(t *testing.T, s *site, h handle, landed bool) (check func()) {
	f := newCommitFault(t, s, h, "unreachable, did not land, "+h.name)
	vanish := func() {
		f.proxy.Refuse(true)
		f.proxy.DropAll()
	}
	retried, runs := store.DecisionExecute, 2
	var done <-chan ended
	if landed {
		f.value = "unreachable, landed, " + h.name
		retried, runs = store.DecisionReplay, 1
		t.Cleanup(f.proxy.HoldReply(isCommit))
		done = f.start(t)
		awaitCaught(t, f.proxy, 1)
		vanish()
	} else {
		f.before = func(run int64) {
			if run == 1 {
				vanish()
			}
		}
		done = f.start(t)
	}
	return func() {
		owner := await.Value(t, "the owner's answer", done)
		if !errors.Is(owner.err, store.ErrOutcomeUnknown) {
			t.Errorf("%s: got %v, want ErrOutcomeUnknown", f.value, owner.err)
		}
		f.proxy.Refuse(false)
		v, err := f.transact(t)
		wantVerdict(t, v, err, retried, runs, f.value+": the one true answer")
		f.wantRows(t, f.value, 1, "I1")
	}
}

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

// transfer is a handler that changes two rows, in the order that its key says, and answers with the number of its run.
// In its first run it waits between the two until all have changed the first.
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
	for _, h := range someHandles {
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
				first := await.Value(t, "an answer", done)
				first.want(t, http.StatusCreated, false, "scenario 14")
				again := post(route, key)
				again.want(t, http.StatusCreated, true, "I3")
				if again.body != first.body {
					t.Errorf("I3: %s was told %q, and then %q", key, first.body, again.body)
				}
			}
			if n := x.runs.Load(); n < 3 {
				t.Errorf("there were %d runs: none was undone", n)
			}
			var a, b int
			must(t, s.admin.QueryRow(t.Context(), `SELECT min(amount), max(amount) FROM balance`).Scan(&a, &b))
			if a != 2 || b != 2 {
				t.Errorf("I1: the rows were changed %d and %d times, want 2 each", a, b)
			}
		})
	}
}

// failAtCommit makes commits of the business table fail by a deferred trigger, as serialisation failures do, with the
// code, so many times, instead of what was there before. The count is a sequence, which no rollback takes back.
func (s *site) failAtCommit(t testing.TB, code string, times int) {
	t.Helper()
	exec(t, s.admin, `DROP TRIGGER IF EXISTS fail ON business`)
	exec(t, s.admin, `DROP SEQUENCE IF EXISTS tries`)
	exec(t, s.admin, `CREATE SEQUENCE tries`)
	exec(t, s.admin, fmt.Sprintf(`CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
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
	s := newSite(t, servers.Postgres(t))
	for _, h := range someHandles {
		for _, code := range []string{"40001", "40P01"} {
			t.Run(h.name+"/"+code, func(t *testing.T) {
				s.failAtCommit(t, code, 1)
				st := s.store(t, h, s.url)
				p := &payer{handle: h, value: t.Name()}
				v, err := st.Transact(t.Context(), booking(t.Name()), p.work)
				wantVerdict(t, v, err, store.DecisionExecute, 2, "the transaction is run again")
				s.wantRows(t, t.Name(), 1, "I1")
				v, err = st.Transact(t.Context(), booking(t.Name()), p.work)
				wantVerdict(t, v, err, store.DecisionReplay, 2, "I3")
			})
		}
	}
}

// TestSerializationFailureForEver ends some day: nothing was executed, and a retry may.
func TestSerializationFailureForEver(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
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

// TestRefusedAtCommit has a deferred constraint or trigger of the application refuse: the work is undone, and not
// repeated at once, because the server would likely refuse it again. Some of the codes are those of the store's own
// statements, too.
func TestRefusedAtCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	for name, code := range map[string]string{
		"check": "23514", "unique": "23505", "not null": "23502", "division by zero": "22012", "raised": "P0001",
		"two rows": "21000", "a check of a view": "44000",
	} {
		t.Run(name, func(t *testing.T) {
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
	s := newSite(t, servers.Postgres(t))
	for name, code := range map[string]string{"a missing table": "42P01", "a full disk": "53100", "a lock": "55P03"} {
		t.Run(name, func(t *testing.T) {
			s.failAtCommit(t, code, always)
			store := s.store(t, pgxHandle, s.url)
			_, err := store.Transact(t.Context(), booking("paid"), (&payer{handle: pgxHandle, value: "paid"}).work)
			wantNotExecuted(t, err, "the commit failed")
			s.wantRows(t, "paid", 0, "I4")
		})
	}
}
