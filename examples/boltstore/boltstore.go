// Package boltstore is an example of a store: records in one bbolt file, in as little
// code as is safe. Expired records are not removed. docs/writing-a-store.md explains it.
package boltstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
	bolt "go.etcd.io/bbolt"
)

// Store is a [store.Store]. Only one process at a time can open it.
type Store struct {
	store.Methods
	db  *bolt.DB
	now func() time.Time
}

var bucket, errNothing = []byte("onceward"), errors.New("nothing to write: roll the transaction back")

// Open opens the file, or creates it. now is the clock of the store, such as time.Now.
func Open(file string, now func() time.Time) (*Store, error) {
	db, err := bolt.Open(file, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	if err := db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucketIfNotExists(bucket); return err }); err != nil {
		return nil, errors.Join(store.ErrUnavailable, err, db.Close())
	}
	s := &Store{db: db, now: now}
	s.Apply = s.change
	return s, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// change applies an event: the record is read, decided on and written in one transaction of the database.
func (s *Store) change(ctx context.Context, id store.ID, event store.Event) (applied store.Applied, err error) {
	var refused error // by the state machine, or because the record cannot be read: not a failure of the database
	err = s.db.Update(func(tx *bolt.Tx) error {
		records, name, before := tx.Bucket(bucket), id.AppendBinary(nil), store.Record{}
		if value := records.Get(name); value != nil {
			if before, refused = store.DecodeRecord(id, value); refused != nil {
				return refused
			}
		}
		token, err := records.NextSequence() // never repeats, and is rolled back with the transaction
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		event.Token, applied.Now = int64(token), s.now() // in the transaction: the clock follows the decisions
		applied.Record, applied.Transition, refused = store.Step(before, event, applied.Now)
		switch applied.Effect {
		case store.EffectWrite:
			return records.Put(name, applied.Record.AppendBinary(nil))
		case store.EffectRemove:
			return records.Delete(name)
		}
		return errNothing
	})
	if refused == nil && err != nil && !errors.Is(err, errNothing) {
		return store.Applied{}, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return applied, refused
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
