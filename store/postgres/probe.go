package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Behaviour is what a store found out about its server when it was opened. Servers that speak PostgreSQL's protocol do
// not all do what PostgreSQL does, nor do all poolers let it through.
type Behaviour struct {
	// RowLocks says that transactions exclude each other by rows of the table onceward_lock, which cost a write each:
	// the advisory locks of the server do nothing, or [WithRowLocks] says so.
	RowLocks bool
	// Isolation is the level of the transactions of handlers, which ask for READ COMMITTED. A server that gives a
	// stricter one undoes transactions that meet, and they are run again. It is empty if that was not tried.
	Isolation string
	// Notifies says that the server takes notifications, and Listens that they arrive now: without, duplicates that
	// wait and workers of the outbox look for themselves.
	Notifies, Listens bool
	// Doubt is why it could not be found out whether advisory locks exclude; rows are then taken beside them.
	Doubt string
}

// Behaviour returns what was found out about the server.
func (s *Store) Behaviour() Behaviour {
	found := s.found
	found.Listens = s.waits.listen.healthy()
	return found
}

// strict says that transactions are undone where they meet, more often than those of PostgreSQL.
func (b *Behaviour) strict() bool { return b.Isolation != "" && b.Isolation != readCommitted }

// WithRowLocks makes transactions exclude each other by rows of the table onceward_lock, and not by the advisory locks
// of the server alone. Default: only if two connections could hold the same advisory lock when the store was opened, or
// if that could not be found out, as behind a pooler with one connection for all.
func WithRowLocks() Option { return func(o *options) { o.rowLocks = true } }

// WithAdvisoryLocks says that the advisory locks of the server exclude, and spares opening the three round trips that
// find it out. Where they do not, duplicates in flight run their handlers side by side, of which one commits, and
// neither names nor the order of messages are kept apart. Default: it is tried.
func WithAdvisoryLocks() Option { return func(o *options) { o.advisoryLocks = true } }

// What is tried: one connection takes locks in a transaction, in each way that the store does, and another one tries to
// take the same. The last of the second is what a waiting duplicate announces itself by.
const (
	takeTrial = begin + `; SELECT current_setting('transaction_isolation');
		SELECT pg_advisory_xact_lock(%[1]d), pg_try_advisory_xact_lock(%[2]d),
			pg_advisory_xact_lock((%[3]d >> 32)::integer, (%[3]d << 32 >> 32)::integer)`
	tryTrial = `SELECT pg_try_advisory_xact_lock(%[1]d) OR pg_try_advisory_xact_lock(%[2]d)
			OR pg_try_advisory_xact_lock((%[3]d >> 32)::integer, (%[3]d << 32 >> 32)::integer)`
	notifyTrial = `SELECT pg_notify('onceward_probe', '')`
)

// stateUndefinedFunction is that of a server without advisory locks, or without notifications.
const stateUndefinedFunction = "42883"

// probe finds out how the server behaves, by a connection of handlers and one of the store's own. That it cannot be
// found out is no reason not to open: whatever ails the server is met by what comes next.
func (s *Store) probe(ctx context.Context, handler *pgx.Conn) {
	s.found = Behaviour{Notifies: true, RowLocks: s.options.rowLocks}
	if s.options.rowLocks {
		s.locking = doubleLocks
	}
	if s.options.readOnly || s.options.advisoryLocks && !s.options.rowLocks {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout) // a pooler may have one connection for all
	defer cancel()
	exclude, err := s.tryLocks(ctx, handler)
	switch {
	case sqlState(err) == stateUndefinedFunction:
		s.locking = rowLocks
		s.tryNotify(ctx)
	case err != nil:
		s.found.Doubt = err.Error()
		s.locking = doubleLocks // which keep out both, those who rely on rows and those who do not
	case !exclude:
		s.locking = doubleLocks
	}
	s.found.RowLocks = s.locking.rows()
}

// tryLocks reports whether the advisory locks of a connection keep another one out.
func (s *Store) tryLocks(ctx context.Context, holder *pgx.Conn) (exclude bool, err error) {
	defer func() { _ = rollback(holder, lookTimeout) }() // one that fails is given up by its pool
	keys := []any{randomKey(), randomKey(), randomKey()}
	taken, err := holder.PgConn().Exec(ctx, fmt.Sprintf(takeTrial, keys...)).ReadAll()
	if len(taken) > 1 && len(taken[1].Rows) == 1 {
		s.found.Isolation = string(taken[1].Rows[0][0])
	}
	if err != nil {
		return false, err
	}
	other, err := s.own.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer other.Release()
	got, err := other.Conn().PgConn().Exec(ctx, fmt.Sprintf(tryTrial, keys...)+`; `+notifyTrial).ReadAll()
	if len(got) == 0 || len(got[0].Rows) != 1 {
		return false, cmp.Or(err, errNoTrial)
	}
	s.noteNotify(err)
	return string(got[0].Rows[0][0]) == "f", nil
}

// errNoTrial says that the server did not answer what was tried.
var errNoTrial = errors.New("the trial of advisory locks was not answered")

// tryNotify finds out whether the server takes notifications.
func (s *Store) tryNotify(ctx context.Context) {
	_, err := s.own.Exec(ctx, notifyTrial, pgx.QueryExecModeSimpleProtocol)
	s.noteNotify(err)
}

// noteNotify notes how a notification ended. Only the server's own refusal counts.
func (s *Store) noteNotify(err error) { s.found.Notifies = err == nil || lost(err) }

// randomKey is that of a lock which no one else has. It is positive, so that its text needs no brackets.
func randomKey() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return int64(binary.BigEndian.Uint64(b[:]) >> 1)
}

// reportBehaviour says once what is not as in PostgreSQL, and what that means.
func (s *Store) reportBehaviour(ctx context.Context) {
	attributes := []any{
		"row_locks", s.found.RowLocks, "isolation", s.found.Isolation, "notifies", s.found.Notifies,
	}
	var means []string
	if s.found.Doubt != "" {
		means = append(means, "it could not be found out whether advisory locks exclude ("+s.found.Doubt+"): "+
			"rows are taken beside them, which cost a write each")
	}
	if s.found.RowLocks && s.found.Doubt == "" && !s.options.rowLocks {
		means = append(means, "advisory locks do nothing: rows take their place, which cost a write each")
	}
	if s.found.strict() {
		means = append(means, "transactions are "+s.found.Isolation+" although they ask for less: "+
			"those that meet are undone and run again")
	}
	if !s.found.Notifies {
		means = append(means, "there are no notifications: duplicates that wait and workers look for themselves")
	}
	if len(means) == 0 {
		s.logger.DebugContext(ctx, "onceward: the server behaves as PostgreSQL does", attributes...)
		return
	}
	s.logger.WarnContext(ctx, "onceward: the server does not behave as PostgreSQL does",
		append(attributes, "because", strings.Join(means, "; "))...)
}

// readCommitted is the level that the statements of this package are made for.
const readCommitted = "read committed"
