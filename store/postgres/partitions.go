package postgres

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
)

// maxPartitions is the most that the function of the migration takes: each plan of a statement opens all of them.
const maxPartitions = 256

// WithPartitions spreads the records over n partitions, 2 to 256, by the hash of their names, when the tables are made.
// Vacuum and the removal of expired records then work on n small tables and indexes instead of large ones; see the
// guide on PostgreSQL for when that pays. It belongs to the migration: a store finds by itself how its tables were
// made, and other programs need not be told.
//
// [Migrate] also converts tables that are there: it copies the records, during which nothing is executed. [Open], [New]
// and [NewSQL] do not: they refuse tables that were made otherwise. Default: one table.
func WithPartitions(n int) Option { return func(o *options) { o.partitions = n } }

// checkPartitions refuses a number of partitions that cannot be made.
func (o *options) checkPartitions() error {
	if n := o.partitions; n != 0 && (n < 2 || n > maxPartitions) {
		return fmt.Errorf("%d partitions: use 2 to %d, or leave them out for one table", n, maxPartitions)
	}
	return nil
}

// matchPartitions refuses tables that were made with another number of partitions than was asked for.
func (o *options) matchPartitions(status *store.SchemaStatus) error {
	if o.partitions == 0 || o.converts || o.partitions == status.Partitions {
		return nil
	}
	return fmt.Errorf("the records in %s are %s, and %d partitions were asked for: convert them by the function Migrate or "+
		"\"onceward migrate up --partitions %d\", during which nothing is executed, or ask for what is there",
		status.Place, formOf(status.Partitions), o.partitions, o.partitions)
}

// formOf says how many partitions there are.
func formOf(partitions int) string {
	if partitions == 0 {
		return "in one table"
	}
	return fmt.Sprintf("in %d partitions", partitions)
}

// partitionPattern is how the migration names partitions, after the prefix.
var partitionPattern = regexp.MustCompile(`^record_p[0-9]+_[0-9]+$`)

// holdsRecords reports whether a table is that of the records, or a partition of it.
func (n names) holdsRecords(table string) bool {
	if len(table) < len(n.prefix) || table[:len(n.prefix)] != n.prefix {
		return false
	}
	rest := table[len(n.prefix):]
	return rest == "record" || partitionPattern.MatchString(rest)
}

// selectPartitions counts the partitions; a table that is whole has none, nor has one that is missing.
const selectPartitions = `SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass($1)`

// partition is the call of the migration's function.
const partition = `SELECT @partition($1)`

// convert spreads records that are there over as many partitions as were asked for. The store may be closed.
func (s *Store) convert(ctx context.Context, conn *pgx.Conn, where names, status store.SchemaStatus) error {
	wanted := s.options.partitions
	if wanted == 0 || wanted == status.Partitions {
		return nil
	}
	patient, err := connectPatient(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { _ = patient.Close(ctx) }() // nothing is under way
	err = whenFree(ctx, time.Time{}, func() error {
		return pgx.BeginTxFunc(ctx, patient, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := where.enter(ctx, tx, s.locking); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, where.render(partition), wanted)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("convert the records in %s to %d partitions, of which nothing is done: %w",
			status.Place, wanted, err)
	}
	return nil
}
