package sqlite

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/store"
)

// task is one thing for the writer to do inside a transaction: an event for one record, a function over many, or a
// transactional handler.
type task struct {
	id       store.ID
	event    store.Event
	function func(r *records, now time.Time) error
	member   *member

	// What came of it, written by the writer before done is closed.
	after   store.Record
	row     int64 // where a member's record stands, zero if there is none
	outcome store.Transition
	now     time.Time
	err     error

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

// start takes the task for execution, unless its caller has given up. It can be started again.
func (t *task) start() bool {
	return t.state.CompareAndSwap(taskQueued, taskStarted) || t.state.Load() == taskStarted
}

// drop keeps the task from being started, and reports whether it had not been.
func (t *task) drop() bool { return t.state.CompareAndSwap(taskQueued, taskDropped) }

// run does the task. It may be called again after a rollback.
func (t *task) run(w *writer) (err error) {
	if !t.start() {
		return nil
	}
	t.err = nil
	t.now = w.now()
	switch {
	case t.function != nil:
		return t.function(w.records, t.now)
	case t.member != nil:
		return t.member.run(w, t)
	default:
		t.after, t.outcome, err = w.step(t.id, t.event, t.now)
		return err
	}
}

// fail notes why the task came to nothing. That goes before what the task was told inside the transaction that was lost,
// such as a refusal by what a neighbour had written.
func (t *task) fail(err error) {
	if err != nil && !errors.Is(t.err, store.ErrOutcomeUnknown) {
		t.err = err
	}
}

// refusedBy notes an error that is the task's own and does no harm to its neighbours, or reports that it is not such.
func (t *task) refusedBy(err error) bool {
	var refusal refused
	switch {
	case errors.As(err, &refusal):
		t.err = refusal.error
	case errors.Is(err, store.ErrUnreadable):
		t.err = err
	default:
		return false
	}
	return true
}

// settles reports whether somebody may be waiting for what the task did.
func (t *task) settles() bool {
	return t.outcome.Effect != store.EffectNone &&
		(t.after.State != store.StateInProgress || t.outcome.Origin == store.OriginResumed)
}

func (t *task) verdict() store.Verdict {
	return store.Verdict{Decision: t.outcome.Decision, Origin: t.outcome.Origin, Record: t.after, Now: t.now}
}
