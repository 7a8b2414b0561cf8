package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/internal/servers"
)

// pgServer is the server that the contenders share.
type pgServer struct {
	admin *pgx.Conn
	url   string
	// about says what the figures hold for: the version and the settings that matter.
	about string
	// pid is that of the server if it is private.
	pid  int
	stop func() error
	// rows is how many are in each table of the business, and of the store, before anything is timed.
	rows int64
	// schemas counts those that were made, so that each has a name of its own.
	schemas int
	// remarks is what the last turn of a contender had to say, by its name.
	remarks map[string]string
}

// durable are the settings without which a server is quick because it forgets.
var durable = []string{"fsync", "full_page_writes", "synchronous_commit"}

// openServer starts a private server with the settings given, or connects to the one of the command line as it is.
func openServer(ctx context.Context, o *options, settings ...string) (s *pgServer, err error) {
	s = &pgServer{url: o.postgres, stop: func() error { return nil }, remarks: make(map[string]string), rows: rowsBefore}
	if s.url == "" {
		settings = append(settings, "max_connections=600")
		for _, name := range durable {
			settings = append(settings, name+"=on")
		}
		if err := s.startPrivate(ctx, o.dir, settings); err != nil {
			return nil, err
		}
	}
	if s.admin, err = pgx.Connect(ctx, s.url); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if err := s.describe(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// describe notes the settings, and refuses a server that does not write to the disk what it says it has written.
func (s *pgServer) describe(ctx context.Context) error {
	for _, name := range durable {
		value, err := s.show(ctx, name)
		if err == nil && value != "on" {
			err = fmt.Errorf("the server has %s=%s: it has to be on for figures that mean something", name, value)
		}
		if err != nil {
			return err
		}
	}
	version, err := s.show(ctx, "server_version")
	if err != nil {
		return err
	}
	s.about, _, _ = strings.Cut("PostgreSQL "+version, " (")
	for _, name := range append([]string{"shared_buffers", "checkpoint_timeout", "max_wal_size"}, durable...) {
		value, err := s.show(ctx, name)
		if err != nil {
			return err
		}
		s.about += fmt.Sprintf(", %s=%s", name, value)
	}
	return nil
}

func (s *pgServer) show(ctx context.Context, name string) (value string, err error) {
	err = s.admin.QueryRow(ctx, `SELECT current_setting($1)`, name).Scan(&value)
	return value, err
}

func (s *pgServer) close() error {
	return errors.Join(s.admin.Close(context.Background()), s.stop())
}

// exec runs statements outside of any measurement.
func (s *pgServer) exec(ctx context.Context, statement string, args ...any) error {
	_, err := s.admin.Exec(ctx, statement, args...)
	return err
}

// pgSite is where a turn takes place: a schema of its own, and a pool whose connections work in it.
type pgSite struct {
	schema  string
	pool    *pgxpool.Pool
	callers int
	terms   terms
	wire    *wire
	// rows is how many payments, and how many records, a way begins with.
	rows int64
}

// maxConnections is the most that a pool holds: past a few for each core, more of them slow a server down.
const maxConnections = 64

// terms say how a site reaches its server, and how its commits end.
type terms struct {
	// settings are those of its connections.
	settings map[string]string
	// delay is the time of the network, there and back.
	delay time.Duration
}

var (
	durably = terms{}
	// lazily is for filling tables, never for a time: such commits do not wait for the disk.
	lazily = terms{settings: map[string]string{"synchronous_commit": "off"}}
	// distantly is a server in the next building with a disk of its own: whoever writes the log waits a millisecond
	// before that, while it holds the lock that others wait for, who then go along.
	distantly = terms{
		settings: map[string]string{"commit_delay": "1000", "commit_siblings": "0"},
		delay:    500 * time.Microsecond,
	}
)

// open makes a fresh schema and a pool with a connection for each caller, up to [maxConnections], all of them
// established.
func (s *pgServer) open(ctx context.Context, callers int, t terms) (*pgSite, error) {
	s.schemas++
	site := &pgSite{schema: fmt.Sprintf("onceward_bench_%d", s.schemas), callers: callers, terms: t, rows: s.rows}
	if err := s.drop(ctx, site); err != nil {
		return nil, err
	}
	if err := s.exec(ctx, `CREATE SCHEMA `+site.schema); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(poolFor(min(callers, maxConnections)))
	// As a careful operator sets it, for everybody: the store would otherwise say it in each transaction.
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "60s"
	config.ConnConfig.RuntimeParams["search_path"] = site.schema
	maps.Copy(config.ConnConfig.RuntimeParams, t.settings)
	if t.delay > 0 {
		if site.wire, err = newWire(t.delay); err != nil {
			return nil, err
		}
		config.ConnConfig.DialFunc = site.wire.dialing(config.ConnConfig.DialFunc)
	}
	if site.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	return site, site.connect(ctx)
}

// poolFor is the size of a pool in which so many transactions can run at a time: of a pool that it shares with the
// application the store leaves a quarter free.
func poolFor(transactions int) int { return transactions + max(transactions/3, 1) }

// connect opens all connections of the pool, so that no turn pays for them.
func (site *pgSite) connect(ctx context.Context) error {
	var held []*pgxpool.Conn
	defer func() {
		for _, conn := range held {
			conn.Release()
		}
	}()
	for range site.pool.Config().MaxConns {
		conn, err := site.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		held = append(held, conn)
	}
	return nil
}

// drop removes a schema with all that is in it.
func (s *pgServer) drop(ctx context.Context, site *pgSite) error {
	return s.exec(ctx, `DROP SCHEMA IF EXISTS `+site.schema+` CASCADE`)
}

// visit opens a site, does something there, and leaves nothing behind.
func (s *pgServer) visit(ctx context.Context, callers int, t terms, do func(*pgSite) error) error {
	site, err := s.open(ctx, callers, t)
	if err != nil {
		return err
	}
	err = do(site)
	site.pool.Close()
	if site.wire != nil {
		err = errors.Join(err, site.wire.close())
	}
	return errors.Join(err, s.drop(context.WithoutCancel(ctx), site))
}

// count returns a number that a query finds, such as how many rows a table has.
func (site *pgSite) count(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = site.pool.QueryRow(ctx, query, args...).Scan(&n)
	return n, err
}

// expect makes sure that a query finds the number that the measurement rests on.
func (site *pgSite) expect(ctx context.Context, want int64, query string, args ...any) error {
	n, err := site.count(ctx, query, args...)
	if err == nil && n != want {
		err = fmt.Errorf("%s found %d, want %d", query, n, want)
	}
	return err
}

// startPrivate starts a server that no other program uses, with the settings "name=value".
func (s *pgServer) startPrivate(ctx context.Context, dir string, settings []string) error {
	if err := useDirectory(dir); err != nil {
		return err
	}
	server, err := servers.StartPostgres(ctx, settings...)
	if err != nil {
		return errors.Join(err, servers.CloseAll())
	}
	s.url, s.pid, s.stop = server.URL(), server.PID(), servers.CloseAll
	return nil
}

// processorTime is what a private server has taken of the processors; zero of another.
func (s *pgServer) processorTime(context.Context) (time.Duration, error) {
	if s.pid == 0 {
		return 0, nil
	}
	return treeTime(s.pid)
}
