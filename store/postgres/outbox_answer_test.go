package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// adder adds messages about one aggregate, in whichever way.
type adder struct {
	testing.TB
	box *outbox.Outbox
}

func messageOf(kind string) outbox.Message {
	return outbox.Message{Topic: "topic", AggregateID: "1", Type: kind}
}

// write adds messages at once, in a transaction of pgx.
func (a adder) write(ctx context.Context, tx pgx.Tx, kinds ...string) {
	a.Helper()
	for _, kind := range kinds {
		if _, err := postgres.AddMessage(ctx, a.box, tx, messageOf(kind)); err != nil {
			a.Errorf("O1: %s: %v", kind, err)
		}
	}
}

// writeSQL adds messages at once, in the transaction of database/sql.
func (a adder) writeSQL(ctx context.Context, kinds ...string) {
	a.Helper()
	for _, kind := range kinds {
		if _, err := a.box.Add(ctx, onceward.Tx(ctx), messageOf(kind)); err != nil {
			a.Errorf("O1: %s: %v", kind, err)
		}
	}
}

// answer adds messages to the answer.
func (a adder) answer(ctx context.Context, kinds ...string) {
	a.Helper()
	for _, kind := range kinds {
		if _, err := a.box.AddToAnswer(ctx, messageOf(kind)); err != nil {
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

// messageTest is work that adds messages, and which of them are to be there then, in their order.
type messageTest struct {
	work    func(a adder, ctx context.Context)
	undone  bool // without a trace
	refused bool // undone, with an answer that is kept
	want    string
}

// inHandler runs the work in a transactional handler.
func (m *messageTest) inHandler(t *testing.T, s *postgres.Store, a adder) {
	t.Helper()
	action := store.TxCommit
	switch {
	case m.undone:
		action = store.TxRollback
	case m.refused:
		action = store.TxCommitAnswer
	}
	must(t, handled(t, s, "key", action, func(ctx context.Context) { m.work(a, ctx) }))
}

// handled runs a transactional handler.
func handled(t testing.TB, s *postgres.Store, key string, action store.TxAction, work func(ctx context.Context)) error {
	t.Helper()
	settlement := store.Settlement{Action: action}
	settlement.Completion.Response.Status = 201
	v, err := s.Transact(t.Context(), reservation(key), func(ctx context.Context, _ store.Verdict) store.Settlement {
		work(ctx)
		return settlement
	})
	if err == nil && v.Decision != store.DecisionExecute {
		t.Errorf("the handler was not run: %s", v.Decision)
	}
	return err
}

// inTx runs the work in InTx.
func (m *messageTest) inTx(t *testing.T, s *postgres.Store, a adder) {
	t.Helper()
	var undo error
	if m.undone || m.refused {
		undo = errors.New("undone on purpose")
	}
	err := s.InTx(t.Context(), func(ctx context.Context) error {
		m.work(a, ctx)
		return undo
	})
	if !errors.Is(err, undo) {
		t.Errorf("O1: %v, want %v", err, undo)
	}
}

// run runs a test in one of the two ways.
func (m *messageTest) run(
	t *testing.T, name string, way func(m *messageTest, t *testing.T, s *postgres.Store, a adder), often bool,
) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		if !often {
			nightly.Only(t, "other cases of the table run on each change")
		}
		u := newOutboxTest(t, "")
		way(m, t, u.store, adder{t, u.box})
		if got := typesInOrder(t, u.store); got != m.want {
			t.Errorf("O1: the messages are %q, want %q", got, m.want)
		}
	})
}

// TestMessagesWrittenAtOnce: messages that are added with the transaction are committed, undone and ordered with what
// else is written in it.
func TestMessagesWrittenAtOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]messageTest{
		"pgx":          {work: func(a adder, ctx context.Context) { a.write(ctx, postgres.Tx(ctx), "a", "b") }, want: "a b"},
		"database/sql": {work: func(a adder, ctx context.Context) { a.writeSQL(ctx, "a", "b") }, want: "a b"},
		"in another context": {
			work: func(a adder, ctx context.Context) {
				a.write(ctx, postgres.Tx(ctx), "a")
				a.write(context.Background(), postgres.Tx(ctx), "b")
				a.write(ctx, postgres.Tx(ctx), "c")
			}, want: "a b c",
		},
		"undone": {
			work: func(a adder, ctx context.Context) { a.write(ctx, postgres.Tx(ctx), "a") }, undone: true,
		},
		"undone, with an answer": {
			work: func(a adder, ctx context.Context) { a.writeSQL(ctx, "a") }, refused: true,
		},
		"a savepoint of pgx that is undone": {
			work: func(a adder, ctx context.Context) {
				a.write(ctx, postgres.Tx(ctx), "a")
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				a.write(ctx, inner, "inner")
				a.write(ctx, postgres.Tx(ctx), "b")
				must(a, inner.Rollback(ctx))
				a.write(ctx, postgres.Tx(ctx), "c")
			}, want: "a c",
		},
		"a savepoint of pgx that is kept": {
			work: func(a adder, ctx context.Context) {
				a.write(ctx, postgres.Tx(ctx), "a")
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				a.write(ctx, inner, "inner")
				must(a, inner.Commit(ctx))
				a.write(ctx, postgres.Tx(ctx), "b")
			}, want: "a inner b",
		},
		"a savepoint by hand": {
			work: func(a adder, ctx context.Context) {
				a.writeSQL(ctx, "a")
				a.exec(ctx, `/* by hand */ Savepoint s`)
				a.writeSQL(ctx, "b")
				a.exec(ctx, `ROLLBACK TO s`)
				a.writeSQL(ctx, "c")
			}, want: "a c",
		},
		"a savepoint in a batch": {
			work: func(a adder, ctx context.Context) {
				a.write(ctx, postgres.Tx(ctx), "a")
				var batch pgx.Batch
				batch.Queue(`SELECT 1`)
				batch.Queue(`SAVEPOINT s`)
				must(a, postgres.Tx(ctx).SendBatch(ctx, &batch).Close())
				a.write(ctx, postgres.Tx(ctx), "b")
				a.exec(ctx, `ROLLBACK TO s`)
			}, want: "a",
		},
		"while rows are open": {
			work: func(a adder, ctx context.Context) {
				rows, err := postgres.Tx(ctx).Query(ctx, `SELECT generate_series(1, 10)`)
				must(a, err)
				if _, err := postgres.AddMessage(ctx, a.box, postgres.Tx(ctx), messageOf("a")); err == nil {
					a.Error("O1: a message was written while the connection was busy")
				}
				rows.Close()
				a.write(ctx, postgres.Tx(ctx), "b")
			}, want: "b",
		},
		"a savepoint by the connection of rows": {
			work: func(a adder, ctx context.Context) {
				conn := a.rowsConn(ctx)
				a.raw(ctx, conn, `SAVEPOINT s`)
				a.write(ctx, postgres.Tx(ctx), "b")
				a.raw(ctx, conn, `ROLLBACK TO s`)
			},
		},
		"a savepoint past the gate": {
			work: func(a adder, ctx context.Context) {
				a.write(ctx, postgres.Tx(ctx), "a")
				conn := postgres.Tx(ctx).Conn()
				a.raw(ctx, conn, `SAVEPOINT s`)
				a.write(ctx, postgres.Tx(ctx), "b")
				a.raw(ctx, conn, `ROLLBACK TO s`)
			}, want: "a",
		},
		"many": {
			work: func(a adder, ctx context.Context) {
				for range 2 * outbox.MaxAnswerMessages {
					a.write(ctx, postgres.Tx(ctx), "a")
				}
			}, want: strings.TrimSpace(strings.Repeat("a ", 2*outbox.MaxAnswerMessages)),
		},
	} {
		often := []string{"pgx", "database/sql", "undone", "a savepoint of pgx that is undone", "a savepoint by hand"}
		test.run(t, name+" in a handler", (*messageTest).inHandler, slices.Contains(often, name))
		test.run(t, name+" in InTx", (*messageTest).inTx, name == "pgx")
	}
}

// rowsConn takes the connection from rows, past the gate.
func (a adder) rowsConn(ctx context.Context) *pgx.Conn {
	a.Helper()
	rows, err := postgres.Tx(ctx).Query(ctx, `SELECT 1`)
	must(a, err)
	defer rows.Close()
	return rows.Conn()
}

func (a adder) raw(ctx context.Context, conn *pgx.Conn, statement string) {
	a.Helper()
	_, err := conn.Exec(ctx, statement)
	must(a, err)
}

// TestMessagesOfAnAnswer: messages that are added to the answer go along with its COMMIT, behind those that were
// written at once, and no savepoint touches them, however it is made.
func TestMessagesOfAnAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]messageTest{
		"committed": {work: func(a adder, ctx context.Context) { a.answer(ctx, "a", "b") }, want: "a b"},
		"undone":    {work: func(a adder, ctx context.Context) { a.answer(ctx, "a") }, undone: true},
		"undone, with an answer": {
			work: func(a adder, ctx context.Context) { a.answer(ctx, "a") }, refused: true,
		},
		"a savepoint of pgx that is undone": {
			work: func(a adder, ctx context.Context) {
				a.answer(ctx, "a")
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				a.write(ctx, inner, "inner")
				a.answer(ctx, "b")
				must(a, inner.Rollback(ctx))
				a.answer(ctx, "c")
			}, want: "a b c",
		},
		"a savepoint of pgx that is kept": {
			work: func(a adder, ctx context.Context) {
				a.answer(ctx, "a")
				inner, err := postgres.Tx(ctx).Begin(ctx)
				must(a, err)
				a.write(ctx, inner, "inner")
				a.answer(ctx, "b")
				must(a, inner.Commit(ctx))
			}, want: "inner a b",
		},
		"a savepoint by hand": {
			work: func(a adder, ctx context.Context) {
				a.answer(ctx, "a")
				a.exec(ctx, `/* by hand */ Savepoint s`)
				a.answer(ctx, "b")
				a.exec(ctx, `ROLLBACK TO s`)
				a.answer(ctx, "c")
			}, want: "a b c",
		},
		"a savepoint in a batch": {
			work: func(a adder, ctx context.Context) {
				a.answer(ctx, "a")
				var batch pgx.Batch
				batch.Queue(`SELECT 1`)
				batch.Queue(`SAVEPOINT s`)
				must(a, postgres.Tx(ctx).SendBatch(ctx, &batch).Close())
				a.answer(ctx, "b")
				a.exec(ctx, `ROLLBACK TO s`)
			}, want: "a b",
		},
		"behind one that was written": {
			work: func(a adder, ctx context.Context) {
				a.answer(ctx, "a")
				a.writeSQL(ctx, "b")
				a.write(ctx, postgres.Tx(ctx), "c")
			}, want: "b c a",
		},
		"while rows are open": {
			work: func(a adder, ctx context.Context) {
				rows, err := postgres.Tx(ctx).Query(ctx, `SELECT generate_series(1, 10)`)
				must(a, err)
				a.answer(ctx, "a")
				rows.Close()
				a.answer(ctx, "b")
			}, want: "a b",
		},
		"a savepoint that was not to be": {
			work: func(a adder, ctx context.Context) {
				a.answer(ctx, "a")
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
				conn := a.rowsConn(ctx)
				a.raw(ctx, conn, `SAVEPOINT s`)
				a.answer(ctx, "b")
				a.raw(ctx, conn, `ROLLBACK TO s`)
			}, want: "b",
		},
		"a savepoint past the gate": {
			work: func(a adder, ctx context.Context) {
				a.answer(ctx, "a")
				conn := postgres.Tx(ctx).Conn()
				a.raw(ctx, conn, `SAVEPOINT s`)
				a.answer(ctx, "b")
				a.raw(ctx, conn, `ROLLBACK TO s`)
			}, want: "a b",
		},
		"more than it takes along": {
			work: func(a adder, ctx context.Context) {
				for range outbox.MaxAnswerMessages {
					a.answer(ctx, "a")
				}
				if _, err := a.box.AddToAnswer(ctx, messageOf("b")); !errors.Is(err, outbox.ErrAnswerFull) {
					a.Errorf("O1: %v, want ErrAnswerFull", err)
				}
				a.write(ctx, postgres.Tx(ctx), "b")
			}, want: "b " + strings.TrimSpace(strings.Repeat("a ", outbox.MaxAnswerMessages)),
		},
		"in another context": {
			work: func(a adder, ctx context.Context) {
				a.answer(context.WithoutCancel(ctx), "a")
				if _, err := a.box.AddToAnswer(context.Background(), messageOf("b")); !errors.Is(err, outbox.ErrNoAnswer) {
					a.Errorf("O1: %v, want ErrNoAnswer", err)
				}
			}, want: "a",
		},
	} {
		often := []string{"committed", "undone", "undone, with an answer", "a savepoint of pgx that is undone"}
		test.run(t, name, (*messageTest).inHandler, slices.Contains(often, name))
	}
}

// TestAnswerOfAnotherStore: a message belongs to the database of the outbox, and is not added to the answer of a
// handler that writes to another one.
func TestAnswerOfAnotherStore(t *testing.T) {
	t.Parallel()
	u, other := newOutboxTest(t, ""), newOutboxTest(t, "")
	must(t, handled(t, u.store, "key", store.TxCommit, func(ctx context.Context) {
		if _, err := other.box.AddToAnswer(ctx, messageOf("a")); !errors.Is(err, outbox.ErrNoAnswer) {
			t.Errorf("O1: %v, want ErrNoAnswer", err)
		}
	}))
}

// TestMessageThatIsRefused: a message that the database does not take at the end of a transaction undoes all of it, and
// says so; the next one is taken.
func TestMessageThatIsRefused(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "&pool_max_conns=1")
	exec(t, u.admin, `CREATE TABLE business (value text)`)
	exec(t, u.admin, `ALTER TABLE onceward_outbox ADD CHECK (type <> 'refused')`)
	add := func(kind string) error {
		return handled(t, u.store, kind, store.TxCommit, func(ctx context.Context) {
			adder{t, u.box}.exec(ctx, `INSERT INTO business VALUES ('`+kind+`')`)
			adder{t, u.box}.answer(ctx, "before", kind)
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

// TestMessageThatCannotBePrepared: where the database does not even take the statement, nothing is executed and nobody
// waits.
func TestMessageThatCannotBePrepared(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "&pool_max_conns=1&lock_timeout=300ms")
	var pids []uint32
	add := func() error {
		return handled(t, u.store, "key", store.TxCommit, func(ctx context.Context) {
			var pid uint32
			must(t, postgres.Tx(ctx).QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid))
			pids = append(pids, pid)
			adder{t, u.box}.answer(ctx, "a")
		})
	}
	lock, err := u.admin.Begin(t.Context())
	must(t, err)
	_, err = lock.Exec(t.Context(), `LOCK TABLE onceward_outbox`)
	must(t, err)
	if err := add(); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I5: %v, want ErrUnavailable", err)
	}
	must(t, lock.Rollback(t.Context()))
	must(t, add())
	if len(slices.Compact(pids)) != 1 {
		t.Errorf("the handlers ran on the connections %d: one was given up", pids)
	}
	if got, want := typesInOrder(t, u.store), "a"; got != want {
		t.Errorf("O1: the messages are %q, want %q", got, want)
	}
}
