// Package natural helps with writes that are idempotent by nature: they can be repeated because their row has a name of
// its own, such as an order number or a provider's payment id.
//
// [Store.UpsertRow] inserts a row or updates it, leaves it unchanged once it has reached a final state, and reports
// which of these it did: only the caller that inserted it continues. [Store.LockName] makes transactions with the same
// natural key wait for each other, even while there is no row yet that they could lock.
package natural

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// Store is a database that can upsert rows and lock names. The SQL stores of this repository implement it.
type Store interface {
	// UpsertRow inserts a row or updates it, in a transaction of the application. A store with
	// another type of transaction has its own function for this, such as postgres.UpsertRow.
	UpsertRow(ctx context.Context, tx *sql.Tx, u Upsert) (Outcome, error)
	// LockName makes transactions that lock the same name wait for each other, until the transaction ends. A store with
	// another type of transaction has its own function for this, such as postgres.LockName.
	LockName(ctx context.Context, tx *sql.Tx, name string) error
}

// Upsert is a row to insert or to update.
type Upsert struct {
	// Table is the table of the row, and Schema the table's schema. Default: the schema of the search path; Table is
	// required.
	Schema string
	Table  string
	// Key is the natural key: the columns of a primary key or a unique constraint, with their values. Required.
	Key []Column
	// Values are the other columns. Their values in an existing row are overwritten. Default: none.
	Values []Column
	// Final is a column whose value shows that a row must not change any
	// more, and FinalValues are these values. Default: no row is final.
	Final       string
	FinalValues []any
}

// Column is a column with its value, as the driver takes it.
type Column struct {
	Name  string
	Value any
}

// Outcome is the effect of an upsert.
type Outcome uint8

// These are the outcomes of an upsert.
const (
	// OutcomeKept means that the row was in a final state and is unchanged.
	OutcomeKept Outcome = iota + 1
	// OutcomeInserted means that there was no row.
	OutcomeInserted
	// OutcomeUpdated means that the row existed and has the new values.
	OutcomeUpdated
)

// String returns the name of the outcome.
func (o Outcome) String() string {
	names := [...]string{"none", "kept", "inserted", "updated"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("outcome %d", o)
}

// Check refuses an invalid upsert. Stores call it.
func (u *Upsert) Check() error {
	switch {
	case u.Table == "":
		return errors.New("natural: Upsert.Table is missing")
	case len(u.Key) == 0:
		return errors.New("natural: Upsert.Key is missing: it names the columns by which the row is found")
	case slices.Contains(u.FinalValues, nil):
		return errors.New("natural: Upsert.FinalValues holds nil: a row without a value there is never final")
	case (u.Final == "") != (len(u.FinalValues) == 0):
		return errors.New("natural: Upsert.Final and Upsert.FinalValues go together")
	}
	var names []string
	for _, column := range slices.Concat(u.Key, u.Values) {
		if column.Name == "" || slices.Contains(names, column.Name) {
			return fmt.Errorf("natural: Upsert has the column %q twice, or without a name", column.Name)
		}
		names = append(names, column.Name)
	}
	return nil
}
