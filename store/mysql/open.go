package mysql

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// Open connects to the database at a URL, such as mysql://user:password@host1:3306,host2:3306/database, or by a data
// source name of the driver. It creates or updates the tables, unless [WithManualMigration] or [WithReadOnly] is set.
// Of several hosts it uses the first that accepts writes, and another one when that host fails. It logs a warning if
// the server is configured in a way that can lose commits.
func Open(ctx context.Context, url string, options ...Option) (*Store, error) {
	return open(ctx, nil, url, options)
}

// New returns a store that runs transactional handlers on connections of db. The caller closes db, after the store. For
// everything else the store opens a few connections of its own to the URL, which leads to the same database: a *sql.DB
// does not reveal how it connects, and settling must not wait for a connection that a handler holds.
//
// Transactions leave a quarter of db free, at least one connection of several,
// for the queries of handlers outside of their transactions: see [DB].
func New(ctx context.Context, db *sql.DB, url string, options ...Option) (*Store, error) {
	return open(ctx, db, url, options)
}

func open(ctx context.Context, handlers *sql.DB, url string, with []Option) (*Store, error) {
	s, err := openServer(ctx, url, with)
	if err != nil {
		return nil, fmt.Errorf("mysql: open: %w", err)
	}
	if s.handlers = handlers; handlers == nil {
		err = s.openHandlers()
	}
	if err == nil {
		err = s.openTransactions(ctx)
	}
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mysql: open: %w", err), s.Close())
	}
	return s, nil
}

// openServer opens the store's own connections, and finds out which database the tables belong to.
func openServer(ctx context.Context, url string, with []Option) (*Store, error) {
	s := &Store{options: defaults()}
	s.Apply = s.settle
	for _, option := range with {
		option(&s.options)
	}
	s.logger = s.options.logger
	where, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	connector, err := newConnector(where, s.tuneOwn, setIsolation, setSession)
	if err != nil {
		return nil, err
	}
	s.location, s.own = where, openPool(connector, &s.options)
	if err := s.findTables(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// findTables finds out which database the tables belong to.
func (s *Store) findTables(ctx context.Context) error {
	where := names{prefix: s.options.prefix, clock: serverClock}
	if err := sqltx.CheckPrefix("mysql", where.prefix); err != nil {
		return err
	}
	var database sql.NullString
	if err := s.own.QueryRowContext(ctx, `SELECT DATABASE()`).Scan(&database); err != nil {
		return err
	}
	if !database.Valid {
		return errors.New("the URL names no database")
	}
	where.database = database.String
	s.where.Store(&rendering{names: where})
	return nil
}

// rendering keeps the statements with the names of the tables put in.
type rendering struct {
	names    names
	rendered sync.Map // the rendered texts, by their texts in the program
}

func (s *Store) start(ctx context.Context) error {
	if err := s.checkDurability(ctx); err != nil {
		return err
	}
	if !s.options.manual && !s.options.readOnly {
		if err := s.migrate(ctx); err != nil {
			return err
		}
	}
	status, err := s.status(ctx)
	if err == nil {
		err = status.Err()
	}
	if err == nil && !s.opened && !s.options.readOnly {
		err = s.proveSameServer(ctx)
	}
	return err
}

const (
	writeProof = `INSERT INTO @lock (name, number) VALUES (?, ?)`
	readProof  = `SELECT l.number FROM @lock l WHERE l.name = ?`
	// proofWait is how long a cluster node may take to have what another node has committed.
	proofWait = 5 * time.Second
	// selectServer reads which server it is, and of which cluster. SHOW also works if a variable does not exist.
	selectServer = `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid', 'hostname', 'port', 'server_id',
		'wsrep_on', 'wsrep_cluster_name', 'group_replication_group_name')`
)

// identity holds the variables that identify a server.
type identity map[string]string

func (i identity) String() string {
	return fmt.Sprintf("%s:%s, server %s", i["hostname"], i["port"], i["server_id"])
}

// clusterOf reports whether two servers are nodes of one cluster, in which each node gets the commits of the others.
func (i identity) clusterOf(other identity) bool {
	group, galera := "group_replication_group_name", "wsrep_cluster_name"
	return i[group] != "" && i[group] == other[group] ||
		i["wsrep_on"] == "ON" && other["wsrep_on"] == "ON" && i[galera] == other[galera]
}

// proveSameServer checks that the connections of handlers and the store's own connections lead to the same tables: to
// one server, or to nodes of one cluster. A row that is written on one connection must be readable on the other. If the
// servers are not in one cluster, reading the row does not prove that they are the same server, because a replica has
// the row a moment later. So their identities are compared too.
func (s *Store) proveSameServer(ctx context.Context) error {
	number := newRevision()
	name := lockOf("proof", binary.BigEndian.AppendUint64(nil, uint64(newRevision())))
	own := make(identity)
	err := s.with(ctx, func(conn *sql.Conn) error {
		if err := own.read(ctx, conn); err != nil {
			return err
		}
		_, err := conn.ExecContext(ctx, s.render(writeProof), name, number)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _, _ = s.exec(ctx, deleteClaim, name) }() // a row that stays does no harm
	reading, cancel := context.WithTimeout(ctx, proofWait)
	defer cancel()
	read := stmt(s.render(readProof), name)
	for n := 1; ; n++ {
		joined, err := s.readProof(reading, read.literal(), number, own)
		if err == nil {
			return nil
		}
		if !joined || !errors.Is(err, sql.ErrNoRows) ||
			!backoff.Sleep(reading, backoff.Exponential(askPause, maxAskPause, n)) {
			return fmt.Errorf("the *sql.DB and the URL do not lead to one server and one database: %w", err)
		}
	}
}

// readProof reads the row in a transaction, as a handler does: a proxy in between leads transactions to the server that
// accepts writes. It reports whether the two servers are nodes of one cluster, where the row may arrive later.
func (s *Store) readProof(ctx context.Context, read string, number int64, own identity) (joined bool, err error) {
	tx, err := s.handlers.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	found, server := int64(0), make(identity)
	if err := server.read(ctx, tx); err != nil {
		return false, err
	}
	joined = own.clusterOf(server)
	if !joined && !maps.Equal(own, server) {
		return false, fmt.Errorf("the URL leads to %s, and the *sql.DB to %s", own, server)
	}
	if err = tx.QueryRowContext(ctx, read).Scan(&found); err == nil && found != number {
		err = sql.ErrNoRows
	}
	if err != nil {
		err = fmt.Errorf("what was written at the URL is not found through the *sql.DB: %w", err)
	}
	return joined, err
}

// read reads the variables of a server.
func (i identity) read(ctx context.Context, on interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
},
) error {
	clear(i)
	rows, err := on.QueryContext(ctx, selectServer)
	if err != nil {
		return err
	}
	for rows.Next() {
		var name, value string
		err = errors.Join(err, rows.Scan(&name, &value))
		i[name] = value
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// Close closes the connections that the store opened. Work that is under way keeps its connection until it ends.
func (s *Store) Close() error {
	s.closed.Store(true)
	// Errors are ignored: they mean that a connection was already dead.
	s.closeTransactions()
	_ = s.own.Close()
	return nil
}

var errClosed = errors.New("the store is closed")

// ready returns an error if the store is closed.
func (s *Store) ready() error {
	if s.closed.Load() {
		return unavailable(errClosed)
	}
	return nil
}

// writable returns an error if the store is closed, or was opened read-only.
func (s *Store) writable() error {
	if s.options.readOnly {
		return fmt.Errorf("mysql: %w", store.ErrReadOnly)
	}
	return s.ready()
}

// Option configures a store that is being opened.
type Option func(*options)

type options struct {
	prefix       string
	manual       bool
	readOnly     bool
	strict       bool
	syncReplicas bool
	connections  int
	migrations   sqltx.Migrations
	// spread means that each call makes a connection of its own, to each host in turn.
	spread bool
	logger *slog.Logger
}

func defaults() options {
	return options{
		prefix: sqltx.DefaultPrefix, connections: defaultConnections, migrations: sqltx.NewMigrations(Migrations()),
		logger: slog.Default(),
	}
}

// defaultConnections is the most connections of a pool, by default.
// Commits on several connections share their waits for the disk.
const defaultConnections = 32

// WithTablePrefix sets the prefix of the names of tables. Default: onceward_.
func WithTablePrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithManualMigration leaves the tables unchanged when the store is opened. Opening fails if they are missing or have
// another version than this program needs. Call [Migrate] when you deploy, apply [Migrations] with a tool of your own,
// or run the script that [PlainSQL] returns. Default: opening brings the tables up to date.
func WithManualMigration() Option { return func(o *options) { o.manual = true } }

// WithReadOnly opens the store for reading only: its writes return [store.ErrReadOnly]. It leaves the tables unchanged,
// as [WithManualMigration] does, and needs only the privilege to SELECT from them.
func WithReadOnly() Option { return func(o *options) { o.readOnly = true } }

// WithStrictDurability makes opening fail if a crash or a fail-over of the
// server can lose commits that it has acknowledged. Default: a warning.
func WithStrictDurability() Option { return func(o *options) { o.strict = true } }

// WithSyncReplicasOnly makes opening fail if a fail-over of the server can lose
// commits that it has acknowledged: if it has replicas and does not wait for them.
// Galera and group replication wait. Default: a warning, if the replicas can be seen.
func WithSyncReplicasOnly() Option { return func(o *options) { o.syncReplicas = true } }

// WithConnections sets the most connections of the store's own pool,
// and of the pool for handlers if the store opens it. Default: 32.
func WithConnections(n int) Option { return func(o *options) { o.connections = max(n, 1) } }

// WithLogger sets the logger for warnings. Default: [slog.Default].
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }
