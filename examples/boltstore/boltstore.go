// Package boltstore is an example of a store: records in one bbolt file, in as little code as is safe. It has no
// optional capability, so that nothing removes what has expired. docs/writing-a-store.md walks through it.
package boltstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
	bolt "go.etcd.io/bbolt"
)

// Store is a [store.Store] that one process at a time has open.
type Store struct {
	db  *bolt.DB
	now func() time.Time
}

var bucket, errNothing = []byte("onceward"), errors.New("nothing to write: roll the transaction back")

// Open opens the file, or makes it. The clock of the store is now, such as time.Now.
func Open(file string, now func() time.Time) (*Store, error) {
	db, err := bolt.Open(file, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	err = db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucketIfNotExists(bucket); return err })
	if err != nil {
		return nil, errors.Join(store.ErrUnavailable, err, db.Close())
	}
	return &Store{db, now}, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// apply is the one place where a record changes: it is read, decided on and written in one transaction of the database.
func (s *Store) apply(ctx context.Context, id store.ID, event store.Event) (v store.Verdict, err error) {
	if err := ctx.Err(); err != nil {
		return v, err
	}
	var refused error // by the state machine, or because the record cannot be read: the database is not to blame
	err = s.db.Update(func(tx *bolt.Tx) error {
		records, name, before := tx.Bucket(bucket), id.AppendBinary(nil), store.Record{}
		if value := records.Get(name); value != nil {
			if before, refused = store.DecodeRecord(id, value); refused != nil {
				return refused
			}
		}
		token, err := records.NextSequence() // never repeats, and is undone with the transaction
		if err != nil {
			return err
		}
		event.Token = int64(token)
		now := s.now() // inside of the transaction, so that the clock follows the order of the decisions
		after, transition, err := store.Step(before, event, now)
		v = store.Verdict{Decision: transition.Decision, Origin: transition.Origin, Record: after, Now: now}
		if refused = err; transition.Effect == store.EffectNone {
			return errNothing
		}
		return records.Put(name, after.AppendBinary(nil)) // none of these events removes a record
	})
	if refused == nil && err != nil && !errors.Is(err, errNothing) {
		return store.Verdict{}, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return v, refused
}

// write is apply for an owner, who needs the error alone.
func (s *Store) write(ctx context.Context, id store.ID, event store.Event) error {
	_, err := s.apply(ctx, id, event)
	return err
}

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	return s.apply(ctx, r.ID, store.Event{Kind: store.EventReserve, Reservation: r})
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventExtend, Attempt: c.Attempt, Lease: lease})
}

// Checkpoint implements [store.Store].
func (s *Store) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt, Checkpoint: p})
}

// Complete implements [store.Store].
func (s *Store) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	v, err := s.apply(ctx, c.ID, store.Event{Kind: store.EventComplete, Attempt: c.Attempt, Completion: done})
	return v.Record.ExpiresAt, err
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventRelease, Attempt: c.Attempt, Reason: reason})
}

// Abandon implements [store.Store].
func (s *Store) Abandon(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventAbandon, Attempt: c.Attempt, Reason: reason})
}

// Reject implements [store.Store].
func (s *Store) Reject(ctx context.Context, c store.Claim) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventReject, Attempt: c.Attempt})
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, id store.ID) (rec store.Record, err error) {
	failed := s.db.View(func(tx *bolt.Tx) error {
		err = store.ErrNotFound
		if value := tx.Bucket(bucket).Get(id.AppendBinary(nil)); value != nil {
			rec, err = store.DecodeRecord(id, value)
		}
		return ctx.Err()
	})
	if failed != nil {
		err = fmt.Errorf("%w: %w", store.ErrUnavailable, failed)
	}
	return rec, err
}
