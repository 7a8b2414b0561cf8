package postgres

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/store"
)

// appTx is a transaction of the application, of database/sql or of pgx.
type appTx interface {
	// exec runs a statement and returns how many rows it wrote.
	exec(ctx context.Context, statement string, args ...any) (int64, error)
	// scan reads one row. The error is errNoRow if there is none.
	scan(ctx context.Context, statement string, args []any, dest ...any) error
}

// errNoRow is returned by scan if there is no row.
var errNoRow = errors.New("no row")

// errNoTx is returned for a transaction that is nil.
var errNoTx = errors.New("postgres: there is no transaction: pass one, such as onceward.Tx(ctx) or postgres.Tx(ctx)")

// ofSQL returns a transaction of database/sql as an appTx.
func ofSQL(tx *sql.Tx) (appTx, error) {
	if tx == nil {
		return nil, errNoTx
	}
	return sqlTx{tx}, nil
}

// ofPgx returns a transaction of pgx as an appTx.
func ofPgx(tx pgx.Tx) (appTx, error) {
	if tx == nil {
		return nil, errNoTx
	}
	return pgxTx{tx}, nil
}

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) scan(ctx context.Context, statement string, args []any, dest ...any) error {
	err := t.tx.QueryRow(ctx, statement, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return errNoRow
	}
	return err
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) scan(ctx context.Context, statement string, args []any, dest ...any) error {
	err := t.tx.QueryRowContext(ctx, statement, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoRow
	}
	return err
}

const (
	// rememberEvent waits for another transaction that has recorded the same event and has not ended.
	rememberEvent = `INSERT INTO @inbox (applied_at, event_id, consumer) VALUES (@now(), $1, $2)
		ON CONFLICT (event_id, consumer) DO NOTHING`
	selectEvents = `SELECT consumer, applied_at FROM @inbox WHERE event_id = $1 ORDER BY consumer`
	purgeEvents  = `SELECT @purge('inbox', $1, $2)`
)

// RememberEvent implements [inbox.Store].
func (s *Store) RememberEvent(ctx context.Context, tx *sql.Tx, consumer, eventID string) (first bool, err error) {
	app, err := ofSQL(tx)
	if err != nil {
		return false, err
	}
	return s.remember(ctx, app, consumer, eventID)
}

// ApplyEvent does what [inbox.Inbox.Do] does, in a transaction of pgx such as the one that [Tx] returns. The inbox must
// be over a store of this package.
func ApplyEvent(
	ctx context.Context, box *inbox.Inbox, tx pgx.Tx, consumer, eventID string, fn func(ctx context.Context) error,
) (applied bool, err error) {
	s, ok := store.Find[*Store](box.Store())
	if !ok {
		return false, fmt.Errorf("postgres: the inbox is over a %T, and not over a store of this package", box.Store())
	}
	app, err := ofPgx(tx)
	if err != nil {
		return false, err
	}
	if err := inbox.CheckNames(consumer, eventID); err != nil {
		return false, err
	}
	first, err := s.remember(ctx, app, consumer, eventID)
	if err != nil || !first {
		return false, err
	}
	return true, fn(ctx)
}

// remember records an event, and reports whether it is new.
func (s *Store) remember(ctx context.Context, app appTx, consumer, eventID string) (first bool, err error) {
	if err := s.writable(); err != nil {
		return false, err
	}
	written, err := app.exec(ctx, s.render(rememberEvent), []byte(eventID), []byte(consumer))
	if err == nil && written == 0 {
		// The commit that recorded the event may have been cut off from the standbys, and this transaction may write
		// nothing, so that its own commit would not wait for them.
		err = unavailable(replicated(ctx, s.asking))
	}
	return written == 1, err
}

// PurgeEvents implements [inbox.Store] with the SQL function that a scheduler may also call.
func (s *Store) PurgeEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, purgeEvents, age, limit)
}

// ConsumedEvents implements [inbox.Store].
func (s *Store) ConsumedEvents(ctx context.Context, eventID string) ([]inbox.Consumption, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	read := func(row pgx.CollectableRow) (inbox.Consumption, error) {
		var consumer []byte
		var at int64
		err := row.Scan(&consumer, &at)
		return inbox.Consumption{Consumer: string(consumer), EventID: eventID, At: fromMicros(at)}, err
	}
	had, err := collect(ctx, s.own, s.render(selectEvents), []any{[]byte(eventID)}, read)
	return had, unavailable(err)
}

// lockName takes the lock of a name.
var lockName = `SELECT ` + takePair(`$1::bigint`)

// LockName implements [natural.Store].
func (s *Store) LockName(ctx context.Context, tx *sql.Tx, name string) error {
	app, err := ofSQL(tx)
	if err != nil {
		return err
	}
	_, err = app.exec(ctx, lockName, nameKey(name))
	return err
}

// LockName does what [Store.LockName] does, in a transaction of pgx such as the one that [Tx] returns.
func LockName(ctx context.Context, tx pgx.Tx, name string) error {
	app, err := ofPgx(tx)
	if err != nil {
		return err
	}
	_, err = app.exec(ctx, lockName, nameKey(name))
	return err
}

// nameKey returns the key of the lock of a name.
func nameKey(name string) int64 {
	sum := sha256.Sum256([]byte("onceward natural key\x00" + name))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// UpsertRow implements [natural.Store].
func (s *Store) UpsertRow(ctx context.Context, tx *sql.Tx, u natural.Upsert) (natural.Outcome, error) {
	app, err := ofSQL(tx)
	if err != nil {
		return 0, err
	}
	return upsert(ctx, app, u)
}

// UpsertRow does what [Store.UpsertRow] does, in a transaction of pgx such as the one that [Tx] returns.
func UpsertRow(ctx context.Context, tx pgx.Tx, u natural.Upsert) (natural.Outcome, error) {
	app, err := ofPgx(tx)
	if err != nil {
		return 0, err
	}
	return upsert(ctx, app, u)
}

// upsert inserts or updates a row, and returns the outcome.
func upsert(ctx context.Context, app appTx, u natural.Upsert) (natural.Outcome, error) {
	if err := u.Check(); err != nil {
		return 0, err
	}
	statement, args := upsertStatement(&u, rand.Text())
	var inserted bool
	switch err := app.scan(ctx, statement, args, &inserted); {
	case errors.Is(err, errNoRow):
		return natural.OutcomeKept, nil
	case err != nil:
		return 0, err
	case inserted:
		return natural.OutcomeInserted, nil
	default:
		return natural.OutcomeUpdated, nil
	}
}

// upsertStatement returns the statement of an upsert and its arguments. The statement returns no row if it writes
// nothing. If the row exists already, the condition of the update sets a variable to mark, which no other
// statement has; the variable lasts until the transaction ends. The system columns of the row would show the same,
// but not in a partitioned table.
func upsertStatement(u *natural.Upsert, mark string) (string, []any) {
	var b strings.Builder
	var args []any
	table := pgx.Identifier{u.Table}
	if u.Schema != "" {
		table = pgx.Identifier{u.Schema, u.Table}
	}
	var names, places []string
	for _, column := range slices.Concat(u.Key, u.Values) {
		args = append(args, column.Value)
		names, places = append(names, quote(column.Name)), append(places, fmt.Sprintf("$%d", len(args)))
	}
	key := names[:len(u.Key)]
	fmt.Fprintf(&b, `INSERT INTO %s AS t (%s) VALUES (%s) ON CONFLICT (%s) DO `,
		table.Sanitize(), strings.Join(names, ", "), strings.Join(places, ", "), strings.Join(key, ", "))
	written := names[len(u.Key):]
	if len(written) == 0 {
		written = key // an existing row is locked and returned, although nothing changes
	}
	b.WriteString(`UPDATE SET `)
	for i, name := range written {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, `%s = excluded.%s`, name, name)
	}
	args = append(args, mark)
	marked := fmt.Sprintf("$%d::text", len(args))
	fmt.Fprintf(&b, ` WHERE set_config('onceward.upsert', %s, true) <> ''`, marked)
	if u.Final != "" {
		var finals []string
		for _, value := range u.FinalValues {
			args = append(args, value)
			finals = append(finals, fmt.Sprintf("$%d", len(args)))
		}
		final := quote(u.Final)
		fmt.Fprintf(&b, ` AND (t.%s IS NULL OR t.%s NOT IN (%s))`, final, final, strings.Join(finals, ", "))
	}
	fmt.Fprintf(&b, ` RETURNING current_setting('onceward.upsert', true) IS DISTINCT FROM %s`, marked)
	return b.String(), args
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
