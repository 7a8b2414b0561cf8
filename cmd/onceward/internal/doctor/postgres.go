package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	postgresstore "github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/storeurl"
)

var postgresTrials = []trial[*postgres]{
	{Check{
		"postgres/version", "PostgreSQL 14 or later.",
		"An older server does not report that it became a standby within a transaction.", "E1 [37]",
	}, tryVersion},
	{Check{
		"postgres/primary", "No standby, and not read-only by default.",
		"A standby lags: it misses recent executions, and takes no writes.", "S1, L2 [13, 37]",
	}, tryPrimary},
	{Check{
		"postgres/advisory-locks",
		"Advisory locks exclude: by one number and by two, for a transaction and a session.",
		"Otherwise the store does not open: duplicates would run at once, and neither `LockName` nor the outbox's " +
			"order would hold.", "E1, O2, O6 [8, 48]",
	}, tryLocks},
	{Check{
		"postgres/isolation",
		"READ COMMITTED is the default, and a second statement sees what others committed since the first.",
		"A look-up under the lock misses the last holder's commit, and the handler runs again. A stricter default " +
			"makes handlers undo each other.", "E1, I1 [14, 48]",
	}, tryIsolation},
	{Check{
		"postgres/commit", "Another connection sees a commit, and nothing of a rollback.",
		"An answer is sent after COMMIT. Otherwise it reports work that was not done.", "E1, E7, I2 [9, 10]",
	}, tryCommit},
	{Check{
		"postgres/functions", "The store calls the server's own functions: none shadows them in the search_path.",
		"A replaced lock, clock or hash breaks what the store relies on.", "E1, S3 [48]",
	}, tryFunctions},
	{Check{
		"postgres/durability",
		"`fsync`, `full_page_writes` and `synchronous_commit` are on, for this role and others that write records.",
		"A crash loses acknowledged commits: the record is gone, the effect is not, and a retry repeats it.",
		"E7, I1, I2 [11]",
	}, tryDurability},
	{Check{
		"postgres/commit-time", "A commit that must reach the disk takes longer than a look.",
		"A commit that costs nothing reached no disk, whatever the settings are.", "E7, I2 [11]",
	}, tryCommitTime},
	{Check{
		"postgres/standbys", "If standbys follow: commits wait for one, and all lag little.",
		"A fail-over to a lagging standby forgets acknowledged answers.", "E7, I1, I2 [37]",
	}, tryStandbys},
	{Check{
		"postgres/clock",
		"The store's clock agrees with this machine's, goes forward, and moves within a transaction.",
		"It counts leases and expiry, and is compared with nodes' clocks (first-sent times, times for clients).",
		"S3, S7, L4 [4, 5, 42]",
	}, tryClock},
	{Check{
		"postgres/listen", "A notification reaches another listening connection.",
		"Otherwise each waiting duplicate and outbox worker queries every 50 ms.", "O2 [48]",
	}, tryListen},
	{Check{
		"postgres/pooler", "A connection keeps its server process and prepared statements between transactions.",
		"Behind a pooler in transaction mode, prepared statements and LISTEN fail, unless the URL and the store " +
			"are set for it.", "E1, L2 [48]",
	}, tryPooler},
	{Check{
		"postgres/connections",
		"Room for the service's connections: `pool_max_conns` and 16, for each of `--replicas`.",
		"Without a connection, a request gets 503, and finished work cannot be settled.", "L2, E7 [15]",
	}, tryConnections},
	{Check{
		"postgres/timeouts", "The role's time-outs leave handlers and settling enough time.",
		"The server ends transactions at work.", "E1, S5 [46]",
	}, tryTimeouts},
	{Check{
		"postgres/schema", "This program knows the tables' version.",
		"Otherwise the program refuses the tables.", "S8 [32]",
	}, trySchema},
	{Check{
		"postgres/indexes", "A fresh migration's indexes, all valid.",
		"The primary key is the last line of defence against a second execution. Without the others, each look " +
			"scans the table.", "S1, B1, B2",
	}, tryIndexes},
	{Check{
		"postgres/tables",
		"Nothing interferes with the tables: triggers, rules, row security, unlogged tables, a test's clock, " +
			"missing ballast or reaper's place.",
		"An operation whose record is hidden, changed or lost is executed again.", "I1, I7, I12, S3",
	}, tryTables},
	{Check{
		"postgres/tokens", "The sequences of attempt tokens and messages are past the greatest number in the tables.",
		"A restore without them reuses numbers: a fenced owner may write again, and messages overtake each other.",
		"S6, S7, O2, I6",
	}, tryTokens},
	{Check{
		"postgres/privileges", "The role has what docs/postgresql.md grants, and no more.",
		"With more, injected SQL can change settled records, the audit, or the functions that reap.", "I7, I9, L7",
	}, tryPrivileges},
	{Check{
		"postgres/bloat", "Autovacuum keeps up with the tables.",
		"Look-ups and the reaper slow down, and the disk fills.", "B2, L2",
	}, tryBloat},
	{Check{
		"postgres/old-transactions", "No transaction or replication slot blocks vacuum for over an hour.",
		"Removed rows keep their space: tables grow, and requests slow down.", "B2, I13",
	}, tryOldTransactions},
	{Check{
		"postgres/wraparound", "Transaction numbers are far from their end.",
		"At the end the server refuses all writes: every request gets 503.", "L2",
	}, tryWraparound},
}

// postgres is the database to examine.
type postgres struct {
	config *pgx.ConnConfig
	// listen is the configuration for reaching the server past a pooler.
	listen *pgx.ConnConfig
	// mode is how the service sends its statements.
	mode     pgx.QueryExecMode
	poolSize int           // 0 if the URL does not set it
	old      time.Duration // the age from which a transaction counts as old
	arrival  time.Duration // how long a notification may take
	replicas int
	// syncOnly means that the service refuses a server whose commits wait for no standby.
	syncOnly bool

	schema, prefix string
	tables         bool // whether the tables exist
	version        int  // of the server

	main *pgx.Conn
}

func examinePostgres(ctx context.Context, at *storeurl.Location, c Config) ([]Result, error) {
	p, err := newPostgres(at, c)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := within(ctx, c.Timeout, p.meet); err != nil {
		return nil, unavailable(err)
	}
	return examine(ctx, c.Timeout, p, postgresTrials), nil
}

func newPostgres(at *storeurl.Location, c Config) (*postgres, error) {
	parsed, err := postgresstore.PoolConfig(at.URL)
	if err != nil {
		return nil, unusable(err)
	}
	p := &postgres{
		config: parsed.ConnConfig, mode: parsed.ConnConfig.DefaultQueryExecMode, schema: at.Schema,
		prefix: cmp.Or(at.Prefix, "onceward_"), syncOnly: at.SyncReplicasOnly,
	}
	if namesPoolSize(at.URL) {
		p.poolSize = int(parsed.MaxConns)
	}
	p.replicas, p.old, p.arrival = max(c.Replicas, 1), oldTransaction, c.arrival
	ours(p.config)
	p.listen = p.config
	if c.ListenURL != "" {
		direct, err := postgresstore.PoolConfig(c.ListenURL)
		if err != nil {
			return nil, unusable(fmt.Errorf("the URL to listen at: %w", err))
		}
		p.listen = direct.ConnConfig
		ours(p.listen)
	}
	return p, nil
}

// ours prepares a configuration for the doctor's own connections.
// They prepare no statements, and so do not depend on what is tested.
func ours(config *pgx.ConnConfig) {
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.RuntimeParams["application_name"] = "onceward doctor"
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
}

// meet finds the schema of the tables.
func (p *postgres) meet(ctx context.Context) error {
	conn, err := p.conn(ctx)
	if err != nil {
		return err
	}
	if p.schema == "" {
		if err := conn.QueryRow(ctx, `SELECT coalesce(current_schema(), 'public')`).Scan(&p.schema); err != nil {
			return err
		}
	}
	const about = `SELECT to_regclass($1) IS NOT NULL, current_setting('server_version_num')::integer`
	return conn.QueryRow(ctx, about, p.table("schema")).Scan(&p.tables, &p.version)
}

// conn returns the connection for queries. It connects again if an earlier query has broken the connection.
func (p *postgres) conn(ctx context.Context) (*pgx.Conn, error) {
	if p.main != nil && !p.main.IsClosed() {
		return p.main, nil
	}
	conn, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return nil, err
	}
	p.main = conn
	return conn, nil
}

// query reads one row.
func (p *postgres) query(ctx context.Context, into []any, sql string, args ...any) error {
	conn, err := p.conn(ctx)
	if err != nil {
		return err
	}
	return conn.QueryRow(ctx, sql, args...).Scan(into...)
}

// rows reads all rows.
func rows[T any](ctx context.Context, p *postgres, sql string, args ...any) ([]T, error) {
	conn, err := p.conn(ctx)
	if err != nil {
		return nil, err
	}
	found, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[T])
}

// dial opens connections for one check. Closing them ends everything they have begun.
func (p *postgres) dial(ctx context.Context, n int) (conns []*pgx.Conn, done func(), err error) {
	done = func() {
		for _, conn := range conns {
			closing(conn)
		}
	}
	for range n {
		conn, err := pgx.ConnectConfig(ctx, p.config)
		if err != nil {
			done()
			return nil, nil, err
		}
		conns = append(conns, conn)
	}
	return conns, done, nil
}

func (p *postgres) close() {
	if p.main != nil {
		closing(p.main)
	}
}

// closing closes a connection and ends what it has begun, even after an interrupt.
func closing(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // otherwise the server notices later
}

// table returns the quoted name of a table or function of the store.
func (p *postgres) table(name string) string {
	return pgx.Identifier{p.schema, p.prefix + name}.Sanitize()
}

// errNoTables is the reason why nothing is known about the tables.
const errNoTables = errNotTried("there are no tables yet: open the store once, or migrate, and ask again")

func tryVersion(_ context.Context, p *postgres, r *Result) error {
	r.saw("%d.%d", p.version/10000, p.version%10000)
	if p.version < 140000 {
		r.find(Broken, "use PostgreSQL 14 or later", "the server is version %d.%d", p.version/10000, p.version%10000)
	}
	return nil
}

// randomKey returns a random key for a lock of the doctor's own.
func randomKey() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.BigEndian.Uint64(b[:]))
}
