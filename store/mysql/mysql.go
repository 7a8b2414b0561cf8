// Package mysql keeps records in MySQL 8 or MariaDB 10.11, on one
// server or in a cluster that certifies at commit, such as Galera.
//
// It relies on the primary key alone: a reservation is one INSERT, and every other write names the attempt and the
// revision that it was decided on. Outside of the transactions that run a caller's work, no record is locked between
// two statements. Nothing waits for long, and no named lock of the server is used, because such locks are per node. The
// writes of a transactional handler, its claim and its answer are one transaction.
//
//	store, err := mysql.Open(ctx, "mysql://user:password@host:3306/database")
//
// Handlers get their transaction from [onceward.Tx], as a *sql.Tx. [New] runs them on a *sql.DB of the application.
//
// It is tested on MariaDB and on Galera. It is written for MySQL too, but not tested there.
package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/redial"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// Store implements all of these interfaces.
var (
	_ store.Store                = (*Store)(nil)
	_ store.Waiter               = (*Store)(nil)
	_ store.Sweeper              = (*Store)(nil)
	_ store.Reaper               = (*Store)(nil)
	_ store.Reconciler           = (*Store)(nil)
	_ store.Buster               = (*Store)(nil)
	_ store.Lister               = (*Store)(nil)
	_ store.LateCompletionKeeper = (*Store)(nil)
	_ store.ExternalEventKeeper  = (*Store)(nil)
	_ store.Auditor              = (*Store)(nil)
	_ store.AuditLister          = (*Store)(nil)
	_ store.ExecutionAuditor     = (*Store)(nil)
	_ store.Rewriter             = (*Store)(nil)
	_ store.Finder               = (*Store)(nil)
	_ store.Retainer             = (*Store)(nil)
)

// Store is a [store.Store] in MySQL or MariaDB. Any number of processes may use the same tables.
type Store struct {
	store.Methods
	options options
	logger  *slog.Logger

	// handlers is the pool of the connections for transactions. opened means that the store opened it.
	handlers *sql.DB
	opened   bool
	transactions
	// ownGate and handlersGate let each pool make one connection at a time while the server cannot be reached.
	ownGate, handlersGate redial.Gate
	// own is the pool for everything else, so that settling never waits for a connection that a handler holds.
	own *sql.DB

	location *location

	// where holds the names of the tables and the clock expression. A test that moves the clock replaces it.
	where  atomic.Pointer[rendering]
	closed atomic.Bool
	waits  sqltx.Waits
	// granted holds the records of the attempts that this process owns.
	granted granted
	// floor is the largest token of the removed records, as far as this process has read it: see [Store.token].
	floor atomic.Int64
}

// insertNew creates a record in one round trip. Its time is the server's time, from which its token is made, and it is
// returned as the insert ID. Nothing is inserted if the token is not above all removed tokens, or if the server is
// read-only: its administrators could still write there.
var insertNew = fmt.Sprintf(`INSERT INTO @record
		(hash, attempt, revision, state, due, created_at, settled_at, record, content)
	SELECT ?, @now DIV %[1]d * %[2]d + ?, ?, ?, LAST_INSERT_ID(@now) + ?, @now, 0, ?, ?
	FROM @meta WHERE name = 'max_removed_attempt' AND value < @now DIV %[1]d * %[2]d AND NOT @read_only`,
	store.TokenStep.Microseconds(), store.TokenScale)

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	event := store.Event{Kind: store.EventReserve, Reservation: r, Token: 1}
	fresh, outcome, err := store.Step(store.Record{}, event, time.Now())
	if err = errors.Join(err, s.writable()); err != nil {
		return store.Verdict{}, err
	}
	if err := left(ctx); err != nil {
		return store.Verdict{}, err
	}
	if s.InFlight(r.ID) {
		return s.inFlight(ctx, event, nil)
	}
	if outcome.Effect == store.EffectWrite {
		v, err := s.insertNew(ctx, r, fresh)
		switch {
		case err == nil:
			return v, nil
		case locked(err):
			return s.inFlight(ctx, event, err)
		case !s.decideAgain(err):
			return store.Verdict{}, unavailable(err)
		}
	}
	c, err := s.change(ctx, r.ID, event)
	switch {
	case errors.Is(err, store.ErrBusy):
		return s.inFlight(ctx, event, err)
	case err == nil && c.Effect == store.EffectWrite && c.Decision == store.DecisionExecute:
		s.granted.add(&c.Record, c.wrote.revision)
	}
	return c.Verdict(), err
}

// decideAgain reports whether a failed insert has to be decided from what is stored: the record exists, another insert
// ran at the same moment, no row was inserted, or the reply was lost.
func (s *Store) decideAgain(err error) bool {
	return duplicate(err) || undone(err) || errors.Is(err, errRace) || errors.Is(err, errUnanswered)
}

// insertNew creates a record that does not exist.
func (s *Store) insertNew(ctx context.Context, r *store.Reservation, rec store.Record) (v store.Verdict, err error) {
	lease := r.Lease.Truncate(store.ClockStep)
	w, draw := encode(&rec), store.TokenDraw()
	result, err := s.exec(ctx, insertNew, w.hash[:], draw, w.revision, w.state, lease.Microseconds(), w.record, w.content)
	if err != nil {
		return v, err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return v, errors.Join(errRace, err)
	}
	at, err := result.LastInsertId()
	if err != nil {
		return v, err
	}
	now := fromMicros(at)
	rec.Attempt, rec.CreatedAt, rec.LeaseUntil = store.TokenAt(now, draw), now, now.Add(lease)
	s.granted.add(&rec, w.revision)
	return store.Verdict{Decision: store.DecisionExecute, Origin: store.OriginCreated, Record: rec, Now: now}, nil
}

// inFlight answers a reservation whose record is held by a transaction. If the committed record decides the reservation
// without a write, the answer is that decision, and otherwise that the operation is in progress.
func (s *Store) inFlight(ctx context.Context, event store.Event, cause error) (store.Verdict, error) {
	rec, now, err := s.get(ctx, event.Reservation.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.Verdict{}, errors.Join(err, cause)
	}
	after, outcome, err := store.Step(rec, event, now)
	if err != nil {
		return store.Verdict{}, err
	}
	if outcome.Effect == store.EffectNone && outcome.Decision != store.DecisionRefused {
		return store.Verdict{Decision: outcome.Decision, Origin: outcome.Origin, Record: after, Now: now}, nil
	}
	return store.Verdict{Decision: store.DecisionInProgress, Now: now}, nil
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if err := errors.Join(s.writable(), left(ctx)); err != nil {
		return err
	}
	if s.extendAtOnce(ctx, c, lease) {
		return nil
	}
	return s.Methods.Extend(ctx, c, lease)
}

// Complete implements [store.Store]. An answer that does not fit into a packet is stored without its body: it cannot be
// replayed, but the operation is known to be done.
func (s *Store) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	if err := errors.Join(s.writable(), left(ctx)); err != nil {
		return time.Time{}, err
	}
	if expires, completed := s.completeAtOnce(ctx, c, done); completed {
		s.waits.Wake(c.ID)
		return expires, nil
	}
	expires, err := s.Methods.Complete(ctx, c, done)
	if tooLarge(err) && !done.Response.NotStored {
		small := *done
		small.Response.Body, small.Response.NotStored = nil, true
		if done.Response.IsSealed() {
			small.Response.Header = nil // it is sealed together with the body
		}
		return s.Methods.Complete(ctx, c, &small)
	}
	return expires, err
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	rec, _, err := s.get(ctx, id)
	return rec, err
}

// settle applies an event, and wakes the callers that wait for the record if the attempt is no longer in progress.
func (s *Store) settle(ctx context.Context, id store.ID, event store.Event) (store.Applied, error) {
	s.granted.take(store.Claim{ID: id, Attempt: event.Attempt})
	c, err := s.change(ctx, id, event)
	if err == nil && (c.Record.State != store.StateInProgress || c.Record.Attempt != c.before.Attempt) {
		s.waits.Wake(id)
	}
	return c.Applied, err
}
