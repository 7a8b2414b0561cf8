package world

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/chaos/internal/node"
	"github.com/onceward/onceward/internal/servicetest"
	"github.com/onceward/onceward/internal/storeurl"
)

// Stores are the kinds of durable stores that a run can take place on. One that is added joins all runs.
var Stores = []string{"sqlite", "postgres"}

// database is the store of a world, and what can happen to it.
type database interface {
	// url is what nodes open, and direct what can be opened past all faults.
	url() string
	direct() string
	// clockFile is the clock of a store that has none of its own.
	clockFile() string
	// setClock puts the store's clock off.
	setClock(ctx context.Context, offset time.Duration) error
	// busy tells what the database itself is at, for people; empty if there is nothing to tell.
	busy(ctx context.Context) string
	// faults are those that only this kind of database can have.
	faults() []Fault
	close() error
}

func openDatabase(ctx context.Context, w *World) (database, error) {
	switch w.Store {
	case "sqlite":
		return openFile(w)
	case "postgres":
		return openServer(ctx, w)
	default:
		return nil, fmt.Errorf("no store is called %q: use %s", w.Store, strings.Join(Stores, " or "))
	}
}

// file is an SQLite file. It fails by its machine: all processes die at once, or somebody keeps the file locked.
type file struct {
	world *World
	path  string
	clock string
}

func openFile(w *World) (database, error) {
	f := &file{world: w, path: filepath.Join(w.Dir, "payments.db"), clock: filepath.Join(w.Dir, "clock")}
	return f, node.SetClock(f.clock, 0)
}

func (f *file) url() string       { return f.path }
func (f *file) direct() string    { return f.path }
func (f *file) clockFile() string { return f.clock }
func (f *file) close() error      { return nil }

func (f *file) busy(context.Context) string { return "" }

func (f *file) setClock(_ context.Context, offset time.Duration) error {
	return node.SetClock(f.clock, offset)
}

func (f *file) faults() []Fault {
	return []Fault{{"machine-crash", f.crash}, {"file-locked", f.lock}}
}

// crash kills all nodes at one time, as the crash of their one machine would.
func (f *file) crash(context.Context) error {
	nodes := f.world.nodes()
	if err := f.world.Collapsed(); err != nil {
		return err
	}
	for _, p := range nodes {
		p.acts.Lock() // nobody is asleep or starting then
	}
	for _, p := range nodes {
		p.kill()
	}
	for _, p := range nodes {
		p.acts.Unlock()
	}
	var errs []error
	for _, p := range nodes {
		errs = append(errs, p.Start())
	}
	return errors.Join(errs...)
}

// lock keeps the file's lock for a while, as a backup or a curious person would.
func (f *file) lock(ctx context.Context) error {
	conn, err := sqlite3.Open("file:" + f.path + "?_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Exec(`BEGIN IMMEDIATE`); err != nil {
		return err
	}
	pause(ctx, f.world.between(200*time.Millisecond, 1500*time.Millisecond))
	return conn.Exec(`ROLLBACK`)
}

// server is a PostgreSQL server. In front of it are a proxy that knows its protocol and a wire.
type server struct {
	world *World
	*servicetest.PostgresServer
	proxy *servicetest.Proxy
	wire  *wire
	past  string
	// acts makes those who kill and pause the server wait for each other, and cuts those who cut commits.
	acts, cuts sync.Mutex
}

func openServer(ctx context.Context, w *World) (database, error) {
	running, err := servicetest.StartPostgres(ctx, "max_connections=300")
	if err != nil {
		return nil, err
	}
	s := &server{world: w, PostgresServer: running, past: running.URL()}
	if s.proxy, err = servicetest.StartProxy(s.past); err == nil {
		s.wire, err = w.network.lay("database", s.proxy.Addr())
	}
	if err == nil {
		err = s.prepare(ctx)
	}
	return s, err
}

// prepare makes the tables, and gives the store a clock that can be put off.
func (s *server) prepare(ctx context.Context) error {
	db, err := storeurl.Open(ctx, s.past, storeurl.Config{})
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	return s.Exec(ctx, `
		CREATE TABLE clock_offset (id int PRIMARY KEY, micros bigint NOT NULL);
		INSERT INTO clock_offset VALUES (1, 0);
		CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE AS
		'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + micros FROM public.clock_offset WHERE id = 1'`)
}

func (s *server) url() string {
	u, err := url.Parse(s.past)
	if err != nil {
		return s.past // it was parsed before
	}
	u.Host = s.wire.addr()
	return u.String()
}

func (s *server) direct() string    { return s.past }
func (s *server) clockFile() string { return "" }

func (s *server) setClock(ctx context.Context, offset time.Duration) error {
	s.acts.Lock()
	defer s.acts.Unlock()
	conn, err := pgx.Connect(ctx, s.past)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `UPDATE clock_offset SET micros = $1`, offset.Microseconds())
	return errors.Join(err, conn.Close(ctx))
}

// busy lists the sessions that are in a transaction or wait for a lock.
func (s *server) busy(ctx context.Context) string {
	conn, err := pgx.Connect(ctx, s.past)
	if err != nil {
		return err.Error()
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT format('session %s is %s since %s, waits for %s, %s', pid, state,
		clock_timestamp() - state_change, coalesce(wait_event, 'nothing'), left(query, 100))
		FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND (state <> 'idle' OR wait_event_type = 'Lock')`)
	if err != nil {
		return err.Error()
	}
	sessions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err.Error()
	}
	return strings.Join(sessions, "; ")
}

func (s *server) close() error {
	var err error
	if s.proxy != nil {
		err = s.proxy.Close()
	}
	return errors.Join(err, s.Close())
}

func (s *server) faults() []Fault {
	return []Fault{
		{"database-kill", s.die},
		{"database-pause", s.sleep},
		{"database-cut", func(ctx context.Context) error {
			return s.wire.snap(ctx, s.world.between(50*time.Millisecond, 500*time.Millisecond))
		}},
		{"database-slow", func(ctx context.Context) error { return s.wire.suffer(ctx, slow, fromServer, time.Second) }},
		{"commit-reply-cut", func(ctx context.Context) error { return s.trap(ctx, s.proxy.CutReply) }},
		{"commit-request-cut", func(ctx context.Context) error { return s.trap(ctx, s.proxy.CutRequest) }},
	}
}

func (s *server) die(ctx context.Context) error {
	s.acts.Lock()
	defer s.acts.Unlock()
	if err := s.Kill(); err != nil {
		return err
	}
	pause(ctx, s.world.between(50*time.Millisecond, 600*time.Millisecond))
	return s.Restart()
}

func (s *server) sleep(ctx context.Context) error {
	s.acts.Lock()
	defer s.acts.Unlock()
	if err := s.Pause(); err != nil {
		return err
	}
	pause(ctx, s.world.between(200*time.Millisecond, 2*time.Second))
	return s.Resume()
}

// commitsCut is how many commits are lost at a time.
const commitsCut = 5

// trap catches some commits, one after the other.
func (s *server) trap(ctx context.Context, arm func(match func(sql string) bool)) error {
	s.cuts.Lock()
	defer s.cuts.Unlock()
	defer s.proxy.Disarm()
	isCommit := func(sql string) bool { return strings.HasPrefix(strings.ToLower(sql), "commit") }
	waiting, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for caught := range commitsCut {
		before := s.proxy.Sprung()
		arm(isCommit)
		if err := s.proxy.AwaitSprung(waiting, before+1); err != nil && caught == 0 {
			return errNotFired // nobody committed
		} else if err != nil {
			return nil
		}
	}
	return nil
}
