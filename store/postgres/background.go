package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
)

const (
	sweep = `SELECT @sweep($1)`
	reap  = `SELECT @reap($1, $2)`

	insertFinding = `INSERT INTO @finding (id, attempt, at, response) VALUES ($1, $2, $3, $4)`
	selectFinding = `SELECT attempt, at, response FROM @finding WHERE id = $1 ORDER BY at`
)

// Sweep implements [onceward.Sweeper], by the SQL function that a scheduler may call too.
func (s *Store) Sweep(ctx context.Context, limit int) (swept int, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	rows, err := s.own.Query(ctx, s.names.render(sweep), limit)
	if err != nil {
		return 0, unavailable(err)
	}
	var hash [16]byte
	_, err = pgx.ForEachRow(rows, []any{&hash}, func() error {
		swept++
		s.waits.settled(hash)
		return nil
	})
	return swept, unavailable(err)
}

// Reap implements [onceward.Reaper], by the SQL function that a scheduler may call too. It also forgets findings that are
// 90 days old.
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (reaped int, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	err = s.own.QueryRow(ctx, s.names.render(reap), limit, soft).Scan(&reaped)
	return reaped, unavailable(err)
}

// ResolveCompleted implements [onceward.Reconciler].
func (s *Store) ResolveCompleted(ctx context.Context, c onceward.Claim, done *onceward.Completion) error {
	return s.settle(ctx, c.ID, onceward.Event{Kind: onceward.EventResolveCompleted, Attempt: c.Attempt, Completion: done})
}

// ResolveNotExecuted implements [onceward.Reconciler].
func (s *Store) ResolveNotExecuted(ctx context.Context, c onceward.Claim, reason string) error {
	return s.settle(ctx, c.ID, onceward.Event{Kind: onceward.EventResolveNotExecuted, Attempt: c.Attempt, Reason: reason})
}

// Postpone implements [onceward.Reconciler].
func (s *Store) Postpone(ctx context.Context, c onceward.Claim, wait time.Duration, limit int, reason string) error {
	_, err := s.change(ctx, c.ID, onceward.Event{
		Kind: onceward.EventPostpone, Attempt: c.Attempt, Lease: wait, Limit: limit, Reason: reason,
	})
	return err
}

// Bust implements [onceward.Buster].
func (s *Store) Bust(ctx context.Context, id onceward.ID, force bool) error {
	return s.settle(ctx, id, onceward.Event{Kind: onceward.EventBust, Force: force})
}

// AddFinding implements [onceward.FindingKeeper].
func (s *Store) AddFinding(ctx context.Context, f onceward.Finding) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	_, err := s.own.Exec(ctx, s.names.render(insertFinding), s.hash(f.ID), f.Attempt, micros(f.At), appendAnswer(nil, &f.Response))
	return unavailable(err)
}

// Findings implements [onceward.FindingKeeper].
func (s *Store) Findings(ctx context.Context, id onceward.ID) ([]onceward.Finding, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	rows, err := s.own.Query(ctx, s.names.render(selectFinding), s.hash(id))
	if err != nil {
		return nil, unavailable(err)
	}
	var findings []onceward.Finding
	var attempt, at int64
	var answer []byte
	_, err = pgx.ForEachRow(rows, []any{&attempt, &at, &answer}, func() error {
		response, err := parseAnswer(answer)
		findings = append(findings, onceward.Finding{
			Claim: onceward.Claim{ID: id, Attempt: attempt}, Response: response, At: fromMicros(at),
		})
		return err
	})
	if errors.Is(err, errBadAnswer) {
		return nil, unreadable(err)
	}
	return findings, unavailable(err)
}
