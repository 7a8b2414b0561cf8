package wrap

import (
	"context"
	"database/sql"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
)

// This file contains the methods for the tables that SQL stores have beside the records.

// AddMessage implements [outbox.Store].
func (s *Store) AddMessage(ctx context.Context, tx *sql.Tx, e *outbox.Entry) error {
	return call(ctx, s, "add message", func(ctx context.Context, in outbox.Store) error {
		return in.AddMessage(ctx, tx, e)
	})
}

// ClaimMessages implements [outbox.Store].
func (s *Store) ClaimMessages(
	ctx context.Context, requests []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	return query(ctx, s, "claim messages", func(ctx context.Context, in outbox.Store) ([]outbox.Claimed, error) {
		return in.ClaimMessages(ctx, requests, lease)
	})
}

// ExtendMessages implements [outbox.Store].
func (s *Store) ExtendMessages(
	ctx context.Context, leases []outbox.Lease, lease time.Duration,
) ([]outbox.Lease, error) {
	return query(ctx, s, "extend messages", func(ctx context.Context, in outbox.Store) ([]outbox.Lease, error) {
		return in.ExtendMessages(ctx, leases, lease)
	})
}

// RecordEffect implements [outbox.Store].
func (s *Store) RecordEffect(ctx context.Context, l outbox.Lease, providerID string, answer []byte) error {
	return call(ctx, s, "record effect", func(ctx context.Context, in outbox.Store) error {
		return in.RecordEffect(ctx, l, providerID, answer)
	})
}

// FinishMessages implements [outbox.Store].
func (s *Store) FinishMessages(ctx context.Context, outcomes []outbox.Outcome) ([]outbox.Lease, error) {
	return query(ctx, s, "finish messages", func(ctx context.Context, in outbox.Store) ([]outbox.Lease, error) {
		return in.FinishMessages(ctx, outcomes)
	})
}

// FinishMessageTx implements [outbox.Store].
func (s *Store) FinishMessageTx(
	ctx context.Context, outcome outbox.Outcome, work func(ctx context.Context) error,
) error {
	return call(ctx, s, "finish messages", func(ctx context.Context, in outbox.Store) error {
		return in.FinishMessageTx(ctx, outcome, work)
	})
}

// FreeMessages implements [outbox.Store].
func (s *Store) FreeMessages(ctx context.Context) (int, error) {
	return query(ctx, s, "free messages", func(ctx context.Context, in outbox.Store) (int, error) {
		return in.FreeMessages(ctx)
	})
}

// PurgeMessages implements [outbox.Store].
func (s *Store) PurgeMessages(ctx context.Context, age time.Duration, limit int) (int, error) {
	return query(ctx, s, "purge messages", func(ctx context.Context, in outbox.Store) (int, error) {
		return in.PurgeMessages(ctx, age, limit)
	})
}

// Messages implements [outbox.Store].
func (s *Store) Messages(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	return query(ctx, s, "messages", func(ctx context.Context, in outbox.Store) ([]outbox.Entry, error) {
		return in.Messages(ctx, f)
	})
}

// ReplayMessage implements [outbox.Store].
func (s *Store) ReplayMessage(ctx context.Context, id string, answer []byte) error {
	return call(ctx, s, "replay message", func(ctx context.Context, in outbox.Store) error {
		return in.ReplayMessage(ctx, id, answer)
	})
}

// DropMessage implements [outbox.Store].
func (s *Store) DropMessage(ctx context.Context, id string) error {
	return call(ctx, s, "drop message", func(ctx context.Context, in outbox.Store) error {
		return in.DropMessage(ctx, id)
	})
}

// MessageStats implements [outbox.Store].
func (s *Store) MessageStats(ctx context.Context) (outbox.Stats, error) {
	return query(ctx, s, "message stats", func(ctx context.Context, in outbox.Store) (outbox.Stats, error) {
		return in.MessageStats(ctx)
	})
}

// WatchMessages implements [outbox.Store].
func (s *Store) WatchMessages() (hints <-chan struct{}, stop func()) {
	if in, ok := s.inside.(outbox.Store); ok {
		return in.WatchMessages()
	}
	return nil, func() {}
}

// HearsMessages implements [outbox.Store].
func (s *Store) HearsMessages() bool {
	in, ok := s.inside.(outbox.Store)
	return ok && in.HearsMessages()
}

// AddToAnswer implements [outbox.AnswerStore].
func (s *Store) AddToAnswer(ctx context.Context, e *outbox.Entry) error {
	return call(ctx, s, "add to answer", func(ctx context.Context, in outbox.AnswerStore) error {
		return in.AddToAnswer(ctx, e)
	})
}

// RememberEvent implements [inbox.Store].
func (s *Store) RememberEvent(ctx context.Context, tx *sql.Tx, consumer, eventID string) (bool, error) {
	return query(ctx, s, "remember event", func(ctx context.Context, in inbox.Store) (bool, error) {
		return in.RememberEvent(ctx, tx, consumer, eventID)
	})
}

// PurgeEvents implements [inbox.Store].
func (s *Store) PurgeEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return query(ctx, s, "purge events", func(ctx context.Context, in inbox.Store) (int, error) {
		return in.PurgeEvents(ctx, age, limit)
	})
}

// ConsumedEvents implements [inbox.Store].
func (s *Store) ConsumedEvents(ctx context.Context, eventID string) ([]inbox.Consumption, error) {
	return query(ctx, s, "consumed events", func(ctx context.Context, in inbox.Store) ([]inbox.Consumption, error) {
		return in.ConsumedEvents(ctx, eventID)
	})
}

// InTx implements [inbox.Store].
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	return call(ctx, s, "transaction", func(ctx context.Context, in inbox.Store) error { return in.InTx(ctx, work) })
}

// UpsertRow implements [natural.Store].
func (s *Store) UpsertRow(ctx context.Context, tx *sql.Tx, u natural.Upsert) (natural.Outcome, error) {
	return query(ctx, s, "upsert row", func(ctx context.Context, in natural.Store) (natural.Outcome, error) {
		return in.UpsertRow(ctx, tx, u)
	})
}

// LockName implements [natural.Store].
func (s *Store) LockName(ctx context.Context, tx *sql.Tx, name string) error {
	return call(ctx, s, "lock name", func(ctx context.Context, in natural.Store) error {
		return in.LockName(ctx, tx, name)
	})
}
