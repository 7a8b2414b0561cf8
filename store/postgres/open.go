package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// Open connects to the database at a URL (or a keyword/value string, as libpq takes them) and creates or updates its
// tables, unless [WithManualMigration] or [WithReadOnly] says otherwise. It logs a warning if the server is configured
// to lose commits. Of several servers in the URL it uses the primary, as [PoolConfig] says.
func Open(ctx context.Context, url string, options ...Option) (*Store, error) {
	opened := new(sockets)
	pool, err := openHandlers(ctx, url, opened)
	if err != nil {
		return nil, fmt.Errorf("postgres: open: %w", err)
	}
	s, err := open(ctx, newPoolSource(pool), opened, options)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.opened = pool
	return s, nil
}

const (
	idleParameter = "idle_in_transaction_session_timeout"
	// openedIdle bounds idle transactions on connections that the store opens for handlers.
	openedIdle = "60s"
	// stateUnsupportedParameter is what a pooler answers to a parameter that it does not know.
	stateUnsupportedParameter = "08P01"
)

// openHandlers opens the pool for handlers. Its connections bound idle transactions by themselves, so that it costs
// nothing in each transaction; behind a pooler that does not let them, each transaction does.
func openHandlers(ctx context.Context, url string, opened *sockets) (*pgxpool.Pool, error) {
	config, err := PoolConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.DialFunc = opened.dialing(config.ConnConfig.DialFunc)
	tuned := config.Copy()
	setDefault(tuned, idleParameter, openedIdle)
	return openTuned(ctx, tuned, config)
}

// setDefault gives connections a parameter, unless they have it already.
func setDefault(config *pgxpool.Config, parameter, value string) {
	if config.ConnConfig.RuntimeParams[parameter] == "" {
		config.ConnConfig.RuntimeParams[parameter] = value
	}
}

// openTuned opens a pool whose connections have some parameters more, or one without them behind a pooler that does
// not let them.
func openTuned(ctx context.Context, tuned, config *pgxpool.Config) (*pgxpool.Pool, error) {
	pool, err := pgxpool.NewWithConfig(ctx, tuned)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); sqlState(err) != stateUnsupportedParameter {
		return pool, nil // any other error is met, and told, by what comes next
	}
	pool.Close()
	return pgxpool.NewWithConfig(ctx, config)
}

// New makes a store that runs transactional handlers on connections of the pool. The pool stays the caller's to close,
// after the store. For everything else the store opens a few connections of its own in the same way as the pool does.
//
// Transactions leave a quarter of the pool free, at least one connection of several, for what handlers ask it beside their
// transactions: see [DB].
func New(ctx context.Context, pool *pgxpool.Pool, options ...Option) (*Store, error) {
	return share(open(ctx, newPoolSource(pool), new(sockets), options))
}

// NewSQL makes a store that runs transactional handlers on connections of db, which must use the driver of
// github.com/jackc/pgx/v5/stdlib. It stays the caller's to close, after the store. For everything else the store opens
// a few connections of its own with the same settings, but without the hooks of stdlib, which cannot be seen: where
// they matter, use [New] with a pool.
//
// With some releases of pgx database/sql runs some statements twice when their replies are lost, outside of the
// transactions of this package: see the guide on PostgreSQL.
func NewSQL(ctx context.Context, db *sql.DB, options ...Option) (*Store, error) {
	return share(open(ctx, sqlSource{db}, new(sockets), options))
}

// share leaves a part of the pool to the application.
func share(s *Store, err error) (*Store, error) {
	if err == nil {
		s.slots = sqltx.NewSlots(s.handlers.size)
	}
	return s, err
}

func open(ctx context.Context, handlers source, opened *sockets, chosen []Option) (*Store, error) {
	s := &Store{options: defaults(), handlers: handlers, sockets: opened}
	s.Apply = s.settle
	for _, option := range chosen {
		option(&s.options)
	}
	if s.options.lanes > maxLanes {
		return nil, fmt.Errorf("postgres: open: %d lanes: each takes a connection, and the most is %d",
			s.options.lanes, maxLanes)
	}
	s.logger = s.options.logger
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("postgres: open: %w", err), s.Close())
	}
	return s, nil
}

func (s *Store) start(ctx context.Context) error {
	config, err := s.handlers.poolConfig(ctx)
	if err != nil {
		return err
	}
	if w, ok := config.ConnConfig.Tracer.(*poolWatch); ok {
		config.ConnConfig.Tracer = w.before // the store's own connections are not the handlers'
	}
	s.warnOfHosts(ctx, config.ConnConfig)
	config.ConnConfig.DialFunc = s.sockets.dialing(config.ConnConfig.DialFunc)
	// What is sent on these connections can be repeated when one turns out dead: asking first would double the trips of
	// a caller who is alone.
	config.ShouldPing = neverPing
	if s.scout.pool, err = openScouting(ctx, config); err != nil {
		return err
	}
	config.ShouldPing = s.pingMisled
	own, err := openSettling(ctx, config, &s.options)
	if err != nil {
		return err
	}
	s.own = &ownPool{Pool: own}
	asking, err := openOwn(ctx, config, askingConnections)
	if err != nil {
		return err
	}
	s.asking = &ownPool{Pool: asking}
	if err := s.inspect(ctx); err != nil {
		return err
	}
	if s.names, err = findTables(ctx, s.own, &s.options); err != nil {
		return err
	}
	if err := s.checkDurability(ctx); err != nil {
		return err
	}
	if err := s.checkConfirming(ctx); err != nil {
		return err
	}
	if err := s.requireReplicas(ctx); err != nil {
		return err
	}
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	s.channel = s.names.channel()
	s.salt = lockSalt(s.channel)
	s.sql = prepareStatements(s.names, s.channel)
	s.unnamed = config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement
	s.batches = &batcher{
		pool: s.own, statements: s.sql.batch, unnamed: s.unnamed, lanes: s.options.lanes, largest: maxBatch,
	}
	if s.options.individual { // by the statements of batches, so that the gathering alone makes the difference
		s.batches.lanes, s.batches.largest = int(s.own.Config().MaxConns), 1
	}
	s.bridge = sqltx.NewBridge(stdlib.GetDefaultDriver())
	s.waits = newWatcher(s, config)
	return s.prepareTables(ctx)
}

// openScouting opens the pool that finds out where the address leads. Its one connection is given up after as long as the
// scout waits for it: one that is never answered would otherwise stand in the way of the next for minutes.
func openScouting(ctx context.Context, config *pgxpool.Config) (*pgxpool.Pool, error) {
	scouting := config.Copy()
	if t := &scouting.ConnConfig.ConnectTimeout; *t == 0 || *t > lookTimeout {
		*t = lookTimeout
	}
	return openOwn(ctx, scouting, 1)
}

// openSettling opens the pool that settles.
func openSettling(ctx context.Context, config *pgxpool.Config, o *options) (*pgxpool.Pool, error) {
	most := int32(o.lanes) + spareConnections
	if o.individual {
		most = max(most, config.MaxConns)
	}
	own := ownConfig(config, most)
	tuned := own.Copy()
	setDefault(tuned, "lock_timeout", o.lockTimeout)
	// The statements look at what they write, and are made for this level: at a stricter one, which a database may have
	// as its default, the server would undo what meets a neighbour.
	tuned.ConnConfig.RuntimeParams["default_transaction_isolation"] = readCommitted
	return openTuned(ctx, tuned, own)
}

// openOwn opens a pool of so many connections at most.
func openOwn(ctx context.Context, config *pgxpool.Config, most int32) (*pgxpool.Pool, error) {
	return pgxpool.NewWithConfig(ctx, ownConfig(config, most))
}

// ownConfig is how a pool of the store's own connects: as that of handlers, but with so many connections at most, and
// when they are needed. The names of records are known to be of type uuid there, in query modes too in which pgx does
// not ask the server.
func ownConfig(config *pgxpool.Config, most int32) *pgxpool.Config {
	own := config.Copy()
	own.MaxConns, own.MinConns, own.MinIdleConns = most, 0, 0
	own.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterDefaultPgType([16]byte{}, "uuid")
		if config.AfterConnect == nil {
			return nil
		}
		return config.AfterConnect(ctx, conn)
	}
	return own
}

const (
	// spareConnections are for what does not go through a batch.
	spareConnections = 4
	// askingConnections are those for finding out what became of commits. They are opened when they are needed.
	askingConnections = 8
)

// selectSession reads how the connections of handlers are set up: the bound on idle transactions, whether the default
// level is SERIALIZABLE, and which messages the server sends.
const selectSession = `SELECT setting::bigint, current_setting('default_transaction_isolation') = 'serializable',
		current_setting('client_min_messages')
	FROM pg_settings WHERE name = $1`

// inspect reads how the connections of handlers are set up.
func (s *Store) inspect(ctx context.Context) error {
	conn, err := s.handlers.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.release()
	var idle int64
	var warnings string
	err = conn.pgx().QueryRow(ctx, selectSession, idleParameter).Scan(&idle, &s.serializable, &warnings)
	s.idle = time.Duration(idle) * time.Millisecond
	return errors.Join(err, s.checkWarnings(warnings))
}

// prepareTables brings the tables up to date, unless the user does that, and reads what the store needs of them.
func (s *Store) prepareTables(ctx context.Context) error {
	if !s.options.manual && !s.options.readOnly {
		if err := s.migrate(ctx); err != nil {
			return err
		}
	}
	return s.readTables(ctx)
}

// readTables refuses tables of another version than this program's.
func (s *Store) readTables(ctx context.Context) error {
	status, err := readStatus(ctx, s.own, s.names, &s.options.migrations)
	if err == nil {
		err = status.Err()
	}
	if err != nil {
		return err
	}
	var moved bool
	clock := s.render(`@test_clock`)
	there := s.render(`SELECT to_regclass($1) IS NOT NULL, EXISTS (SELECT FROM @record)`)
	if err := s.own.QueryRow(ctx, there, clock).Scan(&moved, nil); err != nil {
		return err
	}
	if moved {
		s.logger.WarnContext(ctx, "onceward: a test moves the clock of these tables, or has died before it gave it back: "+
			"use others than those of tests", "table", clock)
	}
	return nil
}

// ready refuses a store that is closed.
func (s *Store) ready() error {
	if s.closed.Load() {
		return unavailable(errClosed)
	}
	return nil
}

// writable refuses a store that is closed, was opened for looking only, or must not write now.
func (s *Store) writable() error {
	if s.options.readOnly {
		return fmt.Errorf("postgres: %w", store.ErrReadOnly)
	}
	if err := s.replicas.refusal(); err != nil {
		return err
	}
	return s.ready()
}

// Option changes a store that is being opened.
type Option func(*options)

type options struct {
	schema     string
	prefix     string
	manual     bool
	readOnly   bool
	strict     bool
	syncOnly   bool
	individual bool
	// lanes is how many batches may be on the wire at once.
	lanes      int
	migrations sqltx.Migrations
	// calmLook, lookTimeout, closeTimeout and hardTimeout are the constants of these names. A test sets them so that an
	// event decides, and not the speed of the machine.
	calmLook, lookTimeout, closeTimeout, hardTimeout time.Duration
	// lockTimeout is how long a locked record holds up its batch.
	lockTimeout string
	listenURL   string
	// advisoryLocks says that the server's advisory locks exclude.
	advisoryLocks bool
	logger        *slog.Logger
}

func defaults() options {
	return options{
		prefix: sqltx.DefaultPrefix, migrations: sqltx.NewMigrations(Migrations()), lanes: defaultLanes,
		calmLook: calmLook, lookTimeout: lookTimeout, closeTimeout: closeTimeout, hardTimeout: hardTimeout,
		lockTimeout: "2s", logger: slog.Default(),
	}
}

// How many batches may be on the wire at once.
const (
	defaultLanes = 2
	maxLanes     = 1000
)

// WithSchema puts the tables into a schema, which must exist. Default: the first of the user's search_path that exists.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithTablePrefix is what the names of tables and functions begin with. Default: onceward_.
func WithTablePrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithManualMigration leaves the tables as they are when the store is opened, and refuses to open it if they are
// missing or of another version than this program needs: call [Migrate] from your deploy, apply [Migrations] with a
// tool of your own, or run what [PlainSQL] returns. Default: opening brings them up to date.
func WithManualMigration() Option { return func(o *options) { o.manual = true } }

// WithReadOnly opens the store for looking only: its writes return [store.ErrReadOnly]. It leaves the tables as they
// are, as [WithManualMigration] does, and does with a user who may only SELECT from them.
func WithReadOnly() Option { return func(o *options) { o.readOnly = true } }

// WithStrictDurability refuses to open a store on a server that can lose commits it has acknowledged, such as one with
// standbys of which none is waited for. Neither backups, nor pg_receivewal under its own name, nor logical subscribers
// count as standbys. Default: a warning.
func WithStrictDurability() Option { return func(o *options) { o.strict = true } }

// WithLanes is how many batches of reserved mode may be on the wire at once; what arrives while all are busy is
// gathered into the next. Each takes a connection; more than 1,000 are refused. Default: 2. More are worth their
// connections where a round trip takes a millisecond and more, as over a network or with a slow disk.
func WithLanes(n int) Option { return func(o *options) { o.lanes = max(n, 1) } }

// WithoutBatching sends each call of reserved mode as a statement of its own, on as many connections as the pool has.
// It is there to compare with.
func WithoutBatching() Option { return func(o *options) { o.individual = true } }

// WithListenURL is where to listen for notifications, past a pooler. Default: like all other connections, but not
// through a pooler: in transaction mode nothing is heard there, and in any mode PgBouncer mixes up replies when a
// notification meets its reset of a connection. Where something else is in between that only passes everything on, and
// gives connections numbers of its own, say the same address here.
func WithListenURL(url string) Option { return func(o *options) { o.listenURL = url } }

// WithLogger is where warnings go. Default: [slog.Default].
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// selectDurability reads the settings, and counts the standbys: a fail-over goes to none that only takes a backup, or
// keeps the log, by its usual name, nor to a logical subscriber. A role that does not see the states sees the names.
const selectDurability = `SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
	current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
	current_setting('client_min_messages'), (SELECT count(*) FROM pg_stat_replication r
		WHERE state IS DISTINCT FROM 'backup'
			AND application_name NOT IN ('pg_basebackup', 'pg_receivewal', 'barman_receive_wal')
			AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))`

// checkDurability says what the server's settings mean for commits that it has acknowledged, before a caller relies on
// them.
func (s *Store) checkDurability(ctx context.Context) error {
	var standby bool
	var fsync, pages, synchronous, names, warnings string
	var replicas int
	err := s.own.QueryRow(ctx, selectDurability).Scan(&standby, &fsync, &pages, &synchronous, &names, &warnings, &replicas)
	switch err = errors.Join(err, s.checkWarnings(warnings)); {
	case err != nil:
		return err
	case standby:
		return ErrStandby
	}
	risks := durabilityRisks(fsync, pages, synchronous, names, replicas)
	if len(risks) == 0 {
		return nil
	}
	if s.options.strict {
		return fmt.Errorf("the server can lose commits that it has acknowledged: %s", strings.Join(risks, "; "))
	}
	for _, risk := range risks {
		s.logger.WarnContext(ctx, "onceward: the server can lose commits that it has acknowledged, "+
			"and work would then be done twice", "because", risk)
	}
	return nil
}

// durabilityRisks lists what can be lost, and when.
func durabilityRisks(fsync, pages, synchronous, standbyNames string, replicas int) (risks []string) {
	if fsync != "on" {
		risks = append(risks, "fsync is "+fsync+": a crash of the machine can lose everything")
	}
	if pages != "on" {
		risks = append(risks, "full_page_writes is "+pages+": a crash of the machine can damage pages")
	}
	if synchronous == "off" {
		risks = append(risks, "synchronous_commit is off: a crash loses the last commits")
	}
	if replicas > 0 && (standbyNames == "" || synchronous == "local" || synchronous == "off") {
		risks = append(risks, fmt.Sprintf("there are %d standbys and none is waited for (synchronous_standby_names is %q, "+
			"synchronous_commit is %s): a fail-over loses the last commits",
			replicas, standbyNames, synchronous))
	}
	return risks
}

// ErrStandby is returned when the server is a standby, which is behind the one that decides.
var ErrStandby = errors.New("postgres: this server is a standby: it is behind the one that decides; " +
	"connect to the primary, or name all servers in the URL")
