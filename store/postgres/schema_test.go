package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// grants are what a role needs to use the tables that another one owns. The guide lists the same.
var grants = []string{
	`USAGE ON SCHEMA @schema`,
	`SELECT ON onceward_schema, onceward_secret`,
	`SELECT, INSERT ON onceward_operation`,
	`SELECT, INSERT, UPDATE, DELETE ON onceward_record`,
	`SELECT, UPDATE ON onceward_walk`,
	`SELECT, INSERT, DELETE ON onceward_late_completion`,
	`SELECT, INSERT, DELETE ON onceward_external_event`,
	`SELECT, INSERT, DELETE ON onceward_audit`,
	`SELECT, INSERT, DELETE ON onceward_execution`,
	`SELECT, INSERT, DELETE ON onceward_outbox`,
	`SELECT, INSERT, UPDATE, DELETE ON onceward_delivery`,
	`SELECT ON onceward_message`,
	`SELECT, INSERT, DELETE ON onceward_inbox`,
	`SELECT, INSERT, DELETE ON onceward_lock`,
	`USAGE ON SEQUENCE onceward_attempt`,
	`USAGE ON SEQUENCE onceward_outbox_number`,
	`EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema`,
}

// userRole makes a role that may do nothing by itself, and returns its name and the URL by which it connects.
func userRole(t testing.TB, admin *pgxpool.Pool, schema string) (role, as string) {
	t.Helper()
	role = "onceward_test_" + strings.ToLower(rand.Text())
	exec(t, admin, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret'`, role))
	t.Cleanup(func() {
		exec(t, admin, `DROP OWNED BY `+role)
		exec(t, admin, `DROP ROLE `+role)
	})
	parsed, err := url.Parse(servers.Postgres(t).URL())
	must(t, err)
	parsed.User = url.UserPassword(role, "secret")
	query := parsed.Query()
	query.Set("search_path", schema)
	parsed.RawQuery = query.Encode()
	return role, parsed.String()
}

// grant gives a role the rights in a list.
func grant(t testing.TB, admin *pgxpool.Pool, rights []string, schema, role string) {
	t.Helper()
	for _, right := range rights {
		exec(t, admin, `GRANT `+strings.ReplaceAll(right, "@schema", pgx.Identifier{schema}.Sanitize())+` TO `+role)
	}
}

// TestRoleWithoutCreate: a role that may use the tables, and not make any, can do everything but migrate.
func TestRoleWithoutCreate(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	admin := openAdmin(t, server.URL()+"&search_path="+schema)
	migrate(t, admin, "Up")
	exec(t, admin, `REVOKE ALL ON ALL FUNCTIONS IN SCHEMA `+schema+` FROM PUBLIC`)
	role, as := userRole(t, admin, schema)
	grant(t, admin, grants, schema, role)
	for _, options := range [][]postgres.Option{nil, {postgres.WithManualMigration()}} {
		store := openStore(t, as, options...)
		exercise(t, store, fmt.Sprint("with ", len(options), " options"))
		must(t, tryBoxes(t.Context(), store, fmt.Sprint("event of ", len(options))))
		must(t, postgres.Migrate(t.Context(), as, quiet))
	}
	user := openAdmin(t, as)
	if _, err := user.Exec(t.Context(), `CREATE TABLE forbidden ()`); err == nil {
		t.Error("the role of the test may create tables, so that it proves nothing")
	}
}

// TestEachGrantIsNeeded: without any one of the grants something does not work.
func TestEachGrantIsNeeded(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it takes each right away in turn")
	server := servers.Postgres(t)
	schema := server.Schema(t)
	admin := openAdmin(t, server.URL()+"&search_path="+schema)
	migrate(t, admin, "Up")
	exec(t, admin, `REVOKE ALL ON ALL FUNCTIONS IN SCHEMA `+schema+` FROM PUBLIC`)
	role, as := userRole(t, admin, schema)
	grant(t, admin, grants, schema, role)
	must(t, tryAll(t.Context(), as, "all"))
	for i, list := range grants {
		rights, of, _ := strings.Cut(list, " ON ")
		for _, right := range strings.Split(rights, ", ") {
			grant(t, admin, grants, schema, role)
			exec(t, admin, `REVOKE `+right+` ON `+strings.ReplaceAll(of, "@schema", schema)+` FROM `+role)
			if err := tryAll(t.Context(), as, fmt.Sprint("key-", i, right)); err == nil {
				t.Errorf("everything works without %s ON %s", right, of)
			}
		}
	}
}

// tryAll returns the first failure of a store that lacks a right. It locks by rows, for which it needs most of them.
func tryAll(ctx context.Context, as, key string) error {
	s, err := postgres.Open(ctx, as, quiet, postgres.WithManualMigration(), postgres.WithRowLocks())
	if err != nil {
		return err
	}
	defer s.Close()
	r := reservation(key)
	r.Operation = "POST /" + key
	v, err := s.Reserve(ctx, r)
	if err != nil {
		return err
	}
	c := store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
	if err := s.Abandon(ctx, c, ""); err != nil {
		return err
	}
	if _, err := s.Sweep(ctx, 1); err != nil {
		return err
	}
	if err := reapOne(ctx, s, key); err != nil {
		return err
	}
	if err := s.AddLateCompletion(ctx, store.LateCompletion{Claim: c, Response: answer("late").Response}); err != nil {
		return err
	}
	if _, err := s.AddExternalEvent(ctx, store.ExternalEvent{Source: "psp", EventID: key}); err != nil {
		return err
	}
	added := s.AddAudit(ctx, store.AuditEntry{ID: c.ID, Attempt: c.Attempt})
	_, read := s.Audit(ctx, c.ID)
	executed := s.AddExecution(ctx, store.ExecutionEntry{ID: c.ID})
	_, executions := s.ListExecutions(ctx, store.AuditFilter{})
	_, purgedExecutions := s.PurgeExecutions(ctx, 0, 1)
	_, purgedAudit := s.PurgeAudit(ctx, 0, 1)
	_, purgedExternalEvents := s.PurgeExternalEvents(ctx, 0, 1)
	return errors.Join(added, read, executed, executions, purgedExecutions, purgedAudit, purgedExternalEvents,
		tryBoxes(ctx, s, key))
}

// reapOne removes a record, which takes more rights than to find that there is none to remove.
func reapOne(ctx context.Context, s *postgres.Store, key string) error {
	r := reservation(key + " expires")
	r.Retention = time.Microsecond
	v, err := s.Reserve(ctx, r)
	if err != nil {
		return err
	}
	if _, err := s.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, answer("expires")); err != nil {
		return err
	}
	n, err := s.Reap(ctx, 1, false)
	if err == nil && n != 1 {
		err = fmt.Errorf("%d records were reaped, want 1", n)
	}
	return err
}

// tryBoxes sends messages from their beginning to their end, and remembers one as an event.
func tryBoxes(ctx context.Context, store *postgres.Store, event string) error {
	box, err := outbox.New(store, outbox.Config{})
	if err != nil {
		return err
	}
	if err := store.InTx(ctx, func(ctx context.Context) error {
		message := outbox.Message{Topic: "topic", AggregateID: "1", Type: "t"}
		_, ordered := postgres.AddMessage(ctx, box, postgres.Tx(ctx), message)
		message.Topic = ""
		_, captured := postgres.AddMessage(ctx, box, postgres.Tx(ctx), message)
		_, remembered := store.RememberEvent(ctx, onceward.Tx(ctx), "consumer", event)
		return errors.Join(ordered, captured, remembered)
	}); err != nil {
		return err
	}
	claimed, err := store.ClaimMessages(ctx, []outbox.ClaimRequest{{Topic: "topic", Limit: 10}}, time.Minute)
	if err != nil {
		return err
	}
	var endings []outbox.Outcome
	for i := range claimed {
		endings = append(endings, outbox.Outcome{Lease: claimed[i].Lease(), State: outbox.StateDone})
	}
	_, finished := store.FinishMessages(ctx, endings)
	_, freed := store.FreeMessages(ctx)
	_, listed := store.Messages(ctx, outbox.Filter{})
	_, counted := store.MessageStats(ctx)
	_, consumed := store.ConsumedEvents(ctx, event)
	_, purged := store.PurgeMessages(ctx, 0, 10)
	_, forgotten := store.PurgeEvents(ctx, 0, 10)
	return errors.Join(finished, freed, listed, counted, consumed, purged, forgotten)
}

// objects lists all that a schema holds: tables, indexes, sequences, types and functions.
func objects(t testing.TB, pool *pgxpool.Pool, schema string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace
		UNION SELECT proname::text FROM pg_proc WHERE pronamespace = $1::regnamespace ORDER BY 1`, schema)
	must(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	return found
}

// wantOpenFails opens a store that is to be refused.
func wantOpenFails(t testing.TB, url, says string, options ...postgres.Option) {
	t.Helper()
	store, err := postgres.Open(t.Context(), url, append(options, quiet)...)
	if err == nil {
		must(t, store.Close())
	}
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("opening got %v, want an error that says %q", err, says)
	}
}

// TestOpenAgain: what is up to date is not touched again, and keeps what is in it.
func TestOpenAgain(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	for round := range 3 {
		store := openStore(t, url)
		transacted(t, store, fmt.Sprint("key-", round), nothing)
		for earlier := range round {
			wantReplay(t, store, fmt.Sprint("key-", earlier), fmt.Sprint("key-", earlier), "I3")
		}
		must(t, store.Close())
		latest := number(t, admin, `SELECT max(version) FROM onceward_schema`)
		if n := number(t, admin, `SELECT count(*) FROM onceward_schema`); n != latest {
			t.Errorf("%d migrations are noted", n)
		}
	}
}

// TestOpenAtOnce: many processes that start together on a new schema make one set of tables.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	var group sync.WaitGroup
	var won sync.Map
	for i := range 12 {
		group.Go(func() {
			s, err := postgres.Open(t.Context(), url, quiet)
			if err != nil {
				t.Errorf("one of several that open a new schema: %v", err)
				return
			}
			defer s.Close()
			v, err := s.Reserve(context.Background(), reservation("contended"))
			if err != nil {
				t.Errorf("reserve: %v", err)
			}
			if v.Decision == store.DecisionExecute {
				won.Store(i, true)
			}
		})
	}
	group.Wait()
	winners := 0
	won.Range(func(any, any) bool { winners++; return true })
	if winners != 1 {
		t.Errorf("S1: %d of those who opened at once got the same key", winners)
	}
}

// TestPlaces: everything is where it was asked for, and nothing elsewhere; two sets of tables live side by side.
func TestPlaces(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	admin := openAdmin(t, server.URL())
	unique := strings.ToLower(rand.Text()[:12]) // so that its tables can be looked for everywhere
	prefixes := []string{"a" + unique + "_", "b" + unique + "_"}
	for _, prefix := range prefixes {
		store := openStore(t, server.URL(), postgres.WithSchema(schema), postgres.WithTablePrefix(prefix))
		exercise(t, store, "key")
	}
	names := objects(t, admin, schema)
	for _, name := range names {
		if !strings.HasPrefix(name, prefixes[0]) && !strings.HasPrefix(name, prefixes[1]) {
			t.Errorf("%s has neither prefix", name)
		}
	}
	for _, name := range names {
		rest, first := strings.CutPrefix(name, prefixes[0])
		if first && !slices.Contains(names, prefixes[1]+rest) {
			t.Errorf("%s has no counterpart", name)
		}
	}
	if n := number(t, admin, `SELECT (SELECT count(*) FROM pg_class WHERE strpos(relname, $2) > 0 AND relnamespace <> $1::regnamespace)
		+ (SELECT count(*) FROM pg_proc WHERE strpos(proname, $2) > 0 AND pronamespace <> $1::regnamespace)`, schema, unique); n != 0 {
		t.Errorf("%d objects are outside of the schema", n)
	}
}

// TestOddNames: a schema whose name needs quotes is as good as another.
func TestOddNames(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t) + ` "Odd" $$`
	admin := openAdmin(t, server.URL())
	exec(t, admin, `CREATE SCHEMA `+pgx.Identifier{schema}.Sanitize())
	t.Cleanup(func() { exec(t, admin, `DROP SCHEMA `+pgx.Identifier{schema}.Sanitize()+` CASCADE`) })
	store := openStore(t, server.URL(), postgres.WithSchema(schema), postgres.WithTablePrefix("x"))
	exercise(t, store, "key")
	must(t, store.Close())
}

// TestWrongPlaces: what cannot be is refused in words that say what to do.
func TestWrongPlaces(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	url := server.SchemaURL(t)
	for _, prefix := range []string{
		"", "Upper_", "with space", "1st_", `quote"_`, "drop;", "ünicode_", strings.Repeat("x", 31),
	} {
		wantOpenFails(t, url, fmt.Sprintf("the table prefix %q", prefix), postgres.WithTablePrefix(prefix))
	}
	wantOpenFails(t, url, "no_such_schema", postgres.WithSchema("no_such_schema"))
	wantOpenFails(t, server.URL()+"&search_path=no_such_schema", "use WithSchema")
	openStore(t, url, postgres.WithTablePrefix(strings.Repeat("x", 30)))
}

func TestTooManyLanes(t *testing.T) {
	t.Parallel()
	wantOpenFails(t, servers.Postgres(t).SchemaURL(t), "lanes", postgres.WithLanes(1<<32))
}

// statements cuts one direction of a migration into statements by the rules of goose: each ends with a line that ends
// with a semicolon, unless it stands between marks of its own.
func statements(t testing.TB, text, direction string) (all []string) {
	t.Helper()
	var current []string
	here, marked := false, false
	for _, line := range strings.Split(text, "\n") {
		mark, isMark := strings.CutPrefix(line, "-- +goose ")
		switch {
		case isMark && (mark == "Up" || mark == "Down"):
			here = mark == direction
		case isMark && mark == "StatementBegin" && !marked:
			marked = true
		case isMark && mark == "StatementEnd" && marked:
			marked = false
			all, current = append(all, strings.Join(current, "\n")), nil
		case isMark:
			t.Fatalf("%q is out of place", line)
		case !here || !marked && strings.HasPrefix(strings.TrimSpace(line), "--"):
		default:
			if current = append(current, line); !marked && strings.HasSuffix(strings.TrimSpace(line), ";") {
				all, current = append(all, strings.Join(current, "\n")), nil
			}
		}
	}
	if rest := strings.TrimSpace(strings.Join(current, "\n")); rest != "" || marked {
		t.Fatalf("the migration ends in the middle of %q", rest)
	}
	return all
}

// migrate applies migrations as a tool like goose does: in the order of their names or, downwards, against it.
func migrate(t testing.TB, pool *pgxpool.Pool, direction string) {
	t.Helper()
	if direction == "Down" {
		migrateDownTo(t, pool, 0)
	} else {
		migrateTo(t, pool, len(migrationNames(t)))
	}
}

// TestMigrationsByAnotherTool: tables that another tool made are as good as our own, and nothing is left of them when
// they are taken away.
func TestMigrationsByAnotherTool(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	theirs, ours := server.SchemaURL(t), server.SchemaURL(t)
	admin, other := openAdmin(t, theirs), openAdmin(t, ours)
	migrate(t, admin, "Up")
	store := openStore(t, theirs)
	exercise(t, store, "key")
	openStore(t, ours)
	if a, b := tables(t, admin), tables(t, other); !slices.Equal(a, b) {
		t.Errorf("applied by another tool they are\n%s\nby the store\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	must(t, store.Close())
	migrate(t, admin, "Down")
	if left := tables(t, admin); len(left) != 0 {
		t.Errorf("after the way down there is still %v", left)
	}
	migrate(t, admin, "Up")
	exercise(t, openStore(t, theirs), "key")
}

func tables(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	var schema string
	must(t, pool.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
	return objects(t, pool, schema)
}

// TestManualMigration: a store that does not make its tables refuses to open without them, and says what to do.
func TestManualMigration(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	for _, option := range []postgres.Option{postgres.WithManualMigration(), postgres.WithReadOnly()} {
		wantOpenFails(t, url, `there are no tables in schema "`, option)
		wantOpenFails(t, url, "and this program needs version 6: apply 00001_records.sql, 00002_outbox.sql, "+
			"00003_operate.sql, 00004_locks.sql, 00005_partitions.sql, 00006_walk.sql, by \"onceward migrate up\"", option)
	}
	if made := tables(t, openAdmin(t, url)); len(made) != 0 {
		t.Errorf("opening made %v", made)
	}
	must(t, postgres.Migrate(t.Context(), url, quiet, postgres.WithManualMigration()))
	must(t, postgres.Migrate(t.Context(), url, quiet))
	exercise(t, openStore(t, url, postgres.WithManualMigration()), "key")
}

// TestStatus: it tells which version there is, and which migrations are missing, and changes nothing.
func TestStatus(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	const schema = "public"
	url := databaseURL(t) // Migrate waits for the transactions of a whole database
	check := func(want store.SchemaStatus, is error) {
		t.Helper()
		want.Place, want.Wanted = fmt.Sprintf("schema %q, as onceward_…", schema), len(migrationNames(t))
		status, err := postgres.Status(t.Context(), url)
		if must(t, err); !reflect.DeepEqual(status, want) || !errors.Is(status.Err(), is) {
			t.Errorf("the status is %+v (%v), want %+v (%v)", status, status.Err(), want, is)
		}
	}
	check(store.SchemaStatus{Pending: migrationNames(t)}, store.ErrSchemaMissing)
	admin := openAdmin(t, url)
	migrateTo(t, admin, 1)
	check(store.SchemaStatus{Version: 1, Compatible: 6, Pending: migrationNames(t)[1:]}, store.ErrSchemaOlder)
	wantOpenFails(t, url, "are of version 1, and this program needs", postgres.WithManualMigration())
	must(t, postgres.Migrate(t.Context(), url, quiet))
	check(store.SchemaStatus{Version: len(migrationNames(t)), Compatible: 6, Pending: []string{}}, nil)
}

// TestPlainSQL: what is printed for people makes the same tables as the store, from every version on, and refuses
// tables of another one without a change.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	server := servers.Postgres(t)
	ours := server.SchemaURL(t)
	openStore(t, ours)
	want := tables(t, openAdmin(t, ours))
	for from := range migrationNames(t) {
		schema := server.Schema(t)
		admin := openAdmin(t, server.URL()+"&search_path="+schema)
		migrateTo(t, admin, from)
		text, err := postgres.PlainSQL(schema, "", from)
		must(t, err)
		psql(t, server.URL(), text) // which has another search_path
		if made := tables(t, admin); !slices.Equal(made, want) {
			t.Errorf("from version %d it makes\n%v\nthe store makes\n%v", from, made, want)
		}
		exercise(t, openStore(t, server.URL(), postgres.WithSchema(schema), postgres.WithManualMigration()), "key")
		if out, err := tryPSQL(t, server.URL(), text); err == nil ||
			!strings.Contains(out, fmt.Sprintf("of version %d", len(migrationNames(t)))) {
			t.Errorf("run again it says %q (%v)", out, err)
		}
		if made := tables(t, admin); !slices.Equal(made, want) {
			t.Errorf("run again it makes %v", made)
		}
	}
	for _, from := range []int{-1, len(migrationNames(t))} {
		if _, err := postgres.PlainSQL("", "", from); err == nil {
			t.Errorf("there are migrations after version %d", from)
		}
	}
	prefixed := server.SchemaURL(t)
	text, err := postgres.PlainSQL("", "own_", 0)
	must(t, err)
	psql(t, prefixed, text)
	exercise(t, openStore(t, prefixed, postgres.WithTablePrefix("own_"), postgres.WithManualMigration()), "key")
}

// psql runs a script as a person does.
func psql(t testing.TB, url, script string) {
	t.Helper()
	if out, err := tryPSQL(t, url, script); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}

func tryPSQL(t testing.TB, url, script string) (out string, err error) {
	t.Helper()
	program, err := osexec.LookPath("psql")
	must(t, err)
	file := filepath.Join(t.TempDir(), "script.sql")
	must(t, os.WriteFile(file, []byte(script), 0o600))
	said, err := osexec.CommandContext(t.Context(), program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file,
		psqlURL(t, url)).CombinedOutput()
	return string(said), err
}

// psqlURL is a URL as libpq takes it, which knows no search_path.
func psqlURL(t testing.TB, text string) string {
	t.Helper()
	parsed, err := url.Parse(text)
	must(t, err)
	query := parsed.Query()
	if path := query.Get("search_path"); path != "" {
		query.Set("options", "-csearch_path="+path)
	}
	query.Del("search_path")
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return parsed.String()
}

// migrationNames are the files of the migrations.
func migrationNames(t testing.TB) []string {
	t.Helper()
	files, err := fs.Glob(postgres.Migrations(), "*.sql")
	must(t, err)
	return files
}

// migrateTo applies the first migrations.
func migrateTo(t testing.TB, pool *pgxpool.Pool, version int) {
	t.Helper()
	for each := range version {
		must(t, apply(t, pool, each+1, "Up"))
	}
}

// apply runs one direction of a migration as a tool like goose does: statement by statement, in a transaction.
func apply(t testing.TB, pool *pgxpool.Pool, version int, direction string) error {
	return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for _, statement := range statements(t, readMigration(t, version), direction) {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
}

// migrateDownTo takes the later migrations back.
func migrateDownTo(t testing.TB, pool *pgxpool.Pool, version int) {
	t.Helper()
	for each := len(migrationNames(t)); each > version; each-- {
		must(t, apply(t, pool, each, "Down"))
	}
}

// readMigration is the text of the one that makes a version.
func readMigration(t testing.TB, version int) string {
	t.Helper()
	text, err := fs.ReadFile(postgres.Migrations(), migrationNames(t)[version-1])
	must(t, err)
	return string(text)
}

// TestReadOnly: with the right to SELECT, and no other, a store shows everything, and writes nothing.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	at := server.URL() + "&search_path=" + schema
	owner := openStore(t, at)
	exercise(t, owner, "key")
	lost := own(t, owner, reservation("lost"))
	must(t, owner.Abandon(t.Context(), lost, "no reply"))
	must(t, owner.AddAudit(t.Context(), store.AuditEntry{ID: lost.ID, Actor: "ann", Action: "look"}))
	admin := openAdmin(t, at)
	role, as := userRole(t, admin, schema)
	grant(t, admin, []string{`USAGE ON SCHEMA @schema`, `SELECT ON ALL TABLES IN SCHEMA @schema`}, schema, role)
	s := openStore(t, as, postgres.WithReadOnly())
	for what, read := range map[string]func() (int, error){
		"Get": func() (int, error) { _, err := s.Get(t.Context(), lost.ID); return 1, err },
		"List": func() (int, error) {
			page, err := s.List(t.Context(), store.Filter{State: store.StateUnknown})
			return len(page), err
		},
		"Stats": func() (int, error) {
			stats, err := s.Stats(t.Context())
			return int(stats.Records[store.StateUnknown]), err
		},
		"Audit":          func() (int, error) { list, err := s.Audit(t.Context(), lost.ID); return len(list), err },
		"Messages":       func() (int, error) { _, err := s.Messages(t.Context(), outbox.Filter{}); return 1, err },
		"MessageStats":   func() (int, error) { _, err := s.MessageStats(t.Context()); return 1, err },
		"ConsumedEvents": func() (int, error) { _, err := s.ConsumedEvents(t.Context(), "e"); return 1, err },
		"LateCompletions": func() (int, error) {
			_, err := s.LateCompletions(t.Context(), lost.ID)
			return 1, err
		},
		"ExternalEvents": func() (int, error) {
			_, err := s.ExternalEvents(t.Context(), store.ExternalEventFilter{Source: "psp", Subjects: []string{"s"}})
			return 1, err
		},
	} {
		if n, err := read(); n == 0 || err != nil {
			t.Errorf("%s: %d (%v)", what, n, err)
		}
	}
	wantWritesRefused(t, s, lost)
	// The owner's rights make no difference.
	wantWritesRefused(t, openStore(t, at, postgres.WithReadOnly()), lost)
	if rec, err := owner.Get(t.Context(), lost.ID); err != nil || rec.State != store.StateUnknown {
		t.Errorf("the record is now %s (%v)", rec.State, err)
	}
}

// wantWritesRefused tries what writes.
func wantWritesRefused(t testing.TB, s *postgres.Store, c store.Claim) {
	t.Helper()
	ctx := t.Context()
	nothing := func(context.Context) error { return nil }
	_, reserved := s.Reserve(ctx, reservation("new"))
	_, completed := s.Complete(ctx, c, answer("late"))
	_, transacted := s.Transact(ctx, reservation("new"), func(context.Context, store.Verdict) store.Settlement {
		t.Error("a transaction was run")
		return store.Settlement{}
	})
	_, swept := s.Sweep(ctx, 1)
	_, reaped := s.Reap(ctx, 1, false)
	_, purged := s.PurgeAudit(ctx, 0, 1)
	_, claimed := s.ClaimMessages(ctx, []outbox.ClaimRequest{{Topic: "topic", Limit: 1}}, time.Minute)
	for what, err := range map[string]error{
		"Reserve": reserved, "Complete": completed, "Transact": transacted, "Sweep": swept, "Reap": reaped, "PurgeAudit": purged,
		"ClaimMessages":   claimed,
		"ResolveExecuted": s.ResolveNotExecuted(ctx, c, "no"), "Extend": s.Extend(ctx, c, time.Minute), "Bust": s.Bust(ctx, c.ID, true),
		"AddAudit": s.AddAudit(ctx, store.AuditEntry{ID: c.ID}), "InTx": s.InTx(ctx, nothing),
		"DropMessage": s.DropMessage(ctx, "00000000-0000-0000-0000-000000000000"),
	} {
		if !errors.Is(err, store.ErrReadOnly) || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s of a store that was opened for looking only: %v", what, err)
		}
	}
}

// TestIndexMadeBefore: the indexes that take long in a large table can be made before the migrations, while programs of
// the version before write. The one that is not needed any more is dropped when those have ended that may use it.
func TestIndexMadeBefore(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	at := databaseURL(t) // Migrate waits for the transactions of a whole database
	admin := openAdmin(t, at)
	migrateTo(t, admin, 2)
	for _, step := range []struct {
		version int
		parts   []string
	}{
		{3, []string{`(?s)CREATE OR REPLACE FUNCTION onceward_field.*?\$\$;\n`, `(?s)CREATE INDEX IF NOT EXISTS.*?;\n`}},
		{6, []string{`(?s)CREATE INDEX IF NOT EXISTS.*?;\n`}},
	} {
		for _, part := range step.parts {
			found := regexp.MustCompile(part).FindAllString(readMigration(t, step.version), -1)
			if len(found) == 0 {
				t.Fatalf("no %s in the migration", part)
			}
			for _, statement := range found {
				exec(t, admin, strings.Replace(statement, "CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1))
			}
		}
	}
	writer, err := admin.Begin(t.Context())
	must(t, err)
	defer func() { _ = writer.Rollback(t.Context()) }() // if it was not reached below
	_, err = writer.Exec(t.Context(), `UPDATE onceward_record SET attempt = attempt`)
	must(t, err)
	migrated := make(chan error, 1)
	go func() { migrated <- postgres.Migrate(t.Context(), at) }()
	await.That(t, "the migrations are done, and do not wait for who writes", func() bool {
		status, err := postgres.Status(t.Context(), at)
		return err == nil && status.Err() == nil
	})
	must(t, writer.Rollback(t.Context()))
	must(t, await.Value(t, "the migration", migrated))
	wantIndexes(t, admin)
}

// wantIndexes checks that the table of records has the indexes that it is to have, and that they are whole.
func wantIndexes(t testing.TB, admin *pgxpool.Pool) {
	t.Helper()
	var found string
	must(t, admin.QueryRow(t.Context(), `SELECT string_agg(indexrelid::regclass || CASE WHEN indisvalid THEN '' ELSE ' half' END, ' '
		ORDER BY indexrelid::regclass::text) FROM pg_index WHERE indrelid = 'onceward_record'::regclass`).Scan(&found))
	if want := "onceward_record_open onceward_record_pkey onceward_record_provider"; found != want {
		t.Errorf("the indexes are %s, want %s", found, want)
	}
}

// TestMigrateWhileOthersWrite: the indexes that take long in a large table are made while programs of the version before
// write, by one of several that migrate at once, and are those that the migrations would have made.
func TestMigrateWhileOthersWrite(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	const (
		definition = `SELECT string_agg(pg_get_indexdef(indexrelid), E'\n' ORDER BY indexrelid::regclass::text) FROM pg_index
			WHERE indrelid = 'onceward_record'::regclass AND indisvalid`
		touch = `UPDATE onceward_record SET attempt = attempt
			WHERE id = (SELECT id FROM onceward_record ORDER BY id LIMIT 1 OFFSET $1)`
	)
	plain := func(admin *pgxpool.Pool, schema string) (text string) {
		must(t, admin.QueryRow(t.Context(), definition).Scan(&text))
		return strings.ReplaceAll(text, schema+".", "")
	}
	at := databaseURL(t)
	admin, unmigrated := openAdmin(t, at), openAdmin(t, at+"&search_path=fresh")
	exec(t, admin, `CREATE SCHEMA fresh`)
	migrateTo(t, admin, 2)
	migrate(t, unmigrated, "Up")
	writer, err := admin.Begin(t.Context())
	must(t, err)
	_, err = writer.Exec(t.Context(), touch, 1)
	must(t, err)
	const migrators = 3
	migrated := make(chan error, migrators)
	for range migrators {
		go func() { migrated <- postgres.Migrate(t.Context(), at) }()
	}
	await.That(t, "an index is being made", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_stat_progress_create_index
			WHERE relid = 'onceward_record'::regclass AND command = 'CREATE INDEX CONCURRENTLY'`) > 0
	})
	_, err = admin.Exec(t.Context(), touch, 2) // behind an index that keeps writers out it would wait for the first one
	must(t, err)
	must(t, writer.Commit(t.Context()))
	for range migrators {
		must(t, <-migrated)
	}
	if made, want := plain(admin, "public"), plain(unmigrated, "fresh"); made != want {
		t.Errorf("the indexes are\n%s, want\n%s", made, want)
	}
}

// TestIndexLeftHalfMade: an index that a migration has left half made is made whole by the next one.
func TestIndexLeftHalfMade(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	at := databaseURL(t)
	admin := openAdmin(t, at)
	migrateTo(t, admin, 2)
	const invalid = `SELECT count(*) FROM pg_index WHERE indrelid = 'onceward_record'::regclass AND NOT indisvalid`
	ctx, cancel := context.WithCancel(t.Context())
	writer, err := admin.Begin(t.Context())
	must(t, err)
	_, err = writer.Exec(t.Context(), `UPDATE onceward_record SET attempt = attempt`)
	must(t, err)
	failed := make(chan error, 1)
	go func() { failed <- postgres.Migrate(ctx, at) }()
	await.That(t, "an index is being made", func() bool { return number(t, admin, invalid) > 0 })
	cancel()
	if err := <-failed; err == nil {
		t.Error("a migration that was cancelled succeeded")
	}
	must(t, writer.Rollback(t.Context()))
	must(t, postgres.Migrate(t.Context(), at))
	if n := number(t, admin, invalid); n != 0 {
		t.Errorf("%d indexes are not valid", n)
	}
}

// TestIndexLeftHalfMadeByHand: an index that was to be made before the migration, or in its place since, and was left
// half made, is made whole by whatever migrates next, and nothing is dropped before.
func TestIndexLeftHalfMadeByHand(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	const (
		left    = `CREATE INDEX %[1]s ON %[2]s (state, due) WHERE state <> 20`
		halved  = `UPDATE pg_index SET indisvalid = false WHERE indexrelid = '%[1]s'::regclass`
		invalid = `SELECT count(*) FROM pg_index JOIN pg_class ON oid = indrelid
			WHERE relnamespace = current_schema()::regnamespace AND NOT indisvalid`
	)
	for name, migrate := range map[string]func(at string, admin *pgxpool.Pool){
		"a service":         func(at string, _ *pgxpool.Pool) { must(t, openStore(t, at).Close()) },
		"migrate":           func(at string, _ *pgxpool.Pool) { must(t, postgres.Migrate(t.Context(), at, quiet)) },
		"a tool of another": func(_ string, admin *pgxpool.Pool) { must(t, apply(t, admin, 6, "Up")) },
	} {
		at := databaseURL(t) // whose transactions Migrate waits for
		admin, parted := openAdmin(t, at), openAdmin(t, at+"&search_path=parted")
		exec(t, admin, `CREATE SCHEMA parted`)
		migrateTo(t, admin, 5)
		migrateTo(t, parted, 5)
		exec(t, parted, `SELECT onceward_partition(2)`)
		for pool, table := range map[*pgxpool.Pool]string{
			admin:  "onceward_record_open onceward_record",
			parted: "onceward_record_p2_1_state_due_idx onceward_record_p2_1",
		} {
			index, table, _ := strings.Cut(table, " ")
			exec(t, pool, fmt.Sprintf(left, index, table))
			exec(t, pool, fmt.Sprintf(halved, index))
		}
		migrate(at, admin)
		migrate(at+"&search_path=parted", parted)
		if n := number(t, admin, invalid) + number(t, parted, invalid); n != 0 {
			t.Errorf("%d indexes are not valid after a migration by %s", n, name)
		}
		exec(t, admin, fmt.Sprintf(halved, "onceward_record_provider"))
		exec(t, parted, fmt.Sprintf(halved, "onceward_record_open"))
		must(t, postgres.Migrate(t.Context(), at, quiet))
		must(t, postgres.Migrate(t.Context(), at+"&search_path=parted", quiet))
		wantIndexes(t, admin)
		wantIndexes(t, parted)
	}
}

// TestIndexOfPartitionsLeftHalfMade: an index of all partitions that somebody has begun to put together is made whole,
// also where one of those that belong to it is half made.
func TestIndexOfPartitionsLeftHalfMade(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	migrateTo(t, admin, 5)
	for _, statement := range []string{
		`SELECT onceward_partition(2)`,
		`CREATE INDEX onceward_record_p2_1_state_due_idx ON onceward_record_p2_1 (state, due) WHERE state <> 20`,
		`CREATE INDEX onceward_record_open ON ONLY onceward_record (state, due) WHERE state <> 20`,
		`ALTER INDEX onceward_record_open ATTACH PARTITION onceward_record_p2_1_state_due_idx`,
		`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'onceward_record_p2_1_state_due_idx'::regclass`,
	} {
		exec(t, admin, statement)
	}
	must(t, apply(t, admin, 6, "Up"))
	wantIndexes(t, admin)
}

// TestIndexOfPartitionsMeetsAReader: to make the index of all partitions whole takes a lock that waits for transactions
// which last, and others do not wait for those.
func TestIndexOfPartitionsMeetsAReader(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	at := databaseURL(t) // whose transactions Migrate waits for
	must(t, openStore(t, at, postgres.WithPartitions(2)).Close())
	admin := openAdmin(t, at)
	exec(t, admin, `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'onceward_record_open'::regclass`)
	reader, err := admin.Begin(t.Context())
	must(t, err)
	defer func() { _ = reader.Rollback(context.Background()) }() // if it was not reached below
	_, err = reader.Exec(t.Context(), `SELECT FROM onceward_record`)
	must(t, err)
	migrated := make(chan error, 1)
	go func() { migrated <- postgres.Migrate(t.Context(), at, quiet) }()
	await.That(t, "it waits for the reader", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'
			AND relation = 'onceward_record'::regclass`) > 0
	})
	exec(t, openAdmin(t, at), `UPDATE onceward_record SET attempt = attempt`) // which the reader does not prevent
	must(t, reader.Rollback(t.Context()))
	must(t, await.Value(t, "the migration", migrated))
	wantIndexes(t, admin)
}

// TestMigrationMeetsAnIndex: while an index is being made concurrently, those who migrate wait for it, and nobody waits
// for them. Neither is the index given up because of them.
func TestMigrationMeetsAnIndex(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	for version, migrate := range map[int]func(at string, admin *pgxpool.Pool) error{
		2: openAndClose, 5: openAndClose,
		6: func(_ string, admin *pgxpool.Pool) error { return apply(t, admin, 6, "Up") }, // a tool of another
	} {
		at := databaseURL(t)
		admin := openAdmin(t, at)
		migrateTo(t, admin, min(version, 5))
		writer, err := admin.Begin(t.Context())
		must(t, err)
		defer func() { _ = writer.Rollback(context.Background()) }() // if it was not reached below
		_, err = writer.Exec(t.Context(), `UPDATE onceward_record SET attempt = attempt`)
		must(t, err)
		made, migrated := make(chan error, 1), make(chan error, 2)
		go func() {
			_, err := admin.Exec(t.Context(), `CREATE INDEX CONCURRENTLY onceward_record_open
				ON onceward_record (state, due) WHERE state <> 20`)
			made <- err
		}()
		await.That(t, "the index is being made", func() bool {
			return number(t, admin, `SELECT count(*) FROM pg_index
				WHERE indexrelid = to_regclass('onceward_record_open')`) > 0
		})
		go func() { migrated <- migrate(at, admin) }()
		if version < 6 {
			go func() { migrated <- migrate(at, admin) }()
		} else {
			migrated <- nil
		}
		await.That(t, "a migration waits", func() bool {
			return number(t, admin, `SELECT count(*) FROM pg_locks
				WHERE NOT granted AND relation = 'onceward_record'::regclass OR locktype = 'advisory' AND granted
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0
		})
		other := openAdmin(t, at+"&lock_timeout=500ms")
		for begun := time.Now(); time.Since(begun) < time.Second; { // in which a migration does all that it can
			exec(t, other, `UPDATE onceward_record SET attempt = attempt WHERE state = 99`)
			exec(t, other, `SELECT FROM onceward_record`)
		}
		must(t, writer.Rollback(t.Context()))
		must(t, await.Value(t, "the index", made))
		must(t, await.Value(t, "a migration", migrated))
		must(t, await.Value(t, "a migration", migrated))
		wantIndexes(t, admin)
	}
}

// openAndClose migrates as a service does that starts.
func openAndClose(at string, _ *pgxpool.Pool) error {
	s, err := postgres.Open(context.Background(), at, quiet)
	if err != nil {
		return err
	}
	return s.Close()
}

// TestMigratePatiently: what a database bounds for requests, and its level of isolation, do not end or stop what takes
// long.
func TestMigratePatiently(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	at := databaseURL(t)
	admin := openAdmin(t, at)
	migrateTo(t, admin, 2)
	const bound = 2 * time.Second
	exec(t, admin, `DO $$ DECLARE
		each text;
	BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database());
		FOR each IN SELECT name FROM pg_settings
			WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')
		LOOP
			EXECUTE format('ALTER DATABASE %I SET %I = ''2s''', current_database(), each);
		END LOOP;
	END $$`)
	writer, err := admin.Begin(t.Context()) // on a connection of before
	must(t, err)
	defer func() { _ = writer.Rollback(t.Context()) }() // if it was not reached below
	_, err = writer.Exec(t.Context(), `UPDATE onceward_record SET attempt = attempt`)
	must(t, err)
	migrated := make(chan error, 1)
	go func() { migrated <- postgres.Migrate(t.Context(), at) }()
	select {
	case err := <-migrated:
		t.Fatalf("it has ended before the transaction that it waits for: %v", err)
	case <-time.After(bound + bound/2):
	}
	must(t, writer.Rollback(t.Context()))
	must(t, <-migrated)
}

// TestMigrateAsAnother: a role that may create things, and does not own the tables, leaves nothing behind that would
// keep their owner from migrating.
func TestMigrateAsAnother(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	migrateTo(t, admin, 2)
	var schema string
	must(t, admin.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
	role, as := userRole(t, admin, schema)
	exec(t, admin, fmt.Sprintf(`GRANT ALL ON SCHEMA %[1]s TO %[2]s; GRANT ALL ON ALL TABLES IN SCHEMA %[1]s TO %[2]s`,
		schema, role))
	if err := postgres.Migrate(t.Context(), as); err == nil || !strings.Contains(err.Error(), "migrate as that one") {
		t.Errorf("another role than the owner migrates: %v", err)
	}
	if n := number(t, admin, `SELECT count(*) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
		AND proname = 'onceward_field'`); n != 0 {
		t.Error("the function is another's now")
	}
}

// TestNewerTables: an old program keeps its hands off tables that it does not know how to use.
func TestNewerTables(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	openStore(t, url)
	admin := openAdmin(t, url)
	exec(t, admin, `INSERT INTO onceward_schema (version, compatible) VALUES (1000, 999)`)
	before := number(t, admin, `SELECT count(*) FROM onceward_schema`)
	for _, options := range [][]postgres.Option{nil, {postgres.WithManualMigration()}} {
		wantOpenFails(t, url, "are of version 1000, this program knows version 6, "+
			"and the oldest that they can be used with is 999: use a newer program", options...)
	}
	if after := number(t, admin, `SELECT count(*) FROM onceward_schema`); after != before {
		t.Errorf("%d versions are noted, want %d as before", after, before)
	}
}

// TestNewerTablesThatAreCompatible: during a deploy, programs of two versions use the same tables (scenario 32). The
// old one may have been running already, or start again.
func TestNewerTablesThatAreCompatible(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	running := openStore(t, url)
	own(t, running, reservation("before"))
	exec(t, openAdmin(t, url), `INSERT INTO onceward_schema (version, compatible) VALUES ($1, 1)`, len(migrationNames(t))+1)
	exec(t, openAdmin(t, url), `ALTER TABLE onceward_record ADD COLUMN of_a_later_version text`)
	exercise(t, running, "running")
	started := openStore(t, url)
	exercise(t, started, "started")
	wantReplay(t, started, "running committed", "running committed", "scenario 32")
	wantReplay(t, running, "started committed", "started committed", "scenario 32")
	must(t, postgres.Migrate(t.Context(), url, quiet))
}

// TestOldestProgram: programs of the version before may use the tables that they have made, and no others, in which the
// keys of locks are not theirs.
func TestOldestProgram(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	for secret, want := range map[string]int{`''`: 3, `'\x01'`: 1} {
		at := servers.Postgres(t).SchemaURL(t)
		admin := openAdmin(t, at)
		asBefore(t, admin, 2)
		exec(t, admin, `UPDATE onceward_secret SET value = `+secret)
		must(t, postgres.Migrate(t.Context(), at, quiet))
		if status, err := postgres.Status(t.Context(), at); err != nil || status.Compatible != want {
			t.Errorf("with the secret %s the oldest version is %d (%v), want %d", secret, status.Compatible, err, want)
		}
	}
}

// TestOlderTables: tables that were left behind are not used by chance.
func TestOlderTables(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	must(t, openStore(t, url).Close())
	exec(t, openAdmin(t, url), `DELETE FROM onceward_schema`)
	wantOpenFails(t, url, "there are no tables in", postgres.WithManualMigration())
}

// TestTablesMissing: half a set of tables is refused, and says what is not there.
func TestTablesMissing(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	must(t, openStore(t, url).Close())
	admin := openAdmin(t, url)
	exec(t, admin, `DELETE FROM onceward_secret`)
	wantOpenFails(t, url, "read the secret of the tables")
	exec(t, admin, `DROP TABLE onceward_secret`)
	wantOpenFails(t, url, "onceward_secret")
}
