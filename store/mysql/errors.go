package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	driver "github.com/go-sql-driver/mysql"
	"github.com/onceward/onceward/store"
)

// unavailable wraps an error of the database with [store.ErrUnavailable].
func unavailable(err error) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnreadable) {
		return err
	}
	return fmt.Errorf("%w: mysql: %w", store.ErrUnavailable, err)
}

// The numbers of the server's errors that the store handles.
const (
	errorNoDatabaseRight = 1044
	errorNotReady        = 1047 // Galera: this node is not part of a quorum, or not caught up
	errorChanged         = 1020 // MariaDB with innodb_snapshot_isolation: a row is newer than the snapshot
	errorShutdown        = 1053
	errorDuplicate       = 1062
	errorNormalShutdown  = 1079
	errorOther           = 1105
	errorNoRight         = 1142
	errorNoSuchTable     = 1146
	errorPacket          = 1153
	errorDuringCommit    = 1180 // Galera: the quorum was lost during the commit
	errorLockWait        = 1205
	errorDeadlock        = 1213 // in a cluster also for the loser of a conflict, at its commit
	errorReadOnlyOption  = 1290
	errorInterrupted     = 1317
	errorReadOnlyTx      = 1792
	errorReadOnlyMode    = 1836
	errorKilled          = 1927
	errorNoWait          = 3572 // MySQL only: NOWAIT met a lock. MariaDB returns errorLockWait
	errorKilledByTimeout = 4031 // MySQL only: the server has closed an idle connection
)

// mysqlNumber returns the server's number of an error, or zero.
func mysqlNumber(err error) uint16 {
	if refused, ok := errors.AsType[*driver.MySQLError](err); ok {
		return refused.Number
	}
	return 0
}

// undone reports whether the server undid a statement or a
// transaction because of another transaction. A retry may succeed.
func undone(err error) bool {
	n := mysqlNumber(err)
	return n == errorDeadlock || n == errorChanged
}

// locked reports whether another transaction kept a row locked for longer than the lock wait. Nothing was written.
func locked(err error) bool {
	n := mysqlNumber(err)
	return n == errorLockWait || n == errorNoWait
}

// duplicate reports whether a row already exists.
func duplicate(err error) bool { return mysqlNumber(err) == errorDuplicate }

// unfit reports whether an error means that its node accepts no writes now. Nothing was written. The connection is
// closed, and another node may accept the write.
func unfit(err error) bool {
	return errors.Is(err, ErrReadOnlyNode) ||
		slices.Contains([]uint16{errorNotReady, errorReadOnlyOption, errorReadOnlyTx, errorReadOnlyMode}, mysqlNumber(err))
}

// notSent reports whether nothing was written because the connection could not be used.
func notSent(err error) bool { return errors.Is(err, sqldriver.ErrBadConn) || unfit(err) }

// tooLarge reports whether a statement or a value does not fit into a packet.
// The driver reports a statement that is too large, and the server a value.
func tooLarge(err error) bool {
	if refused, ok := errors.AsType[*driver.MySQLError](err); ok {
		return refused.Number == errorPacket ||
			refused.Number == errorOther && strings.Contains(refused.Message, "max_allowed_packet")
	}
	return errors.Is(err, driver.ErrPktTooLarge)
}

// answered reports whether an error of a write proves that nothing was written. Other errors leave it open: the
// connection ended, the caller left, or the server was stopped or lost its quorum during the write.
func answered(err error) bool {
	if notSent(err) || errors.Is(err, errUnconnected) || errors.Is(err, driver.ErrPktTooLarge) {
		return true
	}
	n := mysqlNumber(err)
	open := []uint16{
		errorShutdown, errorNormalShutdown, errorDuringCommit, errorInterrupted, errorKilled, errorKilledByTimeout,
	}
	return n != 0 && !slices.Contains(open, n)
}

// errUnanswered means that it is not known whether a write was committed.
var errUnanswered = errors.New("it is not known yet what became of the write")

// unanswered wraps the error of a write that may have been committed with errUnanswered.
func unanswered(err error) error {
	if err == nil || answered(err) {
		return err
	}
	return fmt.Errorf("%w: %w", errUnanswered, err)
}

// left returns an error if the caller has left.
func left(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	return nil
}
