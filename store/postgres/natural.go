package postgres

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/natural"
)

// lockName takes a lock of two numbers, which are apart from the locks of one number that applications often use.
const lockName = `SELECT pg_advisory_xact_lock($1::integer, $2::integer)`

// LockName implements [natural.Store].
func (s *Store) LockName(ctx context.Context, tx *sql.Tx, name string) error {
	app, err := ofSQL(tx)
	if err != nil {
		return err
	}
	return lock(ctx, app, name)
}

// LockName is [Store.LockName] in a transaction of pgx, such as [Tx] gives.
func LockName(ctx context.Context, tx pgx.Tx, name string) error {
	app, err := ofPgx(tx)
	if err != nil {
		return err
	}
	return lock(ctx, app, name)
}

// lock takes the lock of a name until the transaction ends.
func lock(ctx context.Context, app appTx, name string) error {
	sum := sha256.Sum256([]byte("onceward natural key\x00" + name))
	_, err := app.exec(ctx, lockName, int32(binary.BigEndian.Uint32(sum[:])), int32(binary.BigEndian.Uint32(sum[4:])))
	return err
}

// UpsertRow implements [natural.Store].
func (s *Store) UpsertRow(ctx context.Context, tx *sql.Tx, u natural.Upsert) (natural.Outcome, error) {
	app, err := ofSQL(tx)
	if err != nil {
		return 0, err
	}
	return upsert(ctx, app, u)
}

// UpsertRow is [Store.UpsertRow] in a transaction of pgx, such as [Tx] gives.
func UpsertRow(ctx context.Context, tx pgx.Tx, u natural.Upsert) (natural.Outcome, error) {
	app, err := ofPgx(tx)
	if err != nil {
		return 0, err
	}
	return upsert(ctx, app, u)
}

// upsert inserts a row or updates it, and says what it did.
func upsert(ctx context.Context, app appTx, u natural.Upsert) (natural.Outcome, error) {
	if err := u.Check(); err != nil {
		return 0, err
	}
	statement, args := upsertStatement(&u)
	var inserted bool
	switch err := app.scan(ctx, statement, args, &inserted); {
	case errors.Is(err, errNoRow):
		return natural.Kept, nil
	case err != nil:
		return 0, err
	case inserted:
		return natural.Inserted, nil
	default:
		return natural.Updated, nil
	}
}

// upsertStatement returns no row if nothing was written. A row that was inserted has never been locked or updated, which is
// what its xmax tells.
func upsertStatement(u *natural.Upsert) (string, []any) {
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
	fmt.Fprintf(&b, `INSERT INTO %s AS t (%s) VALUES (%s) ON CONFLICT (%s) DO `, table.Sanitize(), strings.Join(names, ", "),
		strings.Join(places, ", "), strings.Join(key, ", "))
	written := names[len(u.Key):]
	if len(written) == 0 {
		written = key // a row that is there is locked and told of, though nothing changes
	}
	b.WriteString(`UPDATE SET `)
	for i, name := range written {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, `%s = excluded.%s`, name, name)
	}
	if u.Final != "" {
		var finals []string
		for _, value := range u.FinalValues {
			args = append(args, value)
			finals = append(finals, fmt.Sprintf("$%d", len(args)))
		}
		fmt.Fprintf(&b, ` WHERE t.%s IS NULL OR t.%s NOT IN (%s)`, quote(u.Final), quote(u.Final), strings.Join(finals, ", "))
	}
	b.WriteString(` RETURNING t.xmax = 0`)
	return b.String(), args
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
