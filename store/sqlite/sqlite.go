// Package sqlite keeps records in an SQLite file: the embedded default, for one machine. It is pure Go, survives
// crashes and power losses, and runs a handler's own writes in the same transaction as its claim and its answer.
//
// All writes go through one connection, in group commits: writes that arrive while a commit is on its way to the disk
// share the next commit. Reads, including replays, use connections of their own. Business tables are in the same file:
// create them and write to them with [Store.Update], or inside a transactional handler with [onceward.Tx]; read them
// with [Store.DB]. Messages of an outbox and events of an inbox are added in the same transactions.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// Store implements all of these interfaces.
var (
	_ store.Store                = (*Store)(nil)
	_ store.Transactor           = (*Store)(nil)
	_ store.TxCheckpointer       = (*Store)(nil)
	_ store.Waiter               = (*Store)(nil)
	_ store.Sweeper              = (*Store)(nil)
	_ store.Reaper               = (*Store)(nil)
	_ store.Reconciler           = (*Store)(nil)
	_ store.Buster               = (*Store)(nil)
	_ store.Lister               = (*Store)(nil)
	_ store.LateCompletionKeeper = (*Store)(nil)
	_ store.ExternalEventKeeper  = (*Store)(nil)
	_ store.Auditor              = (*Store)(nil)
	_ store.AuditLister          = (*Store)(nil)
	_ store.ExecutionAuditor     = (*Store)(nil)
	_ store.Rewriter             = (*Store)(nil)
	_ store.Finder               = (*Store)(nil)
	_ store.Retainer             = (*Store)(nil)
	_ outbox.Store               = (*Store)(nil)
	_ outbox.AnswerStore         = (*Store)(nil)
	_ inbox.Store                = (*Store)(nil)
	_ natural.Store              = (*Store)(nil)
)

// Store is a [store.Store] in an SQLite file. Several processes on one machine may open the same file.
type Store struct {
	store.Methods
	now      func() time.Time
	busy     time.Duration
	manual   bool
	readOnly bool
	vfs      string
	logger   *slog.Logger

	writer  *writer
	readers *readers
	db      *sql.DB
	waits   sqltx.Waits
	flights sqltx.Flights
}

// Option configures a store that is being opened.
type Option func(*Store)

// WithClock sets the function that returns the time. Default: [time.Now].
func WithClock(now func() time.Time) Option {
	return func(s *Store) { s.now = now }
}

// WithBusyTimeout sets how long a write waits for another process
// that has locked the file, an hour at most. Default: 5 s.
func WithBusyTimeout(d time.Duration) Option {
	return func(s *Store) { s.busy = d }
}

// WithManualMigration leaves the tables unchanged when the store is opened. Opening fails if the file or its tables are
// missing, or have another version than this program needs. Call [Migrate], or run the script that [PlainSQL] returns.
// Default: opening brings the tables up to date.
func WithManualMigration() Option {
	return func(s *Store) { s.manual = true }
}

// WithReadOnly opens the file for reading only: the store's writes return
// [store.ErrReadOnly]. It leaves the tables unchanged, as [WithManualMigration] does, and
// needs only the permission to read the file, even while another process has it open.
func WithReadOnly() Option {
	return func(s *Store) { s.readOnly = true }
}

// WithVFS opens the path by a VFS that the program has registered with the driver, and not as a
// file of the system. It is for tests, with a VFS that keeps the content in memory. The VFS must
// let readers continue beside a writer, as the driver's "mvcc" does, because the store does not
// require a write-ahead log there. Its content is as durable as the VFS makes it. Default: files.
func WithVFS(name string) Option {
	return func(s *Store) { s.vfs = name }
}

// WithLogger sets the logger for warnings. Default: [slog.Default].
func WithLogger(logger *slog.Logger) Option { return func(s *Store) { s.logger = logger } }

const (
	defaultBusyTimeout = 5 * time.Second
	longestBusyTimeout = time.Hour
)

// Open opens the file at path. It creates the file and its directory if they do not exist, readable for their owner
// only, and brings the tables up to date, unless [WithManualMigration] or [WithReadOnly] is set. It refuses a file that
// is damaged, is not an SQLite database, or was written by a newer version that this one cannot work with.
func Open(ctx context.Context, path string, options ...Option) (*Store, error) {
	s := &Store{now: time.Now, busy: defaultBusyTimeout, logger: slog.Default()}
	for _, option := range options {
		option(s)
	}
	if s.busy < 0 || s.busy > longestBusyTimeout {
		return nil, fmt.Errorf("sqlite: open %s: a busy timeout of %s: the limits are 0 and %s", path, s.busy,
			longestBusyTimeout)
	}
	if s.vfs != "" && (s.manual || s.readOnly) {
		return nil, fmt.Errorf("sqlite: open %s: WithVFS is for a store that makes its own tables", path)
	}
	if s.manual || s.readOnly {
		status, err := Status(ctx, path)
		if err == nil {
			err = status.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("sqlite: open %s: %w", path, err)
		}
	}
	file, err := s.prepareFile(path)
	if err != nil {
		return nil, err
	}
	if err := s.open(ctx, file); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open %s: %w", path, err), s.Close())
	}
	return s, nil
}

// prepareFile returns the path or the address that the connections open.
func (s *Store) prepareFile(path string) (string, error) {
	switch {
	case s.vfs != "":
		return vfsAddress(path, s.vfs), nil
	case s.readOnly:
		return readOnlyAddress(path)
	default:
		return createFile(path)
	}
}

func (s *Store) open(ctx context.Context, file string) (err error) {
	if s.readOnly {
		s.writer = &writer{refuses: fmt.Errorf("sqlite: %w", store.ErrReadOnly)}
	} else if s.writer, err = openWriter(ctx, file, s.vfs == "", s.busy, s.now, s.logger); err != nil {
		return err
	}
	s.Apply = s.change
	s.writer.committed = s.waits.Wake
	if s.readers, err = openReaders(file, s.busy); err != nil {
		return err
	}
	s.db, err = openReadOnly(file, s.busy)
	return err
}

// Close completes the queued writes and closes the file.
func (s *Store) Close() error {
	var errs []error
	if s.writer != nil {
		errs = append(errs, s.writer.close())
	}
	if s.readers != nil {
		errs = append(errs, s.readers.close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	return errors.Join(errs...)
}

// DB returns a pool for reading business tables. Its connections refuse to write. Writes go through [Store.Update] or a
// transactional handler, so that they share the one writer instead of competing with it for the file's lock.
func (s *Store) DB() *sql.DB { return s.db }

// Handle returns a handle of [Store.DB]. The handle uses the transaction of the guard if the context carries one, and
// reads otherwise. Repositories use it in place of a *sql.DB, without other changes.
func (s *Store) Handle() *store.SQLHandle { return store.NewSQLHandle(s.db) }

// Reserve implements [store.Store]. A reservation that needs no write is answered by a reader.
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	v, answered, err := s.decide(ctx, r)
	if err != nil || answered {
		return v, err
	}
	t := newTask(r.ID, store.Event{Kind: store.EventReserve, Reservation: r})
	t.absent = v.Record.State == store.StateNone
	if err := s.writer.do(ctx, t); err != nil {
		return store.Verdict{}, err
	}
	return t.Verdict(), nil
}

// decide answers a reservation that changes nothing, so that a replay never waits for the writer. If the reservation
// changes something, decide returns the record as it was read.
func (s *Store) decide(ctx context.Context, r *store.Reservation) (v store.Verdict, answered bool, err error) {
	now := s.now()
	rec, err := s.readers.get(ctx, r.ID)
	if err != nil {
		return v, false, err
	}
	event := store.Event{Kind: store.EventReserve, Reservation: r, Token: now.UnixMicro()}
	after, outcome, err := store.Step(rec, event, now)
	if err != nil {
		return v, false, err
	}
	if outcome.Effect == store.EffectNone {
		return store.Verdict{Decision: outcome.Decision, Origin: outcome.Origin, Record: after, Now: now}, true, nil
	}
	if s.InFlight(r.ID) {
		return store.Verdict{Decision: store.DecisionInProgress, Now: now}, true, nil
	}
	return store.Verdict{Record: rec}, false, nil
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.readers.get(ctx, id)
	if err == nil && rec.State == store.StateNone {
		err = store.ErrNotFound
	}
	return rec, err
}

// change applies an event in a commit of the writer.
func (s *Store) change(ctx context.Context, id store.ID, event store.Event) (store.Applied, error) {
	t := newTask(id, event)
	if err := s.writer.do(ctx, t); err != nil {
		return store.Applied{}, err
	}
	return t.Applied, nil
}
