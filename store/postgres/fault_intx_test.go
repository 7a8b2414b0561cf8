package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// A transaction of the application has no record that tells what became of it: the server's own words are all there is.

// inTxFault is one fault of a transaction that adds a row, and what is to come of it.
type inTxFault struct {
	arm    func(t testing.TB, s *site, proxy *servers.Proxy)
	during func(ctx context.Context, proxy *servers.Proxy) error // in the first run, when the row is written
	want   func(t testing.TB, err error, rule string)
	rows   int
	runs   int64
}

// saying runs a statement in the transaction of the work.
func saying(statement string) func(ctx context.Context, _ *servers.Proxy) error {
	return func(ctx context.Context, _ *servers.Proxy) error {
		_, err := postgres.Tx(ctx).Exec(ctx, statement)
		return err
	}
}

// failingAtCommit is failAtCommit for a fault.
func failingAtCommit(code string, times int) func(t testing.TB, s *site, _ *servers.Proxy) {
	return func(t testing.TB, s *site, _ *servers.Proxy) { s.failAtCommit(t, code, times) }
}

func wantNone(t testing.TB, err error, rule string) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", rule, err)
	}
}

// wantOwned checks for an error by which the work itself ended the transaction.
func wantOwned(t testing.TB, err error, rule string) {
	t.Helper()
	wantUnknown(t, err, rule)
	if !errors.Is(err, store.ErrTxOwned) {
		t.Errorf("%s: the error is %v, want one that says whose doing it was", rule, err)
	}
}

// TestFaultsInTx: work is run again only if the server undid it because of its neighbours, and the outcome is unknown
// only if COMMIT was sent, or the work sent its own. The only connection goes on in each case, or makes place for
// another one.
func TestFaultsInTx(t *testing.T) {
	t.Parallel()
	overlooked := func(t testing.TB, err error, rule string) {
		t.Helper()
		if err == nil || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("%s: got %v, want an error that says that nothing was committed", rule, err)
		}
	}
	for name, fault := range map[string]inTxFault{
		"the reply to COMMIT is lost": {
			arm:  func(_ testing.TB, _ *site, proxy *servers.Proxy) { proxy.CutReply(isCommit) },
			want: wantUnknown, rows: 1, runs: 1,
		},
		"COMMIT is lost": {
			arm:  func(_ testing.TB, _ *site, proxy *servers.Proxy) { proxy.CutRequest(isCommit) },
			want: wantUnknown, runs: 1,
		},
		"the connection is lost in the work": {
			during: func(ctx context.Context, proxy *servers.Proxy) error {
				proxy.DropAll()
				return insertPgx(ctx, "paid")
			},
			want: wantNotExecuted, runs: 1,
		},
		"undone in the work":     {during: saying(raising("40P01")), want: wantNone, rows: 1, runs: 2},
		"undone at COMMIT":       {arm: failingAtCommit("40001", 1), want: wantNone, rows: 1, runs: 2},
		"refused at COMMIT":      {arm: failingAtCommit("23514", 1), want: wantWorkRefused, runs: 1},
		"no room at COMMIT":      {arm: failingAtCommit("53100", 1), want: wantNotExecuted, runs: 1},
		"it commits":             {during: saying(`COMMIT`), want: wantOwned, rows: 1, runs: 1},
		"it rolls back":          {during: saying(`ROLLBACK`), want: wantOwned, runs: 1},
		"it commits and goes on": {during: saying(`COMMIT AND CHAIN`), want: wantOwned, rows: 1, runs: 1},
		"it overlooks a failure": {
			during: func(ctx context.Context, proxy *servers.Proxy) error {
				_ = saying(wrongStatement)(ctx, proxy)
				return nil
			},
			want: overlooked, runs: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			among(t, name, "the reply to COMMIT is lost", "COMMIT is lost", "undone in the work", "undone at COMMIT",
				"refused at COMMIT", "it commits")
			t.Parallel()
			fault.run(t)
		})
	}
}

func (f *inTxFault) run(t *testing.T) {
	t.Helper()
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	st := s.store(t, pgxHandle, proxy.URL()+"&pool_max_conns=1")
	if f.arm != nil {
		f.arm(t, s, proxy)
	}
	var runs atomic.Int64
	err := st.InTx(t.Context(), func(ctx context.Context) error {
		run := runs.Add(1)
		if err := insertPgx(ctx, "paid"); err != nil {
			return err
		}
		if run == 1 && f.during != nil {
			return f.during(ctx, proxy)
		}
		return nil
	})
	f.want(t, err, "I5")
	s.wantRows(t, "paid", f.rows, "I4")
	if got := runs.Load(); got != f.runs {
		t.Errorf("I1: the work ran %d times, want %d", got, f.runs)
	}
	must(t, st.InTx(t.Context(), func(ctx context.Context) error { return insertPgx(ctx, "next") }))
	s.wantRows(t, "next", 1, "the next one")
}

// TestCallerLeavesDuringBegin: no work begins for a caller who left while the transaction began.
func TestCallerLeavesDuringBegin(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"InTx", "CheckpointTx"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			f := newStepFault(t, newSite(t, servers.Postgres(t)), pgxHandle, "paid")
			must(t, f.store.InTx(t.Context(), func(context.Context) error { return nil }))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			goOn := f.proxy.HoldReply(matching(`^BEGIN`))
			defer goOn()
			done := make(chan error, 1)
			go func() {
				if way == "InTx" {
					done <- f.store.InTx(ctx, func(context.Context) error { f.runs.Add(1); return nil })
					return
				}
				done <- f.store.CheckpointTx(ctx, f.claim, time.Minute, func(context.Context) (store.Checkpoint, error) {
					f.runs.Add(1)
					return charged, nil
				})
			}()
			awaitCaught(t, f.proxy, 1)
			leave()
			goOn()
			err := await.Value(t, "the end of the transaction", done)
			wantNotExecuted(t, err, "the caller left")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the error is %v, want one that says that the caller left", err)
			}
			f.wantRuns(t, 0, "the caller left")
		})
	}
}

// TestTransactionInsideUndone: work that returns the error of another transaction inside of it, which was undone too
// often, is not run again for that: its own was not undone but by itself, and what it did before the other one may be
// committed.
func TestTransactionInsideUndone(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	st := s.store(t, pgxHandle, s.url)
	runs := 0
	err := st.InTx(t.Context(), func(ctx context.Context) error {
		runs++
		must(t, st.InTx(ctx, func(ctx context.Context) error { return insertPgx(ctx, "paid") }))
		return st.InTx(ctx, func(ctx context.Context) error { return saying(raising("40001"))(ctx, nil) })
	})
	wantNotExecuted(t, err, "I5")
	s.wantRows(t, "paid", 1, "I1")
	if runs != 1 {
		t.Errorf("I1: the work ran %d times, want 1", runs)
	}
}

// TestIdleTransactionOfTheApplication: a transaction of InTx may not be idle for as long as it likes on a pool of the
// service, or a node that stops would keep its locks. A shorter bound of the service's own stays.
func TestIdleTransactionOfTheApplication(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	for parameter, want := range map[string]string{
		"": "10min",
		"&idle_in_transaction_session_timeout=1h": "10min",
		"&idle_in_transaction_session_timeout=3s": "3s",
	} {
		for _, h := range []handle{pgxHandle, sqlHandle} {
			must(t, s.store(t, h, s.url+parameter).InTx(t.Context(), func(ctx context.Context) error {
				var idle string
				must(t, postgres.Tx(ctx).QueryRow(ctx, `SHOW idle_in_transaction_session_timeout`).Scan(&idle))
				if idle != want {
					t.Errorf("%s, with %q: a transaction may be idle for %s, want %s", h.name, parameter, idle, want)
				}
				return nil
			}))
		}
	}
}
