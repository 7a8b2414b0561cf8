package dynamodb

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/onceward/onceward/store"
)

// Store is a [store.Store] on DynamoDB. It has every capability of package store but [store.Reaper], because the
// service removes what has expired; it has no outbox and no inbox.
type Store struct {
	client   *ddb.Client
	table    string
	shards   atomic.Int32
	readOnly bool
	log      *slog.Logger
	// own is the HTTP client of a store that was opened by its URL; nil for others.
	own *http.Client

	clock   *clock
	held    held
	recent  *recent
	watcher *watcher
	flights flights
	closed  atomic.Bool
}

// Close ends the waits under way. It closes the connections of a store that was opened by its URL; a client that was
// given to [New] stays the caller's.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.watcher.close()
	if s.own != nil {
		s.own.CloseIdleConnections()
	}
	return nil
}

// nothing is the guess that there is no record.
var nothing = value{}

// Reserve implements [store.Store]. A key that is new takes one request, and so does one that is answered by what is
// stored; one that is retried or made again takes two.
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	guess := sight{value: &nothing, guessed: true}
	if s.recent.has(r.ID) {
		guess = sight{}
	}
	out, err := s.apply(ctx, placeOf(r.ID), store.Event{Kind: store.EventReserve, Reservation: r}, guess)
	if err == nil && out.record.State.Settled() {
		s.recent.add(r.ID)
	}
	return store.Verdict{Decision: out.Decision, Origin: out.Origin, Record: out.record, Now: out.now}, err
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	return s.ownerWrites(ctx, c, store.Event{Kind: store.EventExtend, Lease: lease})
}

// Checkpoint implements [store.Store]. What does not fit into an item is refused with [ErrTooLarge].
func (s *Store) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.ownerWrites(ctx, c, store.Event{Kind: store.EventCheckpoint, Checkpoint: p})
}

// Complete implements [store.Store]. An answer that does not fit into an item is stored without its body: it is not
// replayed, and the operation is not executed again.
func (s *Store) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	event := store.Event{Kind: store.EventComplete, Attempt: c.Attempt, Completion: done}
	out, err := s.apply(ctx, placeOf(c.ID), event, s.owned(c))
	return out.record.ExpiresAt, err
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, c store.Claim, reason string) error {
	return s.ownerWrites(ctx, c, store.Event{Kind: store.EventRelease, Reason: reason})
}

// Abandon implements [store.Store].
func (s *Store) Abandon(ctx context.Context, c store.Claim, reason string) error {
	return s.ownerWrites(ctx, c, store.Event{Kind: store.EventAbandon, Reason: reason})
}

// Reject implements [store.Store].
func (s *Store) Reject(ctx context.Context, c store.Claim) error {
	return s.ownerWrites(ctx, c, store.Event{Kind: store.EventReject})
}

// ownerWrites applies an event of an owner of which only the error is needed.
func (s *Store) ownerWrites(ctx context.Context, c store.Claim, event store.Event) error {
	event.Attempt = c.Attempt
	_, err := s.apply(ctx, placeOf(c.ID), event, s.owned(c))
	return err
}

// write applies an event from outside of which only the error is needed.
func (s *Store) write(ctx context.Context, id store.ID, event store.Event) error {
	_, err := s.apply(ctx, placeOf(id), event, sight{})
	return err
}

// Get implements [store.Store]. It reads what is stored now: the service may also answer with what was there before,
// but is asked not to.
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	v, err := s.look(ctx, placeOf(id))
	switch {
	case v == nil:
		return store.Record{}, err
	case err == nil && v.State == store.StateNone:
		err = store.ErrNotFound
	}
	return v.Record, err
}

// hashOf shortens what is too long for a key.
func hashOf(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:16]
}

// shardOf is the part of an index that what has this hash belongs to.
func (s *Store) shardOf(hash []byte) byte { return byte(int32(hash[0]) % s.shards.Load()) }
