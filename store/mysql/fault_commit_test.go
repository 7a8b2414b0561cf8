package mysql_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// commits matches what ends with a COMMIT: the last round trip of a transaction.
func commits(sql string) bool {
	return strings.Contains(sql, "RELEASE SAVEPOINT") && strings.Contains(sql, "COMMIT")
}

// newLossyBusiness is newLossy with the table of the application.
func newLossyBusiness(t testing.TB) *lossy {
	t.Helper()
	return newLossyBusinessOn(t, mariadb(t))
}

func newLossyBusinessOn(t testing.TB, url string) *lossy {
	t.Helper()
	l := newLossyOn(t, url)
	exec(t, openAdmin(t, l.proxy.URL()), `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	return l
}

// TestLostCommit: the reply to a COMMIT is lost, or the COMMIT itself. The store asks, and does not guess (scenario 9).
func TestLostCommit(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	admin := openAdmin(t, l.proxy.URL())
	for key, lose := range map[string]func(func(string) bool){"request": l.proxy.CutRequest, "reply": l.proxy.CutReply} {
		sprung, runs := l.proxy.Sprung(), 0
		lose(commits)
		v, err := l.Transact(t.Context(), reservation(key), func(ctx context.Context, v store.Verdict) store.Settlement {
			runs++
			return inserting(t, key)(ctx, v)
		})
		if l.proxy.Sprung() != sprung+1 || errors.Is(err, store.ErrOutcomeUnknown) || runs != 1 {
			t.Errorf("scenario 9: a lost %s: (%s, %v) after %d runs, want the store to find out", key, v.Decision, err, runs)
		}
		if err == nil && string(v.Record.Response.Body) != key {
			t.Errorf("scenario 9: a lost %s: the answer is %q", key, v.Record.Response.Body)
		}
		wantWhole(t, l.past, admin, key, err, "scenario 9: a lost "+key)
	}
}

// TestQuestionWaitsForTheCommit: the connection is lost while the server is at COMMIT, and so is the request to end it.
// The store asks what became of the transaction when that is over, and not before: a record that is not there yet says
// nothing (S6).
func TestQuestionWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	url := servers.NewMariaDB(t).DatabaseURL(t) // all commits of the server wait
	l, admin := newLossyBusinessOn(t, url), openAdmin(t, url)
	backup, err := admin.Conn(t.Context())
	must(t, err)
	defer backup.Close()
	stage := func(name string) {
		t.Helper()
		_, err := backup.ExecContext(t.Context(), `BACKUP STAGE `+name)
		must(t, err)
	}
	l.proxy.CutRequest(func(sql string) bool { return strings.HasPrefix(sql, "KILL") })
	done := make(chan error, 1)
	go func() {
		_, err := l.Transact(t.Context(), reservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
			settlement := inserting(t, "key")(ctx, v)
			stage("START")
			stage("BLOCK_COMMIT")
			return settlement
		})
		done <- err
	}()
	processes := func(condition string) int {
		return number(t, admin, `SELECT COUNT(*) FROM information_schema.processlist WHERE `+condition)
	}
	await.That(t, "the server is at COMMIT", func() bool { return processes(`info = 'COMMIT'`) > 0 })
	l.proxy.DropAll()
	var got error
	answered := false
	await.That(t, "the store asks, or has answered", func() bool {
		select {
		case got = <-done:
			answered = true
		default:
		}
		return answered || processes(`info LIKE 'INSERT INTO%onceward_lock%' AND command = 'Query'`) > 0
	})
	stage("END")
	if !answered {
		got = await.Value(t, "the owner's answer", done)
	}
	await.That(t, "the COMMIT takes effect", func() bool {
		return number(t, admin, `SELECT COUNT(*) FROM business WHERE value = 'key'`) == 1
	})
	if got != nil {
		t.Errorf("S6: the work is committed, and its owner got %v", got)
	}
}

// TestLostCommitOverARetryable does the same where the record is there before.
func TestLostCommitOverARetryable(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	admin := openAdmin(t, l.proxy.URL())
	for key, lose := range map[string]func(func(string) bool){"request": l.proxy.CutRequest, "reply": l.proxy.CutReply} {
		must(t, l.past.Release(t.Context(), own(t, l.past, reservation(key)), "no stock"))
		lose(commits)
		_, err := l.Transact(t.Context(), reservation(key), inserting(t, key))
		want := store.StateCompleted
		if err != nil {
			want = store.StateRetryable
		}
		wantState(t, l.past, key, want, "scenario 9: a lost "+key)
		if rows := number(t, admin, `SELECT COUNT(*) FROM business WHERE value = ?`, key); (rows == 1) != (err == nil) {
			t.Errorf("scenario 9: a lost %s: %d rows, and %v", key, rows, err)
		}
	}
}

// TestLostCommitOfAStep: the recovery point tells whether the step was committed.
func TestLostCommitOfAStep(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	admin := openAdmin(t, l.proxy.URL())
	for key, lose := range map[string]func(func(string) bool){"request": l.proxy.CutRequest, "reply": l.proxy.CutReply} {
		claim := own(t, l, reservation(key))
		lose(commits)
		err := l.CheckpointTx(t.Context(), claim, claimLease, func(ctx context.Context) (store.Checkpoint, error) {
			return store.Checkpoint{Point: "charged"}, insert(ctx, key)
		})
		rec := wantState(t, l.past, key, store.StateInProgress, "scenario 9")
		rows := number(t, admin, `SELECT COUNT(*) FROM business WHERE value = ?`, key)
		if errors.Is(err, store.ErrOutcomeUnknown) || (err == nil) != (rows == 1) ||
			(err == nil) != (rec.Point == "charged") {
			t.Errorf("scenario 9: a lost %s: %v, with %d rows and point %q", key, err, rows, rec.Point)
		}
	}
}

// TestLostBegin: what is lost before the work begins is begun again, on another connection. If the server has not
// noticed by then that the first one is gone, that is told, and nothing was executed.
func TestLostBegin(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	admin := openAdmin(t, l.proxy.URL())
	for key, lose := range map[string]func(func(string) bool){"request": l.proxy.CutRequest, "reply": l.proxy.CutReply} {
		lose(func(sql string) bool {
			return strings.Contains(sql, "SAVEPOINT") && strings.Contains(sql, "FOR UPDATE")
		})
		v, err := l.Transact(t.Context(), reservation(key), inserting(t, key))
		if err != nil || v.Decision != store.DecisionExecute && v.Decision != store.DecisionInProgress {
			t.Errorf("a lost %s: %s, %v", key, v.Decision, err)
		}
		if v.Decision == store.DecisionInProgress {
			err = errors.New("in progress")
		}
		wantWhole(t, l.past, admin, key, err, "E1: a lost "+key)
	}
}

// TestLostStatement: the connection dies in the work. Nothing was executed.
func TestLostStatement(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	admin := openAdmin(t, l.proxy.URL())
	l.proxy.CutReply(func(sql string) bool { return strings.HasPrefix(sql, "INSERT INTO business") })
	_, err := l.Transact(t.Context(), reservation("key"), inserting(t, "key"))
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I4: %v, want ErrUnavailable", err)
	}
	wantWhole(t, l.past, admin, "key", err, "I4")
}

// TestLostCall: the connection dies in a statement that may have committed. It is not known what became of it.
func TestLostCall(t *testing.T) {
	t.Parallel()
	l := newLossyBusiness(t)
	exec(t, openAdmin(t, l.proxy.URL()), `CREATE PROCEDURE ending() BEGIN COMMIT; END`)
	for name, lost := range map[string]bool{"answered": false, "lost": true} {
		if lost {
			l.proxy.CutReply(func(sql string) bool { return strings.HasPrefix(sql, "CALL") })
		}
		_, err := l.Transact(t.Context(), reservation(name), func(ctx context.Context, v store.Verdict) store.Settlement {
			must(t, insert(ctx, name))
			_, _ = txOf(ctx).ExecContext(ctx, `CALL ending()`)
			return settled(store.TxCommit, name)
		})
		if !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("E1: a procedure that commits, %s: %v, want ErrOutcomeUnknown", name, err)
		}
		wantState(t, l.past, name, store.StateUnknown, "E1: a procedure that commits, "+name)
		transacted(t, l.past, name, refusing(t, "E1"), store.DecisionUnknown, "E1")
	}
}
