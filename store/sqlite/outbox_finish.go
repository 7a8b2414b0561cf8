package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// The statements for the holders of leases. Each names the token of its lease.
const (
	selectHeld    = `SELECT 1 FROM onceward_outbox WHERE id = ?1 AND token = ?2 AND state = 1`
	extendMessage = `UPDATE onceward_outbox SET due = ?3 WHERE id = ?1 AND token = ?2 AND state = 1`
	recordEffect  = `UPDATE onceward_outbox SET provider_id = iif(?3 = '', provider_id, ?3), answer = coalesce(?4, answer)
		WHERE id = ?1 AND token = ?2 AND state = 1`
	// finishMessage makes a message without a lane Ready instead of Behind, because nothing would free it.
	finishMessage = `UPDATE onceward_outbox SET state = iif(?3 = 2 AND lane IS NULL, 0, ?3), due = ?4, token = 0,
		attempts = ?5, provider_id = iif(?6 = '', provider_id, ?6), last_error = iif(?7 = '', last_error, ?7)
		WHERE id = ?1 AND token = ?2 AND state = 1 RETURNING lane`

	replayMessage = `UPDATE onceward_outbox SET state = 0, due = ?2, attempts = 0, token = 0, answer = coalesce(?3, answer)
		WHERE id = ?1 AND state IN (3, 5)`
	// dropMessage marks a dead letter as given up, with a token that no lease has: it no longer waits for a decision.
	dropMessage = `UPDATE onceward_outbox SET state = 5, token = -1 WHERE id = ?1 AND state IN (3, 5) RETURNING lane`
)

// ExtendMessages implements [outbox.Store].
func (s *Store) ExtendMessages(
	ctx context.Context, leases []outbox.Lease, lease time.Duration,
) ([]outbox.Lease, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	leases = slices.Clone(leases)
	return write(ctx, s.writer, func(r *records, now time.Time) (lost []outbox.Lease, err error) {
		for _, l := range leases {
			held, err := r.changes(extendMessage, l.ID, l.Token, micros(now.Add(lease)))
			if err != nil {
				return nil, err
			}
			if !held {
				lost = append(lost, l)
			}
		}
		return lost, nil
	})
}

// RecordEffect implements [outbox.Store].
func (s *Store) RecordEffect(ctx context.Context, l outbox.Lease, providerID string, answer []byte) error {
	kept := answerOrNull(answer)
	return s.writer.do(ctx, newFunction(func(r *records, _ time.Time) error {
		held, err := r.changes(recordEffect, l.ID, l.Token, providerID, kept)
		if err == nil && !held {
			err = refused{outbox.ErrFenced}
		}
		return err
	}))
}

// answerOrNull returns the parameter for an answer. An empty answer becomes nil, which keeps the answer that was stored
// before. The parameter shares no memory with the caller, because the caller may leave before a busy writer uses it.
func answerOrNull(answer []byte) any {
	if len(answer) == 0 {
		return nil
	}
	return bytes.Clone(answer)
}

// FinishMessages implements [outbox.Store].
func (s *Store) FinishMessages(ctx context.Context, outcomes []outbox.Outcome) ([]outbox.Lease, error) {
	if err := checkOutcomes(outcomes...); err != nil || len(outcomes) == 0 {
		return nil, err
	}
	outcomes = slices.Clone(outcomes)
	return write(ctx, s.writer, func(r *records, now time.Time) ([]outbox.Lease, error) {
		return s.finish(r, outcomes, now)
	})
}

// FinishMessageTx implements [outbox.Store]. The work runs like the work of [Store.InTx], and only if the lease is
// held. The writer's lock keeps the lease held until the end.
func (s *Store) FinishMessageTx(
	ctx context.Context, outcome outbox.Outcome, work func(ctx context.Context) error,
) error {
	if err := checkOutcomes(outcome); err != nil {
		return err
	}
	m := newMember(timeLeft(ctx), nil)
	m.begin = func(r *records, _ time.Time) error { return r.requireHeld(outcome.Lease) }
	m.end = func(r *records, now time.Time) error {
		fenced, err := s.finish(r, []outbox.Outcome{outcome}, now)
		if err == nil && len(fenced) > 0 {
			err = refused{outbox.ErrFenced}
		}
		return err
	}
	return s.inTurn(ctx, m, work)
}

// checkOutcomes returns an error for a state that is not an outcome of a delivery.
func checkOutcomes(outcomes ...outbox.Outcome) error {
	for _, e := range outcomes {
		switch e.State {
		case outbox.StateDone, outbox.StateDead, outbox.StateHolding, outbox.StateReady, outbox.StateBehind:
		default:
			return fmt.Errorf("sqlite: a delivery cannot end as %s", e.State)
		}
	}
	return nil
}

// requireHeld returns an error if a lease is no longer held.
func (r *records) requireHeld(l outbox.Lease) error {
	held := false
	err := r.run(selectHeld, []any{l.ID, l.Token}, func(*sqlite3.Stmt) error {
		held = true
		return nil
	})
	if err == nil && !held {
		err = refused{outbox.ErrFenced}
	}
	return err
}

// finish ends leases, and frees the messages behind them.
func (s *Store) finish(r *records, outcomes []outbox.Outcome, now time.Time) (fenced []outbox.Lease, err error) {
	left := make(map[string]bool)
	for _, e := range outcomes {
		due := now
		if e.State == outbox.StateReady {
			due = now.Add(e.After)
		}
		held := false
		args := []any{e.ID, e.Token, int(e.State), micros(due), e.Attempts, e.ProviderID, e.Error}
		err := r.run(finishMessage, args, func(stmt *sqlite3.Stmt) error {
			held = true
			leave(left, stmt)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if !held {
			fenced = append(fenced, e.Lease)
		}
	}
	freed, err := freeLanes(r, left)
	s.writer.messages.add(freed)
	return fenced, err
}

// leave adds the lane in the first column to left, if there is one.
func leave(left map[string]bool, stmt *sqlite3.Stmt) {
	if lane := stmt.ColumnText(0); lane != "" {
		left[lane] = true
	}
}

// ReplayMessage implements [outbox.Store].
func (s *Store) ReplayMessage(ctx context.Context, id string, answer []byte) error {
	kept := answerOrNull(answer)
	return s.writer.do(ctx, newFunction(func(r *records, now time.Time) error {
		found, err := r.changes(replayMessage, id, micros(now), kept)
		if err == nil && !found {
			err = refused{store.ErrNotFound}
		}
		s.writer.messages.add(1)
		return err
	}))
}

// DropMessage implements [outbox.Store].
func (s *Store) DropMessage(ctx context.Context, id string) error {
	return s.writer.do(ctx, newFunction(func(r *records, now time.Time) error {
		found, left := false, make(map[string]bool)
		err := r.run(dropMessage, []any{id}, func(stmt *sqlite3.Stmt) error {
			found = true
			leave(left, stmt)
			return nil
		})
		if err == nil && !found {
			err = refused{store.ErrNotFound}
		}
		if err != nil {
			return err
		}
		freed, err := freeLanes(r, left)
		s.writer.messages.add(freed)
		return err
	}))
}
