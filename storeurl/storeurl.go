// Package storeurl opens the store that a URL names, so that a program runs on another one without a change:
//
//	postgres://user@host/database     PostgreSQL
//	mysql://user@host,host/database   MySQL, MariaDB, and Galera clusters of it; mariadb:// is the same
//	sqlite:PATH, or just a path       SQLite
//	redis://host:6379/0               Redis; rediss:// with TLS
//	redis+sentinel://host,host/NAME   Redis behind Sentinel; rediss+sentinel:// with TLS
//	redis+cluster://host,host         Redis Cluster; rediss+cluster:// with TLS
//
//	dynamodb://TABLE?region=REGION    DynamoDB; with &endpoint=URL where it is not that of the region
//
// [Open] takes databases, for programs with transactions of SQL. [OpenStore] takes all of them.
//
// The parameter front puts a cache on Redis before a database (see package tiered). It is the URL of that server,
// escaped with %XX, if it has a & # or % in it:
//
//	postgres://user@host/database?front=redis://host:6379/0
//	sqlite:store.db?front=rediss+cluster://host,host
//
// A circuit breaker goes between the two: open the database without a front, and stack them as docs/choosing-a-store.md
// shows.
//
// The parameters schema and prefix of a PostgreSQL say where its tables are and what their names begin with (see
// postgres.WithSchema and postgres.WithTablePrefix):
//
//	postgres://user@host/database?schema=app&prefix=pay_
//
// On MySQL the schema is the database itself, and prefix is the same (see mysql.WithTablePrefix).
//
// Several hosts of a PostgreSQL are tried in their order until one is the primary:
//
//	postgres://user@first:5432,second:5432/database
//
// The parameter sync_replicas_only of a PostgreSQL, a MySQL or a Redis refuses servers that could lose acknowledged
// answers at a fail-over (see postgres.WithSyncReplicasOnly, mysql.WithSyncReplicasOnly and redis.WithSyncReplicasOnly):
//
//	postgres://user@first,second/database?sync_replicas_only=true
//
// The parameter prefix of a Redis is what its keys begin with (see redis.WithPrefix). Databases that share a Redis as
// their front need one each, or they would answer for each other:
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

// Store is what every SQL store of this repository can do.
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

	// InTx runs work in a transaction, which work takes from its context with [onceward.Tx], and commits if it returns
	// nil.
	InTx(ctx context.Context, work func(ctx context.Context) error) error
	Close() error
}

// Database is a store, with a way to read the application's own tables in the same database.
type Database struct {
	Store
	engine Engine
	reads  *sql.DB
	// owned is set if the reading side is not closed with the store.
	owned bool
	// countColumns counts the columns of a table with a name: none or one.
	countColumns string
}

// Engine is the kind of database, for what one writes differently on each, such as types of columns.
func (d *Database) Engine() Engine { return d.engine }

// Reads is for reading tables of the application. Writes go through a transaction of the store.
func (d *Database) Reads() *sql.DB { return d.reads }

// Unwrap implements [store.Wrapper]: what belongs to one kind of database is found through it.
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

// options are what the options say.
type options struct {
	clock    func() time.Time
	logger   *slog.Logger
	manual   bool
	readOnly bool
}

// WithClock makes the store take its time from now where it has no clock of its own, which is SQLite. Default:
// [time.Now].
func WithClock(now func() time.Time) Option { return func(o *options) { o.clock = now } }

// WithLogger is where warnings of stores and a front go. Default: [slog.Default].
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// WithManualMigration leaves the tables of a database as they are, and refuses those that are missing or of another
// version than this program needs: the error wraps [store.ErrSchemaMissing], [store.ErrSchemaOlder] or
// [store.ErrSchemaNewer]. Redis has no tables; of DynamoDB a table that is missing is refused. Default: opening brings
// them up to date.
func WithManualMigration() Option { return func(o *options) { o.manual = true } }

// ReadOnly opens a store for looking only: its writes return [store.ErrReadOnly]. It leaves tables as they are, as
// [WithManualMigration] does, passes a front, and does with a user who may only read a database, or a table of
// DynamoDB. On Redis the user needs the rights of the service, because looking runs scripts. Default: the store can be
// written.
func ReadOnly() Option { return func(o *options) { o.readOnly = true } }

// maxReads bounds the connections for reading, so that they do not crowd out those of the store.
const maxReads = 8

// Open opens the database at a URL, PostgreSQL, MySQL or SQLite, behind a front if the URL names one.
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
	if err != nil || at.Front == "" || o.readOnly { // what the front holds is in the database
		return db, err
	}
	if db.Store, err = withFront(ctx, db.Store, at.Front, o); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Closer is a store that is closed when done.
type Closer interface {
	store.Store
	io.Closer
}

// OpenStore opens the store at a URL: what [Open] opens, and those on Redis and DynamoDB, which have no transactions of
// SQL.
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
		return nil, err // and not a nil *Database, which is not nil as a Closer
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
	// Not sql.Open: it would hand the parameters of the pool, such as pool_max_conns, on to the server, which refuses
	// them.
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
