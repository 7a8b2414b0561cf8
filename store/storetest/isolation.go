package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// levels are the levels that a route can request. The default is the level of Business.Pool.
var levels = []sql.IsolationLevel{
	sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable,
}

// hasLevels reports whether the database has levels of isolation, by which the work can be compared with the
// application's own transactions.
func hasLevels(i Instance) bool {
	return has[store.Transactor](i) && i.Business != nil && i.Business.Pool != nil
}

// testIsolation compares the effects of the isolation level with the store and without it: at each level, the work is
// isolated from other transactions as it would be without the store. And at each level a key is executed once.
func testIsolation(t *testing.T, h Harness) {
	h.test(t, "conflicts answered away", conflictsAnsweredAway)
	if !h.Features.Certifies { // a lock is held on one node
		h.test(t, "NOWAIT answered away", noWaitAnsweredAway)
	}
	h.test(t, "a conflict after the time to start", conflictAfterTime)
	for _, level := range levels {
		for _, p := range rivalries {
			if h.Features.Certifies { // a level isolates the transactions of one node
				continue
			}
			h.test(t, p.name+", "+level.String(), func(e *env) { e.compare(level, p) })
		}
		h.test(t, "duplicates, "+level.String(), func(e *env) { e.duplicatesAt(level) })
		h.test(t, "different keys, "+level.String(), func(e *env) { e.crowdAt(level) })
	}
}

// conflictsAnsweredAway makes work conflict with other transactions, and answer as if it had not: whatever it answers,
// it is undone and run again, and no such answer is stored.
func conflictsAnsweredAway(e *env) {
	for statement, word := range e.Business.Conflicts {
		for name, end := range map[string]store.TxAction{
			"commit": store.TxCommit, "commit the answer": store.TxCommitAnswer, "roll back": store.TxRollback,
		} {
			runs := 0
			target := id(statement + name)
			e.transacted(request(target), e.inserting(target.Key, func(ctx context.Context, v store.Verdict) store.Settlement {
				if runs++; runs == 1 {
					e.meet(ctx, statement)
					return store.Settlement{Action: end, Completion: *answer("met")}
				}
				return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
			}), store.DecisionExecute, "E1")
			replay := e.transacted(request(target), e.refusing("I1"), store.DecisionReplay, "I2")
			if body := string(replay.Record.Response.Body); runs != 2 || body != "done" {
				e.Errorf("E1: work that met %q and said %s ran %d times, and %q is stored", statement, name, runs, body)
			}
			e.wantRows(target.Key, 1, "I1")
		}
		target := id(statement + "always")
		_, err := e.transact(request(target), e.inserting(target.Key, func(ctx context.Context, _ store.Verdict) store.Settlement {
			e.meet(ctx, statement)
			return store.Settlement{Action: store.TxCommitAnswer, Completion: *answer("met")}
		}))
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), word) ||
			!strings.Contains(err.Error(), statement) {
			e.Errorf("E1: work that always meets a neighbour got %v, want an error that names %q and the statement", err, word)
		}
		e.wantRows(target.Key, 0, "I1")
	}
}

// noWaitAnsweredAway makes work request a lock without waiting, which fails. The work asked for this failure, so its
// answer is stored.
func noWaitAnsweredAway(e *env) {
	if e.Business.NoWait == "" {
		return
	}
	rival, err := e.Business.Pool.BeginTx(e.ctx, nil)
	e.must(err)
	defer func() { _ = rival.Rollback() }()
	_, err = rival.ExecContext(e.ctx, `INSERT INTO business VALUES ('rival')`)
	e.must(err)
	runs := 0
	e.transacted(request(id("key")), func(ctx context.Context, _ store.Verdict) store.Settlement {
		runs++
		e.meet(ctx, e.Business.NoWait)
		return store.Settlement{Action: store.TxCommitAnswer, Completion: *answer("locked")}
	}, store.DecisionExecute, "E1")
	v := e.transacted(request(id("key")), e.refusing("I1"), store.DecisionReplay, "I2")
	if body := string(v.Record.Response.Body); runs != 1 || body != "locked" {
		e.Errorf("E1: work whose statement does not wait ran %d times, and %q is stored", runs, body)
	}
}

// overdue is a context whose deadline passes when done is closed.
type overdue struct {
	context.Context
	done chan struct{}
}

// Done implements [context.Context].
func (o *overdue) Done() <-chan struct{} { return o.done }

// Deadline implements [context.Context].
func (o *overdue) Deadline() (time.Time, bool) { return time.Now().Add(await.Limit), true }

// Err implements [context.Context].
func (o *overdue) Err() error {
	select {
	case <-o.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// conflictAfterTime makes work conflict after the deadline of its caller, which bounds only the start of the work. The
// work is run again: a wait for a lock may take longer than a call to a store.
func conflictAfterTime(e *env) {
	for statement := range e.Business.Conflicts {
		caller, runs := &overdue{e.ctx, make(chan struct{})}, 0
		v, err := e.Store.(store.Transactor).Transact(caller, request(id(statement)),
			func(ctx context.Context, _ store.Verdict) store.Settlement {
				if runs++; runs == 1 {
					close(caller.done)
					e.meet(ctx, statement)
				}
				return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
			})
		if err != nil || v.Decision != store.DecisionExecute || runs != 2 {
			e.Errorf("E1: work that met %q after the deadline of its caller ran %d times, and got (%s, %v)", statement, runs,
				v.Decision, err)
		}
	}
}

// meet runs a statement that fails as in a conflict.
func (e *env) meet(ctx context.Context, statement string) {
	tx, _ := store.LookupTx(ctx)
	if _, err := tx.ExecContext(ctx, statement); err == nil {
		e.Errorf("%q did not fail", statement)
	}
}

// rivalry is a race of two transactions: both look, and when both have looked, both write if what they saw allows it.
// The statements of the second transaction are the statements of the first with another number.
type rivalry struct {
	name  string
	setup []string
	// look counts rows, and write is executed if the count is the same as at the beginning.
	look, write string
	// result counts the effects of both transactions.
	result string
}

var rivalries = []rivalry{
	{
		name:  "gap lock",
		setup: []string{`CREATE TABLE isolated (owner INT NOT NULL, number INT NOT NULL, PRIMARY KEY (owner, number))`},
		look:  `SELECT number FROM isolated WHERE owner = 7 FOR UPDATE`, write: `INSERT INTO isolated VALUES (7, %d)`,
		result: `SELECT COUNT(*) FROM isolated`,
	},
	{
		name: "write skew",
		setup: []string{
			`CREATE TABLE isolated (number INT NOT NULL PRIMARY KEY, duty INT NOT NULL)`,
			`INSERT INTO isolated VALUES (1, 1), (2, 1)`,
		},
		look: `SELECT number FROM isolated WHERE duty = 1`, write: `UPDATE isolated SET duty = 0 WHERE number = %d`,
		result: `SELECT COUNT(*) FROM isolated WHERE duty = 1`,
	},
	{
		name:  "unique",
		setup: []string{`CREATE TABLE isolated (owner INT NOT NULL PRIMARY KEY, number INT NOT NULL)`},
		look:  `SELECT number FROM isolated WHERE owner = 7`, write: `INSERT INTO isolated VALUES (7, %d)`,
		result: `SELECT COUNT(*) FROM isolated`,
	},
}

// errSeen is the error of work that has found the changes of the other transaction.
var errSeen = errors.New("the other one was first")

// compare runs a rivalry with the store and without it, and compares the results.
func (e *env) compare(level sql.IsolationLevel, p rivalry) {
	without := e.runRivalry(p, func(_ int, do func(*sql.Tx) error) {
		tx, err := e.Business.Pool.BeginTx(e.ctx, &sql.TxOptions{Isolation: level})
		if err != nil {
			e.Errorf("begin: %v", err)
			return
		}
		if do(tx) != nil || tx.Commit() != nil {
			_ = tx.Rollback() // it was refused, or undone by the server
		}
	})
	with := e.runRivalry(p, func(i int, do func(*sql.Tx) error) {
		r := request(id(fmt.Sprint("key ", i)), at(level))
		_, _ = e.Store.(store.Transactor).Transact(e.ctx, r, func(ctx context.Context, _ store.Verdict) store.Settlement {
			tx, _ := store.LookupTx(ctx)
			if do(tx) != nil {
				return store.Settlement{Action: store.TxRollback}
			}
			return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
		})
	})
	if with != without {
		e.Errorf("E1: %s came to %d with the store and to %d without it", p.name, with, without)
	}
}

// at makes a reservation request a level.
func at(level sql.IsolationLevel) option { return func(r *store.Reservation) { r.Isolation = level } }

// runRivalry runs a rivalry, each of its transactions by begin, and returns its result.
func (e *env) runRivalry(p rivalry, begin func(i int, do func(*sql.Tx) error)) (result int) {
	for _, statement := range slices.Concat([]string{`DROP TABLE IF EXISTS isolated`}, p.setup) {
		_, err := e.Business.Pool.ExecContext(e.ctx, statement)
		e.must(err)
	}
	initial := e.countRows(p.look)
	var looked, both sync.WaitGroup
	looked.Add(2)
	for i := 1; i <= 2; i++ {
		var first sync.Once
		both.Go(func() {
			defer first.Do(looked.Done) // in case it did not get that far
			begin(i, func(tx *sql.Tx) error {
				seen, err := rowsIn(e.ctx, tx, p.look)
				first.Do(looked.Done)
				looked.Wait()
				if err == nil && seen != initial {
					err = errSeen
				}
				if err == nil {
					_, err = tx.ExecContext(e.ctx, fmt.Sprintf(p.write, i))
				}
				return err
			})
		})
	}
	both.Wait()
	e.must(e.Business.Pool.QueryRowContext(e.ctx, p.result).Scan(&result))
	return result
}

// countRows counts the rows of a query, in a transaction of its own.
func (e *env) countRows(query string) int {
	tx, err := e.Business.Pool.BeginTx(e.ctx, nil)
	e.must(err)
	defer func() { _ = tx.Rollback() }()
	n, err := rowsIn(e.ctx, tx, query)
	e.must(err)
	return n
}

// rowsIn counts the rows of a query.
func rowsIn(ctx context.Context, tx *sql.Tx, query string) (n int, err error) {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return 0, err
	}
	for rows.Next() {
		n++
	}
	return n, errors.Join(rows.Err(), rows.Close())
}

// duplicatesAt runs duplicates of two processes at a level at once; their work reads before it writes.
func (e *env) duplicatesAt(level sql.IsolationLevel) {
	processes := []store.Transactor{e.Store.(store.Transactor)}
	if e.Lossy != nil {
		processes = append(processes, e.Lossy(e.T).Store.(store.Transactor))
	}
	const rounds, callers = 10, 8
	for round := range rounds {
		target := id(fmt.Sprint("duplicate ", round))
		bodies := make([]string, callers)
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				await.That(e.T, "an answer", func() bool {
					v, err := processes[i%len(processes)].Transact(e.ctx, request(target, at(level)),
						e.inserting(target.Key, committing(fmt.Sprint("caller ", i))))
					if err != nil {
						e.Errorf("E1: a duplicate: %v", err)
						return true
					}
					bodies[i] = string(v.Record.Response.Body)
					return v.Decision != store.DecisionInProgress
				})
			})
		}
		all.Wait()
		e.wantRows(target.Key, 1, "I1")
		if len(slices.Compact(bodies)) != 1 {
			e.Errorf("I2: duplicates got different answers: %q", bodies)
		}
	}
}

// crowdAt runs many transactions of different keys at once: the data of the store causes no conflict between them.
func (e *env) crowdAt(level sql.IsolationLevel) {
	const keys = 48
	var runs atomic.Int64
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			target := id(fmt.Sprint("key ", i))
			v, err := e.Store.(store.Transactor).Transact(e.ctx, request(target, at(level)),
				func(context.Context, store.Verdict) store.Settlement {
					runs.Add(1)
					return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
				})
			if err != nil || v.Decision != store.DecisionExecute {
				e.Errorf("E1: a key of its own got (%s, %v)", v.Decision, err)
			}
		})
	}
	all.Wait()
	if n := runs.Load(); n > keys+keys/4 {
		e.Errorf("%d transactions of different keys were run %d times", keys, n)
	}
}
