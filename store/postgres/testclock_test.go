package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// The tests of what users have for tests of their own handlers.

// ending is a test of a user's: it ends when the test here says so, and fails for itself.
type ending struct {
	cleanups []func()
	fatal    string
}

func (e *ending) Helper()          {}
func (e *ending) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }
func (e *ending) Fatalf(format string, args ...any) {
	e.fatal = fmt.Sprintf(format, args...)
	panic(e)
}

// run runs a part of the user's test, up to where it fails.
func (e *ending) run(f func()) {
	defer func() {
		if r := recover(); r != nil && r != any(e) {
			panic(r)
		}
	}()
	f()
}

// end is its end.
func (e *ending) end() {
	for i := range e.cleanups {
		e.run(e.cleanups[len(e.cleanups)-1-i])
	}
}

// TestClockMovesEverything: leases, answers, reconciliations and messages follow the clock that a test has moved, also
// on connections that have looked at the time before, and inside of a transaction that has begun.
func TestClockMovesEverything(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	clock := postgres.NewTestClock(t, u.store)
	exercise(t, u.store, "before") // all statements have been prepared by now

	own(t, u.store, reservation("lost"))
	unknown := own(t, u.store, reservation("unknown"))
	must(t, u.store.Abandon(t.Context(), unknown, ""))
	must(t, u.store.BeginReconcile(t.Context(), unknown, 0, 20*time.Minute))
	due := func() bool {
		found, err := u.store.List(t.Context(), store.Filter{State: store.StateUnknown, Due: true})
		must(t, err)
		return slices.ContainsFunc(found, func(rec store.Record) bool { return rec.Key == "unknown" })
	}
	if due() {
		t.Error("S3: an unknown outcome is due for reconciliation at once")
	}
	later := messageOf("later")
	later.Delay = 20 * time.Minute
	must(t, pgx.BeginFunc(t.Context(), u.admin, func(tx pgx.Tx) error {
		_, err := postgres.AddMessage(t.Context(), u.box, tx, later)
		return err
	}))
	transacted(t, u.store, "paid", func(context.Context) error {
		clock.Advance(30 * time.Minute)
		return nil
	})
	if n, err := u.store.Sweep(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("S3: swept %d (%v), want the lease of a minute", n, err)
	}
	if !due() {
		t.Error("S3: an unknown outcome is not due for reconciliation after 20 minutes")
	}
	if got := typesInOrder(t, u.store); got != "later" {
		t.Errorf("O2: the messages are %q, want the one that is due", got)
	}
	clock.Advance(59 * time.Minute)
	wantReplay(t, u.store, "paid", "paid", "S2: the hour of its retention began when it was committed")
	clock.Advance(2 * time.Minute)
	transacted(t, u.store, "paid", nothing)
}

// TestClockIsGivenBack: behind the test the function is what it was, and its table is gone.
func TestClockIsGivenBack(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	const definition = `SELECT pg_get_functiondef('"odd_now"()'::regprocedure)`
	s := openStore(t, url, postgres.WithTablePrefix("odd_"))
	var before, moved, after string
	must(t, admin.QueryRow(t.Context(), definition).Scan(&before))
	users := &ending{}
	clock := postgres.NewTestClock(users, s)
	clock.Advance(time.Hour)
	must(t, admin.QueryRow(t.Context(), definition).Scan(&moved))
	other := &ending{}
	other.run(func() { postgres.NewTestClock(other, s) })
	if !strings.Contains(other.fatal, "another clock") || len(other.cleanups) != 0 {
		t.Errorf("a second clock was refused with %q, and %d clean-ups", other.fatal, len(other.cleanups))
	}
	must(t, s.Close()) // as a test does that defers it
	users.end()
	must(t, admin.QueryRow(t.Context(), definition).Scan(&after))
	if after != before || moved == before || users.fatal != "" {
		t.Errorf("the function was %s\nthen %s\nand is %s\n%s", before, moved, after, users.fatal)
	}
	if n := number(t, admin, `SELECT count(*) FROM pg_class WHERE relname = 'odd_test_clock'
		AND relnamespace = current_schema()::regnamespace`); n != 0 {
		t.Error("the table of the clock is still there")
	}
	users.run(func() { clock.Advance(time.Hour) })
	if users.fatal == "" {
		t.Error("a clock of a test that has ended was moved")
	}
}

// TestClockOfTablesInUse: a clock that others live by is not moved.
func TestClockOfTablesInUse(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers.Postgres(t).SchemaURL(t))
	own(t, s, reservation("key"))
	users := &ending{}
	users.run(func() { postgres.NewTestClock(users, s) })
	if !strings.Contains(users.fatal, "schema of the test's own") {
		t.Errorf("the clock of a table with a record: %q", users.fatal)
	}
}

// TestClockOfMessagesInUse: nor is one by which messages become due.
func TestClockOfMessagesInUse(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	u.add("topic", "1", "message")
	users := &ending{}
	users.run(func() { postgres.NewTestClock(users, u.store) })
	if !strings.Contains(users.fatal, "schema of the test's own") {
		t.Errorf("the clock of a table with a message: %q", users.fatal)
	}
}

// TestClockOutlivesItsConnection: a test that ends connections moves its clock all the same, and gives it back. A store
// that is opened meanwhile, as behind a test that has died, warns of it.
func TestClockOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t) + "&application_name=" + rand.Text()
	admin := openAdmin(t, url)
	users := &ending{}
	s := openStore(t, url)
	clock := postgres.NewTestClock(users, s)
	kill := func() {
		exec(t, admin, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
			WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()`)
	}
	warnings := func() int {
		book, logging := newLogbook()
		again, err := postgres.Open(t.Context(), url, logging)
		must(t, err)
		must(t, again.Close())
		return len(book.find("a test moves the clock"))
	}
	kill()
	users.run(func() { clock.Advance(time.Hour) })
	users.run(func() { clock.Advance(time.Hour) })
	if ahead := number(t, admin,
		`SELECT (onceward_now() / 1000000 - extract(epoch FROM clock_timestamp()))::int / 60`); ahead < 119 || ahead > 120 {
		t.Errorf("the clock is %d minutes ahead, want two hours", ahead)
	}
	if n := warnings(); n != 1 {
		t.Errorf("there are %d warnings of a clock that was moved", n)
	}
	kill()
	users.end()
	if n := warnings(); n != 0 || users.fatal != "" {
		t.Errorf("the clock was not given back: %d warnings, %q", n, users.fatal)
	}
}

// TestClockOfDroppedTables: a test may drop its schema before it ends.
func TestClockOfDroppedTables(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	users := &ending{}
	postgres.NewTestClock(users, openStore(t, url))
	exec(t, admin, `DO $$ BEGIN EXECUTE 'DROP SCHEMA ' || current_schema() || ' CASCADE'; END $$`)
	users.end()
	if users.fatal != "" {
		t.Errorf("the end of the test: %s", users.fatal)
	}
}

// TestContextWithTx: a handler that is called by itself writes in the transaction of its test, with all that writes in
// a transaction, and cannot end it. What the test does with it counts.
func TestContextWithTx(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	exec(t, u.admin, `CREATE TABLE business (id text PRIMARY KEY, value text)`)
	events := inbox.New(u.store)
	handler := func(ctx context.Context) {
		tx := postgres.Tx(ctx)
		if err := tx.Commit(ctx); !errors.Is(err, onceward.ErrTxOwned) {
			t.Errorf("the handler's Commit returned %v", err)
		}
		if err := tx.Rollback(ctx); !errors.Is(err, onceward.ErrTxOwned) {
			t.Errorf("the handler's Rollback returned %v", err)
		}
		must(t, postgres.LockName(ctx, tx, "business 1"))
		_, err := postgres.UpsertRow(ctx, tx,
			natural.Upsert{Table: "business", Key: []natural.Column{{Name: "id", Value: "1"}}})
		must(t, err)
		applied, err := postgres.ApplyEvent(ctx, events, tx, "consumer", "event", func(ctx context.Context) error {
			_, err := postgres.AddMessage(ctx, u.box, tx, messageOf("added"))
			return err
		})
		if err != nil || !applied {
			t.Errorf("O5: applied is %t, %v", applied, err)
		}
		savepoint, err := tx.Begin(ctx)
		must(t, err)
		_, err = savepoint.Exec(ctx, `INSERT INTO business (id) VALUES ('2')`)
		must(t, err)
		must(t, savepoint.Rollback(ctx))
	}
	for _, commit := range []bool{false, true} {
		tx, err := u.admin.Begin(t.Context())
		must(t, err)
		handler(postgres.ContextWithTx(t.Context(), tx))
		want, rows := "", 0
		if commit {
			want, rows = "added", 1
			must(t, tx.Commit(t.Context()))
		} else {
			must(t, tx.Rollback(t.Context()))
		}
		if n := number(t, u.admin, `SELECT count(*) FROM business`); n != rows {
			t.Errorf("committed %t: there are %d rows, want %d", commit, n, rows)
		}
		if got := typesInOrder(t, u.store); got != want {
			t.Errorf("committed %t: the messages are %q, want %q", commit, got, want)
		}
	}
}

// TestContextWithTxHasNoOperation: what needs a guard says so, and what a nil operation is asked for is empty.
func TestContextWithTxHasNoOperation(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	tx, err := u.admin.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	ctx := postgres.ContextWithTx(t.Context(), tx)
	if _, err := u.box.AddToAnswer(ctx, messageOf("answered")); !errors.Is(err, outbox.ErrNoAnswer) {
		t.Errorf("O1: AddToAnswer without a guard returned %v, want ErrNoAnswer", err)
	}
	op := onceward.FromContext(ctx)
	op.Unknown()
	op.SetReason("no guard")
	if op != nil || op.DownstreamKey("charge") != "" || op.Key() != "" {
		t.Errorf("the operation is %v", op)
	}
	if _, ok := onceward.LookupTx(ctx); ok {
		t.Error("there is a *sql.Tx")
	}
	if _, ok := postgres.LookupTx(postgres.ContextWithTx(t.Context(), nil)); ok {
		t.Error("there is a transaction where none was given")
	}
}
