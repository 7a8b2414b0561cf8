package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/onceward/onceward/natural"
)

// UpsertRow implements [natural.Store]. It tries to insert the row
// and then to update it. No other transaction can write in between.
func (s *Store) UpsertRow(ctx context.Context, tx *sql.Tx, u natural.Upsert) (natural.Outcome, error) {
	if tx == nil {
		return 0, errNoTx
	}
	if err := u.Check(); err != nil {
		return 0, err
	}
	inserted, err := affects(ctx, tx, u, insertion)
	if err != nil || inserted {
		return natural.OutcomeInserted, err
	}
	updated, err := affects(ctx, tx, u, change)
	if err != nil || updated {
		return natural.OutcomeUpdated, err
	}
	return natural.OutcomeKept, nil
}

// affects runs a statement for a row, and reports whether it changed the row.
func affects(
	ctx context.Context, tx *sql.Tx, u natural.Upsert, statement func(natural.Upsert) (string, []any),
) (bool, error) {
	text, args := statement(u)
	result, err := tx.ExecContext(ctx, text, args...)
	if err != nil {
		return false, fmt.Errorf("sqlite: upsert into %s: %w", u.Table, err)
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// insertion returns the statement that inserts a row unless its key exists.
// SQLite refuses a key that the table's definition does not make unique.
func insertion(u natural.Upsert) (text string, args []any) {
	var names, keys []string
	for _, column := range u.Key {
		keys = append(keys, quote(column.Name))
		args = append(args, column.Value)
	}
	names = append(names, keys...)
	for _, column := range u.Values {
		names = append(names, quote(column.Name))
		args = append(args, column.Value)
	}
	marks := strings.Repeat(", ?", len(names))[2:]
	return fmt.Sprintf(`INSERT INTO %s (%s) VALUES (%s) ON CONFLICT (%s) DO NOTHING`,
		tableOf(u), strings.Join(names, ", "), marks, strings.Join(keys, ", ")), args
}

// change returns the statement that sets the values of a row
// unless it is final. A NULL is compared like any other value.
func change(u natural.Upsert) (text string, args []any) {
	var values, conditions []string
	written := u.Values
	if len(written) == 0 {
		written = u.Key // no value changes; the result shows whether the row is final
	}
	for _, column := range written {
		values = append(values, quote(column.Name)+" = ?")
		args = append(args, column.Value)
	}
	for _, column := range u.Key {
		conditions = append(conditions, quote(column.Name)+" = ?")
		args = append(args, column.Value)
	}
	for _, final := range u.FinalValues {
		conditions = append(conditions, quote(u.Final)+" IS NOT ?")
		args = append(args, final)
	}
	return fmt.Sprintf(`UPDATE %s SET %s WHERE %s`, tableOf(u), strings.Join(values, ", "),
		strings.Join(conditions, " AND ")), args
}

func tableOf(u natural.Upsert) string {
	if u.Schema == "" {
		return quote(u.Table)
	}
	return quote(u.Schema) + "." + quote(u.Table)
}

// quote quotes a name as an SQL identifier.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// LockName implements [natural.Store]. Only one transaction of the store runs at a time, so there is nothing to lock:
// LockName only checks that there is a transaction.
func (s *Store) LockName(_ context.Context, tx *sql.Tx, _ string) error {
	if tx == nil {
		return errNoTx
	}
	return nil
}
