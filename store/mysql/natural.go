package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/natural"
)

var _ natural.Store = (*Store)(nil)

// lockName locks a row until the transaction ends, and creates the row if it does not exist.
const lockName = `INSERT INTO @lock (name, number) VALUES (?, @now) ON DUPLICATE KEY UPDATE number = @now`

// LockName implements [natural.Store]. It waits for another transaction as long as the session waits for a row. If two
// nodes of a cluster lock the same name, one of them is refused at its commit.
func (s *Store) LockName(ctx context.Context, tx *sql.Tx, name string) error {
	if tx == nil {
		return errNoTx
	}
	_, err := tx.ExecContext(ctx, s.render(lockName), lockOf("name", []byte(name)))
	return err
}

// UpsertRow implements [natural.Store]. An insert that finds its row locks
// the row, so that the decision stays valid until the transaction ends.
func (s *Store) UpsertRow(ctx context.Context, tx *sql.Tx, u natural.Upsert) (natural.Outcome, error) {
	if tx == nil {
		return 0, errNoTx
	}
	if err := u.Check(); err != nil {
		return 0, err
	}
	if err := s.requireUnique(ctx, tx, &u); err != nil {
		return 0, err
	}
	outcome, err := upsert(ctx, tx, &u)
	if err != nil {
		err = fmt.Errorf("mysql: upsert into %s: %w", u.Table, err)
	}
	return outcome, err
}

func upsert(ctx context.Context, tx *sql.Tx, u *natural.Upsert) (natural.Outcome, error) {
	text, args := insertion(u)
	result, err := tx.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	if id, err := result.LastInsertId(); err != nil || id != found {
		return natural.OutcomeInserted, err
	}
	text, args = look(u)
	var final bool
	switch err := tx.QueryRowContext(ctx, text, args...).Scan(&final); {
	case errors.Is(err, sql.ErrNoRows):
		return 0, errors.New("another row has a value that is unique, and another key")
	case err != nil:
		return 0, err
	case final:
		return natural.OutcomeKept, nil
	case len(u.Values) == 0:
		return natural.OutcomeUpdated, nil
	}
	text, args = change(u)
	_, err = tx.ExecContext(ctx, text, args...)
	return natural.OutcomeUpdated, err
}

// insertion returns the statement that inserts a row, or finds it and changes nothing.
func insertion(u *natural.Upsert) (text string, args []any) {
	var names []string
	for _, column := range slices.Concat(u.Key, u.Values) {
		names = append(names, quote(column.Name))
		args = append(args, column.Value)
	}
	key := quote(u.Key[0].Name)
	return fmt.Sprintf(`INSERT INTO %s (%s) VALUES %s ON DUPLICATE KEY UPDATE %s = IF(LAST_INSERT_ID(?), %s, %s)`,
		tableOf(u), strings.Join(names, ", "), marks(len(names)), key, key, key), append(args, found)
}

// look returns the statement that reads whether a row is final, and locks it.
func look(u *natural.Upsert) (text string, args []any) {
	final := `0`
	if u.Final != "" {
		final = fmt.Sprintf(`COALESCE(%s IN %s, 0)`, quote(u.Final), marks(len(u.FinalValues)))
		args = append(args, u.FinalValues...)
	}
	where, values := keyOf(u)
	return fmt.Sprintf(`SELECT %s FROM %s WHERE %s FOR UPDATE`, final, tableOf(u), where), append(args, values...)
}

// change returns the statement that sets the values of a row.
func change(u *natural.Upsert) (text string, args []any) {
	var values []string
	for _, column := range u.Values {
		values = append(values, quote(column.Name)+" = ?")
		args = append(args, column.Value)
	}
	where, keys := keyOf(u)
	return fmt.Sprintf(`UPDATE %s SET %s WHERE %s`, tableOf(u), strings.Join(values, ", "), where), append(args, keys...)
}

// keyOf returns the condition that finds the row.
func keyOf(u *natural.Upsert) (where string, args []any) {
	var conditions []string
	for _, column := range u.Key {
		conditions = append(conditions, quote(column.Name)+" = ?")
		args = append(args, column.Value)
	}
	return strings.Join(conditions, " AND "), args
}

func tableOf(u *natural.Upsert) string {
	if u.Schema == "" {
		return quote(u.Table)
	}
	return quote(u.Schema) + "." + quote(u.Table)
}

// selectUnique reads the columns of the unique indexes of a table.
const selectUnique = `SELECT INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS
	WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ? AND NON_UNIQUE = 0 AND SUB_PART IS NULL`

// requireUnique refuses a key that the table does not keep unique. The server would accept such a key, and of two
// concurrent upserts both would insert a row. A key that is unique is remembered.
func (s *Store) requireUnique(ctx context.Context, tx *sql.Tx, u *natural.Upsert) error {
	var key []string
	for _, column := range u.Key {
		key = append(key, strings.ToLower(column.Name))
	}
	slices.Sort(key)
	name := fmt.Sprintf("%q %q %q", u.Schema, u.Table, key)
	if _, known := s.unique.Load(name); known {
		return nil
	}
	rows, err := tx.QueryContext(ctx, selectUnique, sql.NullString{String: u.Schema, Valid: u.Schema != ""}, u.Table)
	if err != nil {
		return err
	}
	indexes := make(map[string][]string)
	err = eachRow(rows, func() error {
		var index, column string
		err := rows.Scan(&index, &column)
		indexes[index] = append(indexes[index], strings.ToLower(column))
		return err
	})
	if err != nil {
		return err
	}
	for _, columns := range indexes {
		if slices.Sort(columns); slices.Equal(columns, key) {
			s.unique.Store(name, true)
			return nil
		}
	}
	return fmt.Errorf("mysql: the table %s has no primary key or unique index of exactly the columns %q", u.Table, key)
}
