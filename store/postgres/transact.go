package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
)

// The first round trip of a transaction. The look-up is a statement of its own, behind the lock: one that locked and looked
// at once would not see what the last holder of the lock has committed. A node that stops in mid-transaction is put out
// by the server after a bounded time of idleness.
const (
	claim        = `SELECT pg_try_advisory_xact_lock($1), transaction_timestamp()`
	claimBounded = `SELECT pg_try_advisory_xact_lock($1), transaction_timestamp(), set_config('idle_in_transaction_session_timeout', $2, true)`
	lookUp       = `SELECT @now(), attempt, due, retention, answer, queue, request, more FROM @record WHERE id = $1`
)

// LongestWork implements [store.Transactor]: a handler gets the lease.
func (s *Store) LongestWork(lease time.Duration) time.Duration { return lease }

// idleGrace is how much longer than its lease an idle transaction may live.
const idleGrace = 5 * time.Second

// InFlight implements [store.Transactor].
func (s *Store) InFlight(id store.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight[id] != nil
}

// flight is a transaction of this process.
type flight struct {
	ended chan struct{} // closed at its end; nil as long as that is not waited for
}

// enter notes a transaction in flight, so that duplicates within the process are seen without asking the server. It
// returns nil if there is one already.
func (s *Store) enter(id store.ID) *flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight[id] != nil {
		return nil
	}
	f := new(flight)
	s.inFlight[id] = f
	return f
}

// leave notes that the transaction is over. One that was taken back from its work is over before that returns, and
// the next one may be in flight by then.
func (s *Store) leave(id store.ID, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight[id] != f {
		return
	}
	delete(s.inFlight, id)
	if f.ended != nil {
		close(f.ended)
	}
}

// Transact implements [store.Transactor]. The work is run again if the server undid the transaction because of its
// neighbours, and decided again if another one was faster.
func (s *Store) Transact(ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement) (store.Verdict, error) {
	if err := s.checkReservation(ctx, r); err != nil {
		return store.Verdict{}, err
	}
	number, err := s.operations.number(ctx, r.Operation)
	if err != nil {
		return store.Verdict{}, err
	}
	f := s.enter(r.ID)
	if f == nil {
		return s.peek(ctx, r)
	}
	defer s.leave(r.ID, f)
	for try := 1; ; try++ {
		t := &transaction{store: s, reservation: r, hash: s.hash(r.ID), number: number, flight: f}
		v, err := t.try(ctx, work)
		if !errors.Is(err, errAgain) {
			return v, err
		}
		if try == maxTries {
			return v, unavailable(fmt.Errorf("the transaction was undone %d times: %w", try, err))
		}
	}
}

// peek decides for a duplicate of a transaction in flight: what is stored it may have, such as the answer that the other
// one, a duplicate itself, is about to be told.
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

// errAgain says that a transaction was undone, for certain, by no fault of its own.
var errAgain = errors.New("decide again")

// transaction is one try.
type transaction struct {
	store       *Store
	lent        lent
	conn        *pgx.Conn
	reservation *store.Reservation
	hash        [16]byte
	number      int32
	flight      *flight

	view
	granted store.Record
	settled store.Record
	gate    gate
	trip    pipeline // the round trip under way
	// answers says that there will be an answer, to which the handler may add messages; adds that it added any, in either way.
	answers bool
	adds    atomic.Bool

	// timer takes the transaction back from work that is late. claimed goes to the first of the two, the work or the
	// timer; taking is over when the transaction was taken back, and then late says what that came to, and given
	// that the connection has gone back.
	timer   *time.Timer
	claimed atomic.Bool
	taking  sync.WaitGroup
	late    error
	given   bool
}

// view is what a transaction has seen at its beginning.
type view struct {
	began  int64 // by the server's clock: no other transaction of this connection has the same
	now    time.Time
	before store.Record
	exists bool
}

// lockKey is the key of the advisory lock. Two keys may share it: while one is in flight the other is told to come again.
func lockKey(hash [16]byte) int64 { return int64(binary.BigEndian.Uint64(hash[:8])) }

// try decides, and executes if that is what was decided.
func (t *transaction) try(ctx context.Context, work func(context.Context, store.Verdict) store.Settlement) (v store.Verdict, err error) {
	if err := ctx.Err(); err != nil {
		return v, unavailable(err)
	}
	if t.lent, err = t.store.borrow(ctx); err != nil {
		return v, unavailable(err)
	}
	t.conn = t.lent.pgx()
	defer t.giveBack()
	locked, err := t.begin(ctx)
	if err == nil {
		err = unavailable(ctx.Err())
	}
	if err != nil {
		return v, t.notBegun(ctx, err)
	}
	v, err = t.decide(locked)
	if err != nil || v.Decision != store.DecisionExecute {
		return t.declined(v, err)
	}
	return t.execute(ctx, v, work)
}

// notBegun ends a transaction in which nothing was done because of an error at its beginning. It is worth another
// try if the connection turned out dead, or if what was prepared there has been discarded.
func (t *transaction) notBegun(ctx context.Context, err error) error {
	noteStandby(t.conn, err)
	if sqlState(err) == stateNoSuchStatement {
		t.close()
	}
	if t.conn.IsClosed() && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return errors.Join(err, t.rollback())
}

// begin is the first round trip: BEGIN, the lock and the look-up. A caller who leaves does not cut it off, because the
// server would keep the lock until it noticed.
func (t *transaction) begin(ctx context.Context) (locked bool, err error) {
	sql := &t.store.sql
	trip := t.newTrip()
	deadline := undisturbed(ctx)
	if err := trip.prepare(ctx, deadline, sql.transactional()...); err != nil {
		return false, unavailable(err)
	}
	trip.add(&sql.begin)
	lock := trip.int64(lockKey(t.hash))
	if idle, set := t.idle(); set {
		trip.add(&sql.claimBounded, lock, strconv.AppendInt(nil, idle.Milliseconds(), 10))
	} else {
		trip.add(&sql.claim, lock)
	}
	trip.add(&sql.lookUp, t.hash[:])
	seen := view{}
	found := row{id: t.hash}
	_, err = trip.run(deadline, func(statement int, raw [][]byte) error {
		v := values{raw: raw}
		if statement == 1 {
			locked, seen.began = v.bool(0), v.int64(1)
			seen.now = fromPostgresTime(seen.began)
		} else {
			seen.exists, seen.now = true, fromMicros(v.int64(0))
			found.read(&v, 1)
		}
		return v.err
	})
	t.view = seen
	if err != nil {
		return false, unavailable(err)
	}
	if t.exists {
		t.before, err = found.record(t.reservation.ID, t.store.operations.name)
	}
	return locked, err
}

// newTrip begins a round trip on the transaction's connection.
func (t *transaction) newTrip() *pipeline {
	t.trip = pipeline{conn: t.conn, unnamed: t.store.unnamed}
	return &t.trip
}

// idle is how long the transaction may be idle, and whether that has to be said: connections that are bounded by themselves
// at about the same need not be told.
func (t *transaction) idle() (idle time.Duration, set bool) {
	idle = max(t.reservation.Lease, time.Second) + idleGrace
	return idle, t.store.idle < t.reservation.Lease || t.store.idle > 2*idle
}

// undisturbed is when the caller's time is up: a caller who leaves earlier does not count.
func undisturbed(ctx context.Context) time.Time {
	latest := time.Now().Add(settleTimeout)
	if until, bounded := ctx.Deadline(); bounded && until.Before(latest) {
		return until
	}
	return latest
}

// decide says what the request may do. Without the lock it may not execute; what is there it may have.
func (t *transaction) decide(locked bool) (v store.Verdict, err error) {
	// The token is given out when the answer is stored, so that tokens grow in the order of commits (I6).
	event := store.Event{Kind: store.EventReserve, Reservation: t.reservation, Token: 1}
	after, outcome, err := store.Step(t.before, event, t.now)
	if err != nil {
		return v, err
	}
	t.granted = after
	if outcome.Effect == store.EffectWrite && !locked {
		return store.Verdict{Decision: store.DecisionInProgress, Now: t.now}, nil
	}
	return store.Verdict{Decision: outcome.Decision, Origin: outcome.Origin, Record: after, Now: t.now}, nil
}

// declined ends a transaction that does not execute. A lease that was found to have run out is written down.
func (t *transaction) declined(v store.Verdict, err error) (store.Verdict, error) {
	if err := errors.Join(err, unavailable(t.rollback())); err != nil {
		return store.Verdict{}, err
	}
	if v.Decision == store.DecisionUnknown && t.before.State == store.StateInProgress {
		return t.lose()
	}
	return v, nil
}

// lose writes down that the owner of the record has lost its lease, unless it was settled in the meantime.
func (t *transaction) lose() (store.Verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	existing := *t.reservation
	existing.NoCreate = true
	c, err := t.store.change(ctx, existing.ID, store.Event{Kind: store.EventReserve, Reservation: &existing})
	switch {
	case err != nil:
		return store.Verdict{}, err
	case c.outcome.Decision == store.DecisionExecute, c.outcome.Decision == store.DecisionRefused:
		// It was released or removed just now: what was granted here is not taken, and the caller asks again.
		_, err = t.store.change(ctx, existing.ID, store.Event{
			Kind: store.EventRelease, Attempt: c.after.Attempt, Reason: "the grant was not taken",
		})
		if errors.Is(err, store.ErrFenced) {
			err = nil
		}
		return store.Verdict{Decision: store.DecisionInProgress, Now: c.now}, err
	default:
		return store.Verdict{Decision: c.outcome.Decision, Record: c.after, Now: c.now}, nil
	}
}

// rollback ends the transaction without a trace.
func (t *transaction) rollback() error {
	if t.conn.IsClosed() || t.conn.PgConn().TxStatus() == statusIdle {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	_, err := t.conn.Exec(ctx, `ROLLBACK`)
	return err
}

// execute runs the work and settles as it says. The caller's context does not reach so far.
func (t *transaction) execute(ctx context.Context, v store.Verdict, work func(context.Context, store.Verdict) store.Settlement) (store.Verdict, error) {
	settlement := t.run(ctx, v, work)
	defer t.store.waits.settled(t.hash)
	if t.late != nil {
		return v, t.late
	}
	return t.settle(v, settlement)
}

// run hands the transaction to the work and takes it back, also if the work panics or ends its goroutine.
func (t *transaction) run(ctx context.Context, v store.Verdict, work func(context.Context, store.Verdict) store.Settlement) (settlement store.Settlement) {
	returned := false
	defer func() {
		if !t.inTime() {
			return
		}
		t.gate.close()
		if !returned {
			_ = t.rollback()
		}
	}()
	t.answers = true
	t.gate.open(t)
	t.watch(t.store.LongestWork(t.reservation.Lease))
	settlement = work(t.gate.context(context.WithoutCancel(ctx)), v)
	returned = true
	return settlement
}
