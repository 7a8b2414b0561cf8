package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onceward/onceward/store"
)

// unavailable wraps an error of the database in [store.ErrUnavailable].
func unavailable(err error) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: postgres: %w", store.ErrUnavailable, err)
}

// The SQL states that the store handles.
const (
	stateUniqueViolation      = "23505"
	stateNotNullViolation     = "23502"
	stateSerializationFailure = "40001"
	stateDeadlock             = "40P01"
	stateLockNotAvailable     = "55P03" // the bound on a wait for a lock has passed, or NOWAIT met a lock
	stateInvalidText          = "22P02"
	stateNoSuchStatement      = "26000"
	stateInsufficientRights   = "42501"
	stateUndefinedTable       = "42P01"
)

// sqlState returns the code that the server gave to an error, or an empty string.
func sqlState(err error) string {
	if err == nil {
		return ""
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// undone reports whether the server undid a transaction for a reason that a retry may not meet.
func undone(err error) bool {
	state := sqlState(err)
	return state == stateSerializationFailure || state == stateDeadlock
}

// refusals are the classes of errors with which the server refuses what the application wrote: data, constraints, views
// with a check, and errors that triggers, functions and routines raise. Other errors, such as a missing privilege, may
// be caused by a deployment that is in progress.
var refusals = []string{"09", "21", "22", "23", "27", "2F", "38", "39", "44", "P0"}

// refusedWork reports whether the server undid a transaction because of what the application had written. Errors about
// the store's own table do not count.
func (s *Store) refusedWork(err error) bool {
	var pg *pgconn.PgError
	return refusedByServer(err) && errors.As(err, &pg) && !s.ownTable(pg) &&
		slices.ContainsFunc(refusals, func(class string) bool { return strings.HasPrefix(pg.Code, class) })
}

// lostRace reports whether a record was not written because another transaction was faster.
func (s *Store) lostRace(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	taken := pg.Code == stateUniqueViolation && s.ownTable(pg)
	changed := pg.Code == stateInvalidText && strings.Contains(pg.Message, "records of onceward were written")
	return taken || changed
}

// otherTransaction reports whether a record was not written because its transaction is not the one with the lock.
func (s *Store) otherTransaction(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == stateNotNullViolation && pg.ColumnName == "state" && s.ownTable(pg)
}

// ownTable reports whether an error is about the table of records.
func (s *Store) ownTable(pg *pgconn.PgError) bool {
	return pg.SchemaName == s.names.schema && pg.TableName == s.names.prefix+"record"
}
