package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	postgresstore "github.com/onceward/onceward/store/postgres"
)

func trySchema(ctx context.Context, p *postgres, r *Result) error {
	if !p.tables {
		return errNoTables
	}
	known, err := migrations()
	if err != nil {
		return err
	}
	var version int
	err = p.query(ctx, []any{&version}, `SELECT coalesce(max(version), 0) FROM `+p.table("schema"))
	if err != nil {
		return err
	}
	r.saw("version %d, this program knows %d", version, len(known))
	switch {
	case version < len(known):
		r.find(Broken, "migrate first, as the owner of the tables (onceward migrate up), then deploy",
			"the tables are of version %d, and this program needs version %d", version, len(known))
	case version > len(known):
		r.find(Broken, "use a newer program", "the tables are of version %d, and this program knows version %d",
			version, len(known))
	}
	return nil
}

// migrations returns the texts that create the tables, in order.
func migrations() (texts []string, err error) {
	files, err := fs.Glob(postgresstore.Migrations(), "*.sql")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := fs.ReadFile(postgresstore.Migrations(), file)
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(text))
	}
	return texts, nil
}

var (
	gooseBlock = regexp.MustCompile(`(?s)-- \+goose StatementBegin.*?-- \+goose StatementEnd`)
	lineNote   = regexp.MustCompile(`(?m)--.*$`)
	makesIndex = regexp.MustCompile(`(?i)^CREATE (UNIQUE )?INDEX\b`)
	tableWork  = regexp.MustCompile(`(?i)^(CREATE TABLE|CREATE SEQUENCE|CREATE (UNIQUE )?INDEX|ALTER TABLE|DROP INDEX)\b`)
)

// tableStatements returns the statements of the migrations that create tables and indexes.
func tableStatements(prefix string) (statements []string, err error) {
	texts, err := migrations()
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		text = lineNote.ReplaceAllString(gooseBlock.ReplaceAllString(text, ""), "")
		for statement := range strings.SplitSeq(text, ";") {
			if statement = strings.TrimSpace(statement); tableWork.MatchString(statement) {
				statements = append(statements, strings.ReplaceAll(statement, "onceward_", prefix))
			}
		}
	}
	return statements, nil
}

// index is an index of a table of the store.
type index struct {
	Name, Table, Definition string
	Unique, Valid           bool
}

const selectIndexes = `SELECT c.relname::text, t.relname::text, pg_get_indexdef(i.indexrelid), i.indisunique,
	i.indisvalid AND i.indisready
	FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
	WHERE t.relnamespace = %s AND starts_with(t.relname::text, $1::text)`

// tryIndexes creates the tables again, as temporary tables in a transaction that is rolled back, and
// compares their indexes with the existing ones: the program needs the indexes that it was built with.
func tryIndexes(ctx context.Context, p *postgres, r *Result) error {
	if !p.tables {
		return errNoTables
	}
	have, err := rows[index](ctx, p, fmt.Sprintf(selectIndexes, `to_regnamespace(quote_ident($2))`), p.prefix, p.schema)
	if err != nil {
		return err
	}
	want, err := p.freshIndexes(ctx)
	if err != nil {
		return fmt.Errorf("tables to compare with cannot be made (TEMPORARY on the database is needed): %w", err)
	}
	for _, w := range want {
		p.judgeIndex(r, w, have)
	}
	for _, h := range have {
		if !h.Valid {
			r.find(Weak, fmt.Sprintf("REINDEX INDEX CONCURRENTLY %s.%s, or drop it if it is not the store's", p.schema, h.Name),
				"the index %s of %s is not valid: it is written and never used", h.Name, h.Table)
		}
	}
	r.saw("%d indexes of %d", len(have), len(want))
	return nil
}

// judgeIndex looks for an index by its definition, because its name may differ.
func (p *postgres) judgeIndex(r *Result, want index, have []index) {
	alike := func(h index) bool { return h.Table == want.Table && p.shape(h.Definition) == p.shape(want.Definition) }
	if slices.ContainsFunc(have, alike) {
		return
	}
	severity := Weak
	if want.Unique {
		severity = Broken
	}
	if i := slices.IndexFunc(have, func(h index) bool { return h.Name == want.Name }); i >= 0 {
		r.find(severity, "drop it and make it again as: "+madeIn(want.Definition, p.schema),
			"the index %s of %s is not as this program knows it: %s", want.Name, want.Table, have[i].Definition)
		return
	}
	r.find(severity, "make it: "+madeIn(want.Definition, p.schema), "the index %s of %s is missing", want.Name, want.Table)
}

var (
	indexHead       = regexp.MustCompile(`^CREATE (UNIQUE )?INDEX (\S+) ON (ONLY )?\S+ `)
	temporarySchema = regexp.MustCompile(` ON (ONLY )?pg_temp_\d+\.`)
)

// shape returns the definition of an index without its name and its schema. The schema also occurs in function names.
func (p *postgres) shape(definition string) string {
	body := indexHead.ReplaceAllString(definition, "$1")
	return strings.NewReplacer(pgx.Identifier{p.schema}.Sanitize()+".", "", p.schema+".", "").Replace(body)
}

// madeIn returns the statement that creates an index in a schema.
func madeIn(definition, schema string) string {
	return temporarySchema.ReplaceAllString(definition, " ON "+pgx.Identifier{schema}.Sanitize()+".")
}

// freshIndexes returns the indexes that the migrations create.
func (p *postgres) freshIndexes(ctx context.Context) ([]index, error) {
	statements, err := tableStatements(p.prefix)
	if err != nil {
		return nil, err
	}
	conns, done, err := p.dial(ctx, 1)
	if err != nil {
		return nil, err
	}
	defer done()
	tx, err := conns[0].Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // the connection ends anyway
	if _, err := tx.Exec(ctx, `SET LOCAL search_path = pg_temp`); err != nil {
		return nil, err
	}
	for _, statement := range statements {
		err := inSavepoint(ctx, tx, statement)
		if err != nil && makesIndex.MatchString(statement) { // it uses a function in the store's schema
			within := `SET LOCAL search_path = pg_temp, ` + pgx.Identifier{p.schema}.Sanitize()
			err = inSavepoint(ctx, tx, within+"; "+statement+"; SET LOCAL search_path = pg_temp")
		}
		if err != nil && strings.HasPrefix(statement, "CREATE TABLE") {
			return nil, err // other things that cannot be created are not compared
		}
	}
	found, err := tx.Query(ctx, fmt.Sprintf(selectIndexes, `pg_my_temp_schema()`), p.prefix)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[index])
}

func inSavepoint(ctx context.Context, tx pgx.Tx, statement string) error {
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, statement)
		return err
	})
}

// interference is what can come between the store and a table.
type interference struct {
	Table, Triggers, Rules string
	Guarded, Unlogged      bool
}

const selectInterference = `SELECT c.relname::text,
		coalesce((SELECT string_agg(t.tgname, ', ') FROM pg_trigger t
			WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D'), ''),
		coalesce((SELECT string_agg(w.rulename, ', ') FROM pg_rewrite w
			WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN'), ''),
		row_security_active(c.oid), c.relpersistence = 'u'
	FROM pg_class c
	WHERE c.relnamespace = to_regnamespace(quote_ident($2)) AND c.relkind IN ('r', 'p')
		AND starts_with(c.relname::text, $1::text)
	ORDER BY 1`

// leastBallast is the number of rows without a record that keeps
// the planner from scanning a table. The migrations create 300.
const leastBallast = 200

func tryTables(ctx context.Context, p *postgres, r *Result) error {
	if !p.tables {
		return errNoTables
	}
	found, err := rows[interference](ctx, p, selectInterference, p.prefix, p.schema)
	if err != nil {
		return err
	}
	for _, t := range found {
		if t.Guarded {
			r.find(Broken, "ALTER TABLE … DISABLE ROW LEVEL SECURITY: scopes are kept apart by the program",
				"row security is on for %s: this role does not see all rows, and what it does not see is executed again", t.Table)
		}
		if t.Rules != "" {
			r.find(Broken, "drop the rules", "there are rules on %s that change what is written: %s", t.Table, t.Rules)
		}
		if t.Triggers != "" {
			r.find(Weak, "read the outbox or the table by change-data-capture instead, and drop the triggers",
				"there are triggers on %s, which run inside of each claim: %s", t.Table, t.Triggers)
		}
		if t.Unlogged && t.Table != p.prefix+"lock" { // which is always empty
			r.find(Broken, "ALTER TABLE … SET LOGGED", "%s is unlogged: a crash of the server empties it", t.Table)
		}
		if t.Table == p.prefix+"test_clock" {
			r.find(Broken, "use other tables than those of tests; drop "+t.Table+" if no test runs",
				"a test moves the clock of these tables, or has died before it gave it back (%s)", t.Table)
		}
	}
	r.saw("%d tables", len(found))
	if err := p.tryBallast(ctx, r); err != nil {
		return err
	}
	return p.tryReaper(ctx, r)
}

// longExpired is the time after expiry from which the doctor reports that no reaper runs.
const longExpired = time.Hour

// tryReaper checks whether expired records are removed, if the role may read them.
func (p *postgres) tryReaper(ctx context.Context, r *Result) error {
	var late float64
	err := p.query(ctx, []any{&late}, `SELECT coalesce(extract(epoch FROM clock_timestamp()) - min(due) / 1e6, 0)::float8
		FROM `+p.table("record")+` WHERE state = 20 AND version = 1`)
	if err == nil && late > longExpired.Seconds() {
		r.find(Weak, "run janitor.NewReaper in the service", "a record has expired %.0f hours ago: no reaper comes",
			late/time.Hour.Seconds())
	}
	return err
}

func (p *postgres) tryBallast(ctx context.Context, r *Result) error {
	var ballast int
	err := p.query(ctx, []any{&ballast}, `SELECT count(*) FROM `+p.table("record")+` WHERE state = 0`)
	if err != nil {
		return err
	}
	r.saw("%d rows of ballast", ballast)
	if ballast < leastBallast {
		r.find(Weak, "put them back, by the INSERT of the migration",
			"%d of 300 rows of ballast are left: the planner may scan the table, and remember that when it has grown", ballast)
	}
	return nil
}

// drawn are the sequences of the store, with the columns that
// hold their values. Captured messages have numbers below zero.
var drawn = []struct {
	sequence string
	from     map[string]string
}{
	{"attempt", map[string]string{
		"record": "attempt", "late_completion": "attempt", "audit": "attempt", "execution": "attempt",
		"outbox": "origin_attempt", "delivery": "origin_attempt",
	}},
	{"outbox_number", map[string]string{"outbox": "abs(number)", "delivery": "number"}},
}

// mostRead limits how much of a table is read to find its greatest number. Of a larger table,
// random pages are read: a sequence that is behind is so by thousands, all over the table.
const mostRead = 256 << 20

// tryTokens reads the tables first: a sequence that is read afterwards is past all values in them.
func tryTokens(ctx context.Context, p *postgres, r *Result) error {
	if !p.tables {
		return errNoTables
	}
	for _, d := range drawn {
		var greatest, last int64
		for _, table := range slices.Sorted(maps.Keys(d.from)) {
			found, err := p.greatest(ctx, p.table(table), d.from[table])
			if err != nil {
				return err
			}
			greatest = max(greatest, found)
		}
		sequence := p.table(d.sequence)
		var seen bool // servers from version 18 on return NULL where older servers fail
		err := p.query(ctx, []any{&seen, &last}, `SELECT has_sequence_privilege(to_regclass($1), 'USAGE, SELECT'),
			coalesce(pg_sequence_last_value(to_regclass($1)), 0)`, sequence)
		if err == nil && !seen {
			err = fmt.Errorf("permission denied for sequence %s%s", p.prefix, d.sequence)
		}
		if err != nil {
			return err
		}
		r.saw("%s%s is at %d, the tables at %d", p.prefix, d.sequence, last, greatest)
		if last < greatest {
			r.find(Broken, fmt.Sprintf("stop the service, and SELECT setval('%s', %d): a million past what is left, because "+
				"rows with larger numbers may be gone", sequence, greatest+1_000_000),
				"the sequence %s%s is at %d, and the tables hold %d", p.prefix, d.sequence, last, greatest)
		}
	}
	return nil
}

// greatest returns the greatest number in a column.
func (p *postgres) greatest(ctx context.Context, table, column string) (found int64, err error) {
	var size int64
	err = p.query(ctx, []any{&size}, `SELECT coalesce(pg_relation_size(to_regclass($1)), 0)`, table)
	if err != nil {
		return 0, err
	}
	share := min(100, 100*float64(mostRead)/float64(max(size, 1)))
	err = p.query(ctx, []any{&found},
		`SELECT coalesce(max(`+column+`), 0) FROM `+table+` TABLESAMPLE SYSTEM ($1)`, share)
	return found, err
}

const (
	leastDead = 10_000 // rows
	deadShare = 1.0    // dead rows for each live row
)

func tryBloat(ctx context.Context, p *postgres, r *Result) error {
	if !p.tables {
		return errNoTables
	}
	const do = "let autovacuum run: autovacuum and track_counts on, no autovacuum_enabled=false on the table, and a " +
		"lower autovacuum_vacuum_scale_factor"
	found, err := p.settings(ctx, "autovacuum", "track_counts")
	if err != nil {
		return err
	}
	for _, name := range []string{"autovacuum", "track_counts"} {
		if s := found[name]; s.Value == "off" {
			r.find(Weak, do, "%s is off, %s", name, s.from())
		}
	}
	type table struct {
		Name       string
		Live, Dead int64
		Disabled   bool
	}
	tables, err := rows[table](ctx, p, `SELECT c.relname::text, coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
			coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false)
		FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
		WHERE c.relnamespace = to_regnamespace(quote_ident($2)) AND c.relkind = 'r'
			AND starts_with(c.relname::text, $1::text)`,
		p.prefix, p.schema)
	if err != nil {
		return err
	}
	var dead int64
	for _, t := range tables {
		dead += t.Dead
		if t.Disabled {
			r.find(Weak, "ALTER TABLE … RESET (autovacuum_enabled)", "autovacuum is disabled for %s, which has %d dead rows",
				t.Name, t.Dead)
		} else if t.Dead >= leastDead && float64(t.Dead) > deadShare*float64(t.Live) {
			r.find(Weak, do, "%s has %d dead rows beside %d that live", t.Name, t.Dead, t.Live)
		}
	}
	r.saw("%d dead rows", dead)
	return nil
}
