// Package postgres keeps records in PostgreSQL: the reference store for production.
//
// A transactional handler's writes, its claim and its answer are one database transaction, whose claim costs no round
// trip of its own: it rides with BEGIN and COMMIT. Reserved mode decides with one statement, and gathers what
// concurrent callers ask into one round trip for all of them.
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

// The store promises all of these.
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

	// handlers is where the connections of transactions come from. opened is the pool behind it if the store opened
	// that itself.
	handlers source
	opened   *pgxpool.Pool
	// slots leave a part of a pool that the application has too.
	slots   *sqltx.Slots
	sockets *sockets
	// handlersGate lets one connection at a time be made for handlers while the server cannot be reached.
	handlersGate redial.Gate
	// own is for everything else, so that settling never waits for a connection that a handler holds.
	own *ownPool
	// asking is for finding out what became of a commit, which may mean to wait for a server that is gone.
	asking *ownPool
	// scout finds out whether the address leads to a server that takes writes.
	scout scout
	// replicas knows whether commits wait for a standby, if they must.
	replicas replicas

	names names
	// rendered are the texts of statements with the names of the tables, by the texts without them.
	rendered sync.Map
	sql      statements
	// unnamed says that connections cannot keep prepared statements.
	unnamed bool
	// serializable says that this is the default level of handlers' connections.
	serializable bool
	// idle is the bound on idle transactions that the connections of handlers have by themselves.
	idle    time.Duration
	channel string
	// salt is what the keys of locks are mixed with.
	salt   int64
	closed atomic.Bool
	// promoteFailures counts those of the last time.
	promoteFailures atomic.Int32
	batches         *batcher
	bridge          *sqltx.Bridge
	waits           *watcher
	messages        announcer

	// flights are the transactions of this process.
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

// decide returns the verdict on a reservation by the record as it was seen. Where the record has to be changed, that is
// done under its lock, and decided anew by what is there then.
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

// checkReservation refuses what the state machine would refuse.
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

// ownerWrite is an owner's write through the batcher. Where the batch did not write, the state machine says why, or
// does it.
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
