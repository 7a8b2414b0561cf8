package world

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/servers"
)

// server is a PostgreSQL server with a standby, if that is ever to take over. In front of the primary are a proxy that
// knows its protocol and a wire, for the nodes, and another proxy for those who go past all faults. Both lead to the
// other server when that takes over.
type server struct {
	world       *World
	proxy, past *servers.Proxy
	wire        *wire
	// acts makes those who kill, pause and replace the primary wait for each other, and cuts those who cut commits.
	acts, cuts       sync.Mutex
	primary, standby *servers.PostgresServer
}

// serverSettings let a standby catch up soon with a primary that was killed.
var serverSettings = []string{"max_connections=300", "wal_keep_size=256MB", "wal_retrieve_retry_interval=100ms"}

func openServer(ctx context.Context, w *World) (database, error) {
	s := &server{world: w}
	var err error
	if s.primary, err = servers.StartPostgres(ctx, serverSettings...); err != nil {
		return nil, err
	}
	if w.has(failsOver) {
		s.standby, err = s.primary.StartStandby(ctx)
	}
	if err == nil {
		s.past, err = servers.StartProxy(s.primary.URL())
	}
	if err == nil {
		s.proxy, err = servers.StartProxy(s.primary.URL())
	}
	if err == nil {
		s.wire, err = w.network.lay("database", s.proxy.Addr())
	}
	if err == nil {
		err = s.prepare(ctx)
	}
	return s, err
}

// prepare makes the tables, and gives the store a clock that can be put off.
func (s *server) prepare(ctx context.Context) error { return preparePostgres(ctx, s.direct()) }

// preparePostgres makes the tables of the store at a URL, and gives it a clock that can be put off.
func preparePostgres(ctx context.Context, url string) error {
	if err := makeTables(ctx, url); err != nil {
		return err
	}
	return onPostgres(ctx, url, `
		CREATE TABLE clock_offset (id int PRIMARY KEY, micros bigint NOT NULL);
		INSERT INTO clock_offset VALUES (1, 0);
		CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE AS
		'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + micros FROM public.clock_offset WHERE id = 1'`)
}

func (s *server) url() string {
	u, err := url.Parse(s.proxy.URL())
	if err != nil {
		return s.proxy.URL() // it was parsed before
	}
	u.Host = s.wire.addr()
	return u.String()
}

func (s *server) direct() string    { return s.past.URL() }
func (s *server) front() string     { return "" }
func (s *server) clockFile() string { return "" }
func (s *server) plain() bool       { return false }

func (s *server) setClock(ctx context.Context, offset time.Duration) error {
	s.acts.Lock()
	defer s.acts.Unlock()
	return onPostgres(ctx, s.direct(), setPostgresClock(offset))
}

// onPostgres runs statements past all faults.
func onPostgres(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// setPostgresClock is the statement that puts the clock off.
func setPostgresClock(offset time.Duration) string {
	return fmt.Sprintf(`UPDATE public.clock_offset SET micros = %d`, offset.Microseconds())
}

func (s *server) busy(ctx context.Context) string { return postgresBusy(ctx, s.direct()) }

// postgresBusy lists the sessions that are in a transaction or wait for a lock.
func postgresBusy(ctx context.Context, url string) string {
	conn, err := pgx.Connect(ctx, url)
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
	var errs []error
	for _, proxy := range []*servers.Proxy{s.proxy, s.past} {
		if proxy != nil {
			errs = append(errs, proxy.Close())
		}
	}
	if s.standby != nil {
		errs = append(errs, s.standby.Close())
	}
	return errors.Join(append(errs, s.primary.Close())...)
}

func (s *server) faults() []Fault {
	return []Fault{
		{"database-kill", s.die},
		{"database-pause", s.sleep},
		{failsOver, s.failOver},
		{"database-cut", func(ctx context.Context) error {
			return s.wire.snap(ctx, s.world.between(50*time.Millisecond, 500*time.Millisecond))
		}},
		{"database-slow", func(ctx context.Context) error {
			s.wire.suffer(ctx, slow, fromServer, time.Second)
			return nil
		}},
		{"commit-reply-cut", func(ctx context.Context) error { return s.trap(ctx, s.proxy.CutReply) }},
		{"commit-request-cut", func(ctx context.Context) error { return s.trap(ctx, s.proxy.CutRequest) }},
	}
}

func (s *server) die(ctx context.Context) error {
	s.acts.Lock()
	defer s.acts.Unlock()
	return s.world.die(ctx, s.primary)
}

func (s *server) sleep(ctx context.Context) error {
	s.acts.Lock()
	defer s.acts.Unlock()
	return s.world.sleep(ctx, s.primary)
}

// failsOver is the fault for which there is a standby.
const failsOver = "database-fail-over"

// switchLimit is how long a standby may take to have all that its primary has. It is the limit of a machine on which
// nothing else gets done.
const switchLimit = 2 * time.Minute

// failOver makes the standby the primary, and after a while the first one again.
func (s *server) failOver(ctx context.Context) error {
	for range 2 {
		if err := s.switchOver(ctx); err != nil {
			return err
		}
		pause(ctx, s.world.between(200*time.Millisecond, time.Second))
	}
	return nil
}

// switchOver makes the standby the primary, and the primary its standby. The address of the nodes moves first, so that
// for a while their new connections find a standby; those that they have are cut, or last until the old primary ends.
// That one is stopped in order while the standby follows it: it has then sent all that it ever acknowledged. A standby
// that takes over without that may rightly lack what was committed, which no library can mend.
func (s *server) switchOver(ctx context.Context) error {
	s.acts.Lock()
	defer s.acts.Unlock()
	old, next := s.primary, s.standby
	if err := s.awaitStandby(ctx); err != nil { // so that the outage is short
		return err
	}
	if err := s.proxy.Retarget(next.URL()); err != nil {
		return err
	}
	if pick(s.world, []bool{true, false}) {
		s.proxy.DropAll()
	}
	pause(ctx, s.world.between(50*time.Millisecond, 800*time.Millisecond))
	if err := errors.Join(s.awaitStandby(ctx), old.Stop()); err != nil {
		return err
	}
	if err := errors.Join(next.Promote(ctx), s.past.Retarget(next.URL())); err != nil {
		return err
	}
	s.past.DropAll()
	s.primary, s.standby = next, old
	return old.Follow(next)
}

// awaitStandby waits until the standby has all that the primary has written so far.
func (s *server) awaitStandby(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, switchLimit)
	defer cancel()
	if err := s.primary.AwaitStandby(ctx, s.standby); err != nil {
		return fmt.Errorf("the standby does not follow: %w", err)
	}
	return nil
}

// trap catches some commits, one after the other.
func (s *server) trap(ctx context.Context, arm func(match func(sql string) bool)) error {
	s.cuts.Lock()
	defer s.cuts.Unlock()
	return trapCommits(ctx, s.proxy, arm)
}

// commitsCut is how many commits are lost at a time.
const commitsCut = 5

// isCommit reports whether a text that a client sends is a COMMIT, ends with one, or has one among its statements: a
// store may set its session back behind it.
func isCommit(sql string) bool {
	const commit = "commit"
	sql = strings.ToLower(strings.TrimSpace(sql))
	return strings.HasPrefix(sql, commit) || strings.HasSuffix(sql, commit) || strings.Contains(sql, "; "+commit+";")
}

// trapCommits catches some commits on their way through a proxy, or the answers to them.
func trapCommits(ctx context.Context, proxy *servers.Proxy, arm func(match func(sql string) bool)) error {
	defer proxy.Disarm()
	waiting, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for caught := range commitsCut {
		before := proxy.Sprung()
		arm(isCommit)
		if err := proxy.AwaitSprung(waiting, before+1); err != nil && caught == 0 {
			return errNotFired // nothing was committed
		} else if err != nil {
			return nil
		}
	}
	return nil
}
