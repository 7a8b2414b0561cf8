// Package postgres keeps records in PostgreSQL: the reference store for production.
//
// A transactional handler's writes, its claim and its answer are one database transaction, whose claim costs no round
// trip of its own: it is sent with BEGIN and COMMIT. Reserved mode decides with one statement, and gathers the
// statements of concurrent callers into one round trip.
//
//	store, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
//
// Handlers take their transaction with [Tx], as a pgx.Tx, or with [onceward.Tx], as a *sql.Tx: both work on every store
// of this package. [New] shares a pool of pgx with the application, [NewSQL] a *sql.DB.
package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/redial"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// Store implements these interfaces.
var (
	_ store.Store                = (*Store)(nil)
	_ store.Transactor           = (*Store)(nil)
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
	_ outbox.Store               = (*Store)(nil)
	_ inbox.Store                = (*Store)(nil)
	_ natural.Store              = (*Store)(nil)
)

// Store is a [store.Store] in PostgreSQL. Any number of processes may use the same tables.
type Store struct {
	store.Methods
	options options
	logger  *slog.Logger

	// handlers is the source of the connections of transactions. opened is its pool, if the
	// store opened the pool itself.
	handlers source
	opened   *pgxpool.Pool
	// slots leaves the application a part of a pool that it shares with the store.
	slots   *sqltx.Slots
	sockets *sockets
	// handlersGate lets one connection at a time be made for handlers while the server cannot be reached.
	handlersGate redial.Gate
	// own is the pool for everything else, so that settling never waits for a connection that a handler holds.
	own *ownPool
	// asking is the pool for finding out the outcome of a commit, which may mean to wait for a server that is gone.
	asking *ownPool
	// scout finds out whether the address leads to a server that takes writes.
	scout scout
	// replicas records whether commits wait for a standby, if they must.
	replicas replicas

	names names
	// rendered maps the text of a statement to its text with the names of the tables.
	rendered sync.Map
	sql      statements
	// unnamed means that connections cannot keep prepared statements.
	unnamed bool
	// serializable means that SERIALIZABLE is the default level of handlers' connections.
	serializable bool
	// idle is the bound on idle transactions that is set on the connections of handlers.
	idle    time.Duration
	channel string
	// salt is a number that is mixed into the keys of locks.
	salt   int64
	closed atomic.Bool
	// promoteFailures counts recent failures to promote messages: see promotesAtOnce.
	promoteFailures atomic.Int32
	batches         *batcher
	bridge          *sqltx.Bridge
	waits           *watcher
	messages        announcer

	// flights holds the running transactions of this process.
	flights sqltx.Flights
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	if err := s.checkReservation(r); err != nil {
		return store.Verdict{}, err
	}
	if r.ResumeOnly || r.NoCreate {
		rec, now, err := s.get(ctx, r.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return store.Verdict{}, err
		}
		return s.decide(ctx, r, rec, now)
	}
	for {
		t := reserveItem(r, s.hash(r.ID))
		if err := s.batches.do(ctx, t); err != nil {
			return store.Verdict{}, err
		}
		switch t.outcome {
		case outcomeCreated:
			return store.Verdict{
				Decision: store.DecisionExecute, Origin: store.OriginCreated, Record: t.granted(), Now: fromMicros(t.now),
			}, nil
		case outcomeRead:
			rec, err := t.found.record(r.ID)
			if err != nil {
				return store.Verdict{}, err
			}
			return s.decide(ctx, r, rec, fromMicros(t.now))
		}
	}
}

// decide returns the verdict on a reservation for the record as it was read. If the record has to be changed, decide
// changes it under its lock, and decides again from the record as it is then.
func (s *Store) decide(
	ctx context.Context, r *store.Reservation, seen store.Record, now time.Time,
) (store.Verdict, error) {
	event := store.Event{Kind: store.EventReserve, Reservation: r, Token: 1}
	after, outcome, err := store.Step(seen, event, now)
	if err == nil && outcome.Effect != store.EffectNone {
		var c changed
		c, err = s.change(ctx, r.ID, event)
		after, outcome, now = c.after, c.outcome, c.now
	}
	if err == nil && outcome.Origin == store.OriginRepeated {
		err = unavailable(replicated(ctx, s.asking)) // the first call may have been cut off from the standbys
	}
	if err != nil {
		return store.Verdict{Now: now}, err
	}
	return store.Verdict{Decision: outcome.Decision, Origin: outcome.Origin, Record: after, Now: now}, nil
}

// checkReservation returns an error if the store cannot be written, or the state machine would refuse the reservation.
func (s *Store) checkReservation(r *store.Reservation) error {
	if err := s.writable(); err != nil {
		return err
	}
	return r.Check()
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if err := s.writable(); err != nil {
		return err
	}
	if lease < time.Microsecond {
		return s.Methods.Extend(ctx, c, lease)
	}
	event := store.Event{Kind: store.EventExtend, Attempt: c.Attempt, Lease: lease}
	_, err := s.ownerWrite(ctx, c.ID, extendItem(s.hash(c.ID), c.Attempt, lease), event)
	return err
}

// Complete implements [store.Store].
func (s *Store) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	if err := s.writable(); err != nil {
		return time.Time{}, err
	}
	if done == nil || done.Response.Status < 200 || done.Response.Status > 999 {
		return s.Methods.Complete(ctx, c, done)
	}
	event := store.Event{Kind: store.EventComplete, Attempt: c.Attempt, Completion: done}
	return s.ownerWrite(ctx, c.ID, completeItem(s.hash(c.ID), c.Attempt, done), event)
}

// ownerWrite makes an owner's write through the batcher. If the batch did not write, the state machine returns the
// reason, or makes the write.
func (s *Store) ownerWrite(ctx context.Context, id store.ID, t *item, event store.Event) (time.Time, error) {
	if err := s.batches.do(ctx, t); err != nil {
		return time.Time{}, err
	}
	if t.outcome != outcomeWritten {
		c, err := s.change(ctx, id, event)
		if err != nil {
			return time.Time{}, err
		}
		t.due = micros(c.after.ExpiresAt)
	}
	if t.kind == kindComplete {
		s.waits.settled(t.id)
	}
	return fromMicros(t.due), nil
}

// settle applies an event, and wakes the callers that wait for the record. A reservation and a checkpoint end no wait.
func (s *Store) settle(ctx context.Context, id store.ID, event store.Event) (store.Applied, error) {
	c, err := s.change(ctx, id, event)
	if err == nil && event.Kind != store.EventCheckpoint && event.Kind != store.EventReserve {
		s.waits.settled(s.hash(id))
	}
	return store.Applied{Transition: c.outcome, Record: c.after, Now: c.now}, err
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	rec, _, err := s.get(ctx, id)
	return rec, err
}
