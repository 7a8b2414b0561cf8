package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// errRevoked is returned to a handler that held the writer for too long.
var errRevoked = fmt.Errorf("%w: the transaction was revoked, because the handler held the only writer for too long",
	store.ErrDeadline)

// revokeGrace is how long a handler may take to notice its deadline before its transaction is revoked.
const revokeGrace = 250 * time.Millisecond

// LongestWork implements [store.Transactor]: all writes wait for the one writer, so a handler gets a third of the
// lease.
func (s *Store) LongestWork(lease time.Duration) time.Duration { return lease / 3 }

// InFlight implements [store.Transactor].
func (s *Store) InFlight(id store.ID) bool { return s.flights.Has(id) }

// Transact implements [store.Transactor]. The work runs in the goroutine of the caller, in a savepoint of the writer's
// transaction. Waiting transactions run one after the other under one commit.
func (s *Store) Transact(ctx context.Context, r *store.Reservation,
	work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	v, answered, err := s.decide(ctx, r)
	if err != nil || answered {
		return v, err
	}
	flight := s.flights.Enter(r.ID)
	if flight == nil {
		return store.Verdict{Decision: store.DecisionInProgress, Now: s.now()}, nil
	}
	// The flight ends when the caller leaves or when the writer has finished with it, whichever is first: a handler
	// that was revoked and never returns does not lock its key.
	over := func() { s.flights.Leave(r.ID, flight) }
	defer over()
	t := newTask(r.ID, store.Event{Kind: store.EventReserve, Reservation: r})
	t.member = newMember(s.LongestWork(r.Lease), over)
	t.member.answers = s
	err = s.writer.host(ctx, t, work)
	return t.Verdict(), err
}

// member is a handler's part in a group: the writer gives it the connection for its turn, and waits for it.
type member struct {
	longest time.Duration // zero for no limit
	over    func()        // called when the writer has finished with it; may be nil
	// begin runs before the work and end after it, in the same savepoint. An error undoes everything. Both may be nil.
	begin, end func(r *records, now time.Time) error
	// answers is the store, for a handler that may add messages to
	// its answer. answer holds the messages of the last turn.
	answers *Store
	answer  *answerMessages

	turns   chan turn
	settled chan store.Settlement
	left    chan struct{} // closed when its goroutine has left, early if it panics
}

func newMember(longest time.Duration, over func()) *member {
	return &member{
		longest: longest, over: over,
		turns: make(chan turn), settled: make(chan store.Settlement, 1), left: make(chan struct{}),
	}
}

// turn is the right to use the transaction.
type turn struct {
	tx      *sql.Tx
	verdict store.Verdict
	answer  *answerMessages // nil if there is none
}

// host queues a member, and runs the work when the writer gives it a turn.
func (w *writer) host(ctx context.Context, t *task, work func(context.Context, store.Verdict) store.Settlement) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	defer close(t.member.left)
	if err := w.enqueue(t); err != nil {
		return err
	}
	waiting := ctx.Done()
	for {
		select {
		case turn := <-t.member.turns:
			t.member.play(ctx, turn, work)
		case <-t.done:
			return t.err
		case <-waiting:
			if t.drop() {
				return unavailable(ctx.Err())
			}
			// The turn has begun, so it will also end.
			waiting = nil
		}
	}
}

// play runs the work and releases the connection, even if the work panics or ends its goroutine.
func (m *member) play(ctx context.Context, turn turn, work func(context.Context, store.Verdict) store.Settlement) {
	settlement := store.Settlement{Action: store.TxRollback}
	defer func() { m.settled <- settlement }()
	ctx = context.WithValue(store.ContextWithTx(ctx, turn.tx), answerKey{}, turn.answer)
	settlement = work(ctx, turn.verdict)
}

// run runs the writer's side of a turn.
func (m *member) run(w *writer, t *task) (err error) {
	t.Transition = store.Transition{}
	if err := w.savepoint.Exec(); err != nil {
		return err
	}
	var before store.Record
	switch {
	case t.event.Kind == store.EventReserve:
		if before, err = w.reserve(t); err != nil || t.Decision != store.DecisionExecute {
			return errors.Join(err, w.release.Exec())
		}
	case m.begin != nil:
		if err := m.begin(w.records, t.Now); err != nil {
			return errors.Join(err, w.release.Exec())
		}
	}
	settlement, err := m.handOver(w, t.Verdict())
	if err != nil {
		return err
	}
	return w.settle(t, &before, settlement)
}

// reserve decides a reservation inside the transaction. A grant is not written, only its outcome.
func (w *writer) reserve(t *task) (before store.Record, err error) {
	if before, t.row, err = w.load(t.id); err != nil {
		return before, err
	}
	if t.event.Token, err = w.token(t.Now, &before); err != nil {
		return before, err
	}
	if t.Record, t.Transition, err = store.Step(before, t.event, t.Now); err != nil {
		return before, refused{err}
	}
	if t.Decision == store.DecisionExecute {
		return before, nil
	}
	return before, w.store(t.id, t.row, &before, &t.Record, t.Effect)
}

// handOver gives the connection to the handler for its turn. An error means that the group's transaction is lost.
func (m *member) handOver(w *writer, v store.Verdict) (settlement store.Settlement, err error) {
	bound, cancel := context.Background(), context.CancelFunc(func() {})
	if m.longest > 0 {
		bound, cancel = context.WithTimeout(bound, m.longest)
	}
	defer cancel()
	w.gate = &gate{inner: w.conn, kept: w.statements, bound: bound}
	tx, err := w.db.BeginTx(context.Background(), nil)
	if err != nil {
		w.gate = nil
		return settlement, err
	}
	if m.answers != nil {
		m.answer = &answerMessages{store: m.answers, id: v.Record.ID}
	}
	settlement, revoked := m.await(turn{tx: tx, verdict: v, answer: m.answer})
	m.answer.close()
	tidy, rows := w.gate.close()
	if rows {
		sqltx.WarnRowsLeft(w.logger, w.gate.last)
	}
	w.gate = nil
	if revoked {
		err = errRevoked
	}
	if tidy && !revoked {
		_ = tx.Rollback() // this only ends the handle, if the handler has not
	} else {
		// The rollback waits for rows that the handler may never close. They can no longer reach the connection.
		go func() { _ = tx.Rollback() }()
	}
	if w.raw.GetAutocommit() {
		err = errors.Join(err, errUndone)
	}
	return settlement, err
}

// await waits for the handler. If the handler does not return in time, its transaction is revoked, because all other
// writes wait for it. If the handler's goroutine has ended, because an earlier run panicked, the work is undone.
func (m *member) await(t turn) (settlement store.Settlement, revoked bool) {
	select {
	case m.turns <- t:
	case <-m.left:
		return settlement, false
	}
	if m.longest == 0 {
		return <-m.settled, false
	}
	timer := time.NewTimer(m.longest + revokeGrace)
	defer timer.Stop()
	select {
	case settlement = <-m.settled:
		return settlement, false
	case <-timer.C:
		return settlement, true
	}
}

// settle ends the savepoint with the action of the handler. Work that cannot
// be kept is undone, and the other members of the group are not affected.
func (w *writer) settle(t *task, before *store.Record, s store.Settlement) error {
	refusedBy := w.judge(t, &s)
	switch {
	case refusedBy == nil:
	case refusal(refusedBy) == nil:
		return refusedBy // the database failed: the whole group is undone
	default:
		s.Action = store.TxRollback
	}
	if s.Action != store.TxCommit {
		if err := w.undo.Exec(); err != nil {
			return err
		}
	}
	if err := t.member.answer.writeExecutions(w.records, t.Now); err != nil {
		return err
	}
	switch {
	case s.Action == store.TxRollback:
		t.Effect = store.EffectNone
		t.Record = *before
	case t.event.Kind != 0:
		if err := w.save(t.id, t.row, before, &t.Record); err != nil {
			return err
		}
	}
	if err := w.release.Exec(); err != nil {
		return err
	}
	return refusedBy
}

// judge applies the handler's result to the task, or returns an error that refuses it.
func (w *writer) judge(t *task, s *store.Settlement) error {
	switch {
	case s.Action == store.TxRollback:
		return nil
	case s.Action == store.TxCommit && w.unresolved():
		return refused{fmt.Errorf("%w: it breaks a deferred foreign key", store.ErrWorkRefused)}
	case t.event.Kind == 0:
		t.Effect = store.EffectWrite
		if t.member.end == nil {
			return nil
		}
		return t.member.end(w.records, w.now())
	}
	complete := store.Event{Kind: store.EventComplete, Attempt: t.Record.Attempt, Completion: &s.Completion}
	after, outcome, err := store.Step(t.Record, complete, w.now())
	if err != nil {
		return refused{unavailable(fmt.Errorf("settle: %w", err))}
	}
	t.Record, t.Effect = after, outcome.Effect
	if s.Action == store.TxCommit {
		return t.member.answer.write(w.records)
	}
	return nil
}

// unresolved reports whether a deferred foreign key is broken. It would make the commit of the whole group fail.
func (w *writer) unresolved() bool {
	broken, _, err := w.raw.Status(sqlite3.DBSTATUS_DEFERRED_FKS, false)
	return err != nil || broken != 0
}
