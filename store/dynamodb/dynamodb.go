package dynamodb

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"

	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/onceward/onceward/store"
)

// Store implements these interfaces, and more in other files.
var (
	_ store.Reconciler = (*Store)(nil)
	_ store.Buster     = (*Store)(nil)
	_ store.Rewriter   = (*Store)(nil)
	_ store.Retainer   = (*Store)(nil)
)

// Store is a [store.Store] on DynamoDB. It has every capability of package store except [store.Reaper], because the
// service removes expired items; it has no outbox and no inbox. The token of a record that was removed stays known for
// at least an hour.
//
// An answer that does not fit into an item is stored without its body: it is not replayed, and the operation is not
// executed again. A checkpoint that does not fit is refused with [ErrTooLarge].
type Store struct {
	store.Methods
	client   *ddb.Client
	table    string
	shards   atomic.Int32
	readOnly bool
	log      *slog.Logger
	// own is the HTTP client of a store that was opened by its URL; nil for other stores.
	own *http.Client

	clock   *clock
	held    held
	recent  *recent
	watcher *watcher
	flights flights
	closed  atomic.Bool
}

// Close ends all waits. It closes the connections of a store that was opened by its URL; a client that was passed to
// [New] is not closed.
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

// Reserve implements [store.Store]. A new key takes one request, and so does a key that is answered from the stored
// record; a key that is retried or created again takes two.
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	guess := sight{value: &nothing, guessed: true}
	if s.recent.has(r.ID) {
		guess = sight{}
	}
	out, err := s.changeAt(ctx, placeOf(r.ID), store.Event{Kind: store.EventReserve, Reservation: r}, guess)
	if err == nil && out.Record.State.Settled() {
		s.recent.add(r.ID)
	}
	return out.Verdict(), err
}

// Rewrite implements [store.Rewriter]. A rewrite whose reply was lost, and whose content another attempt has kept
// since, is recognised by the content of the record.
func (s *Store) Rewrite(ctx context.Context, c store.Claim, from, to store.Content) error {
	event := store.Event{Kind: store.EventRewrite, Attempt: c.Attempt, From: from, To: to}
	out, err := s.changeAt(ctx, placeOf(c.ID), event, sight{})
	if held := out.Record.Content(); out.beaten && errors.Is(err, store.ErrFenced) && held.Equal(&to) {
		return nil
	}
	return err
}

// Get implements [store.Store]. It reads with strong consistency: other reads of the service may return older items.
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

// hashOf returns a hash of something that is too long for a key.
func hashOf(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:16]
}

// shardOf returns the part of an index for an item with this hash.
func (s *Store) shardOf(hash []byte) byte { return byte(int32(hash[0]) % s.shards.Load()) }
