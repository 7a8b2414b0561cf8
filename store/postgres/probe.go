package postgres

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
)

// WithAdvisoryLocks asserts that the advisory locks of the server exclude each other and that the server sends
// notifications. Opening the store then skips the three round trips that check this. If the locks do not exclude each
// other, concurrent duplicates run their handlers at the same time, and one of them commits. Default: the server is
// checked, and refused if the check fails.
func WithAdvisoryLocks() Option { return func(o *options) { o.advisoryLocks = true } }

// The trial: one connection takes locks in a transaction, in each way that the store does, and another
// connection tries to take the same locks. The last statements of the second connection send a notification,
// and begin and end to listen.
const (
	takeTrial = begin + `; SELECT current_setting('transaction_isolation');
		SELECT pg_advisory_xact_lock(%[1]d), pg_try_advisory_xact_lock(%[2]d),
			pg_advisory_xact_lock((%[3]d >> 32)::integer, (%[3]d << 32 >> 32)::integer)`
	tryTrial = `SELECT pg_try_advisory_xact_lock(%[1]d) OR pg_try_advisory_xact_lock(%[2]d)
			OR pg_try_advisory_xact_lock((%[3]d >> 32)::integer, (%[3]d << 32 >> 32)::integer);
		SELECT pg_notify('onceward_probe', ''); LISTEN onceward_probe; UNLISTEN onceward_probe`
)

// ErrServer is returned when a server, or a pooler in front of it, lacks what the store depends on: advisory locks that
// exclude each other, transactions at the level READ COMMITTED, and notifications.
var ErrServer = errors.New("postgres: this server, or a pooler before it, does not do what PostgreSQL does")

// checkServer returns an error if the server lacks what the store depends on. A trial that took too long is repeated
// once: the machine may have been busy.
func (s *Store) checkServer(ctx context.Context) error {
	if s.options.readOnly || s.options.advisoryLocks {
		return nil
	}
	for last := false; ; last = true {
		trial, cancel := context.WithTimeout(ctx, s.options.lookTimeout) // a pooler may have a single connection
		err := s.tryServer(trial)
		late := trial.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !late || last {
			return err
		}
	}
}

// tryServer makes the trial, with a connection of handlers and one of the store's own.
func (s *Store) tryServer(ctx context.Context) error {
	conn, err := s.handlers.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.release()
	handler := conn.pgx()
	defer func() { _ = rollback(handler, lookTimeout) }() // if it fails, the pool drops the connection
	keys := []any{randomKey(), randomKey(), randomKey()}
	taken, err := handler.PgConn().Exec(ctx, fmt.Sprintf(takeTrial, keys...)).ReadAll()
	if err != nil {
		return s.notChecked(err)
	}
	if level := string(taken[1].Rows[0][0]); level != readCommitted {
		return fmt.Errorf("%w: its transactions are %s although they ask for %s", ErrServer, level, readCommitted)
	}
	other, err := s.own.Acquire(ctx)
	if err != nil {
		return s.notChecked(err)
	}
	defer other.Release()
	got, err := other.Conn().PgConn().Exec(ctx, fmt.Sprintf(tryTrial, keys...)).ReadAll()
	if err != nil {
		return s.notChecked(err)
	}
	if string(got[0].Rows[0][0]) != "f" {
		return fmt.Errorf("%w: a connection of handlers and one of the store's own hold the same advisory lock, so "+
			"that duplicates would run side by side: its locks do not exclude, or the two lead to different databases", ErrServer)
	}
	return nil
}

// stateUndefinedFunction is the SQL state of a call of a function that the server does not have.
const stateUndefinedFunction = "42883"

// notChecked returns the error of a server that could not be checked. It wraps [ErrServer] if
// the server lacks a feature.
func (s *Store) notChecked(err error) error {
	if state := sqlState(err); state == stateUndefinedFunction || state == stateNotSupported {
		return fmt.Errorf("%w: the store needs advisory locks and notifications: %w", ErrServer, err)
	}
	return fmt.Errorf("check whether advisory locks exclude, which needs two connections at once; "+
		"if they are known to, WithAdvisoryLocks skips the check: %w", err)
}

// randomKey returns the key of a lock that nobody else has. It is positive, so that its text needs no parentheses.
func randomKey() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return int64(binary.BigEndian.Uint64(b[:]) >> 1)
}

// readCommitted is the level that the statements of this package are made for.
const readCommitted = "read committed"
