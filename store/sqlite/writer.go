package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlitedriver "github.com/ncruces/go-sqlite3/driver"
	"github.com/onceward/onceward/store"
)

// maxGroup bounds how many tasks share a commit, and so how long the first of them waits for the last.
const maxGroup = 256

// groupTime bounds how long the handlers of one group may take together, so that heartbeats are not delayed: the group
// is committed after the handler that exceeds it.
const groupTime = 20 * time.Millisecond

// writer owns the one connection that writes. Its goroutine takes the tasks that are in the queue and runs them in one
// transaction. A group consists of the tasks that arrived while the last commit was on its way to the disk, so a single
// caller does not wait and many callers share an fsync. There is no timer.
type writer struct {
	refuses   error // the error of all writes, if the store was opened read-only
	now       func() time.Time
	logger    *slog.Logger
	groupTime time.Duration
	committed func(store.ID) // called after the commit for each record no longer in progress
	messages  hints          // wakes watchers after a commit in which messages became ready

	conn sqlitedriver.Conn
	raw  *sqlite3.Conn
	gate *gate   // the gate of the handler whose turn it is; nil between turns
	db   *sql.DB // begins the transactions of handlers: its connections are gates
	*records
	statements                                               // the statements of handlers
	begin, commit, rollback, savepoint, release, undo, doubt *sqlite3.Stmt

	mu     sync.Mutex
	queue  []*task
	closed bool
	wake   chan struct{}
	ended  chan struct{}
}

// openWriter opens the connection, brings the tables up to date and starts the goroutine. If isFile is false, the
// content is not a file of the system, and has neither a log nor permissions.
func openWriter(
	ctx context.Context, file string, isFile bool, busy time.Duration, now func() time.Time, logger *slog.Logger,
) (*writer, error) {
	conn, err := openConn(ctx, file)
	if err != nil {
		return nil, err
	}
	w := &writer{
		now: now, logger: logger, groupTime: groupTime, conn: conn, raw: conn.Raw(), statements: make(statements),
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	if err := w.setUp(isFile, busy); err != nil {
		return nil, errors.Join(err, w.disconnect())
	}
	w.db = sql.OpenDB(turns{w})
	w.db.SetMaxIdleConns(-1)
	go w.loop()
	return w, nil
}

// turns is a connector whose connection is the gate of the current turn, so that a transaction begins on it.
type turns struct{ *writer }

// Connect implements [driver.Connector].
func (t turns) Connect(context.Context) (driver.Conn, error) { return t.gate, nil }

// Driver implements [driver.Connector].
func (turns) Driver() driver.Driver { return new(sqlitedriver.SQLite) }

func (w *writer) setUp(isFile bool, busy time.Duration) error {
	if err := w.configure(busy); err != nil {
		return err
	}
	if isFile {
		if err := requireLog(w.raw); err != nil {
			return err
		}
	}
	all := ownMigrations()
	if err := all.migrate(w.raw); err != nil {
		return err
	}
	records, err := prepareRecords(w.raw)
	if err != nil {
		return err
	}
	w.records = records
	err = prepare(
		w.raw,
		prepared{&w.begin, `BEGIN IMMEDIATE`},
		prepared{&w.commit, `COMMIT`},
		prepared{&w.rollback, `ROLLBACK`},
		prepared{&w.savepoint, `SAVEPOINT onceward_member`},
		prepared{&w.release, `RELEASE onceward_member`},
		prepared{&w.undo, `ROLLBACK TO onceward_member`},
		prepared{&w.doubt, `UPDATE onceward_meta SET value = value + 1 WHERE name = 'failed_commits'`},
	)
	if err != nil {
		return err
	}
	if isFile {
		if err := tighten(w.raw.Filename("main").String()); err != nil {
			return err
		}
	}
	return w.raw.SetAuthorizer(w.authorize)
}

// authorize applies the rules of a handler's turn.
func (w *writer) authorize(
	action sqlite3.AuthorizerActionCode, first, second, _, _ string,
) sqlite3.AuthorizerReturnCode {
	if w.gate != nil && !w.gate.trusts && forbidden(action, first, second) {
		return sqlite3.AUTH_DENY
	}
	return sqlite3.AUTH_OK
}

// configure retries an error that SQLite itself does not wait for: if several processes open a new file, the first of
// them switches it to the log, and locks it for that.
func (w *writer) configure(busy time.Duration) error {
	deadline := time.Now().Add(busy)
	for {
		err := configure(w.raw, busy, writerPragmas)
		if !errors.Is(err, sqlite3.BUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// disconnect closes the statements of the connection, and then the connection.
func (w *writer) disconnect() error {
	var errs []error
	for _, stmt := range slices.Collect(w.raw.Stmts()) {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// do queues a task and waits until it is committed. If the caller gives up before
// the task was started, the task is never started. If it was started, its outcome
// is not known to the caller, and the other tasks of its group are not affected.
func (w *writer) do(ctx context.Context, t *task) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	if err := w.enqueue(t); err != nil {
		return err
	}
	select {
	case <-t.done:
		return t.err
	default:
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		t.drop()
		return unavailable(ctx.Err())
	}
}

// write runs f in a transaction of the writer, and returns its result after the commit. With an error there is no
// result, because the writer may still be running f.
func write[T any](ctx context.Context, w *writer, f func(r *records, now time.Time) (T, error)) (T, error) {
	var result, none T
	t := newFunction(func(r *records, now time.Time) (err error) {
		result, err = f(r, now)
		return err
	})
	if err := w.do(ctx, t); err != nil {
		return none, err
	}
	return result, nil
}

func (w *writer) enqueue(t *task) error {
	if w.refuses != nil {
		return w.refuses
	}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return errClosed
	}
	w.queue = append(w.queue, t)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return nil
}

// loop runs groups until the writer is closed and its queue is empty.
func (w *writer) loop() {
	defer close(w.ended)
	var group []*task
	for {
		group = w.take(group[:0])
		if len(group) == 0 {
			if w.isClosed() {
				return
			}
			<-w.wake
		} else {
			w.run(group)
			clear(group)
		}
		// Let the callers whose commit has just ended queue up too: they are runnable now. Otherwise callers that write
		// repeatedly would alternate in two groups, each of half the size.
		runtime.Gosched()
	}
}

// take takes the tasks from the queue. Handlers come last, so
// that only handlers are postponed when a group is cut short.
func (w *writer) take(group []*task) []*task {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), maxGroup)
	for _, t := range w.queue[:n] {
		if t.member == nil {
			group = append(group, t)
		}
	}
	for _, t := range w.queue[:n] {
		if t.member != nil {
			group = append(group, t)
		}
	}
	rest := copy(w.queue, w.queue[n:])
	clear(w.queue[rest:])
	w.queue = w.queue[:rest]
	return group
}

// requeue puts the tasks that the group had no time for at the head of the queue.
func (w *writer) requeue(tasks []*task) {
	if len(tasks) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = slices.Insert(w.queue, 0, tasks...)
}

func (w *writer) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed && len(w.queue) == 0
}

// run commits a group, and ends its tasks. If one task spoils the
// transaction, each of the others gets a transaction of its own.
func (w *writer) run(group []*task) {
	n, err := w.transaction(group)
	w.requeue(group[n:])
	var spoiled *spoiledError
	spoilt := errors.As(err, &spoiled)
	for _, t := range group[:n] {
		switch {
		case spoilt && t == spoiled.by:
			t.fail(spoiled.err)
		case spoilt:
			_, alone := w.transaction([]*task{t})
			t.fail(alone)
		default:
			t.fail(err)
		}
		w.finish(t)
	}
}

// finish wakes the caller of a task, and the callers that wait for its record.
func (w *writer) finish(t *task) {
	if t.err == nil && t.settles() {
		w.committed(t.id)
	}
	if t.member != nil && t.member.over != nil {
		t.member.over()
	}
	close(t.done)
}

// transaction runs tasks in one transaction, and returns how many: a group of slow handlers is cut short. Without an
// error all of these tasks are durable, except for refused ones.
func (w *writer) transaction(group []*task) (n int, err error) {
	if err := w.begin.Exec(); err != nil {
		return len(group), unavailable(err)
	}
	w.removed = -1 // another process may have changed it
	began := time.Now()
	for n < len(group) {
		t := group[n]
		n++
		if err := t.run(w); err != nil {
			if t.err = refusal(err); t.err == nil {
				return n, w.spoil(t, err)
			}
		}
		if t.member != nil && time.Since(began) > w.groupTime {
			break
		}
	}
	if err := w.commit.Exec(); err != nil {
		return n, w.commitFailed(group[:n], err)
	}
	w.messages.tell()
	return n, nil
}

// spoil undoes the transaction because of one task, and returns the error
// for the group. For a task that runs alone, this is the task's own error.
func (w *writer) spoil(t *task, err error) error {
	if rollbackErr := w.abort(); rollbackErr != nil {
		return fmt.Errorf("%w (and the rollback failed: %w)", unavailable(err), rollbackErr)
	}
	return &spoiledError{by: t, err: unavailable(err)}
}

// abort ends a transaction that SQLite has not already ended.
func (w *writer) abort() error {
	if w.raw.GetAutocommit() {
		return nil
	}
	return w.rollback.Exec()
}

// commitFailed makes the outcome of a failed commit certain. The pages of the commit may be in the log without having
// been acknowledged, and would return after a crash. The next successful commit overwrites them, so commitFailed makes
// one: after it nothing of the group was executed. If it fails too, the outcome of the group's handlers is not known.
func (w *writer) commitFailed(group []*task, err error) error {
	reason := fmt.Errorf("commit failed: %w", err)
	if w.abort() == nil && w.begin.Exec() == nil {
		doubtErr := w.doubt.Exec()
		if doubtErr == nil {
			doubtErr = w.commit.Exec()
		}
		if doubtErr == nil {
			return unavailable(reason)
		}
		reason = errors.Join(reason, doubtErr, w.abort())
	}
	for _, t := range group {
		if t.member != nil && t.Effect != store.EffectNone {
			t.err = fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, reason)
		}
	}
	return unavailable(reason)
}

// close closes the queue, waits until it is empty, and closes the connection.
func (w *writer) close() error {
	if w.refuses != nil {
		return nil
	}
	w.mu.Lock()
	already := w.closed
	w.closed = true
	w.mu.Unlock()
	if already {
		return nil
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
	<-w.ended
	return errors.Join(w.db.Close(), w.disconnect())
}

// task is work for the writer inside a transaction: an event for one
// record, a function over many records, or a transactional handler.
type task struct {
	id       store.ID
	event    store.Event
	function func(r *records, now time.Time) error
	member   *member
	absent   bool // the record of a reservation was not there a moment ago

	// The result, written by the writer before done is closed.
	store.Applied
	row int64 // the row of a member's record, zero if there is none
	err error

	state atomic.Uint32
	done  chan struct{}
}

// The states of a task.
const (
	taskQueued uint32 = iota
	taskStarted
	taskDropped
)

func newTask(id store.ID, event store.Event) *task {
	return &task{id: id, event: event, done: make(chan struct{})}
}

func newFunction(f func(r *records, now time.Time) error) *task {
	return &task{function: f, done: make(chan struct{})}
}

// start marks the task as started, and reports false if its caller has given up. A task can be started again.
func (t *task) start() bool {
	return t.state.CompareAndSwap(taskQueued, taskStarted) || t.state.Load() == taskStarted
}

// drop keeps the task from being started, and reports whether it succeeded: a task that was started is not dropped.
func (t *task) drop() bool { return t.state.CompareAndSwap(taskQueued, taskDropped) }

// run runs the task. It may be called again after a rollback.
func (t *task) run(w *writer) (err error) {
	if !t.start() {
		return nil
	}
	t.err = nil
	t.Now = w.now()
	switch {
	case t.function != nil:
		return t.function(w.records, t.Now)
	case t.member != nil:
		return t.member.run(w, t)
	case t.absent:
		if t.Record, t.Transition, t.absent, err = w.records.reserve(t.id, t.event, t.Now); t.absent || err != nil {
			return err
		}
	}
	t.Record, t.Transition, err = w.step(t.id, t.event, t.Now)
	return err
}

// fail records why the task failed. The error replaces an error from inside the lost transaction, such as a refusal
// because of what another task had written. An unknown outcome stays.
func (t *task) fail(err error) {
	if err != nil && !errors.Is(t.err, store.ErrOutcomeUnknown) {
		t.err = err
	}
}

// settles reports whether a caller may be waiting for the result of the task.
func (t *task) settles() bool {
	return t.Effect != store.EffectNone &&
		(t.Record.State != store.StateInProgress || t.Origin == store.OriginResumed)
}
