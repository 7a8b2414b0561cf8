package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// transactor is what runs transactions.
type transactor interface {
	Transact(context.Context, *store.Reservation, func(context.Context, store.Verdict) store.Settlement) (
		store.Verdict, error)
}

// settled is how work ends.
func settled(action store.TxAction, body string) store.Settlement {
	return store.Settlement{Action: action, Completion: *answer(body)}
}

// insert adds a row to the business table through the transaction of the context.
func insert(ctx context.Context, value string) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business VALUES (?)`, value)
	return err
}

// inserting is work that adds a row and commits.
func inserting(t testing.TB, value string) func(context.Context, store.Verdict) store.Settlement {
	return func(ctx context.Context, _ store.Verdict) store.Settlement {
		if err := insert(ctx, value); err != nil {
			t.Logf("insert %q: %v", value, err)
			return settled(store.TxRollback, "")
		}
		return settled(store.TxCommit, value)
	}
}

// transacted runs work that must be decided in a way.
func transacted(t testing.TB, s transactor, key string, work func(context.Context, store.Verdict) store.Settlement,
	want store.Decision, rule string,
) store.Verdict {
	t.Helper()
	v, err := s.Transact(t.Context(), reservation(key), work)
	if err != nil || v.Decision != want {
		t.Fatalf("%s: transact of %q got (%s, %v), want %s", rule, key, v.Decision, err, want)
	}
	return v
}

// refusing is work that must not run.
func refusing(t testing.TB, rule string) func(context.Context, store.Verdict) store.Settlement {
	return func(context.Context, store.Verdict) store.Settlement {
		t.Errorf("%s: the work was run", rule)
		return settled(store.TxRollback, "")
	}
}

// wantWhole checks that work and answer are both there, or both not, as the caller was told, and that a retry leaves
// one.
func wantWhole(t testing.TB, s *mysql.Store, admin *sql.DB, key string, err error, rule string) {
	t.Helper()
	rows := number(t, admin, `SELECT COUNT(*) FROM business WHERE value = ?`, key)
	switch rec, _ := s.Get(t.Context(), idOf(key)); {
	case errors.Is(err, store.ErrOutcomeUnknown):
	case err == nil && (rows != 1 || rec.State != store.StateCompleted),
		err != nil && (rows != 0 || rec.State != store.StateNone):
		t.Errorf("%s: the caller was told %v, and there are %d rows and a record that is %s", rule, err, rows, rec.State)
	}
	for v := (store.Verdict{Decision: store.DecisionInProgress}); v.Decision == store.DecisionInProgress; {
		must(t, s.Wait(t.Context(), idOf(key), 0)) // the server may not have noticed yet
		var err error
		if v, err = s.Transact(t.Context(), reservation(key), inserting(t, key)); err != nil {
			t.Errorf("%s: the retry got %v", rule, err)
		}
	}
	if rows := number(t, admin, `SELECT COUNT(*) FROM business WHERE value = ?`, key); rows != 1 {
		t.Errorf("%s: after a retry the operation took effect %d times", rule, rows)
	}
}

// txOf is the transaction of the work.
func txOf(ctx context.Context) *sql.Tx { return onceward.Tx(ctx) }

// claimLease is that of steps.
const claimLease = time.Minute
