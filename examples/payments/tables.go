package payments

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/natural"
)

// schema are the tables on SQLite and PostgreSQL; the tables of MySQL are in tables_mysql.go. All other
// statements are the same on all databases, except for the form of the parameters: see [Database].
//
// Amounts are in the smallest unit of the currency. The column request
// is the client's key, so that people can find the result of a request.
var schema = []string{
	`CREATE TABLE IF NOT EXISTS payment (
		id         TEXT PRIMARY KEY,
		account    TEXT NOT NULL,
		request    TEXT NOT NULL,
		reference  TEXT NOT NULL,
		customer   TEXT NOT NULL,
		amount     BIGINT NOT NULL CHECK (amount > 0 AND amount <= 100000000),
		currency   TEXT NOT NULL,
		state      TEXT NOT NULL,
		charge     TEXT NOT NULL DEFAULT '',
		charged_at BIGINT NOT NULL DEFAULT 0,
		created_at TEXT NOT NULL
	)`,
	`CREATE INDEX IF NOT EXISTS payment_account ON payment (account, created_at)`,
	`CREATE INDEX IF NOT EXISTS payment_charge ON payment (charge) WHERE charge <> ''`,
	`CREATE TABLE IF NOT EXISTS refund (
		id         TEXT PRIMARY KEY,
		payment    TEXT NOT NULL,
		amount     BIGINT NOT NULL,
		reference  TEXT NOT NULL
	)`,
	`CREATE TABLE IF NOT EXISTS booking (
		id         TEXT PRIMARY KEY,
		account    TEXT NOT NULL,
		request    TEXT NOT NULL,
		reference  TEXT NOT NULL,
		item       TEXT NOT NULL,
		price      BIGINT NOT NULL,
		state      TEXT NOT NULL,
		charge     TEXT NOT NULL DEFAULT '',
		charged_at BIGINT NOT NULL DEFAULT 0,
		reason     TEXT NOT NULL DEFAULT ''
	)`,
	`CREATE INDEX IF NOT EXISTS booking_charge ON booking (charge) WHERE charge <> ''`,
	`CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, places BIGINT NOT NULL CHECK (places >= 0))`,
	`INSERT INTO stock (item, places) VALUES ('concert', 1000000), ('theatre', 1000000), ('cellar', 1)
		ON CONFLICT DO NOTHING`,
}

// addition is a column that tables of an earlier version lack. It has a default,
// so that nodes of that version can continue to write during a rolling update.
type addition struct{ table, column, kind string }

// additions are made after the tables. A refund whose time is 0 was stored
// by an older node: a comparison of that time reports it as missing here.
var additions = []addition{{"refund", "made_at", "BIGINT NOT NULL DEFAULT 0"}}

// Create implements [Storage].
func (b *sqlStorage) Create(ctx context.Context) error {
	tables := schema
	if b.mySQL {
		tables = schemaMySQL
	}
	err := b.db.Define(ctx, tables...)
	if err == nil {
		err = b.addColumns(ctx)
	}
	if err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	return nil
}

// addColumns adds the columns that tables of an earlier version lack, once: processes that start at the same time
// wait for each other. On MySQL there was no earlier version, and a column could not be added in a transaction.
func (b *sqlStorage) addColumns(ctx context.Context) error {
	if b.mySQL {
		return nil
	}
	return b.db.InTx(ctx, func(ctx context.Context) error {
		tx := onceward.Tx(ctx)
		if err := b.db.LockName(ctx, tx, "add columns to the tables of payments"); err != nil {
			return err
		}
		for _, a := range additions {
			there, err := b.db.HasColumn(ctx, tx, a.table, a.column)
			if err == nil && !there {
				_, err = tx.ExecContext(ctx, fmt.Sprintf(`ALTER TABLE %s ADD COLUMN %s %s`, a.table, a.column, a.kind))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// insert inserts a row, and reports whether it did: an existing row with the same id is left unchanged.
func (b *sqlStorage) insert(ctx context.Context, table, id string, values []natural.Column) (inserted bool, err error) {
	outcome, err := b.db.UpsertRow(ctx, onceward.Tx(ctx), natural.Upsert{
		Table: table, Key: []natural.Column{{Name: "id", Value: id}}, Values: values,
		Final: "id", FinalValues: []any{id},
	})
	return outcome == natural.OutcomeInserted, err
}

// newID returns the id of a row, which depends on the operation. A retry that arrives
// after its record has expired gets the same id, and so finds the row instead of
// making a second one. Without Onceward there is no operation, and the id is random.
func newID(ctx context.Context, kind string) string {
	return kind + "_" + cmp.Or(onceward.FromContext(ctx).DownstreamKey("row "+kind), rand.Text())
}

// rowsChanged returns the number of rows that a statement has changed.
func rowsChanged(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
