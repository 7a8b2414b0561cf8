package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward"
)

// errRevoked is what a handler sees that held the writer for too long.
var errRevoked = fmt.Errorf("%w: the transaction was taken back, because the handler held the only writer for too long", onceward.ErrDeadline)

// revokeGrace is how long a handler may take to notice its deadline before its transaction is taken back.
const revokeGrace = 250 * time.Millisecond

// LongestWork implements [onceward.Transactor]: everyone waits for the one writer, so a handler gets a third of the lease.
func (s *Store) LongestWork(lease time.Duration) time.Duration { return lease / 3 }

// InFlight implements [onceward.Transactor].
func (s *Store) InFlight(id onceward.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight[id] != nil
}

// Transact implements [onceward.Transactor]. The work runs in the goroutine of the caller, in a savepoint of the writer's
// transaction; the transactions that wait run one after the other under one commit.
func (s *Store) Transact(ctx context.Context, r *onceward.Reservation, work func(context.Context, onceward.Verdict) onceward.Settlement) (onceward.Verdict, error) {
	v, answered, err := s.decide(ctx, r)
	if err != nil || answered {
		return v, err
	}
	over, entered := s.enter(r.ID)
	if !entered {
		return onceward.Verdict{Decision: onceward.DecisionInProgress, Now: s.now()}, nil
	}
	defer over()
	t := newTask(r.ID, onceward.Event{Kind: onceward.EventReserve, Reservation: r})
	t.member = newMember(s.LongestWork(r.Lease), over)
	err = s.writer.host(ctx, t, work)
	return t.verdict(), err
}

// enter notes a transaction in flight, so that duplicates within the process are seen at once. It is over when the caller
// leaves or the writer is done with it, whichever is first: a handler that was taken off and never returns does not lock
// its key.
func (s *Store) enter(id onceward.ID) (over func(), entered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight[id] != nil {
		return nil, false
	}
	ended := make(chan struct{})
	s.inFlight[id] = ended
	return sync.OnceFunc(func() {
		s.mu.Lock()
		delete(s.inFlight, id)
		s.mu.Unlock()
		close(ended)
	}), true
}

// member is a handler's part in a group: the writer gives it the connection for its turn and waits for it.
type member struct {
	longest time.Duration // zero for no limit
	over    func()        // called when the writer is done with it; may be nil
	// begin runs before the work and end after it, in the same savepoint. An error undoes everything. Both may be nil.
	begin, end func(r *records, now time.Time) error

	turns   chan turn
	settled chan onceward.Settlement
	left    chan struct{} // closed when its goroutine has left, which it does early by a panic
}

func newMember(longest time.Duration, over func()) *member {
	return &member{
		longest: longest, over: over,
		turns: make(chan turn), settled: make(chan onceward.Settlement, 1), left: make(chan struct{}),
	}
}

// turn is the right to use the transaction.
type turn struct {
	tx      *sql.Tx
	verdict onceward.Verdict
}

// host queues a member and plays its part: it runs the work when the writer says so.
func (w *writer) host(ctx context.Context, t *task, work func(context.Context, onceward.Verdict) onceward.Settlement) error {
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
			// Its turn has come: so will its end.
			waiting = nil
		}
	}
}

// play runs the work and hands the connection back, also if the work panics or ends its goroutine.
func (m *member) play(ctx context.Context, turn turn, work func(context.Context, onceward.Verdict) onceward.Settlement) {
	settlement := onceward.Settlement{Ending: onceward.Rollback}
	defer func() { m.settled <- settlement }()
	settlement = work(onceward.ContextWithTx(ctx, turn.tx), turn.verdict)
}

// run is the writer's side of a turn.
func (m *member) run(w *writer, t *task) (err error) {
	t.outcome = onceward.Outcome{}
	if err := w.savepoint.Exec(); err != nil {
		return err
	}
	var before onceward.Record
	switch t.event.Kind {
	case onceward.EventReserve:
		if before, err = w.reserve(t); err != nil || t.outcome.Decision != onceward.DecisionExecute {
			return errors.Join(err, w.release.Exec())
		}
	case onceward.EventCheckpoint:
		if before, err = w.beginStep(t); err != nil {
			return errors.Join(err, w.release.Exec())
		}
	default:
		if err := m.prepare(w, t.now); err != nil {
			return errors.Join(err, w.release.Exec())
		}
	}
	settlement, err := m.handOver(w, t.verdict())
	if err != nil {
		return err
	}
	return w.settle(t, &before, settlement)
}

// reserve decides inside the transaction. A grant is not written: only its outcome will be.
func (w *writer) reserve(t *task) (before onceward.Record, err error) {
	if before, t.row, err = w.load(t.id); err != nil {
		return before, err
	}
	if t.event.Token, err = w.token(t.now); err != nil {
		return before, err
	}
	if t.after, t.outcome, err = onceward.Step(before, t.event, t.now); err != nil {
		return before, refused{err}
	}
	if t.outcome.Decision == onceward.DecisionExecute {
		return before, nil
	}
	return before, w.store(t.id, t.row, &before, &t.after, t.outcome.Effect)
}

// handOver gives the connection to the handler and takes it back. An error means that the group's transaction is lost.
func (m *member) handOver(w *writer, v onceward.Verdict) (settlement onceward.Settlement, err error) {
	bound, cancel := context.Background(), context.CancelFunc(func() {})
	if m.longest > 0 {
		bound, cancel = context.WithTimeout(bound, m.longest)
	}
	defer cancel()
	w.gate = &gate{inner: w.conn, bound: bound}
	tx, err := w.db.BeginTx(context.Background(), nil)
	if err != nil {
		w.gate = nil
		return settlement, err
	}
	settlement, revoked := m.await(turn{tx: tx, verdict: v})
	tidy := w.gate.close()
	w.gate = nil
	if revoked {
		err = errRevoked
	}
	if tidy && !revoked {
		_ = tx.Rollback() // it only ends the handle, if the handler has not
	} else {
		// It waits for rows that the handler may never close; the connection is safe from them.
		go func() { _ = tx.Rollback() }()
	}
	if w.raw.GetAutocommit() {
		err = errors.Join(err, errUndone)
	}
	return settlement, err
}

// await waits for the handler. One that does not come back in time has its transaction taken away, because everybody waits
// for it. One whose goroutine has left, because an earlier run panicked, is undone.
func (m *member) await(t turn) (settlement onceward.Settlement, revoked bool) {
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

// settle ends the savepoint as the handler said. What cannot be kept is undone, without harm to the neighbours.
func (w *writer) settle(t *task, before *onceward.Record, s onceward.Settlement) error {
	refusal := w.judge(t, &s)
	if refusal != nil {
		s.Ending = onceward.Rollback
	}
	if s.Ending != onceward.Commit {
		if err := w.undo.Exec(); err != nil {
			return err
		}
	}
	switch {
	case s.Ending == onceward.Rollback:
		t.outcome.Effect = onceward.EffectNone
		t.after = *before
	case t.event.Kind != 0:
		if err := w.save(t.id, t.row, &t.after); err != nil {
			return err
		}
	}
	if err := w.release.Exec(); err != nil {
		return err
	}
	return refusal
}

// judge works out what is to be kept, or refuses it.
func (w *writer) judge(t *task, s *onceward.Settlement) error {
	switch {
	case s.Ending == onceward.Rollback:
		return nil
	case s.Ending == onceward.Commit && w.unresolved():
		return refused{fmt.Errorf("%w: it breaks a deferred foreign key", onceward.ErrWorkRefused)}
	case t.event.Kind == 0:
		t.outcome.Effect = onceward.EffectWrite
		return t.member.conclude(w)
	case t.event.Kind == onceward.EventCheckpoint:
		return w.endStep(t)
	}
	complete := onceward.Event{Kind: onceward.EventComplete, Attempt: t.after.Attempt, Completion: &s.Completion}
	after, outcome, err := onceward.Step(t.after, complete, w.now())
	if err != nil {
		return refused{unavailable(fmt.Errorf("settle: %w", err))}
	}
	t.after, t.outcome.Effect = after, outcome.Effect
	return nil
}

// unresolved reports whether a deferred foreign key is broken. The commit would fail by it, for the whole group.
func (w *writer) unresolved() bool {
	broken, _, err := w.raw.Status(sqlite3.DBSTATUS_DEFERRED_FKS, false)
	return err != nil || broken != 0
}
