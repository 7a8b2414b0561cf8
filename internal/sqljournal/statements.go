package sqljournal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// Dialect is what databases disagree about.
type Dialect struct {
	// Table is the name of the table, and Versions that of the table with the version of it, as statements name them.
	Table, Versions string
	// Now is the database's clock in microseconds.
	Now string
	// Skip is how a claim passes over what another is just claiming; empty where there is one writer.
	Skip string
	// Bytes is the type of a column of bytes, and Text that of one of text that is compared byte by byte.
	Bytes, Text string
	// Lock keeps others from creating the tables at the same time; empty where a transaction does.
	Lock string
	// Exists asks whether the table with the version is there. It returns a row if so.
	Exists string
}

// render puts the words of the dialect into a statement.
func (d Dialect) render(statement string) string {
	return strings.NewReplacer(
		"@journal_schema", d.Versions, "@journal", d.Table, "@now", d.Now, "@skip", d.Skip,
		"@bytes", d.Bytes, "@text", d.Text,
		"@index", strings.NewReplacer(`"`, "", ".", "_").Replace(d.Table[strings.LastIndex(d.Table, ".")+1:]),
	).Replace(statement)
}

// migrations are the versions of the tables, the first one first. What was released is never changed.
var migrations = []string{`
CREATE TABLE @journal (
	key           @text PRIMARY KEY,
	host          @text NOT NULL,
	method        TEXT NOT NULL,
	url           TEXT NOT NULL,
	header        @bytes NOT NULL,
	body          @bytes NOT NULL,
	state         INTEGER NOT NULL, -- 0 pending, 1 answered, 2 unknown
	told          INTEGER NOT NULL,
	attempts      INTEGER NOT NULL,
	token         BIGINT NOT NULL,
	due           BIGINT NOT NULL, -- this and the other times are microseconds since 1970
	created_at    BIGINT NOT NULL,
	first_sent    BIGINT NOT NULL,
	settled_at    BIGINT NOT NULL,
	kept_until    BIGINT NOT NULL,
	last_error    TEXT NOT NULL,
	status        INTEGER NOT NULL,
	answer_header @bytes NOT NULL,
	answer_body   @bytes NOT NULL,
	truncated     INTEGER NOT NULL
);
CREATE INDEX @index_due ON @journal (host, due) WHERE told = 0;
CREATE INDEX @index_open ON @journal (key) WHERE told = 0 OR state <> 1;
CREATE INDEX @index_settled ON @journal (settled_at) WHERE told = 1 AND state = 1;
`}

// Schema is all that creates the tables, for those who do it by hand.
func (d Dialect) Schema() string {
	return strings.Join(d.migrationsAfter(0), ";\n") + ";\n"
}

const (
	createVersions = `CREATE TABLE IF NOT EXISTS @journal_schema (version INTEGER PRIMARY KEY)`
	selectVersion  = `SELECT coalesce(max(version), 0) FROM @journal_schema`
	addVersion     = `INSERT INTO @journal_schema (version) VALUES (%d)`
)

// migrate brings the tables up to date. Tables that are up to date need no right to create any.
func (j *Journal) migrate(ctx context.Context) error {
	version, err := j.version(ctx, j.config.Read)
	if err != nil || version == len(migrations) {
		return err
	}
	return j.config.Update(ctx, func(tx *sql.Tx) error {
		if j.config.Lock != "" {
			if _, err := tx.ExecContext(ctx, j.config.Lock); err != nil {
				return err
			}
		}
		// Whether the table is there PostgreSQL may still remember from before the lock; what is in it, it looks up.
		if _, err := tx.ExecContext(ctx, j.config.render(createVersions)); err != nil {
			return fmt.Errorf("create the tables of the journal: %w", err)
		}
		version, err := j.latest(ctx, tx)
		if err != nil || version == len(migrations) {
			return err // another was faster
		}
		return j.apply(ctx, tx, version)
	})
}

// apply runs the migrations after a version.
func (j *Journal) apply(ctx context.Context, tx *sql.Tx, version int) error {
	for _, statement := range j.config.migrationsAfter(version) {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("create the tables of the journal: %w", err)
		}
	}
	return nil
}

// migrationsAfter are the statements that bring tables of a version up to date.
func (d Dialect) migrationsAfter(version int) []string {
	statements := []string{d.render(createVersions)}
	for i, migration := range migrations[version:] {
		for _, statement := range strings.Split(strings.TrimSpace(migration), ";\n") {
			statements = append(statements, d.render(strings.TrimSuffix(statement, ";")))
		}
		statements = append(statements, d.render(fmt.Sprintf(addVersion, version+i+1)))
	}
	return statements
}

// Writes are all statements that write, for a store that lets no others write to its tables.
func (d Dialect) Writes() []string {
	s := d.statements()
	return append(d.migrationsAfter(0), s.add, s.claim, s.settle, s.resolve, s.purge)
}

// ErrNewer is returned for tables that a newer version of the program made.
var ErrNewer = errors.New("the journal's tables were made by a newer version of this program")

// version is that of the tables, or 0 if there are none.
func (j *Journal) version(ctx context.Context, q Querier) (version int, err error) {
	there := false
	err = each(ctx, q, j.config.Exists, nil, func(*sql.Rows) error {
		there = true
		return nil
	})
	if err != nil || !there {
		return 0, err
	}
	return j.latest(ctx, q)
}

// latest is the version that the tables were brought to last.
func (j *Journal) latest(ctx context.Context, q Querier) (version int, err error) {
	err = each(ctx, q, j.config.render(selectVersion), nil, func(rows *sql.Rows) error { return rows.Scan(&version) })
	if err == nil && version > len(migrations) {
		err = fmt.Errorf("%w: they are of version %d, and it knows %d", ErrNewer, version, len(migrations))
	}
	return version, err
}

// statements are the statements of a journal in its dialect.
type statements struct {
	add, dueHosts, claim, settle, get, list, listOpen, stats, resolve, purge string
}

// columns are what scan reads.
const columns = `key, method, url, header, body, state, told, attempts, last_error,
	status, answer_header, answer_body, truncated, created_at, first_sent, settled_at, kept_until, due, token, @now`

// statements puts the dialect into the statements. Parameters are numbered as they first appear, which is how SQLite
// counts them; a CAST gives those a type that PostgreSQL could not guess. What an index is to find by the clock is
// compared with (SELECT @now), which is asked once: a clock that goes on within a statement is no bound for an index.
func (d Dialect) statements() statements {
	return statements{
		add: d.render(`INSERT INTO @journal (key, host, method, url, header, body, state, told, attempts, token,
				due, created_at, first_sent, settled_at, kept_until, last_error, status, answer_header, answer_body, truncated)
			VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0, 0, @now, @now, 0, 0, 0, '', 0, '', '', 0)
			ON CONFLICT (key) DO NOTHING`),
		// It goes from one host to the next in the index, past all that one host has.
		dueHosts: d.render(`WITH RECURSIVE hosts (host) AS (
				SELECT min(host) FROM @journal WHERE told = 0
				UNION ALL
				SELECT (SELECT min(host) FROM @journal WHERE told = 0 AND host > hosts.host)
				FROM hosts WHERE hosts.host IS NOT NULL)
			SELECT host FROM hosts WHERE host IS NOT NULL AND (
				SELECT min(due) FROM @journal AS j WHERE j.told = 0 AND j.host = hosts.host) <= (SELECT @now)`),
		// The operations are chosen once, however the rest is planned.
		claim: d.render(`WITH chosen AS MATERIALIZED (SELECT key FROM @journal
				WHERE told = 0 AND host = $1 AND due <= (SELECT @now) ORDER BY due LIMIT CAST($2 AS BIGINT) @skip)
			UPDATE @journal
			SET token = token + 1, due = @now + CAST($3 AS BIGINT), attempts = attempts + CASE state WHEN 0 THEN 1 ELSE 0 END,
				first_sent = CASE WHEN state = 0 AND first_sent = 0 THEN @now ELSE first_sent END
			WHERE key IN (SELECT key FROM chosen)
			RETURNING ` + columns),
		// What an operation was settled with stays.
		settle: d.render(`UPDATE @journal
			SET state = CAST($1 AS INTEGER), told = CAST($2 AS INTEGER), due = @now + CAST($3 AS BIGINT),
				last_error = coalesce(nullif(CAST($4 AS TEXT), ''), last_error),
				status = CASE state WHEN 0 THEN CAST($5 AS INTEGER) ELSE status END,
				answer_header = CASE state WHEN 0 THEN $6 ELSE answer_header END,
				answer_body = CASE state WHEN 0 THEN $7 ELSE answer_body END,
				truncated = CASE state WHEN 0 THEN CAST($8 AS INTEGER) ELSE truncated END,
				settled_at = CASE WHEN state = 0 AND CAST($1 AS INTEGER) <> 0 THEN @now ELSE settled_at END,
				kept_until = CASE WHEN CAST($9 AS BIGINT) <> 0 THEN @now + CAST($9 AS BIGINT) ELSE kept_until END
			WHERE key = $10 AND token = $11 AND state IN (0, CAST($1 AS INTEGER))`),
		get: d.render(`SELECT ` + columns + ` FROM @journal WHERE key = $1`),
		list: d.render(`SELECT ` + columns + ` FROM @journal
			WHERE key > $1 AND (CAST($2 AS INTEGER) >> state) & 1 = 1 ORDER BY key LIMIT CAST($3 AS BIGINT)`),
		listOpen: d.render(`SELECT ` + columns + ` FROM @journal
			WHERE key > $1 AND (CAST($2 AS INTEGER) >> state) & 1 = 1 AND (told = 0 OR state <> 1)
			ORDER BY key LIMIT CAST($3 AS BIGINT)`),
		// Its condition is that of the index of what is open.
		stats: d.render(`SELECT count(CASE state WHEN 0 THEN 1 END), coalesce(min(CASE state WHEN 0 THEN created_at END), 0),
				count(CASE state WHEN 2 THEN 1 END)
			FROM @journal WHERE told = 0 OR state <> 1`),
		resolve: d.render(`UPDATE @journal
			SET state = 1, told = 0, token = token + 1, due = @now, settled_at = @now, status = $1, answer_header = $2,
				answer_body = $3, truncated = $4
			WHERE key = $5 AND state = 2`),
		purge: d.render(`DELETE FROM @journal WHERE key IN (SELECT key FROM @journal
			WHERE told = 1 AND state = 1 AND settled_at <= (SELECT @now) - CAST($1 AS BIGINT) LIMIT CAST($2 AS BIGINT))`),
	}
}
