package doctor_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// database is one with the tables of a store and a role that has what the guide grants it.
type database struct {
	server       *servers.PostgresServer
	owner        *pgx.Conn
	schema, role string
}

// newDatabase makes the tables as their owner, and a role for the service by the lines of the guide.
func newDatabase(t *testing.T, server *servers.PostgresServer) *database {
	t.Helper()
	d := &database{server: server, schema: server.Schema(t), role: server.Name(t)}
	owner, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	q := owner.Query()
	q.Set("search_path", d.schema)
	owner.RawQuery = q.Encode()
	s, err := postgres.Open(t.Context(), owner.String(), postgres.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if d.owner, err = pgx.Connect(t.Context(), owner.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.exec(t, `DROP OWNED BY `+d.role+`; DROP ROLE `+d.role)
		_ = d.owner.Close(context.Background()) // all has been answered
	})
	d.exec(t, `CREATE ROLE `+d.role+` LOGIN`)
	for _, grant := range documentedGrants(t) {
		d.exec(t, strings.NewReplacer("app.", d.schema+".", "SCHEMA app", "SCHEMA "+d.schema, "TO service",
			"TO "+d.role).Replace(grant))
	}
	return d
}

// documentedGrants are those of the guide.
func documentedGrants(t *testing.T) []string {
	t.Helper()
	guide, err := os.ReadFile("../../../../docs/postgresql.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(guide), "GRANT USAGE ON SCHEMA app")
	block, _, _ = strings.Cut("GRANT USAGE ON SCHEMA app"+block, "```")
	grants := regexp.MustCompile(`(?m)^GRANT [^;]*;`).FindAllString(block, -1)
	for i, grant := range grants {
		grants[i] = strings.Join(strings.Fields(grant), " ")
	}
	if len(grants) < 8 {
		t.Fatalf("the guide grants %q", grants)
	}
	return grants
}

// exec runs statements as the owner, also when the test is over.
func (d *database) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := d.owner.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// reserve makes a record of each key, and one of a key that tells no time.
func (d *database) reserve(t *testing.T, keys ...string) {
	t.Helper()
	s, err := postgres.Open(t.Context(), d.url(t), postgres.WithManualMigration())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }() // it has done what it should
	for _, key := range append(keys, "plain") {
		r := store.Reservation{
			ID: store.ID{Scope: "tenant", Key: key}, Operation: "POST /payments", Fingerprints: []store.Fingerprint{{Secret: 1}},
			Nonce: store.Nonce{1}, Lease: time.Minute, Retention: time.Hour,
		}
		if _, err := s.Reserve(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
	}
}

// url is that of the service, with further parameters in pairs.
func (d *database) url(t *testing.T, parameters ...string) string {
	t.Helper()
	u, err := url.Parse(d.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(d.role)
	q := u.Query()
	q.Set("search_path", d.schema)
	for i := 0; i < len(parameters); i += 2 {
		q.Set(parameters[i], parameters[i+1])
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

func TestHealthyPostgres(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	wantHealthy(t, examine(t, d.url(t), doctor.Config{}))
}

// TestPostgresIsLeftAsItWas: the doctor leaves nothing behind, and changes no row.
func TestPostgresIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	state := func() (all string) {
		err := d.owner.QueryRow(t.Context(), `SELECT (SELECT string_agg(relname || relkind::text, ' ' ORDER BY relname) FROM
			pg_class
				WHERE relnamespace = to_regnamespace($1)) || (SELECT count(*) FROM pg_class WHERE relname LIKE '%doctor%')
			|| (SELECT string_agg(md5(r::text), ' ' ORDER BY id) FROM onceward_record r)
			|| (SELECT last_value || is_called::text FROM onceward_attempt)
			|| (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE
				datname = current_database())
				AND pid IN (SELECT pid FROM pg_stat_activity WHERE usename = $2))`, d.schema, d.role).Scan(&all)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := state()
	examine(t, d.url(t), doctor.Config{})
	if after := state(); after != before {
		t.Errorf("something has changed:\n%s\n%s", before, after)
	}
}

// TestKeysThatLookLikeTime: a key that tells no time, though it looks much like one that does, has its hash for a name,
// which is right.
func TestKeysThatLookLikeTime(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	var keys []string
	for _, at := range []string{
		"019z163d", "01ag163d", "01f-163d", "020_163d", "023z163d", "018b163d", "024c163d", // which tell none
		"018c163d", "0190163d", "01ff163d", "023f163d", "024b163d",
	} {
		for n := range 3 { // the hash of one in a hundred is in front of those that are looked at
			keys = append(keys, fmt.Sprintf("%s-8694-739b-aea5-%012x", at, n))
		}
	}
	d.reserve(t, keys...)
	for _, f := range examine(t, d.url(t), doctor.Config{}).Findings() {
		if f.Check == "postgres/tables" {
			t.Errorf("%s: %s", f.Severity, f.What)
		}
	}
}

// TestLiesOfPostgres plants what breaks promises, one at a time.
func TestLiesOfPostgres(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plant      func(t *testing.T, d *database)
		parameters func(d *database) []string
		want       lie
	}{
		"locks that do nothing": {
			func(t *testing.T, d *database) {
				d.exec(t, `CREATE SCHEMA IF NOT EXISTS `+d.schema+`_fake; GRANT USAGE ON SCHEMA `+d.schema+`_fake TO `+d.role)
				for _, f := range []string{"pg_advisory_xact_lock(bigint)", "pg_advisory_xact_lock(integer, integer)"} {
					d.exec(t, `CREATE FUNCTION `+d.schema+`_fake.`+f+` RETURNS void LANGUAGE sql AS 'SELECT'`)
				}
				for _, f := range []string{"pg_try_advisory_xact_lock(bigint)", "pg_try_advisory_xact_lock(integer, integer)"} {
					d.exec(t, `CREATE FUNCTION `+d.schema+`_fake.`+f+` RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
				}
			},
			func(d *database) []string {
				return []string{"search_path", d.schema + "," + d.schema + "_fake,pg_catalog"}
			},
			lie{
				"postgres/advisory-locks", doctor.Broken, "two connections held the same lock at once",
				[]string{"postgres/functions"},
			},
		},
		"a clock an hour ahead": {
			func(t *testing.T, d *database) {
				d.exec(t, `CREATE SCHEMA `+d.schema+`_fake; GRANT USAGE ON SCHEMA `+d.schema+`_fake TO `+d.role+`;
					CREATE FUNCTION `+d.schema+`_fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql
					AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$`)
			},
			func(d *database) []string {
				return []string{"search_path", d.schema + "," + d.schema + "_fake,pg_catalog"}
			},
			lie{"postgres/clock", doctor.Weak, "ahead of this machine's", []string{"postgres/functions"}},
		},
		"a clock that is that of the transaction": {
			func(t *testing.T, d *database) {
				d.exec(t, `CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE
					AS $$ SELECT (date_part('epoch', transaction_timestamp()) * 1000000)::bigint $$`)
			},
			nil,
			lie{"postgres/clock", doctor.Broken, "stands still", nil},
		},
		"another level of isolation": {
			nil, func(*database) []string { return []string{"default_transaction_isolation", "serializable"} },
			lie{"postgres/isolation", doctor.Note, "serializable", nil},
		},
		"read-only by default": {
			func(t *testing.T, d *database) {
				d.exec(t, `ALTER ROLE `+d.role+` SET default_transaction_read_only = on`)
			},
			nil,
			lie{"postgres/primary", doctor.Broken, "read-only", nil},
		},
		"commits that do not wait": {
			func(t *testing.T, d *database) { d.exec(t, `ALTER ROLE `+d.role+` SET synchronous_commit = off`) },
			nil,
			lie{"postgres/durability", doctor.Broken, "synchronous_commit is off", nil},
		},
		"commits of another role that do not wait": {
			func(t *testing.T, d *database) {
				other := d.server.Name(t)
				d.exec(t, `CREATE ROLE `+other+` LOGIN; GRANT INSERT ON onceward_record TO `+other+`;
					ALTER ROLE `+other+` SET synchronous_commit = off`)
				t.Cleanup(func() { d.exec(t, `DROP OWNED BY `+other+`; DROP ROLE `+other) })
			},
			nil,
			lie{"postgres/durability", doctor.Weak, "synchronous_commit=off is set for it", nil},
		},
		"a missing index": {
			func(t *testing.T, d *database) { d.exec(t, `DROP INDEX onceward_record_open`) },
			nil,
			lie{"postgres/indexes", doctor.Weak, "onceward_record_open of onceward_record is missing", nil},
		},
		"a missing partial index": {
			func(t *testing.T, d *database) { d.exec(t, `DROP INDEX onceward_record_provider`) },
			nil,
			lie{"postgres/indexes", doctor.Weak, "onceward_record_provider of onceward_record is missing", nil},
		},
		"a missing primary key": {
			func(t *testing.T, d *database) {
				d.exec(t, `ALTER TABLE onceward_record DROP CONSTRAINT onceward_record_pkey`)
			},
			nil,
			lie{"postgres/indexes", doctor.Broken, "onceward_record_pkey of onceward_record is missing", nil},
		},
		"an index that is not what its name says": {
			func(t *testing.T, d *database) {
				d.exec(t, `DROP INDEX onceward_record_open; CREATE INDEX onceward_record_open ON onceward_record (state)`)
			},
			nil,
			lie{"postgres/indexes", doctor.Weak, "is not as this program knows it", nil},
		},
		"an invalid index": {
			func(t *testing.T, d *database) {
				d.exec(t, `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'onceward_record_open'::regclass`)
			},
			nil,
			lie{"postgres/indexes", doctor.Weak, "is not valid", nil},
		},
		"a reaper that does not come": {
			func(t *testing.T, d *database) {
				d.exec(t, `INSERT INTO onceward_record (id, attempt, due, retention, state, version, status, fingerprint, operation, scope)
					VALUES (gen_random_uuid(), 0, (extract(epoch FROM now() - interval '5 hours') * 1000000)::bigint, 1, 20, 1, 200, '', '', '')`)
			},
			nil,
			lie{"postgres/tables", doctor.Weak, "a record has expired 5 hours ago: no reaper comes", nil},
		},
		"a sequence of attempts that is behind": {
			func(t *testing.T, d *database) {
				d.exec(t, `INSERT INTO onceward_late_completion (id, attempt, at, status)
					VALUES (gen_random_uuid(), 1001, 0, 200)`)
				d.exec(t, `SELECT setval('onceward_attempt', 1000)`)
			},
			nil,
			lie{"postgres/tokens", doctor.Broken, "onceward_attempt is at 1000, and the tables hold 1001", nil},
		},
		"a sequence of messages that is behind": {
			func(t *testing.T, d *database) {
				d.exec(t, `INSERT INTO onceward_outbox (number, id, lane, due, created_at, origin_attempt, topic, aggregatetype,
						aggregateid, type, downstream_key, attributes, payload)
					VALUES (-5, gen_random_uuid(), 0, 0, 0, 0, '', '', '', '', '', '{}', '')`)
			},
			nil,
			lie{"postgres/tokens", doctor.Broken, "onceward_outbox_number is at 0, and the tables hold 5", nil},
		},
		"autovacuum disabled": {
			func(t *testing.T, d *database) {
				d.exec(t, `ALTER TABLE onceward_record SET (autovacuum_enabled = false)`)
			},
			nil,
			lie{"postgres/bloat", doctor.Weak, "autovacuum is disabled for onceward_record", nil},
		},
		"a superuser": {
			func(t *testing.T, d *database) { d.exec(t, `ALTER ROLE `+d.role+` SUPERUSER`) },
			nil,
			lie{"postgres/privileges", doctor.Weak, "is a superuser", nil},
		},
		"a right too many": {
			func(t *testing.T, d *database) { d.exec(t, `GRANT UPDATE, TRUNCATE ON onceward_audit TO `+d.role) },
			nil,
			lie{"postgres/privileges", doctor.Weak, "UPDATE, TRUNCATE on onceward_audit", nil},
		},
		"a right too few": {
			func(t *testing.T, d *database) { d.exec(t, `REVOKE DELETE ON onceward_record FROM `+d.role) },
			nil,
			lie{"postgres/privileges", doctor.Broken, "lacks DELETE on onceward_record", nil},
		},
		"rights of everyone": {
			func(t *testing.T, d *database) { d.exec(t, `GRANT SELECT ON onceward_record TO PUBLIC`) },
			nil,
			lie{"postgres/privileges", doctor.Weak, "SELECT on onceward_record", nil},
		},
		"row security": {
			func(t *testing.T, d *database) {
				d.exec(t, `ALTER TABLE onceward_record ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON onceward_record USING
					(state = 0)`)
			},
			nil,
			lie{"postgres/tables", doctor.Broken, "row security is on for onceward_record", nil},
		},
		"a trigger": {
			func(t *testing.T, d *database) {
				d.exec(t, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
					CREATE TRIGGER slow BEFORE INSERT ON onceward_record FOR EACH ROW EXECUTE FUNCTION slow()`)
			},
			nil,
			lie{"postgres/tables", doctor.Weak, "triggers on onceward_record", nil},
		},
		"a rule": {
			func(t *testing.T, d *database) {
				d.exec(t, `CREATE RULE forget AS ON INSERT TO onceward_late_completion DO INSTEAD NOTHING`)
			},
			nil,
			lie{"postgres/tables", doctor.Broken, "rules on onceward_late_completion", nil},
		},
		"an unlogged table": {
			func(t *testing.T, d *database) { d.exec(t, `ALTER TABLE onceward_record SET UNLOGGED`) },
			nil,
			lie{"postgres/tables", doctor.Broken, "onceward_record is unlogged", nil},
		},
		"ballast that is gone": {
			func(t *testing.T, d *database) { d.exec(t, `DELETE FROM onceward_record WHERE state = 0`) },
			nil,
			lie{"postgres/tables", doctor.Weak, "0 of 300 rows of ballast", nil},
		},
		"tables of an older version": {
			func(t *testing.T, d *database) {
				d.exec(t, `DELETE FROM onceward_schema WHERE version = (SELECT max(version) FROM onceward_schema)`)
			},
			nil,
			lie{"postgres/schema", doctor.Broken, "this program needs version", nil},
		},
		"tables of a newer version": {
			func(t *testing.T, d *database) {
				d.exec(t, `INSERT INTO onceward_schema (version) VALUES (99)`)
			},
			nil,
			lie{"postgres/schema", doctor.Broken, "are of version 99, and this program knows version 1", nil},
		},
		"too few connections": {
			func(t *testing.T, d *database) { d.exec(t, `ALTER ROLE `+d.role+` CONNECTION LIMIT 20`) },
			func(*database) []string { return []string{"pool_max_conns", "16"} },
			lie{"postgres/connections", doctor.Weak, "20 connections may be open", nil},
		},
		"a time-out that is too short": {
			func(t *testing.T, d *database) {
				d.exec(t, `ALTER ROLE `+d.role+` SET idle_in_transaction_session_timeout = '900ms'`)
			},
			nil,
			lie{"postgres/timeouts", doctor.Weak, "idle_in_transaction_session_timeout is 900ms", nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, servers.Postgres(t))
			if test.plant != nil {
				t.Cleanup(func() {
					d.exec(t, `SET client_min_messages = warning; DROP SCHEMA IF EXISTS `+d.schema+`_fake
					CASCADE`)
				})
				test.plant(t, d)
			}
			var parameters []string
			if test.parameters != nil {
				parameters = test.parameters(d)
			}
			wantFound(t, examine(t, d.url(t, parameters...), doctor.Config{}), test.want)
		})
	}
}

// TestTokensOfOthers: where a role may not look at the sequences, nothing is said about them.
func TestTokensOfOthers(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	d.exec(t, `INSERT INTO onceward_late_completion (id, attempt, at, status) VALUES (gen_random_uuid(), 9, 0, 200);
		SELECT setval('onceward_attempt', 10); REVOKE ALL ON SEQUENCE onceward_attempt FROM `+d.role)
	report := examine(t, d.url(t), doctor.Config{})
	if left := report.NotChecked(); len(left) != 1 || left[0].Check != "postgres/tokens" {
		t.Errorf("a sequence of others:\n%s", text(report))
	}
}

// TestRightsOfNewerServers: a right that not every server knows is one too many where there is one.
func TestRightsOfNewerServers(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	var version int
	err := d.owner.QueryRow(t.Context(), `SELECT current_setting('server_version_num')::integer`).Scan(&version)
	if err != nil {
		t.Fatal(err)
	}
	right := "TRIGGER"
	if version >= 170000 {
		right = "MAINTAIN"
	}
	d.exec(t, `GRANT `+right+` ON onceward_audit TO `+d.role)
	wantFound(t, examine(t, d.url(t), doctor.Config{}),
		lie{"postgres/privileges", doctor.Weak, right + " on onceward_audit", nil})
}

// TestNoTablesYet: a database that the store was never opened on is no sick one.
func TestNoTablesYet(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	report := examine(t, server.SchemaURL(t), doctor.Config{})
	for _, f := range report.Findings() {
		if f.Check != "postgres/privileges" { // the tests' user is a superuser
			t.Errorf("%s: %s", f.Check, f.What)
		}
	}
	if n := len(report.NotChecked()); n != 5 {
		t.Errorf("%d checks were not made:\n%s", n, text(report))
	}
}

// TestOwner: a service that makes its tables itself, as it does by default, is healthy; that it could do with less is
// noted.
func TestOwner(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	d.exec(t, `DROP SCHEMA `+d.schema+` CASCADE; CREATE SCHEMA `+d.schema+` AUTHORIZATION `+d.role)
	s, err := postgres.Open(t.Context(), d.url(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }() // in use, with all its connections
	report := examine(t, d.url(t), doctor.Config{})
	wantHealthy(t, report)
	wantFound(t, report, lie{"postgres/privileges", doctor.Note, "owns the tables", nil})
}

// TestOldTransaction: one that stays open is seen by a role that may see it.
func TestOldTransaction(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Postgres(t))
	d.exec(t, `GRANT pg_monitor TO `+d.role)
	conn, err := pgx.Connect(t.Context(), d.url(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT pg_sleep(0.01)`); err != nil {
		t.Fatal(err)
	}
	report, err := doctor.ExamineImpatient(t.Context(), d.url(t), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	wantFound(t, report, lie{"postgres/old-transactions", doctor.Weak, "a transaction of " + d.role, nil})
}

// TestDocumentedGrants: what the doctor takes for granted is what the guide grants.
func TestDocumentedGrants(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, grant := range documentedGrants(t) {
		if m := regexp.MustCompile(`^GRANT ([A-Z, ]+) ON (app\..*) TO service;`).FindStringSubmatch(grant); m != nil {
			for table := range strings.SplitSeq(m[2], ", ") {
				got[strings.TrimPrefix(table, "app.onceward_")] = m[1]
			}
		}
	}
	if want := doctor.Granted; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the guide grants\n%v\nand the doctor expects\n%v", got, want)
	}
}
