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

// Open connects to the database at a URL, or a keyword/value string of libpq, and creates or updates its tables, unless
// [WithManualMigration] or [WithReadOnly] is given. It logs a warning if the server is configured to lose commits. If
// the URL names several servers, Open uses the primary: see [PoolConfig].
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
	// stateUnsupportedParameter is the SQL state with which a pooler refuses a parameter that it does not know.
	stateUnsupportedParameter = "08P01"
)

// openHandlers opens the pool for handlers. Its connections have the bound on idle transactions as a setting, so that
// the bound costs nothing in a transaction. Behind a pooler that does not allow the setting, each transaction sets it.
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

// setDefault sets a parameter of connections, unless it is set already.
func setDefault(config *pgxpool.Config, parameter, value string) {
	if config.ConnConfig.RuntimeParams[parameter] == "" {
		config.ConnConfig.RuntimeParams[parameter] = value
	}
}

// openTuned opens a pool whose connections have additional parameters, or a pool without these
// if a pooler refuses them.
func openTuned(ctx context.Context, tuned, config *pgxpool.Config) (*pgxpool.Pool, error) {
	pool, err := pgxpool.NewWithConfig(ctx, tuned)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); sqlState(err) != stateUnsupportedParameter {
		return pool, nil // the next call on the pool returns any other error
	}
	pool.Close()
	return pgxpool.NewWithConfig(ctx, config)
}

// New returns a store that runs transactional handlers on connections of the pool. The caller closes the pool, after
// the store. For everything else the store opens a few connections of its own, in the same way as the pool does.
//
// Transactions leave a quarter of the pool free, at least one connection of several, for statements that handlers run
// outside their transactions: see [DB].
func New(ctx context.Context, pool *pgxpool.Pool, options ...Option) (*Store, error) {
	return share(open(ctx, newPoolSource(pool), new(sockets), options))
}

// NewSQL returns a store that runs transactional handlers on connections of db, which must use the driver of
// github.com/jackc/pgx/v5/stdlib. The caller closes db, after the store. For everything else the store opens a few
// connections of its own with the same settings, but without the hooks of stdlib, which the store cannot see: if the
// hooks matter, use [New] with a pool.
//
// With some releases of pgx, database/sql runs some statements twice when their replies are lost, outside the
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
		config.ConnConfig.Tracer = w.before // the store's own connections are not watched
	}
	s.warnOfHosts(ctx, config.ConnConfig)
	config.ConnConfig.DialFunc = s.sockets.dialing(config.ConnConfig.DialFunc)
	// Everything that is sent on these connections can be repeated if a connection turns out to be dead. A ping first
	// would double the round trips of a single caller.
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
	if s.options.individual { // with the statements of batches, so that only the gathering differs
		s.batches.lanes, s.batches.largest = int(s.own.Config().MaxConns), 1
	}
	s.bridge = sqltx.NewBridge(stdlib.GetDefaultDriver())
	s.waits = newWatcher(s, config)
	return s.prepareTables(ctx)
}

// openScouting opens the pool of the scout. An attempt to connect ends when the scout stops waiting for it: an attempt
// that is never answered would otherwise block the next one for minutes.
func openScouting(ctx context.Context, config *pgxpool.Config) (*pgxpool.Pool, error) {
	scouting := config.Copy()
	if t := &scouting.ConnConfig.ConnectTimeout; *t == 0 || *t > lookTimeout {
		*t = lookTimeout
	}
	return openOwn(ctx, scouting, 1)
}

// openSettling opens the pool for the store's own statements.
func openSettling(ctx context.Context, config *pgxpool.Config, o *options) (*pgxpool.Pool, error) {
	most := int32(o.lanes) + spareConnections
	if o.individual {
		most = max(most, config.MaxConns)
	}
	own := ownConfig(config, most)
	tuned := own.Copy()
	setDefault(tuned, "lock_timeout", o.lockTimeout)
	// The statements read what they write, and are made for this level. At a stricter level, which may be the default
	// of a database, the server would undo statements that conflict with concurrent transactions.
	tuned.ConnConfig.RuntimeParams["default_transaction_isolation"] = readCommitted
	return openTuned(ctx, tuned, own)
}

// openOwn opens a pool with at most the given number of connections.
func openOwn(ctx context.Context, config *pgxpool.Config, most int32) (*pgxpool.Pool, error) {
	return pgxpool.NewWithConfig(ctx, ownConfig(config, most))
}

// ownConfig returns the configuration of a pool of the store's own. It is the configuration of the handlers' pool, but
// with the given number of connections at most, which are opened when they are needed. The ids of records are
// registered as type uuid, also for query modes in which pgx does not ask the server for types.
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
	// spareConnections are for statements that do not go through a batch.
	spareConnections = 4
	// askingConnections are for finding out the outcome of commits. They are opened when they are needed.
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

// prepareTables updates the tables, unless the user does that, and checks them.
func (s *Store) prepareTables(ctx context.Context) error {
	if !s.options.manual && !s.options.readOnly {
		if err := s.migrate(ctx); err != nil {
			return err
		}
	}
	return s.readTables(ctx)
}

// readTables returns an error if the tables are of another version than this program needs.
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

// ready returns an error if the store is closed.
func (s *Store) ready() error {
	if s.closed.Load() {
		return unavailable(errClosed)
	}
	return nil
}

// writable returns an error if the store is closed, was opened for reading only, or must not write now.
func (s *Store) writable() error {
	if s.options.readOnly {
		return fmt.Errorf("postgres: %w", store.ErrReadOnly)
	}
	if err := s.replicas.refusal(); err != nil {
		return err
	}
	return s.ready()
}

// Option configures a store that is being opened.
type Option func(*options)

type options struct {
	schema     string
	prefix     string
	manual     bool
	readOnly   bool
	strict     bool
	syncOnly   bool
	individual bool
	// lanes is the most batches that may be on the wire at once.
	lanes      int
	migrations sqltx.Migrations
	// calmLook, lookTimeout, closeTimeout and hardTimeout default to the constants of these names. Tests set them so
	// that their results do not depend on the speed of the machine.
	calmLook, lookTimeout, closeTimeout, hardTimeout time.Duration
	// lockTimeout is how long a locked record may delay its batch.
	lockTimeout string
	listenURL   string
	// advisoryLocks means that the server's advisory locks are known to exclude each other.
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

// The default and the largest number of batches that may be on the wire at once.
const (
	defaultLanes = 2
	maxLanes     = 1000
)

// WithSchema puts the tables into a schema, which must exist. Default: the first schema of the
// user's search_path that exists.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithTablePrefix sets the prefix of the names of tables and functions. Default: onceward_.
func WithTablePrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithManualMigration leaves the tables as they are when the store is opened, and refuses to open the store if they are
// missing or of another version than this program needs. Call [Migrate] from your deployment, apply [Migrations] with a
// tool of your own, or run the text that [PlainSQL] returns. Default: opening the store updates the tables.
func WithManualMigration() Option { return func(o *options) { o.manual = true } }

// WithReadOnly opens the store for reading only: its writes return [store.ErrReadOnly]. It leaves the tables as they
// are, as [WithManualMigration] does. The user needs no right but to SELECT from them.
func WithReadOnly() Option { return func(o *options) { o.readOnly = true } }

// WithStrictDurability refuses to open a store on a server that can lose commits it has acknowledged, such as a server
// with standbys whose commits wait for none of them. Backups, pg_receivewal under its own name, and logical subscribers
// do not count as standbys. Default: a warning.
func WithStrictDurability() Option { return func(o *options) { o.strict = true } }

// WithLanes sets how many batches of reserved mode may be on the wire at once. Calls that arrive while all lanes
// are busy are gathered into the next batch. Each lane takes a connection; more than 1,000 lanes are refused.
// Default: 2. More lanes are worth their connections if a round trip takes a millisecond or more, as over a
// network or with a slow disk.
func WithLanes(n int) Option { return func(o *options) { o.lanes = max(n, 1) } }

// WithoutBatching sends each call of reserved mode as a statement of its own, on as many connections as the pool has.
// It is meant for comparisons.
func WithoutBatching() Option { return func(o *options) { o.individual = true } }

// WithListenURL sets the address on which the store listens for notifications, past a pooler. Default: the address of
// all other connections, but not through a pooler. In transaction mode no notification arrives through a pooler, and in
// any mode PgBouncer mixes up replies if a notification arrives while it resets a connection. If something else is in
// between that only passes everything on, and gives connections process numbers of its own, give the same address here.
func WithListenURL(url string) Option { return func(o *options) { o.listenURL = url } }

// WithLogger sets the logger for warnings. Default: [slog.Default].
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// selectDurability reads the settings, and counts the standbys. A client that takes a backup or only keeps the log,
// under its usual name, and a logical subscriber do not count, because no fail-over goes to them. A role that may not
// see the states of clients still sees their names.
const selectDurability = `SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
	current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
	current_setting('client_min_messages'), (SELECT count(*) FROM pg_stat_replication r
		WHERE state IS DISTINCT FROM 'backup'
			AND application_name NOT IN ('pg_basebackup', 'pg_receivewal', 'barman_receive_wal')
			AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))`

// checkDurability returns an error if the server is a standby or hides warnings. If the server's settings can lose
// commits that it has acknowledged, checkDurability logs a warning, or returns an error with [WithStrictDurability].
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

// durabilityRisks lists which commits can be lost, and when.
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

// ErrStandby is returned when the server is a standby, which may lag behind the primary.
var ErrStandby = errors.New("postgres: this server is a standby: it is behind the one that decides; " +
	"connect to the primary, or name all servers in the URL")
