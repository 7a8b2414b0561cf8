package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/store"
)

// errClosed is returned for a call after Close.
var errClosed = fmt.Errorf("%w: the SQLite store is closed", store.ErrUnavailable)

// errNoTx is returned if the transaction is nil.
var errNoTx = errors.New("sqlite: there is no transaction: pass the *sql.Tx of onceward.Tx(ctx) or Store.Update")

// explanations are what an operator can do about the errors that SQLite reports.
var explanations = []struct {
	code sqlite3.ErrorCode
	text string
}{
	{sqlite3.BUSY, "the file is held by another process for longer than the busy timeout"},
	{sqlite3.LOCKED, "the file is locked by another connection of this process"},
	{sqlite3.FULL, "the disk is full"},
	{sqlite3.CORRUPT, "the file is damaged: restore it from a backup"},
	{sqlite3.NOTADB, "the file is not an SQLite database, or is damaged"},
	{sqlite3.IOERR, "the disk failed to read or write"},
	{sqlite3.READONLY, "the file cannot be written: check its permissions"},
	{sqlite3.CANTOPEN, "the file cannot be opened: check the path and its permissions"},
}

// unavailable wraps an error of SQLite, or of a context, with [store.ErrUnavailable]. An error that already wraps it,
// or that is about an unreadable record, is returned unchanged.
func unavailable(err error) error {
	switch {
	case err == nil, errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrUnreadable):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: the caller stopped waiting: %w", store.ErrUnavailable, err)
	}
	for _, known := range explanations {
		if errors.Is(err, known.code) {
			return fmt.Errorf("%w: %s: %w", store.ErrUnavailable, known.text, err)
		}
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// refused is an error of the state machine, as opposed to an error of
// the database: it ends one task, and not the other tasks of the group.
type refused struct{ error }

// Unwrap returns the error of the state machine.
func (r refused) Unwrap() error { return r.error }

// refusal returns the error of a task that does not affect the other tasks of its group, or nil for any other error.
func refusal(err error) error {
	var r refused
	switch {
	case errors.As(err, &r):
		return r.error
	case errors.Is(err, store.ErrUnreadable):
		return err
	default:
		return nil
	}
}

// spoiledError is the error of a group whose transaction was lost because of one of its tasks.
type spoiledError struct {
	by  *task
	err error
}

// Error returns the text of the reason.
func (e *spoiledError) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *spoiledError) Unwrap() error { return e.err }
