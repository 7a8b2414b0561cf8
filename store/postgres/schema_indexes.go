package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// This file makes and drops indexes on the table of records while others write, around the migrations that do so.

// largeIndex is an index on the table of records that takes long to make where there are many.
type largeIndex struct {
	// file is the migration that makes it, and version what that makes of the tables.
	file    string
	version int
	// name is its own behind the prefix, and in a partition behind the partition's name.
	name, inPartition string
	// body is what stands behind the name of its table.
	body string
	// needs says that a function comes before it in the migration, without which it cannot be made.
	needs bool
}

// largeIndexes are those that [Migrate] makes ahead of their migrations.
var largeIndexes = []largeIndex{
	{file: "00003_operate.sql", version: 3, name: "record_provider_id", body: indexedProvidersBefore, needs: true},
	{file: walking, version: 6, name: "record_open", inPartition: "_state_due_idx", body: indexedOpen},
	{file: walking, version: 6, name: "record_provider", inPartition: "_provider_idx", body: indexedProviders},
}

// wanted reports whether the index is to be made in tables of a version: its migration is to come, or has been there
// and none has dropped it since.
func (i *largeIndex) wanted(version int) bool {
	return version < i.version || version == schemaVersion && !slices.Contains(leftIndexes, i.name)
}

// walking is the migration that takes indexes away, which are large too.
const walking = "00006_walk.sql"

// leftIndexes are those.
var leftIndexes = []string{"record_due", "record_provider_id"}

// indexAhead makes those indexes that are missing, before their migrations, which leave alone what is there, and behind
// them those that are missing all the same, or half made. Of several at once, one does it. The others must not wait in
// a transaction, because the one waits for those that look at anything; and the lock belongs to a transaction on another
// connection, so that a pooler cannot lose it. It is taken by the simple protocol, after which that transaction looks at
// nothing any more; at a stricter level of isolation, which a database may have as its default, it would go on looking,
// and both would wait forever.
func indexAhead(ctx context.Context, conn *pgx.Conn, where names, status store.SchemaStatus) error {
	if status.Version == 0 || status.Version > schemaVersion {
		return nil
	}
	if status.Version == schemaVersion {
		if whole, err := where.wholeIndexes(ctx, conn); err != nil || whole {
			return err
		}
	}
	err := whenFree(ctx, time.Time{}, func() error { return where.prepareIndexes(ctx, conn, status) })
	if err != nil {
		return err
	}
	builder, err := connectPatient(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { _ = builder.Close(ctx) }() // nothing is under way
	for done := false; !done && err == nil; {
		err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, patiently, pgx.QueryExecModeSimpleProtocol)
			if err == nil {
				err = tx.QueryRow(ctx, takeLock, pgx.QueryExecModeSimpleProtocol, where.indexLock()).Scan(&done)
			}
			if err == nil && done {
				err = where.makeIndexes(ctx, builder, status)
			}
			return err
		})
		if !done {
			time.Sleep(indexPoll)
		}
	}
	return err
}

// prepareIndexes makes what the indexes need, if the role may make them.
func (n names) prepareIndexes(ctx context.Context, conn *pgx.Conn, status store.SchemaStatus) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := n.enter(ctx, tx, advisoryLocks); err != nil {
			return err
		}
		if err := n.checkOwner(ctx, tx); err != nil {
			return err
		}
		for _, index := range largeIndexes {
			if status.Version >= index.version || !index.needs {
				continue
			}
			text, err := n.migration(index.file)
			if err != nil {
				return err
			}
			function, _, _ := strings.Cut(text, "CREATE INDEX")
			if _, err := tx.Exec(ctx, function); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkOwner refuses a role that may not make an index on the table of records, before it leaves the function behind,
// which the owner of the tables could then not replace.
func (n names) checkOwner(ctx context.Context, tx pgx.Tx) error {
	const selectOwner = `SELECT pg_has_role(relowner, 'USAGE'), relowner::regrole::text FROM pg_class
		WHERE oid = to_regclass($1)`
	var owns bool
	var owner string
	err := tx.QueryRow(ctx, selectOwner, n.render(`@record`)).Scan(&owns, &owner)
	if err == nil && !owns {
		err = fmt.Errorf("the tables in %s belong to the role %s: migrate as that one", n.place(), owner)
	}
	return err
}

// indexPoll is how often it is looked whether another one has made the index.
const indexPoll = 100 * time.Millisecond

// patiently lets a transaction last, whatever a database allows those of requests.
const patiently = `SELECT set_config(name, '0', true) FROM pg_settings
	WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')`

// connectPatient opens a connection like another one, on which the caller's context bounds statements and transactions,
// not what a database allows those of requests: an index that is never whole would be begun with each try. Behind a
// pooler that does not let it, that stays as it is.
func connectPatient(ctx context.Context, like *pgx.Conn) (*pgx.Conn, error) {
	// Servers from version 17 on have the last one, and others refuse what they do not know.
	const bounds = `SELECT name FROM pg_settings
		WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout')`
	rows, err := like.Query(ctx, bounds)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	tuned := like.Config()
	for _, name := range names {
		tuned.RuntimeParams[name] = "0"
	}
	conn, err := pgx.ConnectConfig(ctx, tuned)
	if sqlState(err) == stateUnsupportedParameter {
		return pgx.ConnectConfig(ctx, like.Config())
	}
	return conn, err
}

// makeIndexes makes the indexes of migrations to come. The server makes no index on a partitioned table while others
// write, but on each partition: the migration then takes those for its own.
func (n names) makeIndexes(ctx context.Context, conn *pgx.Conn, status store.SchemaStatus) error {
	const selectParts = `SELECT relname::text FROM pg_inherits JOIN pg_class ON oid = inhrelid
		WHERE inhparent = to_regclass($1) ORDER BY 1`
	rows, err := conn.Query(ctx, selectParts, n.render(`@record`))
	if err != nil {
		return err
	}
	parts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, index := range largeIndexes {
		if !index.wanted(status.Version) {
			continue
		}
		if len(parts) > 0 {
			err = n.makeInPartitions(ctx, conn, &index, parts, status.Version >= index.version)
		} else {
			err = n.makeIndex(ctx, conn, n.prefix+index.name, n.prefix+"record", index.body)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeInPartitions makes an index in each partition and, if its migration does not come any more, that of the whole
// from them.
func (n names) makeInPartitions(
	ctx context.Context, conn *pgx.Conn, index *largeIndex, parts []string, behind bool,
) error {
	if behind {
		whole, err := n.wholeIndex(ctx, conn, index.name)
		if err == nil && !whole {
			err = lockBriefly(ctx, conn, n.render(`DROP INDEX IF EXISTS @`+index.name))
		}
		if err != nil || whole {
			return err
		}
	}
	for _, part := range parts {
		if err := n.makeIndex(ctx, conn, part+index.inPartition, part, index.body); err != nil {
			return err
		}
	}
	if !behind {
		return nil
	}
	name := pgx.Identifier{n.prefix + index.name}.Sanitize()
	return lockBriefly(ctx, conn, n.render(`CREATE INDEX IF NOT EXISTS `+name+` ON @record `+index.body))
}

// How long all who read or write may have to wait behind one who waits for a lock, and for how long they are let go on
// before that one tries again.
const (
	briefLock  = `SET LOCAL lock_timeout = '1s'`
	briefPause = 2 * time.Second
)

// lockBriefly runs a statement that takes little time, but a lock behind which others wait as long as it waits itself
// for transactions that are open. It gives up soon, and tries again, a number of times.
func lockBriefly(ctx context.Context, conn *pgx.Conn, statement string) error {
	for tries := 1; ; tries++ {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, briefLock)
			if err == nil {
				_, err = tx.Exec(ctx, statement)
			}
			return err
		})
		if sqlState(err) != stateLockNotAvailable {
			return err
		}
		if tries >= maxUndone || !backoff.Sleep(ctx, briefPause) {
			return fmt.Errorf("transactions that last hold up an index: end them, and migrate again: %w", err)
		}
	}
}

// makeIndex makes an index on a table while others write. One that another has left half made is dropped first:
// whatever fails, there is no more than one. The name of an index takes no schema: it is in that of its table.
func (n names) makeIndex(ctx context.Context, conn *pgx.Conn, index, table, body string) error {
	const (
		selectHalf = `SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid)`
		create     = `CREATE INDEX CONCURRENTLY IF NOT EXISTS %s ON %s %s`
	)
	name := pgx.Identifier{n.schema, index}.Sanitize()
	var half bool
	err := conn.QueryRow(ctx, selectHalf, name).Scan(&half)
	if err == nil && half {
		_, err = conn.Exec(ctx, `DROP INDEX CONCURRENTLY IF EXISTS `+name)
	}
	if err == nil {
		on := pgx.Identifier{n.schema, table}.Sanitize()
		_, err = conn.Exec(ctx, fmt.Sprintf(create, pgx.Identifier{index}.Sanitize(), on, n.render(body)))
	}
	if err != nil {
		return fmt.Errorf("make the index %s, which postgres.Migrate makes whole when it is called again: %w", name, err)
	}
	return nil
}

// dropIndex drops an index while others write.
const dropIndex = `DROP INDEX CONCURRENTLY IF EXISTS @`

// indexBehind drops the indexes that the migrations have left because they are in use. It waits for the transactions
// that are open, and keeps them if what is there instead is not whole.
func indexBehind(ctx context.Context, conn *pgx.Conn, where names, status store.SchemaStatus) error {
	if status.Version < schemaVersion {
		return nil
	}
	if whole, err := where.wholeIndexes(ctx, conn); err != nil || !whole {
		return err
	}
	for _, index := range leftIndexes {
		left, err := where.hasIndex(ctx, conn, index)
		if err == nil && left {
			err = where.dropPatiently(ctx, conn, index)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (n names) dropPatiently(ctx context.Context, conn *pgx.Conn, index string) error {
	patient, err := connectPatient(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { _ = patient.Close(ctx) }() // nothing is under way
	drop := n.render(dropIndex + index)
	if _, err = patient.Exec(ctx, drop); err != nil {
		err = fmt.Errorf("the tables are up to date, but for an index that nothing uses and every write pays for; "+
			"drop it with: %s: %w", drop, err)
	}
	return err
}

// hasIndex reports whether there is an index of a name, whole or half made.
func (n names) hasIndex(ctx context.Context, conn asker, name string) (there bool, err error) {
	err = conn.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, n.render("@"+name)).Scan(&there)
	return there, err
}

// wholeIndex reports whether there is an index of a name that is not half made.
func (n names) wholeIndex(ctx context.Context, conn asker, name string) (whole bool, err error) {
	const selectWhole = `SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND indisvalid)`
	err = conn.QueryRow(ctx, selectWhole, n.render("@"+name)).Scan(&whole)
	return whole, err
}

// wholeIndexes reports that of all that tables of this version are to have.
func (n names) wholeIndexes(ctx context.Context, conn asker) (whole bool, err error) {
	whole = true
	for _, index := range largeIndexes {
		if whole && err == nil && index.wanted(schemaVersion) {
			whole, err = n.wholeIndex(ctx, conn, index.name)
		}
	}
	return whole, err
}

// dropLeft drops the indexes that the migration has left because they are in use. That takes no time unless there are
// transactions that last, and is not worth a failure.
func (s *Store) dropLeft(ctx context.Context) {
	for _, index := range leftIndexes {
		drop := s.names.render(dropIndex + index)
		if _, err := s.own.Exec(ctx, drop); err != nil {
			s.logger.WarnContext(ctx, "postgres: an index is left that nothing uses and every write pays for",
				"error", err, "do", drop)
		}
	}
}

// noIndexUnderWay asks whether nobody makes an index on a table, or a partition of it, or drops one, while others
// write: such a one is not valid, and there is the lock of who is at it. VACUUM and ANALYZE take the same lock; that
// others run them is shown to every role, which on what they make an index is not.
const noIndexUnderWay = `SELECT NOT EXISTS (
	SELECT FROM pg_index i JOIN pg_locks l ON l.relation = i.indrelid
	WHERE NOT i.indisvalid AND l.granted AND l.mode = 'ShareUpdateExclusiveLock'
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (i.indrelid = to_regclass($1)
			OR i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1)))
		AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = l.pid)
		AND NOT EXISTS (SELECT FROM pg_stat_progress_analyze a WHERE a.pid = l.pid))`

// holdIndexes keeps others from making an index on the table of records until the transaction ends, and fails with
// errBusy while somebody makes one concurrently. Such an index looks like one that was left half made, and to drop it
// takes a lock behind which all who read or write would wait until it is whole. The lock that is taken here lets them.
func (n names) holdIndexes(ctx context.Context, tx pgx.Tx, locks locking) error {
	if locks != rowLocks {
		if err := wantFree(ctx, tx, takeLock, n.indexLock()); err != nil {
			return err
		}
	}
	if err := wantFree(ctx, tx, noIndexUnderWay, n.render(`@record`)); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, n.render(`LOCK TABLE @record IN SHARE UPDATE EXCLUSIVE MODE`))
	return err
}

// withoutIndexes leaves out of a migration what the server would do to indexes behind a lock that waits for all who
// write, and keeps others from it: to find out that an index is there, and to drop one, which is done afterwards. The
// tables are those of before, and not partitioned.
func (n names) withoutIndexes(ctx context.Context, tx pgx.Tx, file, text string) (string, error) {
	for _, index := range largeIndexes {
		if index.file != file {
			continue
		}
		made, err := n.wholeIndex(ctx, tx, index.name)
		if err != nil {
			return text, err
		}
		if made {
			text = withoutStatement(text, "CREATE INDEX IF NOT EXISTS "+n.prefix+index.name+" ")
		}
	}
	if file == walking {
		for range leftIndexes {
			text = withoutStatement(text, "DROP INDEX")
		}
	}
	return text, nil
}

// withoutStatement leaves the first statement out that begins so.
func withoutStatement(text, begins string) string {
	before, rest, _ := strings.Cut(text, "\n"+begins)
	_, after, _ := strings.Cut(rest, ";")
	return before + after
}
