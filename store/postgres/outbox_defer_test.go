package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// adder adds messages in the transaction of a handler.
type adder struct {
	testing.TB
	box *outbox.Outbox
}

func (a adder) add(ctx context.Context, tx any, kinds ...string) {
	a.Helper()
	for _, kind := range kinds {
		if _, err := a.box.Add(ctx, tx, outbox.Message{Topic: "topic", AggregateID: "1", Type: kind}); err != nil {
			a.Errorf("O1: %s: %v", kind, err)
		}
	}
}

func (a adder) exec(ctx context.Context, statement string) {
	a.Helper()
	if _, err := onceward.Tx(ctx).ExecContext(ctx, statement); err != nil {
		a.Errorf("%s: %v", statement, err)
	}
}

// TestMessagesOfAHandler: messages of a handler wait for its answer, and still are committed, undone and ordered as if they had
// been added at once.
func TestMessagesOfAHandler(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		work   func(a adder, ctx context.Context)
		undone bool           // as the handler wishes, without a trace
		ending store.TxAction // if it is not committed otherwise
		want   string
	}{
		"pgx":          {work: func(a adder, ctx context.Context) { a.add(ctx, postgres.Tx(ctx), "a", "b") }, want: "a b"},
		"database/sql": {work: func(a adder, ctx context.Context) { a.add(ctx, onceward.Tx(ctx), "a", "b") }, want: "a b"},
		"in another context": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				a.add(context.Background(), postgres.Tx(ctx), "b")
				a.add(ctx, postgres.Tx(ctx), "c")
			}, want: "a b c",
		},
		"undone": {
			work: func(a adder, ctx context.Context) { a.add(ctx, postgres.Tx(ctx), "a") }, undone: true,
		},
		"undone, with an answer": {
			work: func(a adder, ctx context.Context) { a.add(ctx, postgres.Tx(ctx), "a") }, ending: store.TxCommitAnswer,
		},
		"a savepoint of pgx that is undone": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				a.add(ctx, inner, "inner")
				a.add(ctx, postgres.Tx(ctx), "b")
				must(a, inner.Rollback(ctx))
				a.add(ctx, postgres.Tx(ctx), "c")
			}, want: "a c",
		},
		"a savepoint of pgx that is kept": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				a.add(ctx, inner, "inner")
				must(a, inner.Commit(ctx))
				a.add(ctx, postgres.Tx(ctx), "b")
			}, want: "a inner b",
		},
		"a savepoint by hand": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, onceward.Tx(ctx), "a")
				a.exec(ctx, `/* by hand */ Savepoint s`)
				a.add(ctx, onceward.Tx(ctx), "b")
				a.exec(ctx, `ROLLBACK TO s`)
				a.add(ctx, onceward.Tx(ctx), "c")
			}, want: "a c",
		},
		"a savepoint in a batch": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				var batch pgx.Batch
				batch.Queue(`SELECT 1`)
				batch.Queue(`SAVEPOINT s`)
				must(a, postgres.Tx(ctx).SendBatch(ctx, &batch).Close())
				a.add(ctx, postgres.Tx(ctx), "b")
				a.exec(ctx, `ROLLBACK TO s`)
			}, want: "a",
		},
		"behind one in a batch": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				var batch pgx.Batch
				a.add(ctx, &batch, "b")
				must(a, postgres.Tx(ctx).SendBatch(ctx, &batch).Close())
				a.add(ctx, postgres.Tx(ctx), "c")
			}, want: "a b c",
		},
		"while rows are open": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				rows, err := postgres.Tx(ctx).Query(ctx, `SELECT generate_series(1, 10)`)
				must(a, err)
				_ = postgres.Tx(ctx).Conn().TypeMap() // nothing can be sent now
				rows.Close()
				_, err = a.box.Add(ctx, postgres.Tx(ctx), outbox.Message{Topic: "topic", AggregateID: "1", Type: "overtakes"})
				if err == nil {
					a.Error("O2: a message was added in front of one that could not be flushed")
				}
				_, err = a.box.Add(ctx, postgres.Tx(ctx), outbox.Message{Topic: "topic", Type: "waits-for-none"})
				must(a, err)
			}, want: "waits-for-none a",
		},
		"a savepoint that was not to be": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				gone, cancel := context.WithCancel(ctx)
				cancel()
				if _, err := postgres.Tx(ctx).Begin(gone); err == nil {
					a.Error("a savepoint was made although the context had ended")
				}
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				must(a, inner.Commit(ctx))
			}, want: "a",
		},
		"a savepoint by the connection of rows": {
			work: func(a adder, ctx context.Context) {
				rows, err := postgres.Tx(ctx).Query(ctx, `SELECT 1`)
				must(a, err)
				conn := rows.Conn()
				rows.Close()
				_, err = conn.Exec(ctx, `SAVEPOINT s`)
				must(a, err)
				a.add(ctx, postgres.Tx(ctx), "b")
				_, err = conn.Exec(ctx, `ROLLBACK TO s`)
				must(a, err)
			}, want: "",
		},
		"more than is deferred": {
			work: func(a adder, ctx context.Context) {
				for range 90 {
					a.add(ctx, postgres.Tx(ctx), "a")
				}
				for range 30 {
					a.add(ctx, postgres.Tx(ctx), "b")
				}
			}, want: strings.TrimSpace(strings.Repeat("a ", 90) + strings.Repeat("b ", 30)),
		},
		"a savepoint past the gate": {
			work: func(a adder, ctx context.Context) {
				a.add(ctx, postgres.Tx(ctx), "a")
				conn := postgres.Tx(ctx).Conn()
				_, err := conn.Exec(ctx, `SAVEPOINT s`)
				must(a, err)
				a.add(ctx, postgres.Tx(ctx), "b")
				_, err = conn.Exec(ctx, `ROLLBACK TO s`)
				must(a, err)
			}, want: "a",
		},
	} {
		for way, run := range map[string]func(t *testing.T, store *postgres.Store, work func(ctx context.Context)){
			"in a handler": func(t *testing.T, s *postgres.Store, work func(ctx context.Context)) {
				settlement := store.Settlement{Action: cmp.Or(test.ending, store.TxCommit)}
				if test.undone {
					settlement.Action = store.TxRollback
				}
				settlement.Completion.Response.Status = 201
				_, err := s.Transact(t.Context(), reservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
					work(ctx)
					return settlement
				})
				must(t, err)
			},
			"in InTx": func(t *testing.T, store *postgres.Store, work func(ctx context.Context)) {
				var undo error
				if test.undone || test.ending != 0 {
					undo = errors.New("undone on purpose")
				}
				err := store.InTx(t.Context(), func(ctx context.Context) error {
					work(ctx)
					return undo
				})
				if !errors.Is(err, undo) {
					t.Errorf("O1: %v, want %v", err, undo)
				}
			},
		} {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				store, err := postgres.Open(t.Context(), servers.Postgres(t).SchemaURL(t), quiet)
				must(t, err)
				t.Cleanup(func() { must(t, store.Close()) })
				box, err := outbox.New(store, outbox.Config{})
				must(t, err)
				run(t, store, func(ctx context.Context) { test.work(adder{t, box}, ctx) })
				if got := typesInOrder(t, store); got != test.want {
					t.Errorf("O1: the messages are %q, want %q", got, test.want)
				}
			})
		}
	}
}

// TestMessageThatIsRefused: a message that the database does not take at the end of a transaction undoes all of it, and says
// so; the connection goes on.
func TestMessageThatIsRefused(t *testing.T) {
	t.Parallel()
	u := newTakeUp(t, "&pool_max_conns=1")
	exec(t, u.admin, `CREATE TABLE business (value text)`)
	exec(t, u.admin, `ALTER TABLE onceward_outbox ADD CHECK (type <> 'refused')`)
	add := func(kind string) error {
		return u.store.InTx(t.Context(), func(ctx context.Context) error {
			adder{t, u.box}.exec(ctx, `INSERT INTO business VALUES ('`+kind+`')`)
			adder{t, u.box}.add(ctx, postgres.Tx(ctx), "before", kind)
			return nil
		})
	}
	if err := add("refused"); !errors.Is(err, store.ErrWorkRefused) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("O1: %v, want %v", err, store.ErrWorkRefused)
	}
	must(t, add("taken"))
	if n := number(t, u.admin, `SELECT count(*) FROM business WHERE value <> 'taken'`); n != 0 {
		t.Errorf("O1: %d rows of a transaction that was refused", n)
	}
	if got, want := typesInOrder(t, u.store), "before taken"; got != want {
		t.Errorf("O1: the messages are %q, want %q", got, want)
	}
}

// TestMessageThatCannotBePrepared: where the database does not even take the statement, nothing is executed, nobody waits, and the
// connection goes on.
func TestMessageThatCannotBePrepared(t *testing.T) {
	t.Parallel()
	u := newTakeUp(t, "&pool_max_conns=1&lock_timeout=300ms")
	pid := func() (pid int) {
		must(t, u.store.InTx(t.Context(), func(ctx context.Context) error {
			return postgres.Tx(ctx).QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
		}))
		return pid
	}
	before := pid()
	lock, err := u.admin.Begin(t.Context())
	must(t, err)
	_, err = lock.Exec(t.Context(), `LOCK TABLE onceward_outbox`)
	must(t, err)
	err = u.store.InTx(t.Context(), func(ctx context.Context) error {
		adder{t, u.box}.add(ctx, postgres.Tx(ctx), "a")
		return nil
	})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I5: %v, want ErrUnavailable", err)
	}
	must(t, lock.Rollback(t.Context()))
	if after := pid(); after != before {
		t.Errorf("the connection %d was given up, and %d opened", before, after)
	}
}

// TestAggregateHeldTooLong: a message that waits too long for another transaction leaves its outcome unknown, and is not
// committed behind the caller's back when that one ends.
func TestAggregateHeldTooLong(t *testing.T) {
	t.Parallel()
	u := newTakeUp(t, "")
	holder, err := u.admin.Begin(t.Context())
	must(t, err)
	adder{t, u.box}.add(t.Context(), holder, "first")
	err = u.store.InTx(t.Context(), func(ctx context.Context) error {
		adder{t, u.box}.add(ctx, postgres.Tx(ctx), "second")
		return nil
	})
	if !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I5: %v, want ErrOutcomeUnknown", err)
	}
	start := time.Now()
	for number(t, u.admin, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE NOT l.granted AND a.query LIKE '%' || current_schema() || '%'`) > 0 {
		if time.Since(start) > 10*time.Second {
			t.Fatal("the server still waits with what nobody waits for any more")
		}
		time.Sleep(10 * time.Millisecond)
	}
	must(t, holder.Commit(t.Context()))
	if got, want := typesInOrder(t, u.store), "first"; got != want {
		t.Errorf("the messages are %q, want %q", got, want)
	}
}

// TestDeadlockWithAMessage: a transaction that locks a row and then adds a message, and one that does so the other way round, stand
// in each other's way. The store's is run again, and both are committed, unless the server chooses the other one.
func TestDeadlockWithAMessage(t *testing.T) {
	t.Parallel()
	u := newTakeUp(t, "")
	exec(t, u.admin, `CREATE TABLE business (value integer)`)
	exec(t, u.admin, `INSERT INTO business VALUES (0)`)
	const count = `UPDATE business SET value = value + 1`
	tx, err := u.admin.Begin(t.Context())
	must(t, err)
	adder{t, u.box}.add(t.Context(), tx, "of the application")
	runs, done := 0, make(chan error, 1)
	go func() {
		done <- u.store.InTx(t.Context(), func(ctx context.Context) error {
			runs++
			adder{t, u.box}.exec(ctx, count)
			adder{t, u.box}.add(ctx, postgres.Tx(ctx), "of the store")
			return nil
		})
	}()
	awaitLockWait(t, u.url)
	wantRuns, want := 2, "of the application of the store"
	if _, err := tx.Exec(t.Context(), count); err == nil {
		must(t, tx.Commit(t.Context()))
	} else {
		must(t, tx.Rollback(t.Context()))
		wantRuns, want = 1, "of the store"
	}
	must(t, await(t, "the end of the transaction", done))
	if got := typesInOrder(t, u.store); runs != wantRuns || got != want {
		t.Errorf("O1: the messages are %q after %d runs, want %q after %d", got, runs, want, wantRuns)
	}
}

// TestNoDeadlockOfMessages: transactions of the store that add for two aggregates in opposite order do not stand in each other's
// way, however often.
func TestNoDeadlockOfMessages(t *testing.T) {
	t.Parallel()
	u := newTakeUp(t, "")
	runs := make([]int, 2)
	var group sync.WaitGroup
	for i, aggregates := range [][]string{{"1", "2"}, {"2", "1"}} {
		group.Go(func() {
			for range 200 {
				err := u.store.InTx(t.Context(), func(ctx context.Context) error {
					runs[i]++
					for _, aggregate := range aggregates {
						if _, err := u.box.Add(ctx, postgres.Tx(ctx), outbox.Message{Topic: "topic", AggregateID: aggregate, Type: "t"}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if runs[0] != 200 || runs[1] != 200 {
		t.Errorf("the transactions ran %v times, want 200 each", runs)
	}
}

// TestTransactionsOfTheApplicationWait: in a transaction that is not the store's a message is added at once, and a second one for
// the same aggregate waits until the first has ended, so that the order is that of commits.
func TestTransactionsOfTheApplicationWait(t *testing.T) {
	t.Parallel()
	u := newTakeUp(t, "")
	first, err := u.admin.Begin(t.Context())
	must(t, err)
	adder{t, u.box}.add(t.Context(), first, "first")
	done := make(chan error, 1)
	go func() {
		done <- pgx.BeginFunc(t.Context(), u.admin, func(tx pgx.Tx) error {
			adder{t, u.box}.add(t.Context(), tx, "second")
			return nil
		})
	}()
	awaitLockWait(t, u.url)
	must(t, first.Commit(t.Context()))
	must(t, await(t, "the end of the transaction", done))
	if got, want := typesInOrder(t, u.store), "first second"; got != want {
		t.Errorf("O2: the messages are %q, want %q", got, want)
	}
}

// awaitLockWait waits until a session of the schema's user waits for an advisory lock.
func awaitLockWait(t testing.TB, url string) {
	t.Helper()
	admin := openAdmin(t, url)
	for start := time.Now(); number(t, admin, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE NOT l.granted AND a.query LIKE '%' || current_schema() || '%'`) == 0; {
		if time.Since(start) > time.Minute {
			t.Fatal("nobody waits for a lock")
		}
		time.Sleep(time.Millisecond)
	}
}

// typesInOrder are the types of all messages, in the order in which they are delivered.
func typesInOrder(t testing.TB, store *postgres.Store) string {
	t.Helper()
	claimed, err := store.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "topic", Limit: 1000}}, 1e9)
	must(t, err)
	var types []string
	for i := range claimed {
		types = append(types, claimed[i].Type)
	}
	return strings.Join(slices.Clip(types), " ")
}
