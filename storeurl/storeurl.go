// Package storeurl opens the store that a URL names, so that a program can use another store without a change:
//
//	postgres://user@host/database     PostgreSQL
//	mysql://user@host,host/database   MySQL, MariaDB, and Galera clusters of it; mariadb:// is the same
//	sqlite:PATH, or just a path       SQLite
//	redis://host:6379/0               Redis; rediss:// with TLS
//	redis+sentinel://host,host/NAME   Redis behind Sentinel; rediss+sentinel:// with TLS
//	redis+cluster://host,host         Redis Cluster; rediss+cluster:// with TLS
//
//	dynamodb://TABLE?region=REGION    DynamoDB; with &endpoint=URL for an endpoint other than the region's
//
// [Open] opens databases, for programs that use SQL transactions. [OpenStore] opens all of these stores.
//
// The parameter front puts a cache on Redis before a database (see package tiered). It is the URL of the Redis server;
// each & # or % in it must be escaped with %XX:
//
//	postgres://user@host/database?front=redis://host:6379/0
//	sqlite:store.db?front=rediss+cluster://host,host
//
// To put a circuit breaker between the two, open the database without a front, and combine them as
// docs/choosing-a-store.md shows.
//
// The parameters schema and prefix of a PostgreSQL URL are the schema of the tables and the prefix of their names (see
// postgres.WithSchema and postgres.WithTablePrefix):
//
//	postgres://user@host/database?schema=app&prefix=pay_
//
// On MySQL the schema is the database itself, and prefix has the same meaning (see mysql.WithTablePrefix).
//
// The hosts of a PostgreSQL URL are tried in their order until one is the primary:
//
//	postgres://user@first:5432,second:5432/database
//
// The parameter sync_replicas_only of a PostgreSQL, MySQL or Redis URL refuses servers that could lose acknowledged
// answers at a fail-over (see postgres.WithSyncReplicasOnly, mysql.WithSyncReplicasOnly and
// redis.WithSyncReplicasOnly):
//
//	postgres://user@first,second/database?sync_replicas_only=true
//
// The parameter prefix of a Redis URL is the prefix of its keys (see redis.WithPrefix). Databases that share a Redis
// server as their front need different prefixes, because otherwise each could return the other's answers:
//
//	postgres://user@host/staging?front=redis://host:6379/0?prefix=staging
package storeurl

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/sqlite"
)

// Store has the methods of all SQL stores of this repository.
type Store interface {
	store.Store
	store.Transactor
	store.TxCheckpointer
	store.Waiter
	store.Sweeper
	store.Reaper
	store.Reconciler
	store.Buster
	store.Lister
	store.Rewriter
	store.Finder
	store.Retainer
	store.LateCompletionKeeper
	store.ExternalEventKeeper
	store.Auditor
	store.AuditLister
	store.ExecutionAuditor
	outbox.Store
	outbox.AnswerStore
	inbox.Store
	natural.Store

	// InTx runs work in a transaction, and commits it if work returns nil. The context of work contains the
	// transaction; see [onceward.Tx].
	InTx(ctx context.Context, work func(ctx context.Context) error) error
	Close() error
}

// Database is a store that can also read the application's own tables in the same database.
type Database struct {
	Store
	engine Engine
	reads  *sql.DB
	// owned means that closing the store does not close reads.
	owned bool
	// countColumns is the query for the number of columns of a table with a given name, which is 0 or 1.
	countColumns string
}

// Engine returns the kind of database, for statements that databases write differently, such as types of columns.
func (d *Database) Engine() Engine { return d.engine }

// Reads returns the connections for reading tables of the application. Writes use a transaction of the store.
func (d *Database) Reads() *sql.DB { return d.reads }

// Unwrap implements [store.Wrapper]. It gives access to the methods that only one kind of database has.
func (d *Database) Unwrap() store.Store { return d.Store }

// Close closes the store and the connections for reading.
func (d *Database) Close() error {
	if !d.owned {
		return d.Store.Close()
	}
	return errors.Join(d.reads.Close(), d.Store.Close())
}

// Option changes how a store is opened.
type Option func(*options)

// options are the settings of all options.
type options struct {
	clock    func() time.Time
	logger   *slog.Logger
	manual   bool
	readOnly bool
}

// WithClock sets the clock of a store that uses the clock of its process, which is SQLite. Default: [time.Now].
func WithClock(now func() time.Time) Option { return func(o *options) { o.clock = now } }

// WithLogger sets the logger for warnings of the store and the front. Default: [slog.Default].
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// WithManualMigration leaves the tables of a database unchanged. Tables that are missing, or have another version than
// this program needs, are refused: the error wraps [store.ErrSchemaMissing], [store.ErrSchemaOlder] or
// [store.ErrSchemaNewer]. Redis has no tables; on DynamoDB a missing table is refused. Default: opening the store
// creates or updates the tables.
func WithManualMigration() Option { return func(o *options) { o.manual = true } }

// ReadOnly opens a store for reading only: its writes return [store.ErrReadOnly]. It leaves tables unchanged, as
// [WithManualMigration] does, and does not use a front. A user who may only read the database, or the table of
// DynamoDB, is enough. On Redis the user needs the rights of the service, because reading runs scripts. Default: the
// store can be written.
func ReadOnly() Option { return func(o *options) { o.readOnly = true } }

// maxReads is the largest number of connections for reading, so that they leave room for the connections of the store.
const maxReads = 8

// Open opens the database at a URL, PostgreSQL, MySQL or SQLite, with a front before it if the URL names one.
func Open(ctx context.Context, url string, with ...Option) (*Database, error) {
	var o options
	for _, option := range with {
		option(&o)
	}
	at, err := parseDatabase(url)
	if err != nil {
		return nil, err
	}
	db, err := openDatabase(ctx, &at, o)
	if err != nil || at.Front == "" || o.readOnly { // the database contains what the front contains
		return db, err
	}
	if db.Store, err = withFront(ctx, db.Store, at.Front, o); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Closer is a store that can be closed.
type Closer interface {
	store.Store
	io.Closer
}

// OpenStore opens the store at a URL: a database, as [Open] does, or a store on Redis or DynamoDB, which have no SQL
// transactions.
func OpenStore(ctx context.Context, url string, with ...Option) (Closer, error) {
	at, err := Parse(url)
	if err != nil {
		return nil, err
	}
	var o options
	for _, option := range with {
		option(&o)
	}
	switch at.Engine {
	case Redis:
		return openRedis(ctx, url, o)
	case DynamoDB:
		return openDynamoDB(ctx, at.URL, o)
	}
	db, err := Open(ctx, url, with...)
	if err != nil {
		return nil, err // not db: a nil *Database is not nil as a Closer
	}
	return db, nil
}

func openRedis(ctx context.Context, url string, o options) (Closer, error) {
	url, redisOptions, err := o.redis(url)
	if err != nil {
		return nil, err
	}
	if o.readOnly {
		redisOptions = append(redisOptions, redis.WithReadOnly())
	}
	s, err := redis.Open(ctx, url, redisOptions...)
	if err != nil {
		return nil, err
	}
	if o.readOnly {
		return readOnly(s), nil
	}
	return s, nil
}

var (
	errFrontOfOther = errors.New("storeurl: a front is for a database, postgres://…, mysql://… or sqlite:PATH: " +
		"Redis and DynamoDB need no cache before them, so leave the parameter front out")
	errNoTransactions = errors.New("storeurl: Redis and DynamoDB have no transactions of SQL, which this program needs: " +
		"use postgres://…, mysql://… or sqlite:PATH, and Redis in front of it by ?front=redis://…")
)

func openDatabase(ctx context.Context, at *Location, o options) (*Database, error) {
	switch at.Engine {
	case Postgres:
		return openPostgres(ctx, at, o)
	case MySQL:
		return openMySQL(ctx, at, o)
	default:
		return openSQLite(ctx, at.URL, o)
	}
}

func openPostgres(ctx context.Context, at *Location, o options) (*Database, error) {
	// sql.Open would pass the parameters of the pool, such as pool_max_conns, to the server, which refuses them.
	parsed, err := postgres.PoolConfig(at.URL)
	if err != nil {
		return nil, fmt.Errorf("storeurl: %w", err)
	}
	options := at.tables()
	if at.SyncReplicasOnly {
		options = append(options, postgres.WithSyncReplicasOnly())
	}
	if o.logger != nil {
		options = append(options, postgres.WithLogger(o.logger))
	}
	if o.manual {
		options = append(options, postgres.WithManualMigration())
	}
	if o.readOnly {
		options = append(options, postgres.WithReadOnly())
	}
	store, err := postgres.Open(ctx, at.URL, options...)
	if err != nil {
		return nil, err
	}
	reads := stdlib.OpenDB(*parsed.ConnConfig)
	reads.SetMaxOpenConns(maxReads)
	reads.SetMaxIdleConns(maxReads)
	return &Database{
		Store: store, engine: Postgres, reads: reads, owned: true,
		countColumns: `SELECT count(*) FROM pg_attribute
			WHERE attrelid = to_regclass($1) AND attname = $2 AND attnum > 0 AND NOT attisdropped`,
	}, nil
}

func openSQLite(ctx context.Context, path string, o options) (*Database, error) {
	var options []sqlite.Option
	if o.logger != nil {
		options = append(options, sqlite.WithLogger(o.logger))
	}
	if o.clock != nil {
		options = append(options, sqlite.WithClock(o.clock))
	}
	if o.manual {
		options = append(options, sqlite.WithManualMigration())
	}
	if o.readOnly {
		options = append(options, sqlite.WithReadOnly())
	}
	store, err := sqlite.Open(ctx, path, options...)
	if err != nil {
		return nil, err
	}
	return &Database{
		Store: store, engine: SQLite, reads: store.DB(),
		countColumns: `SELECT count(*) FROM pragma_table_info($1) WHERE name = $2`,
	}, nil
}
