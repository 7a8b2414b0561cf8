// Package postgres keeps records in PostgreSQL: the reference store for production.
//
// A transactional handler's writes, its claim and its answer are one database transaction, whose claim costs no round trip
// of its own: it rides with BEGIN and COMMIT. Reserved mode decides with one statement, and gathers what concurrent callers
// ask into one statement for all of them.
//
//	store, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
//
// Handlers take their transaction with [Tx], as a pgx.Tx, or with [onceward.Tx], as a *sql.Tx: both work on every store of
// this package. [New] shares a pool of pgx with the application, [NewSQL] a *sql.DB.
package postgres

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward"
)

// The store promises all of these.
var (
	_ onceward.Store         = (*Store)(nil)
	_ onceward.Transactor    = (*Store)(nil)
	_ onceward.Waiter        = (*Store)(nil)
	_ onceward.Sweeper       = (*Store)(nil)
	_ onceward.Reaper        = (*Store)(nil)
	_ onceward.Reconciler    = (*Store)(nil)
	_ onceward.Buster        = (*Store)(nil)
	_ onceward.Lister        = (*Store)(nil)
	_ onceward.FindingKeeper = (*Store)(nil)
)

// Store is an [onceward.Store] in PostgreSQL. Any number of processes may use the same tables.
type Store struct {
	options options
	logger  *slog.Logger

	// handlers lends the connections of transactions. opened is the pool behind it if the store opened that itself.
	handlers source
	opened   *pgxpool.Pool
	// own is for everything else, so that settling never waits for a connection that a handler holds.
	own *pgxpool.Pool
	// asking is for finding out what became of a commit, which may mean to wait for a server that is gone.
	asking *pgxpool.Pool

	names names
	sql   statements
	// unnamed says that connections cannot keep prepared statements.
	unnamed bool
	// usual says that a plain BEGIN does.
	usual bool
	// idle is the bound on idle transactions that the connections of handlers have by themselves.
	idle       time.Duration
	channel    string
	secret     atomic.Pointer[[]byte] // what hashes are keyed with; nil until the tables are there
	closed     atomic.Bool
	preparing  sync.Mutex
	operations *operations
	batches    *batcher
	bridge     *bridge
	waits      *watcher

	mu       sync.Mutex
	inFlight map[onceward.ID]chan struct{}
}

// Open connects to the database at a URL (or a keyword/value string, as libpq takes them) and creates or updates its
// tables. It logs a warning if the server is configured to lose commits.
func Open(ctx context.Context, url string, options ...Option) (*Store, error) {
	pool, err := openHandlers(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("postgres: open: %w", err)
	}
	s, err := New(ctx, pool, options...)
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
func openHandlers(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	return openTuned(ctx, config, idleParameter, openedIdle)
}

// openTuned opens a pool whose connections have a parameter, unless they have it already or a pooler does not let them.
func openTuned(ctx context.Context, config *pgxpool.Config, parameter, value string) (*pgxpool.Pool, error) {
	if config.ConnConfig.RuntimeParams[parameter] != "" {
		return pgxpool.NewWithConfig(ctx, config)
	}
	tuned := config.Copy()
	tuned.ConnConfig.RuntimeParams[parameter] = value
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

// New makes a store that runs transactional handlers on connections of the pool. The pool stays the caller's to close, after
// the store. For everything else the store opens a few connections of its own in the same way as the pool does.
func New(ctx context.Context, pool *pgxpool.Pool, options ...Option) (*Store, error) {
	return open(ctx, newPoolSource(pool), options)
}

// NewSQL makes a store that runs transactional handlers on connections of db, which must use the driver of
// github.com/jackc/pgx/v5/stdlib. It stays the caller's to close, after the store. For everything else the store opens a
// few connections of its own with the same settings.
func NewSQL(ctx context.Context, db *sql.DB, options ...Option) (*Store, error) {
	return open(ctx, sqlSource{db}, options)
}

func open(ctx context.Context, handlers source, chosen []Option) (*Store, error) {
	s := &Store{options: defaults(), handlers: handlers, inFlight: make(map[onceward.ID]chan struct{})}
	for _, option := range chosen {
		option(&s.options)
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
	if s.own, err = openOwn(ctx, config, &s.options); err != nil {
		return err
	}
	if s.asking, err = openOwn(ctx, config, &options{lanes: askingConnections - spareConnections}); err != nil {
		return err
	}
	if err := s.place(ctx); err != nil {
		return err
	}
	if err := s.checkDurability(ctx); err != nil {
		return err
	}
	s.channel = s.names.channel()
	s.sql = prepareStatements(s.names, s.channel, s.usual)
	s.operations = newOperations(s.own, s.names)
	s.unnamed = config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement
	s.batches = &batcher{
		pool: s.own, statements: s.sql.batch, unnamed: s.unnamed, lanes: s.options.lanes, largest: maxBatch, worth: laneWorth,
	}
	if s.options.individual {
		s.batches.lanes, s.batches.largest, s.batches.worth = int(s.own.Config().MaxConns), 1, 1
	}
	s.bridge = newBridge()
	s.waits = newWatcher(s, config.ConnConfig)
	return s.prepareTables(ctx)
}

// openOwn opens the pool that settles.
func openOwn(ctx context.Context, config *pgxpool.Config, o *options) (*pgxpool.Pool, error) {
	own := config.Copy()
	own.MaxConns = int32(o.lanes) + spareConnections
	if o.individual {
		own.MaxConns = max(own.MaxConns, config.MaxConns)
	}
	own.MinConns, own.MinIdleConns = 0, 0
	// What is sent on these connections can be repeated when one turns out dead: asking first would double the trips of a
	// caller who is alone.
	own.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	if o.lockTimeout == "" {
		return pgxpool.NewWithConfig(ctx, own)
	}
	return openTuned(ctx, own, "lock_timeout", o.lockTimeout)
}

const (
	// spareConnections are for what does not go through a batch.
	spareConnections = 4
	// askingConnections are those for finding out what became of commits. They are opened when they are needed.
	askingConnections = 8
)

// selectSession asks how connections are set up: the bound on idle transactions, and whether a plain BEGIN begins what is
// needed, on a server that tells when it turns into a standby.
const selectSession = `SELECT setting::bigint,
		current_setting('default_transaction_isolation') = 'read committed' AND current_setting('default_transaction_read_only') = 'off'
		AND current_setting('server_version_num')::integer >= 140000
	FROM pg_settings WHERE name = $1`

// place finds out in which schema the tables are, and how the connections are bounded.
func (s *Store) place(ctx context.Context) error {
	var idle int64
	err := s.own.QueryRow(ctx, selectSession, idleParameter).Scan(&idle, &s.usual)
	if err != nil {
		return err
	}
	s.idle = time.Duration(idle) * time.Millisecond
	s.names = names{schema: s.options.schema, prefix: s.options.prefix}
	if s.names.schema == "" {
		if err := s.own.QueryRow(ctx, `SELECT coalesce(current_schema(), '')`).Scan(&s.names.schema); err != nil {
			return err
		}
	}
	if err := s.names.check(); err != nil {
		return err
	}
	var exists bool
	err = s.own.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, pgx.Identifier{s.names.schema}.Sanitize()).Scan(&exists)
	if err == nil && !exists {
		err = fmt.Errorf("there is no schema %q: create it first", s.names.schema)
	}
	return err
}

// prepareTables brings the tables up to date, unless the user does that, and reads what the store needs of them.
func (s *Store) prepareTables(ctx context.Context) error {
	if s.options.manual {
		missing, err := s.tablesMissing(ctx)
		if err != nil || missing {
			return err // without tables every call fails and says so, until Migrate has been called
		}
		return s.readTables(ctx)
	}
	return s.Migrate(ctx)
}

// readTables reads what every record's name is derived with, and the operations.
func (s *Store) readTables(ctx context.Context) error {
	if err := s.checkVersion(ctx); err != nil {
		return err
	}
	var secret []byte
	if err := s.own.QueryRow(ctx, s.names.render(`SELECT value FROM @secret`)).Scan(&secret); err != nil {
		return fmt.Errorf("read the secret of the tables: %w", err)
	}
	if err := s.operations.load(ctx); err != nil {
		return err
	}
	s.secret.Store(&secret)
	return nil
}

// ready refuses a store that is closed, or whose tables are not there yet. Tables that somebody else has made since are
// noticed.
func (s *Store) ready(ctx context.Context) error {
	if s.closed.Load() {
		return unavailable(errClosed)
	}
	if s.secret.Load() != nil {
		return nil
	}
	s.preparing.Lock()
	defer s.preparing.Unlock()
	if s.secret.Load() != nil {
		return nil
	}
	missing, err := s.tablesMissing(ctx)
	if err == nil && missing {
		err = errors.New("there are no tables: call Migrate, or apply Migrations")
	}
	if err == nil {
		err = s.readTables(ctx)
	}
	return unavailable(err)
}

// Close ends what is under way and closes the connections that the store opened.
func (s *Store) Close() error {
	s.closed.Store(true)
	if s.batches != nil {
		s.batches.close()
	}
	if s.waits != nil {
		s.waits.close()
	}
	if s.bridge != nil {
		s.bridge.close()
	}
	if s.own != nil {
		s.own.Close()
	}
	if s.asking != nil {
		s.asking.Close()
	}
	if s.opened != nil {
		s.opened.Close()
	}
	return nil
}

// hash names the record of an ID.
func (s *Store) hash(id onceward.ID) (hash [16]byte) {
	b := make([]byte, 0, 128)
	b = id.AppendBinary(append(b, *s.secret.Load()...))
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// RecordID returns what names the record of an ID in the column id of the table of records, as a UUID in its text form.
// A table of the application may refer to it; see the guide on PostgreSQL. It is empty as long as there are no tables.
func (s *Store) RecordID(id onceward.ID) string {
	if s.secret.Load() == nil {
		return ""
	}
	h := s.hash(id)
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:])
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// Reserve implements [onceward.Store].
func (s *Store) Reserve(ctx context.Context, r *onceward.Reservation) (onceward.Verdict, error) {
	if err := s.checkReservation(ctx, r); err != nil {
		return onceward.Verdict{}, err
	}
	number, err := s.operations.number(ctx, r.Operation)
	if err != nil {
		return onceward.Verdict{}, err
	}
	for {
		t := reserveItem(r, s.hash(r.ID), number)
		if err := s.batches.do(ctx, t); err != nil {
			return onceward.Verdict{}, err
		}
		v, again, err := s.reserved(ctx, r, t)
		if !again {
			return v, err
		}
	}
}

// checkReservation refuses what the state machine would refuse.
func (s *Store) checkReservation(ctx context.Context, r *onceward.Reservation) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	_, _, err := onceward.Step(onceward.Record{}, onceward.Event{Kind: onceward.EventReserve, Reservation: r, Token: 1}, time.Now())
	return err
}

// reserved is the verdict on a reservation. A record that somebody else made or changed at the same moment is looked at
// again. Where the record that was found has to be changed in a way that the batch
// does not know, that is done on its own; if it has gone in between, the batch decides again.
func (s *Store) reserved(ctx context.Context, r *onceward.Reservation, t *item) (v onceward.Verdict, again bool, err error) {
	v.Now = fromMicros(t.now)
	switch t.outcome {
	case outcomeAgain:
		return v, true, nil
	case outcomeAbsent:
		v.Decision = onceward.DecisionRefused
		return v, t.look && t.create, nil
	case outcomeCreated, outcomeRecreated, outcomeRetried:
		v.Decision = onceward.DecisionExecute
		v.Record, v.Origin, err = t.granted(r)
		return v, false, err
	}
	event := onceward.Event{Kind: onceward.EventReserve, Reservation: r, Token: 1}
	rec, err := t.found.record(r.ID, s.operations.name)
	if err != nil {
		return v, false, err
	}
	after, outcome, err := onceward.Step(rec, event, v.Now)
	if err != nil {
		return v, false, err
	}
	if outcome.Effect == onceward.EffectNone {
		v.Decision, v.Origin, v.Record = outcome.Decision, outcome.Origin, after
		return v, false, nil
	}
	if t.look {
		return v, true, nil
	}
	existing := *r
	existing.NoCreate = true
	event.Reservation = &existing
	c, err := s.change(ctx, r.ID, event)
	if err == nil && c.outcome.Decision == onceward.DecisionRefused && !r.NoCreate {
		return v, true, nil
	}
	return onceward.Verdict{Decision: c.outcome.Decision, Origin: c.outcome.Origin, Record: c.after, Now: c.now}, false, err
}

// Extend implements [onceward.Store].
func (s *Store) Extend(ctx context.Context, c onceward.Claim, lease time.Duration) error {
	event := onceward.Event{Kind: onceward.EventExtend, Attempt: c.Attempt, Lease: lease}
	if err := s.ready(ctx); err != nil {
		return err
	}
	if lease < time.Microsecond {
		_, err := s.change(ctx, c.ID, event)
		return err
	}
	_, err := s.ownerWrite(ctx, c.ID, extendItem(s.hash(c.ID), c.Attempt, lease), event)
	return err
}

// Complete implements [onceward.Store].
func (s *Store) Complete(ctx context.Context, c onceward.Claim, done *onceward.Completion) (time.Time, error) {
	event := onceward.Event{Kind: onceward.EventComplete, Attempt: c.Attempt, Completion: done}
	if err := s.ready(ctx); err != nil {
		return time.Time{}, err
	}
	if done == nil || done.Response.Status < 200 || done.Response.Status > 999 {
		_, err := s.change(ctx, c.ID, event)
		return time.Time{}, err
	}
	return s.ownerWrite(ctx, c.ID, completeItem(s.hash(c.ID), c.Attempt, done), event)
}

// ownerWrite is an owner's write through the batcher. Where the batch did not write, the state machine says why, or does it.
func (s *Store) ownerWrite(ctx context.Context, id onceward.ID, t *item, event onceward.Event) (time.Time, error) {
	if err := s.batches.do(ctx, t); err != nil {
		return time.Time{}, err
	}
	if t.outcome != outcomeWritten {
		c, err := s.change(ctx, id, event)
		if err != nil {
			return time.Time{}, err
		}
		t.found.due = micros(c.after.ExpiresAt)
	}
	if t.kind == kindComplete {
		s.waits.settled(t.id)
	}
	return fromMicros(t.found.due), nil
}

// Checkpoint implements [onceward.Store].
func (s *Store) Checkpoint(ctx context.Context, c onceward.Claim, p onceward.Checkpoint) error {
	_, err := s.change(ctx, c.ID, onceward.Event{Kind: onceward.EventCheckpoint, Attempt: c.Attempt, Checkpoint: p})
	return err
}

// Release implements [onceward.Store].
func (s *Store) Release(ctx context.Context, c onceward.Claim, reason string) error {
	return s.settle(ctx, c.ID, onceward.Event{Kind: onceward.EventRelease, Attempt: c.Attempt, Reason: reason})
}

// Abandon implements [onceward.Store].
func (s *Store) Abandon(ctx context.Context, c onceward.Claim, reason string) error {
	return s.settle(ctx, c.ID, onceward.Event{Kind: onceward.EventAbandon, Attempt: c.Attempt, Reason: reason})
}

// settle applies an event after which nobody waits for the record any more.
func (s *Store) settle(ctx context.Context, id onceward.ID, event onceward.Event) error {
	_, err := s.change(ctx, id, event)
	if err == nil {
		s.waits.settled(s.hash(id))
	}
	return err
}

// Get implements [onceward.Store].
func (s *Store) Get(ctx context.Context, id onceward.ID) (onceward.Record, error) {
	rec, _, err := s.get(ctx, id)
	return rec, err
}
