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

// onlyMigration is the file that makes the tables.
const onlyMigration = "00001_tables.sql"

// grants are what a role needs to use the tables that another one owns. The guide lists the same.
var grants = []string{
	`USAGE ON SCHEMA @schema`,
	`SELECT ON onceward_schema`,
	`SELECT, INSERT, UPDATE, DELETE ON onceward_record`,
	`SELECT, INSERT, DELETE ON onceward_late_completion`,
	`SELECT, INSERT, DELETE ON onceward_external_event`,
	`SELECT, INSERT, DELETE ON onceward_audit`,
	`SELECT, INSERT, DELETE ON onceward_execution`,
	`SELECT, INSERT, DELETE ON onceward_outbox`,
	`SELECT, INSERT, UPDATE, DELETE ON onceward_delivery`,
	`SELECT ON onceward_message`,
	`SELECT, INSERT, DELETE ON onceward_inbox`,
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
	migrate(t, admin)
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
	migrate(t, admin)
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

// tryAll returns the first failure of a store that lacks a right.
func tryAll(ctx context.Context, as, key string) error {
	s, err := postgres.Open(ctx, as, quiet, postgres.WithManualMigration())
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

// statements cuts a migration into statements by the rules of goose: each ends with a line that ends with a semicolon,
// unless it stands between marks of its own.
func statements(t testing.TB, text string) (all []string) {
	t.Helper()
	var current []string
	marked := false
	for _, line := range strings.Split(text, "\n") {
		mark, isMark := strings.CutPrefix(line, "-- +goose ")
		switch {
		case isMark && mark == "Up":
		case isMark && mark == "StatementBegin" && !marked:
			marked = true
		case isMark && mark == "StatementEnd" && marked:
			marked = false
			all, current = append(all, strings.Join(current, "\n")), nil
		case isMark:
			t.Fatalf("%q is out of place", line)
		case !marked && strings.HasPrefix(strings.TrimSpace(line), "--"):
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

// TestMigrationsByAnotherTool: tables that another tool made are as good as our own.
func TestMigrationsByAnotherTool(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	theirs, ours := server.SchemaURL(t), server.SchemaURL(t)
	admin, other := openAdmin(t, theirs), openAdmin(t, ours)
	migrate(t, admin)
	exercise(t, openStore(t, theirs), "key")
	openStore(t, ours)
	if a, b := tables(t, admin), tables(t, other); !slices.Equal(a, b) {
		t.Errorf("applied by another tool they are\n%s\nby the store\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

// TestPlainSQLBesideOpen: a script without a schema and a store that is opened take the same lock, so that one of them
// waits for the other.
func TestPlainSQLBesideOpen(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	script, err := postgres.PlainSQL("", "", 0)
	must(t, err)
	beginning, _, found := strings.Cut(script, "DO $check$")
	if !found {
		t.Fatal("the script checks no version")
	}
	admin := openAdmin(t, url)
	conn, err := admin.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), beginning)
	must(t, err)
	opened := make(chan error, 1)
	go func() {
		s, err := postgres.Open(t.Context(), url, quiet, postgres.LockTimeout("2min"))
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	await.That(t, "the store waits for the script", func() bool {
		const waiting = `SELECT count(*) FROM pg_locks AS l JOIN pg_locks AS held
			USING (locktype, database, classid, objid, objsubid)
			WHERE l.locktype = 'advisory' AND NOT l.granted AND held.granted AND held.pid = $1`
		return len(opened) == 1 || number(t, admin, waiting, conn.Conn().PgConn().PID()) == 1
	})
	if len(opened) == 1 {
		t.Error("the store made its tables beside the script")
	}
	_, err = conn.Exec(t.Context(), `ROLLBACK`)
	must(t, err)
	must(t, await.Value(t, "the store", opened))
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
		wantOpenFails(t, url, "and this program needs version 1: apply "+onlyMigration+", by \"onceward migrate up\"", option)
	}
	if made := tables(t, openAdmin(t, url)); len(made) != 0 {
		t.Errorf("opening made %v", made)
	}
	must(t, postgres.Migrate(t.Context(), url, quiet, postgres.WithManualMigration()))
	must(t, postgres.Migrate(t.Context(), url, quiet))
	exercise(t, openStore(t, url, postgres.WithManualMigration()), "key")
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

// migrate applies the migration as a tool like goose does: statement by statement, in a transaction.
func migrate(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	text, err := fs.ReadFile(postgres.Migrations(), onlyMigration)
	must(t, err)
	must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for _, statement := range statements(t, string(text)) {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	}))
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
