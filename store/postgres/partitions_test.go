package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestStorePartitioned runs what depends on how the table of records is made: what excludes, finds, writes and lists in
// all partitions at once. `make test-all` runs the whole suite.
func TestStorePartitioned(t *testing.T) {
	nightly.Only(t, "TestStore is the same on one table")
	pgxHandle.conformAmong(t, &grounds{
		run: t, place: onSharedServer, made: []postgres.Option{postgres.WithPartitions(4)},
	},
		servers.UnlessAllStores("Sweeper", "Lister", "Finder", "TransactorRaces")...)
}

// wantPartitions checks how the records are spread, and that each partition has ballast.
func wantPartitions(t testing.TB, url string, want int) {
	t.Helper()
	status, err := postgres.Status(t.Context(), url)
	if must(t, err); status.Partitions != want || status.Err() != nil {
		t.Errorf("the records are in %d partitions (%v), want %d", status.Partitions, status.Err(), want)
	}
	admin := openAdmin(t, url)
	if n := number(t, admin, `SELECT count(DISTINCT tableoid) FROM onceward_record WHERE state = 0`); n != max(want, 1) {
		t.Errorf("%d tables have ballast, want %d", n, max(want, 1))
	}
}

// TestPartitions: tables are made with partitions, programs that are not told find them, and those that were told
// otherwise are refused.
func TestPartitions(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	told := openStore(t, url, postgres.WithPartitions(8))
	untold := openStore(t, url)
	wantPartitions(t, url, 8)
	exercise(t, told, "told")
	exercise(t, untold, "untold")
	wantReplay(t, untold, "told committed", "told committed", "I3")
	must(t, postgres.Migrate(t.Context(), url, quiet))
	must(t, postgres.Migrate(t.Context(), url, quiet, postgres.WithPartitions(8)))
	wantPartitions(t, url, 8)
	wantOpenFails(t, url, "are in 8 partitions, and 4 partitions were asked for", postgres.WithPartitions(4))
	if status, err := postgres.Status(t.Context(), url); err != nil || status.Compatible < 5 {
		t.Errorf("programs of version %d may use a partitioned table (%v), want 5 at least", status.Compatible, err)
	}
	whole := servers.Postgres(t).SchemaURL(t)
	openStore(t, whole)
	wantOpenFails(t, whole, "onceward migrate up --partitions 4", postgres.WithPartitions(4))
	for _, n := range []int{-1, 1, 257} {
		wantOpenFails(t, whole, "use 2 to 256", postgres.WithPartitions(n))
	}
}

// TestPartitionsInPlainSQL: what is printed for people makes the same tables as the store.
func TestPartitionsInPlainSQL(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "partitions are an option")
	server := servers.Postgres(t)
	ours := server.SchemaURL(t)
	openStore(t, ours, postgres.WithPartitions(4))
	schema := server.Schema(t)
	text, err := postgres.PlainSQL(schema, "", 0, postgres.WithPartitions(4))
	must(t, err)
	psql(t, server.URL(), text)
	at := server.URL() + "&search_path=" + schema
	if made, want := tables(t, openAdmin(t, at)), tables(t, openAdmin(t, ours)); !slices.Equal(made, want) {
		t.Errorf("it makes\n%v\nthe store makes\n%v", made, want)
	}
	exercise(t, openStore(t, at, postgres.WithManualMigration()), "key")
	if _, err := postgres.PlainSQL(schema, "", 0, postgres.WithPartitions(1)); err == nil {
		t.Error("one partition was printed")
	}
}

// TestPartitionsOfOddNames: names of the user's choice are kept by a conversion.
func TestPartitionsOfOddNames(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "partitions are an option")
	url := servers.Postgres(t).SchemaURL(t)
	prefix := postgres.WithTablePrefix("own_")
	exercise(t, openStore(t, url, prefix, postgres.WithPartitions(2)), "key")
	must(t, postgres.Migrate(t.Context(), url, quiet, prefix, postgres.WithPartitions(3)))
	exercise(t, openStore(t, url, prefix), "another")
}

// describing lists what a set of tables is made of: columns with their comments, indexes, constraints, views and rights.
const describing = `SELECT replace(said, current_schema() || '.', '') FROM (
	SELECT format('%s %s %s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull) AS said
	FROM pg_attribute WHERE attrelid = 'onceward_record'::regclass AND attnum > 0
	UNION ALL SELECT col_description('onceward_record'::regclass, n) FROM generate_series(0, 8) AS n
	UNION ALL SELECT replace(pg_get_indexdef(indexrelid), ' ONLY ', ' ') FROM pg_index
		WHERE indrelid = 'onceward_record'::regclass
	UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint
		WHERE conrelid = 'onceward_record'::regclass AND contype = 'p'
	UNION ALL SELECT pg_get_viewdef('onceward_records'::regclass)
	UNION ALL SELECT format('%s %s', relname, relacl) FROM pg_class
		WHERE oid IN ('onceward_record'::regclass, 'onceward_records'::regclass)
	UNION ALL SELECT format('%s', obj_description('onceward_record'::regclass))
	UNION ALL SELECT relowner::regrole::text FROM pg_class WHERE oid = 'onceward_record'::regclass) AS all_of_it
	ORDER BY 1`

func described(t testing.TB, admin *pgxpool.Pool) string {
	t.Helper()
	var text string
	must(t, admin.QueryRow(t.Context(), `SELECT string_agg(coalesce(d.replace, ''), E'\n') FROM (`+describing+`) AS d`).
		Scan(&text))
	return text
}

// TestConversionUnderTraffic: records are spread over partitions, over more of them, and put together again, while
// everyone works. Nothing is executed twice, no answer is lost, and all that belongs to the table comes along.
func TestConversionUnderTraffic(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "partitions are an option")
	server := servers.Postgres(t)
	url := server.SchemaURL(t)
	s := newShopAt(t, url)
	admin := openAdmin(t, url)
	var schema string
	must(t, admin.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
	role, as := userRole(t, admin, schema)
	grant(t, admin, grants, schema, role)
	exec(t, admin, `ALTER TABLE onceward_record SET (autovacuum_vacuum_scale_factor = 0.05)`)
	before := described(t, admin)
	busy := startPaying(t, s)
	for _, n := range []int{4, 6} {
		busy.awaitMore(t, 20)
		must(t, postgres.Migrate(t.Context(), url, quiet, postgres.WithPartitions(n)))
		wantPartitions(t, url, n)
		if after := described(t, admin); after != before {
			t.Errorf("with %d partitions there is\n%s\nbefore there was\n%s", n, after, before)
		}
		if set := number(t, admin, `SELECT count(*) FROM pg_class WHERE relname ~ '^onceward_record_p\d+_\d+$'
			AND relnamespace = current_schema()::regnamespace AND reloptions IS NOT NULL`); set != n {
			t.Errorf("%d of %d partitions are set up as the table was", set, n)
		}
	}
	busy.awaitMore(t, 20)
	exec(t, admin, `SELECT onceward_partition(0)`)
	busy.awaitMore(t, 20)
	busy.end()
	wantPartitions(t, url, 0)
	if after := described(t, admin); after != before {
		t.Errorf("put together again there is\n%s\nbefore there was\n%s", after, before)
	}
	busy.wantAllOnce(t, admin)
	exercise(t, openStore(t, as), "as another role")
}

// newShopAt opens a store, with a business table beside its own.
func newShopAt(t testing.TB, url string) *postgres.Store {
	t.Helper()
	s, closeHandle := pgxHandle.open(t, url)
	t.Cleanup(func() {
		must(t, s.Close())
		closeHandle()
	})
	exec(t, openAdmin(t, url), `CREATE TABLE business (value TEXT NOT NULL)`)
	return s
}

// paying is traffic of both modes whose every answer is remembered.
type paying struct {
	store   *postgres.Store
	stop    context.CancelFunc
	running sync.WaitGroup
	served  atomic.Int64

	mu   sync.Mutex
	paid []string // keys that were answered
}

func startPaying(t testing.TB, s *postgres.Store) *paying {
	ctx, cancel := context.WithCancel(context.Background())
	p := &paying{store: s, stop: cancel}
	for worker := range 4 {
		p.running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("payment %d of %d", i, worker)
				if err := p.pay(key, worker%2 == 0); err == nil {
					p.mu.Lock()
					p.paid = append(p.paid, key)
					p.mu.Unlock()
					p.served.Add(1)
				} else if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
	return p
}

func (p *paying) pay(key string, transactional bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), await.Limit)
	defer cancel()
	if transactional {
		payment := &payer{handle: pgxHandle, value: key}
		_, err := p.store.Transact(ctx, booking(key), payment.work)
		return err
	}
	v, err := p.store.Reserve(ctx, booking(key))
	if err == nil {
		claim := store.Claim{ID: accountID(key), Attempt: v.Record.Attempt}
		_, err = p.store.Complete(ctx, claim, answer("paid"))
	}
	return err
}

// awaitMore waits until so many more payments were answered.
func (p *paying) awaitMore(t testing.TB, more int64) {
	t.Helper()
	from := p.served.Load()
	await.That(t, "payments are answered", func() bool { return p.served.Load() >= from+more })
}

func (p *paying) end() {
	p.stop()
	p.running.Wait()
}

// wantAllOnce checks that each answer is there, and no row of the business twice.
func (p *paying) wantAllOnce(t testing.TB, admin *pgxpool.Pool) {
	t.Helper()
	if n := number(t, admin,
		`SELECT count(*) FROM (SELECT FROM business GROUP BY value HAVING count(*) > 1) AS doubled`); n != 0 {
		t.Errorf("I1: %d keys were executed more than once", n)
	}
	for _, key := range p.paid {
		if rec, err := p.store.Get(t.Context(), accountID(key)); err != nil || rec.State != store.StateCompleted {
			t.Errorf("I2: %s was answered, and its record is %s (%v)", key, rec.State, err)
		}
	}
}

// TestUpkeepMeetsConversion: the sweeper and the reaper that begin while records are converted, and wait for that, touch
// the records that are due and no others, however the records lie afterwards.
func TestUpkeepMeetsConversion(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "partitions are an option")
	for before, after := range map[int]int{0: 4, 4: 0, 3: 5} {
		t.Run(fmt.Sprintf("%d to %d", before, after), func(t *testing.T) {
			t.Parallel()
			url := servers.Postgres(t).SchemaURL(t)
			s := openStore(t, url)
			admin := openAdmin(t, url)
			exec(t, admin, `SELECT onceward_partition($1)`, before)
			var schema string
			must(t, admin.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
			role, as := userRole(t, admin, schema) // who has rights on the table, and none on its partitions
			grant(t, admin, grants, schema, role)
			const kept, due = 60, 20
			for i := range due {
				complete(t, s, own(t, s, booking(fmt.Sprint("expired ", i))), "done")
				own(t, s, booking(fmt.Sprint("lost ", i)))
			}
			exec(t, admin, `UPDATE onceward_record SET due = 1 WHERE state IN (10, 20)`)
			for i := range kept {
				complete(t, s, own(t, s, booking(fmt.Sprint("kept ", i))), "done")
			}
			conversion, err := admin.Begin(t.Context())
			must(t, err)
			defer func() { _ = conversion.Rollback(context.Background()) }()
			_, err = conversion.Exec(t.Context(), `SELECT onceward_partition($1)`, after)
			must(t, err)
			upkeep := make(chan error, 2)
			var waiting []uint32
			for _, call := range []string{`SELECT onceward_reap()`, `SELECT count(*) FROM onceward_sweep()`} {
				conn := connect(t, as)
				waiting = append(waiting, conn.PgConn().PID())
				go func() {
					_, err := conn.Exec(context.Background(), call)
					upkeep <- err
				}()
			}
			await.That(t, "both wait", func() bool {
				return number(t, admin, `SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ANY ($1)`, waiting) == 2
			})
			must(t, conversion.Commit(t.Context()))
			must(t, await.Value(t, "the upkeep", upkeep))
			must(t, await.Value(t, "the upkeep", upkeep))
			for state, want := range map[int]int{10: 0, 20: kept, 40: due} {
				if n := number(t, admin, `SELECT count(*) FROM onceward_record WHERE state = $1`, state); n != want {
					t.Errorf("I2: %d records have the state %d, want %d", n, state, want)
				}
			}
			wantPartitions(t, url, after)
		})
	}
}

// TestConversionOfAnOldView: a conversion in a transaction that may not see all records is refused.
func TestConversionOfAnOldView(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s := openStore(t, url)
	admin := openAdmin(t, url)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		key := "answered before " + string(level)
		err := pgx.BeginTxFunc(t.Context(), admin, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
				return err
			}
			complete(t, s, own(t, s, booking(key)), "done") // as while the conversion waits for its lock
			_, err := tx.Exec(t.Context(), `SELECT onceward_partition(4)`)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
			t.Errorf("a conversion at %s got %v", level, err)
		}
		if rec, err := s.Get(t.Context(), accountID(key)); err != nil || rec.State != store.StateCompleted {
			t.Errorf("I2: what was answered meanwhile is %s (%v)", rec.State, err)
		}
	}
	wantPartitions(t, url, 0)
}

// TestConversionWithMigration: tables are not converted in the transaction that brings them to the version which can be,
// because others call the functions of before meanwhile. What is printed for people does it in two.
func TestConversionWithMigration(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	server := servers.Postgres(t)
	schema := server.Schema(t)
	at := server.URL() + "&search_path=" + schema
	s, admin := openStore(t, at), openAdmin(t, at)
	complete(t, s, own(t, s, booking("key")), "done")
	migrateDownTo(t, admin, 4)
	err := pgx.BeginFunc(t.Context(), admin, func(tx pgx.Tx) error {
		for _, statement := range append(statements(t, readMigration(t, 5), "Up"), `SELECT onceward_partition(4)`) {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "commit that before") {
		t.Errorf("it was converted in one transaction (%v)", err)
	}
	text, err := postgres.PlainSQL(schema, "", 4, postgres.WithPartitions(4))
	must(t, err)
	psql(t, server.URL(), text)
	wantPartitions(t, at, 4)
	if rec, err := openStore(t, at).Get(t.Context(), accountID("key")); err != nil || rec.State != store.StateCompleted {
		t.Errorf("I2: the record is %s (%v)", rec.State, err)
	}
}

// TestConversionRefused: what cannot be taken along is an error that changes nothing.
func TestConversionRefused(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "partitions are an option")
	for says, obstacle := range map[string]string{
		"has a trigger": `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
			CREATE TRIGGER mine AFTER INSERT ON onceward_record FOR EACH ROW EXECUTE FUNCTION f()`,
		"has policies": `ALTER TABLE onceward_record ENABLE ROW LEVEL SECURITY`,
		"depend":       `CREATE MATERIALIZED VIEW mine AS SELECT id FROM onceward_record`,
	} {
		url := servers.Postgres(t).SchemaURL(t)
		s := openStore(t, url)
		admin := openAdmin(t, url)
		exec(t, admin, obstacle)
		err := postgres.Migrate(t.Context(), url, quiet, postgres.WithPartitions(4))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("a conversion got %v, want an error that says %q", err, says)
		}
		wantPartitions(t, url, 0)
		transacted(t, s, "key", nothing)
	}
}

// TestWayDownOfPartitions: tables that an earlier version would damage are not handed to it.
func TestWayDownOfPartitions(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	must(t, openStore(t, url, postgres.WithPartitions(2)).Close())
	var err error
	for _, statement := range statements(t, readMigration(t, 5), "Down") {
		if _, err = openAdmin(t, url).Exec(t.Context(), statement); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "earlier versions do not know") {
		t.Errorf("the way down ends with %v", err)
	}
}

// partScan finds the partitions that a plan looks into, and what it says of each.
var partScan = regexp.MustCompile(`Scan (?:Backward )?(?:using \S+ )?on onceward_record_p\d+_(\d+)[^\n]*`)

// lookedInto are the partitions that were looked into when a plan was carried out.
func lookedInto(plan string) (parts []string) {
	for _, found := range partScan.FindAllStringSubmatch(plan, -1) {
		if !strings.Contains(found[0], "never executed") && !slices.Contains(parts, found[1]) {
			parts = append(parts, found[1])
		}
	}
	return parts
}

// gathersParts finds what is read whole or sorted; a Merge Append has a sort key too, and sorts nothing.
var gathersParts = regexp.MustCompile(walks.String() + `|(?m)^\s*(?:->  )?(?:Incremental )?Sort  \(`)

// TestPlansOfPartitions: each hot statement looks into one partition, by the key of its table, whether the plan was made
// while it was empty or later; what works through all records goes by the indexes, and takes no more than it needs.
func TestPlansOfPartitions(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	p := newPlanned(t, postgres.WithPartitions(8))
	p.prunes("on empty partitions")
	p.fill(20_000)
	p.prunes("on partitions that have grown since")
	exec(t, p.admin, `ANALYZE onceward_record`)
	p.prunes("on partitions of thousands")
	p.repeat(p.hot(), gathersParts, "on partitions of thousands")
	p.repeat(p.evidence(), walks, "on partitions of thousands")
	p.checkOpen("on partitions of thousands")
}

// prunes does what is asked of one record often, and looks at how many partitions each plan looks into.
func (p *planned) prunes(size string) {
	all := p.hot()
	for _, background := range []string{"sweep", "reap", "reap softly"} {
		delete(all, background)
	}
	p.take()
	for name, f := range all {
		for range 8 {
			f()
		}
		for _, plan := range p.take() {
			if parts := lookedInto(plan); len(parts) > 1 || walks.MatchString(plan) {
				p.Errorf("%s %s: it looks into the partitions %v:\n%s", name, size, parts, plan)
			}
		}
	}
}
