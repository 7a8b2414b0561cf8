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
		"postgres/version", "Is the server PostgreSQL 14 or later?",
		"An older one does not tell when it turns into a standby in the middle of a transaction.", "E1 [37]",
	}, tryVersion},
	{Check{
		"postgres/primary", "Is it the server that decides: no standby, and not read-only by default?",
		"A standby is behind: a look-up on it does not find what was executed a moment ago, and nothing can be written.",
		"S1, L2 [13, 37]",
	}, tryPrimary},
	{Check{
		"postgres/advisory-locks", "Do advisory locks exclude: two connections take the same one, by one number and by " +
			"two, for a transaction and for a session?",
		"The store does not open: duplicates in flight would run side by side, and neither `LockName` nor the order of the " +
			"outbox would exclude.",
		"E1, O2, O6 [8, 48]",
	}, tryLocks},
	{Check{
		"postgres/isolation", "Is READ COMMITTED the default, and does a second statement see what another connection has " +
			"committed since the first?",
		"A look-up behind the lock does not see what the last holder committed, and the handler runs again; handlers " +
			"run at the default level, and a stricter one makes neighbours undo each other.", "E1, I1 [14, 48]",
	}, tryIsolation},
	{Check{
		"postgres/commit", "Is what one connection has committed committed for another, and what it rolled back undone?",
		"An answer is sent because the server said COMMIT: if that is not so, the client is told of work that was not done.",
		"E1, E7, I2 [9, 10]",
	}, tryCommit},
	{Check{
		"postgres/functions", "Are the functions that the store calls those of the server, and no others before them in " +
			"the search_path?",
		"A lock, a clock or a hash that others have written does not do what the store relies on.", "E1, S3 [48]",
	}, tryFunctions},
	{Check{
		"postgres/durability", "Are `fsync`, `full_page_writes` and `synchronous_commit` on, for this role and for others " +
			"that write records?",
		"A crash loses commits that were acknowledged: the record is gone, the effect is not, and a retry makes it again.",
		"E7, I1, I2 [11]",
	}, tryDurability},
	{Check{
		"postgres/commit-time", "How long does a commit take that has to reach the disk, beside one that has not?",
		"A commit that costs nothing has not reached a disk, whatever the settings say.", "E7, I2 [11]",
	}, tryCommitTime},
	{Check{
		"postgres/standbys", "Are commits waited for on a standby, if there are any, and how far behind are they?",
		"A fail-over to a standby that was behind forgets what was acknowledged.", "E7, I1, I2 [37]",
	}, tryStandbys},
	{Check{
		"postgres/clock", "Does the store's clock agree with this machine's, go forward, and go on inside of a transaction?",
		"Leases and expiry are counted by the store's clock; times that clients are told, and first-sent times, are " +
			"compared with those of nodes.", "S3, S7, L4 [4, 5, 42]",
	}, tryClock},
	{Check{
		"postgres/listen", "Does a notification arrive on another connection that listens?",
		"Duplicates that wait, and outbox workers, have to look for themselves, which costs a query every 50 ms for each.",
		"O2 [48]",
	}, tryListen},
	{Check{
		"postgres/pooler", "Does a connection keep its server process between transactions, and prepared statements with it?",
		"Behind a pooler in transaction mode prepared statements and LISTEN fail, unless the URL and the store are told.",
		"E1, L2 [48]",
	}, tryPooler},
	{Check{
		"postgres/connections", "Is there room for the connections of the service (`pool_max_conns` and 16, for each of " +
			"`--replicas`)?",
		"Without a connection a request is answered 503, and finished work cannot be settled.", "L2, E7 [15]",
	}, tryConnections},
	{Check{
		"postgres/timeouts", "Do time-outs that are set for the role leave handlers and settling enough time?",
		"The server ends transactions that are still at work.", "E1, S5 [46]",
	}, tryTimeouts},
	{Check{
		"postgres/schema", "Are the tables of a version that this program knows?",
		"A program that meets tables it does not know refuses to work.", "S8 [32]",
	}, trySchema},
	{Check{
		"postgres/indexes", "Are the indexes there that a fresh migration makes, the same, and valid?",
		"The primary key is the last line of defence against a second execution; without the others each look scans the " +
			"table.", "S1, B1, B2",
	}, tryIndexes},
	{Check{
		"postgres/tables", "Does something come between the store and its tables: triggers, rules, row security, unlogged " +
			"tables, a clock left by a test, ballast or the reaper's place that is gone?",
		"A record that is hidden, changed or lost is an operation that is executed again.", "I1, I7, I12, S3",
	}, tryTables},
	{Check{
		"postgres/tokens", "Are the sequences of attempt tokens and of messages past the greatest number in the tables?",
		"After a restore without them numbers are used twice: an owner that was fenced may write again, and messages " +
			"overtake each other.", "S6, S7, O2, I6",
	}, tryTokens},
	{Check{
		"postgres/privileges", "Has the role what docs/postgresql.md grants, and no more?",
		"A service that can be made to run SQL of others can then change settled records, the audit, or the functions " +
			"that reap.", "I7, I9, L7",
	}, tryPrivileges},
	{Check{
		"postgres/bloat", "Does autovacuum keep up with the tables of the store?",
		"Look-ups and the reaper slow down, and the disk fills.", "B2, L2",
	}, tryBloat},
	{Check{
		"postgres/old-transactions", "Is there a transaction, or a replication slot, that keeps vacuum from cleaning up " +
			"for more than an hour?",
		"Nothing that was removed since is given back: the tables grow, and every request gets slower.", "B2, I13",
	}, tryOldTransactions},
	{Check{
		"postgres/wraparound", "How far is the database from the end of its transaction numbers?",
		"At the end the server refuses all writes, and every request is answered 503.", "L2",
	}, tryWraparound},
}

// postgres is a database that is examined.
type postgres struct {
	config *pgx.ConnConfig
	// listen is how to reach the server past a pooler.
	listen *pgx.ConnConfig
	// mode is how the service sends its statements.
	mode     pgx.QueryExecMode
	poolSize int           // 0 if the URL does not say
	old      time.Duration // from when on a transaction is old
	replicas int
	// syncOnly says that the service refuses a server whose commits wait for no standby.
	syncOnly bool

	schema, prefix string
	tables         bool // whether they are there
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
	p.replicas, p.old = max(c.Replicas, 1), oldTransaction
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

// ours makes connections that depend on nothing that is to be found out: no statement is prepared.
func ours(config *pgx.ConnConfig) {
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.RuntimeParams["application_name"] = "onceward doctor"
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
}

// meet finds out where the tables are.
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

// conn is the connection for questions. It is made again when a question before has ended it.
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

// query asks for one row.
func (p *postgres) query(ctx context.Context, into []any, sql string, args ...any) error {
	conn, err := p.conn(ctx)
	if err != nil {
		return err
	}
	return conn.QueryRow(ctx, sql, args...).Scan(into...)
}

// rows asks for all rows.
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

// dial opens connections for one check. What they have begun ends with them.
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

// closing ends a connection and what it has begun, also when the examination was interrupted.
func closing(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server notices by itself, if later
}

// table is the quoted name of a table or function of the store.
func (p *postgres) table(name string) string {
	return pgx.Identifier{p.schema, p.prefix + name}.Sanitize()
}

// errNoTables is why nothing can be said about tables.
const errNoTables = errNotTried("there are no tables yet: open the store once, or migrate, and ask again")

func tryVersion(_ context.Context, p *postgres, r *Result) error {
	r.saw("%d.%d", p.version/10000, p.version%10000)
	if p.version < 140000 {
		r.find(Broken, "use PostgreSQL 14 or later", "the server is version %d.%d", p.version/10000, p.version%10000)
	}
	return nil
}

// randomKey is that of a lock which no one else has.
func randomKey() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.BigEndian.Uint64(b[:]))
}
