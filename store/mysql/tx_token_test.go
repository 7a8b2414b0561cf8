package mysql_test

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/store"
)

// TestTokenOfATransaction: a transaction that makes a record again has a larger token than what was removed (I6), where
// the clock was set back, and also if the record was made and removed while the work was under way.
func TestTokenOfATransaction(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, other, admin := openStore(t, url), openStore(t, url), openAdmin(t, url)
	exec(t, admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	last := int64(0)
	larger := func(attempt int64, rule string) {
		t.Helper()
		if attempt <= last {
			t.Errorf("I6: %s: attempt %d after %d", rule, attempt, last)
		}
		last = attempt
	}
	removed := func() {
		t.Helper()
		claim := own(t, other, reservation("key"))
		larger(claim.Attempt, "a reservation")
		_, err := other.Complete(t.Context(), claim, answer("done"))
		must(t, err)
		must(t, other.Bust(t.Context(), idOf("key"), false))
	}
	other.SetTime(firstMoment + time.Hour.Microseconds())
	s.SetTime(firstMoment)
	removed()
	runs := 0
	v := transacted(t, s, "key", func(ctx context.Context, v store.Verdict) store.Settlement {
		if _, err := txOf(ctx).ExecContext(ctx, `SET sql_mode = ''`); err != nil {
			t.Error(err)
		}
		if runs++; runs == 2 {
			other.SetTime(firstMoment + 2*time.Hour.Microseconds())
			removed()
		}
		return inserting(t, "key")(ctx, v)
	}, store.DecisionExecute, "I6")
	larger(v.Record.Attempt, "a transaction")
	if rows := number(t, admin, `SELECT COUNT(*) FROM business`); rows != 1 || runs != 3 {
		t.Errorf("the work was run %d times, and took effect %d times; want 3 and 1", runs, rows)
	}
	rec := wantState(t, other, "key", store.StateCompleted, "I6")
	if rec.Attempt != v.Record.Attempt {
		t.Errorf("the record is at attempt %d, and the caller was told %d", rec.Attempt, v.Record.Attempt)
	}
}

// TestNoFloor: where the number of removed tokens is missing nothing is executed.
func TestNoFloor(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the store asks for twenty seconds")
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	exec(t, admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	exec(t, admin, `DELETE FROM onceward_meta`)
	if v, err := s.Transact(t.Context(), reservation("key"), inserting(t, "key")); err == nil {
		t.Errorf("a transaction got %s", v.Decision)
	}
	if rows := number(t, admin, `SELECT COUNT(*) FROM business`); rows != 0 {
		t.Errorf("the work took effect %d times", rows)
	}
}
