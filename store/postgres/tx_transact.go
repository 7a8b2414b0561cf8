package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// The statements that store an answer together with COMMIT. They fail unless they write exactly one row in the
// transaction that took the lock, and so prevent the commit: in another transaction they write NULL to the column
// state, which does not allow it, and a number of written records other than one fails a conversion to an integer.
var (
	answered = map[string]string{
		"due": "@now() + ?", "state": "CASE WHEN transaction_timestamp() = $32 THEN ?::smallint END",
	}
	insertAnswer  = insertColumns(answered) + ` RETURNING due`
	replaceAnswer = `WITH written AS (` + updateColumns(answered) + ` WHERE id = $1 AND xmin = $33 RETURNING due)
		SELECT min(due),
			CASE WHEN count(*) = 1 THEN 1 ELSE (count(*)::text || ' records of onceward were written')::integer END FROM written`
)

// LongestWork implements [store.Transactor]. A handler may take as long as the lease.
func (s *Store) LongestWork(lease time.Duration) time.Duration { return lease }

// InFlight implements [store.Transactor].
func (s *Store) InFlight(id store.ID) bool { return s.flights.Has(id) }

// Transact implements [store.Transactor]. The work is run again if the server undid the transaction because of
// concurrent transactions. The reservation is decided again if another transaction was faster.
func (s *Store) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (v store.Verdict, err error) {
	if err := s.checkReservation(r); err != nil {
		return v, err
	}
	f := s.flights.Enter(r.ID)
	if f == nil {
		return s.peek(ctx, r)
	}
	defer s.flights.Leave(r.ID, f)
	err = s.retry(ctx, true, func(ctx context.Context) error {
		x := newHandlerPlan(s, r, f)
		x.run = work
		err := x.try(ctx)
		v = x.result()
		x.recycle()
		return err
	})
	return v, err
}

// peek decides for a duplicate of a transaction in flight. The duplicate gets an answer that is stored already, for
// example because the transaction in flight is a duplicate that is about to get the same answer.
func (s *Store) peek(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	rec, now, err := s.get(ctx, r.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.Verdict{}, err
	}
	after, outcome, err := store.Step(rec, store.Event{Kind: store.EventReserve, Reservation: r, Token: 1}, now)
	if err == nil && outcome.Effect == store.EffectWrite || outcome.Decision == store.DecisionRefused {
		outcome.Decision, after = store.DecisionInProgress, store.Record{}
	}
	return store.Verdict{Decision: outcome.Decision, Record: after, Now: now}, err
}

// handlerPlan is the plan of [Store.Transact]: the work of a handler and its answer.
type handlerPlan struct {
	transaction
	reservation *store.Reservation
	run         func(context.Context, store.Verdict) store.Settlement

	executed   bool
	verdict    store.Verdict
	settlement store.Settlement
	settled    store.Record
}

// handlerPlans holds the plans of transactions that are over, because a plan is too large to be
// allocated for each request.
var handlerPlans = sync.Pool{New: func() any { return new(handlerPlan) }}

func newHandlerPlan(s *Store, r *store.Reservation, f *sqltx.Flight) *handlerPlan {
	x := handlerPlans.Get().(*handlerPlan)
	x.plan, x.store, x.reservation, x.flight = x, s, r, f
	x.keyed, x.id, x.hash, x.lease, x.level = true, r.ID, s.hash(r.ID), r.Lease, r.Isolation
	x.answers, x.longest = true, s.LongestWork(r.Lease)
	return x
}

// recycle lets another transaction use the memory of the plan. The handler holds no part of the plan any more. A timer
// that has fired may still use it: the memory is then not reused.
func (x *handlerPlan) recycle() {
	if x.limit.Running() {
		return
	}
	*x = handlerPlan{}
	handlerPlans.Put(x)
}

// result returns the verdict. If the work was run, result wakes the callers that wait for the record.
func (x *handlerPlan) result() store.Verdict {
	if !x.executed {
		return x.verdict
	}
	x.store.waits.settled(x.hash)
	switch {
	case x.verdict.Decision != store.DecisionExecute: // another transaction was faster
	case x.settlement.Action == store.TxRollback:
		x.verdict.Record = x.before
	default:
		x.verdict.Record = x.settled
	}
	return x.verdict
}

// decide decides what the request may do. Without the lock it may not execute, but it may get an answer that is stored.
func (x *handlerPlan) decide(locked bool) (run bool, err error) {
	event := store.Event{Kind: store.EventReserve, Reservation: x.reservation, Token: x.token}
	if x.executed && x.verdict.Record.Attempt > x.before.Attempt {
		event.Token = x.verdict.Record.Attempt // the work has already sent this token
	}
	after, outcome, err := store.Step(x.before, event, x.now)
	if err != nil {
		return false, err
	}
	if outcome.Effect == store.EffectWrite && !locked {
		x.verdict = store.Verdict{Decision: store.DecisionInProgress, Now: x.now}
		return false, nil
	}
	if x.executed {
		outcome.Origin = x.verdict.Origin // the origin of the work that was run
	}
	x.verdict = store.Verdict{Decision: outcome.Decision, Origin: outcome.Origin, Record: after, Now: x.now}
	return outcome.Decision == store.DecisionExecute, nil
}

// declined records the loss of a lease that was found to have ended.
func (x *handlerPlan) declined() (err error) {
	if x.verdict.Decision == store.DecisionUnknown && x.before.State == store.StateInProgress {
		x.verdict, err = sqltx.Lose(&x.store.Methods, *x.reservation)
	}
	return err
}

// work runs the handler. A caller that leaves does not end it.
func (x *handlerPlan) work(ctx context.Context) (store.TxAction, error) {
	x.executed = true
	x.settlement = x.run(ctx, x.verdict)
	return x.settlement.Action, nil
}

func (x *handlerPlan) prepare(*pipeline, time.Time) (err error) {
	complete := store.Event{Kind: store.EventComplete, Attempt: x.verdict.Record.Attempt, Completion: &x.settlement.Completion}
	if x.settled, _, err = store.Step(x.verdict.Record, complete, x.now); err != nil {
		return unavailable(fmt.Errorf("settle: %w", err))
	}
	if !x.exists {
		x.settled.CreatedAt = x.settled.SettledAt // a transaction makes its record at its end
	}
	return nil
}

// write stores the answer.
func (x *handlerPlan) write(trip *pipeline) {
	var r row
	r.encode(&x.settled, x.hash)
	r.due = r.retention // counted from now
	parameters := append(trip.row(&r), trip.int64(x.began))
	if !x.exists {
		trip.add(&x.store.sql.insertAnswer, parameters...)
		return
	}
	trip.unnamed = true // the statement is rare, and planned for the record that it finds
	trip.add(&x.store.sql.replaceAnswer, append(parameters, x.xmin)...)
}

// read sets the times that the server has chosen.
func (x *handlerPlan) read(_ int, raw [][]byte) error {
	v := values{raw: raw}
	x.settled.ExpiresAt = fromMicros(v.int64(0))
	x.settled.SettledAt = x.settled.ExpiresAt.Add(-x.settled.Retention)
	if !x.exists {
		x.settled.CreatedAt = x.settled.SettledAt
	}
	return v.err
}

// learned sets the verdict from the outcome of the transaction. The answer of another transaction is replayed, and so
// is an answer that was rewritten since.
func (x *handlerPlan) learned(rec *store.Record, became fate, cause error) error {
	own := became == fateCommitted && rec.Attempt == x.settled.Attempt && rec.Response.Equal(&x.settled.Response)
	switch {
	case own:
		x.settled = *rec
		return nil
	case rec.State == store.StateCompleted && rec.Fingerprint == x.settled.Fingerprint && rec.Attempt != x.before.Attempt:
		x.verdict = store.Verdict{Decision: store.DecisionReplay, Record: *rec, Now: x.now}
		return nil
	case became != fateUndone: // a commit without its record proves nothing: see fateCommitted
		return became.unknown(cause)
	}
	err := x.store.notCommitted(cause)
	if errors.Is(err, store.ErrWorkRefused) && rec.Attempt != x.before.Attempt {
		return unavailable(fmt.Errorf("commit: %w", cause)) // a retry gets what the other transaction has stored
	}
	return err
}

func (x *handlerPlan) spoiled(reason, _ error) error {
	return sqltx.Spoil(&x.store.Methods, x.reservation, reason)
}
