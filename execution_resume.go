package onceward

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

var errNoProgress = errors.New("onceward: recovery points need a reserved route: " +
	"a transaction is done as a whole or not at all")

// Origin returns where this attempt's right to execute came from.
func (o *Operation) Origin() store.Origin {
	if o == nil {
		return 0
	}
	return o.origin
}

// SharesTransactions reports whether [Operation.CheckpointTx] can be used: whether the store's transactions can hold
// the handler's writes.
func (o *Operation) SharesTransactions() bool {
	if o == nil || o.execution == nil {
		return false
	}
	_, shares := store.As[store.TxCheckpointer](o.execution.guard.store)
	return shares
}

// Checkpoint records how far the operation has come: the next attempt finds it with [Operation.Point]. While the store
// cannot answer, it is retried for as long as settling is. An error that wraps [store.ErrFenced] means that the attempt
// is no longer current, and must stop.
func (o *Operation) Checkpoint(p store.Checkpoint) error {
	if o == nil || o.execution == nil {
		return errNoProgress
	}
	if p.Data != nil && !o.useData(dataOfPoints) {
		return errPointsBesideCarry
	}
	return o.checkpoint(p)
}

// checkpoint stores a checkpoint. It retries for as long as settling does.
func (o *Operation) checkpoint(p store.Checkpoint) error {
	e := o.execution
	p = o.kept(p)
	o.notePoint(&p)
	return e.noteProgress(e.persist("checkpoint", func(ctx context.Context) error {
		return e.guard.store.Checkpoint(ctx, e.claim(), p)
	}))
}

// kept returns a copy of a checkpoint with the provider's id that the handler has set.
func (o *Operation) kept(p store.Checkpoint) store.Checkpoint {
	p.Point, p.ProviderID, p.Data = strings.Clone(p.Point), strings.Clone(p.ProviderID), bytes.Clone(p.Data)
	if id := o.providerID.Load(); id != nil && p.ProviderID == "" {
		p.ProviderID = *id
	}
	return p
}

// CheckpointTx records a checkpoint together with the writes of work in one transaction, which work gets from its
// context with [Tx]: see [Operation.Checkpoint]. An error of work undoes the transaction and is returned.
func (o *Operation) CheckpointTx(ctx context.Context, work func(ctx context.Context) (store.Checkpoint, error)) error {
	if o == nil || o.execution == nil {
		return errNoProgress
	}
	e := o.execution
	s, shares := store.As[store.TxCheckpointer](e.guard.store)
	if !shares {
		return errors.New("onceward: the store does not share its transactions")
	}
	if !o.useData(dataOfPoints) { // before the transaction: a value carried inside work would wait for it
		return errPointsBesideCarry
	}
	began := time.Now()
	err := s.CheckpointTx(ctx, e.claim(), e.settings.lease, func(ctx context.Context) (store.Checkpoint, error) {
		p, err := work(ctx)
		if err == nil {
			o.notePoint(&p)
		}
		return o.kept(p), err
	})
	e.called("checkpoint tx", began, err)
	return e.noteProgress(err)
}

// notePoint records that there may be a recovery point from now on.
func (o *Operation) notePoint(p *store.Checkpoint) {
	if p.Point != "" {
		o.recorded.Store(true)
	}
}

func (e *execution) noteProgress(err error) error {
	e.guard.noteFenced(e.base, e.reservation.ID, e.op.name, err)
	return err
}

// NeverExecuted reports the same as [Operation.NotExecuted], for all earlier attempts too, because they left no
// recovery point. It has no effect in an attempt that carried a value, because its call may have been sent.
func (o *Operation) NeverExecuted() {
	if !o.missing() {
		o.end(endedNeverExecuted)
	}
}

// Suspend stops the operation at its recovery point, whatever the handler answers. A later attempt, a retry or a
// resumer, continues from there, but not before the pause is over. The route must be one that resumes: see [OnLost].
// The caller's answer is that the operation is in progress. In a transactional handler Suspend undoes the transaction,
// so that nothing was done.
func (o *Operation) Suspend(pause time.Duration) {
	if !o.missing() {
		o.pause.Store(int64(max(pause, store.ClockStep)))
		o.end(endedSuspended)
	}
}

// suspended returns the outcome of an attempt that continues later.
func (e *execution) suspended() outcome {
	if e.settings.onLost != store.LostResume {
		reason := "the handler suspended an operation that is never resumed: the route lacks OnLost(LostResume)"
		return outcome{kind: outcomeUnknown, reason: reason}
	}
	return outcome{kind: outcomeSuspend}
}

// settleSuspend shortens the lease to the pause: after it the operation can be taken over. If the call fails, the lease
// runs out. No heartbeat may follow, because it would extend the lease.
func (e *execution) settleSuspend(try func(call string, write func(ctx context.Context) error) error) result {
	e.guard.keeper.quiet(&e.lease)
	pause := max(time.Duration(e.op.pause.Load()), store.ClockStep)
	err := try("extend", func(ctx context.Context) error { return e.guard.store.Extend(ctx, e.claim(), pause) })
	if res, ok := e.overtaken(err); ok {
		return res
	}
	e.settled(store.StateInProgress, err)
	return e.resumesLater()
}

// resumesLater returns the result of an attempt whose operation continues later.
func (e *execution) resumesLater() result {
	return result{
		kind: resultDecision, decision: store.DecisionInProgress, suspended: true,
		record: store.Record{ID: e.reservation.ID, State: store.StateInProgress, Attempt: e.op.attempt},
	}
}

// Resume takes over an operation of [Guard.Do] whose owner was lost, without its caller: fn continues from the recovery
// point. The record may come from a list of the store; the store decides by its current content. The options are the
// route's, which must include OnLost([LostResume]). The errors are those that Do returns: [ErrInProgress] means that
// another attempt was faster, or that the operation was suspended again; [ErrRefused] means that the record is gone, or
// was released since: then only a retry by its caller may execute it.
func (g *Guard) Resume(
	ctx context.Context, rec *store.Record, fn func(ctx context.Context) ([]byte, error), options ...Option,
) (Result, error) {
	s, err := g.resumeSettings(options)
	if err != nil {
		return Result{}, err
	}
	f := &function{fn: fn}
	if err := f.prepareResume(g, s, ctx, rec); err != nil {
		return Result{}, err
	}
	return f.do()
}

// ResumeHandler resumes an operation that arrived by HTTP: see [Guard.Resume]. The handler gets a request without a
// body, and its answer is stored like an answer of the route.
func (g *Guard) ResumeHandler(ctx context.Context, rec *store.Record, next http.Handler, options ...Option) error {
	s, err := g.resumeSettings(options)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
	if err != nil {
		return err
	}
	x := newHTTPExecution(&protected{guard: g, settings: s, next: next}, discard{}, request)
	if err := x.prepareResume(g, s, ctx, rec); err != nil {
		return err
	}
	res := x.run(x)
	x.firstRecorder.close()
	if x.panicked != nil {
		panic(x.panicked)
	}
	return x.failure(&res)
}

func (g *Guard) resumeSettings(options []Option) (*settings, error) {
	s, err := g.settings(options)
	if err != nil {
		return nil, err
	}
	return s.resumed()
}

// resumed returns the settings of an attempt without its caller.
func (s *settings) resumed() (*settings, error) {
	if s.mode != modeReserved || s.onLost != store.LostResume {
		return nil, errors.New("onceward: only a route with Reserved(…) and OnLost(LostResume) can be resumed")
	}
	now := *s
	now.inFlight = inFlightConflict // no caller waits
	return &now, nil
}

// prepareResume takes the reservation, with the fingerprint, from the record. It fails if this node cannot derive the
// record's downstream keys: the record is left to a node that can.
func (e *execution) prepareResume(g *Guard, s *settings, caller context.Context, rec *store.Record) error {
	if g.config.Propagator != nil {
		caller = g.config.Propagator.Continue(caller, rec.TraceID)
	}
	e.prepare(g, s, caller, rec.ID, rec.Operation)
	e.actor = ResumeActor
	e.reservation.Fingerprints = append(e.prints[:0], rec.Fingerprint)
	e.reservation.ResumeOnly = true
	_, err := g.downstream.secret(rec)
	return err
}

// discard is the http.ResponseWriter of an operation that runs without a client.
type discard struct{}

// Header implements [http.ResponseWriter].
func (discard) Header() http.Header { return make(http.Header) }

// Write implements [http.ResponseWriter].
func (discard) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements [http.ResponseWriter].
func (discard) WriteHeader(int) {}
