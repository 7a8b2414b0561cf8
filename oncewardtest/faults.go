package oncewardtest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store"
)

// Point is a moment of a process: before or after one of its calls to the store.
type Point struct {
	// Call is the name of the call: "reserve", "extend", "checkpoint", "complete", "release", "abandon", "reject", or
	// for a transactional route "transact", which begins the transaction, and "commit".
	Call string
	// N counts the calls of that name from 1. Default: the next one.
	N int
	// Late means the moment after the call: the store has carried it out, and its reply has not arrived yet.
	Late bool
}

// Before returns the moment before the next call of that name.
func Before(call string) Point { return Point{Call: call} }

// After returns the moment after the next call of that name.
func After(call string) Point { return Point{Call: call, Late: true} }

// Nth returns the same moment of the n-th call of that name.
func (p Point) Nth(n int) Point {
	p.N = n
	return p
}

// String returns the point in words.
func (p Point) String() string {
	when := "before"
	if p.Late {
		when = "after"
	}
	if p.N == 0 {
		return when + " the next " + p.Call
	}
	return fmt.Sprintf("%s %s %d", when, p.Call, p.N)
}

// These are the errors of calls that were made to fail. Each wraps [store.ErrUnavailable], as the error of a real store
// does.
var (
	// ErrDown is returned while the store is down.
	ErrDown = fmt.Errorf("%w: oncewardtest: it is down", store.ErrUnavailable)
	// ErrReplyLost is returned for a call whose reply was lost.
	ErrReplyLost = fmt.Errorf("%w: oncewardtest: the reply was lost", store.ErrUnavailable)
	// ErrGone is returned to a process that is gone.
	ErrGone = fmt.Errorf("%w: oncewardtest: the process is gone", store.ErrUnavailable)
)

// Faults is a store that fails where a test makes it fail, around another store. It is the store as one process of a
// service sees it. It has the capabilities of the store inside.
type Faults struct {
	*wrap.Store
	t        TestingT                     // nil for a check, which knows the points that it reaches
	heard    func(call string, err error) // called when a call returns; may be nil
	reserved func(r store.Reservation)    // called for each reservation; may be nil

	mu     sync.Mutex
	down   bool
	gone   bool
	counts map[string]int
	calls  []Point // the calls that were made, in order
	plans  []*plan
	inTx   int // the number of transactions whose work is running
}

// plan is a fault that is planned for a point.
type plan struct {
	point Point
	name  string
	// act returns the error for the call, if any. It may end the goroutine.
	act  func() error
	done bool
}

// NewFaults returns a store around another one. All calls reach the inner store, until the test makes them fail. A
// planned fault whose point is never reached fails the test at its end.
func NewFaults(t TestingT, inside store.Store) *Faults {
	t.Helper()
	f := newFaults(inside)
	f.t = t
	t.Cleanup(f.reportMissed)
	return f
}

func newFaults(inside store.Store) *Faults {
	f := &Faults{counts: make(map[string]int)}
	f.Store = wrap.New(inside, f.around)
	return f
}

// Down makes every call fail from now on: no call reaches the store.
func (f *Faults) Down() { f.set(&f.down, true) }

// Up ends the effect of [Faults.Down].
func (f *Faults) Up() { f.set(&f.down, false) }

// LoseOwner ends the process, as the store sees it: none of its calls arrives from now on. The handler may continue, as
// it does on a machine that has lost its network.
func (f *Faults) LoseOwner() { f.set(&f.gone, true) }

// LoseOwnerAt has the effect of [Faults.LoseOwner] at a point.
func (f *Faults) LoseOwnerAt(p Point) {
	f.plan(p, "LoseOwnerAt", func() error {
		f.LoseOwner()
		return ErrGone
	})
}

// CrashAt ends the process at a point: none of its later calls arrives, and the goroutine that serves the request ends,
// so that the client gets no answer. Deferred functions run, which they would not in a real crash.
func (f *Faults) CrashAt(p Point) {
	f.plan(p, "CrashAt", func() error {
		f.LoseOwner()
		runtime.Goexit()
		return nil
	})
}

// LoseReply loses the reply to the next call of that name: the call is carried out, and its caller gets an error.
func (f *Faults) LoseReply(call string) { f.LoseReplyAt(After(call)) }

// LoseReplyAt loses the request of a call, if the point is before the call, or its reply, if the point is after it.
func (f *Faults) LoseReplyAt(p Point) { f.plan(p, "LoseReplyAt", func() error { return ErrReplyLost }) }

// Do calls a function at a point, in the goroutine of the call, which then continues.
func (f *Faults) Do(p Point, act func()) {
	f.plan(p, "Do", func() error {
		act()
		return nil
	})
}

// Calls returns the calls that were made, in order, each as the [Point] before it, with its number.
func (f *Faults) Calls() []Point {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *Faults) set(flag *bool, value bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*flag = value
}

func (f *Faults) plan(p Point, name string, act func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.N == 0 {
		p.N = f.counts[p.Call] + 1
	}
	f.plans = append(f.plans, &plan{point: p, name: name, act: act})
}

// reportMissed fails the test for each fault whose point was never reached: its name is wrong, or the test does not do
// what it should.
func (f *Faults) reportMissed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	var made []string
	for _, call := range f.calls {
		made = append(made, fmt.Sprintf("%s %d", call.Call, call.N))
	}
	for _, p := range f.plans {
		if !p.done {
			f.t.Errorf("oncewardtest: %s(%s): the moment never came; the calls to the store were: %s",
				p.name, p.point, strings.Join(made, ", "))
		}
	}
}

// around makes a call that is one step.
func (f *Faults) around(ctx context.Context, call wrap.Call, next func(ctx context.Context) error) error {
	n, err := f.begin(string(call))
	if err == nil {
		err = f.end(string(call), n, next(ctx))
	}
	f.hear(string(call), err)
	return err
}

// begin counts a call, and returns an error if the call does not reach the store.
func (f *Faults) begin(call string) (n int, err error) {
	f.mu.Lock()
	f.counts[call]++
	n = f.counts[call]
	f.calls = append(f.calls, Point{Call: call, N: n})
	f.mu.Unlock()
	if err := f.reach(Point{Call: call, N: n}); err != nil {
		return n, err
	}
	return n, f.state()
}

// end returns the error of a call that has ended, or the error of the fault after it.
func (f *Faults) end(call string, n int, err error) error {
	if lost := f.reach(Point{Call: call, N: n, Late: true}); lost != nil {
		return lost
	}
	return err
}

// state returns the error of a process that is gone, or of a store that is down.
func (f *Faults) state() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.gone:
		return ErrGone
	case f.down:
		return ErrDown
	default:
		return nil
	}
}

// reach carries out the plans for a point, and returns their first error.
func (f *Faults) reach(p Point) error {
	var due []*plan
	f.mu.Lock()
	for _, plan := range f.plans {
		if !plan.done && plan.point == p {
			plan.done = true
			due = append(due, plan)
		}
	}
	f.mu.Unlock()
	for _, plan := range due {
		if err := plan.act(); err != nil {
			return err
		}
	}
	return nil
}

func (f *Faults) hear(call string, err error) {
	if f.heard != nil {
		f.heard(call, err)
	}
}

// Reserve implements [store.Store].
func (f *Faults) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	f.note(r)
	v, err := f.Store.Reserve(ctx, r)
	if err != nil {
		return store.Verdict{}, err // the lost reply contained the verdict
	}
	return v, nil
}

func (f *Faults) note(r *store.Reservation) {
	if f.reserved != nil {
		f.reserved(*r)
	}
}

// Transact implements [store.Transactor]. It counts as two calls, "transact" and "commit", with the work between them.
func (f *Faults) Transact(
	ctx context.Context, r *store.Reservation, work func(ctx context.Context, v store.Verdict) store.Settlement,
) (store.Verdict, error) {
	in, ok := f.Unwrap().(store.Transactor)
	if !ok {
		return f.Store.Transact(ctx, r, work)
	}
	f.note(r)
	n, err := f.begin("transact")
	if err != nil {
		f.hear("transact", err)
		return store.Verdict{}, err
	}
	t := txFault{faults: f, name: "transact", begun: n}
	v, err := in.Transact(ctx, r, func(ctx context.Context, v store.Verdict) (settlement store.Settlement) {
		undone := store.Settlement{Action: store.TxRollback}
		if t.enter() != nil {
			return undone
		}
		defer f.addTx(-1)
		settlement = work(ctx, v)
		if t.leave(settlement.Action != store.TxRollback) != nil {
			return undone
		}
		return settlement
	})
	if err = t.finish(err); err != nil {
		return store.Verdict{}, err
	}
	return v, nil
}

// CheckpointTx implements [store.TxCheckpointer]. It counts as two calls, "checkpoint" and "commit".
func (f *Faults) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration,
	work func(ctx context.Context) (store.Checkpoint, error),
) error {
	in, ok := f.Unwrap().(store.TxCheckpointer)
	if !ok {
		return f.Store.CheckpointTx(ctx, c, lease, work)
	}
	n, err := f.begin("checkpoint")
	if err != nil {
		f.hear("checkpoint", err)
		return err
	}
	t := txFault{faults: f, name: "checkpoint", begun: n}
	err = in.CheckpointTx(ctx, c, lease, func(ctx context.Context) (p store.Checkpoint, err error) {
		if err := t.enter(); err != nil {
			return p, err
		}
		defer f.addTx(-1)
		p, err = work(ctx)
		if lost := t.leave(err == nil); lost != nil {
			return p, lost
		}
		return p, err
	})
	return t.finish(err)
}

// InTransaction reports whether the work of a transaction is running in this process.
func (f *Faults) InTransaction() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inTx > 0
}

func (f *Faults) addTx(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inTx += n
}

// txFault holds the faults of one transaction, which begins, works and commits.
type txFault struct {
	faults  *Faults
	name    string // the name of the call that begins it
	begun   int    // the number of that call
	entered bool
	commit  int   // the number of its commit, once that has begun
	fault   error // why it is undone, if it is
}

// enter is called after the transaction has begun. If it returns an error, the work does not run.
func (t *txFault) enter() error {
	if !t.entered { // otherwise the store has undone the work, and repeats it
		t.entered = true
		t.fault = t.faults.end(t.name, t.begun, nil)
		t.faults.hear(t.name, t.fault)
	}
	if t.fault == nil {
		t.faults.addTx(1)
	}
	return t.fault
}

// leave is called after the work. If it returns an error, the work is undone.
func (t *txFault) leave(commits bool) error {
	t.commit = 0
	if commits {
		t.commit, t.fault = t.faults.begin("commit")
	} else {
		t.fault = t.faults.state()
	}
	if t.fault != nil {
		t.faults.hear("commit", t.fault)
	}
	return t.fault
}

// finish is called after the transaction has ended, and returns the error for the caller.
func (t *txFault) finish(err error) error {
	switch {
	case t.fault != nil:
		return t.fault
	case !t.entered:
		err = t.faults.end(t.name, t.begun, err)
		t.faults.hear(t.name, err)
		return err
	case t.commit == 0 || err != nil:
		return err
	}
	lost := t.faults.end("commit", t.commit, nil)
	t.faults.hear("commit", lost)
	if lost != nil {
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, lost) // the store could not find out the outcome either
	}
	return nil
}
