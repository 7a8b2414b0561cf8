package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/proc"
)

// PgBouncerServer is a running PgBouncer in transaction mode, in front of a PostgreSQL server:
// each transaction of a client may use another server connection. It is safe for concurrent use.
type PgBouncerServer struct {
	server
	program  string
	port     int
	target   *url.URL
	settings []string
}

// StartPgBouncer starts a private PgBouncer in front of the database of a URL. Parameters of
// the URL that a client may not send to a pooler, such as search_path, are set on all of its
// connections. Each setting is a setting of PgBouncer, as in "default_pool_size=1"; later
// settings take precedence. The context only limits the start. The caller closes the pooler.
func StartPgBouncer(ctx context.Context, database string, settings ...string) (*PgBouncerServer, error) {
	program, err := findPgBouncer(thisMachine())
	if err != nil {
		return nil, err
	}
	as, err := serverOwner("postgres", pgbouncerInstall)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(database)
	if err != nil {
		return nil, err
	}
	parent, err := workspace.dir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "pgbouncer-*")
	if err != nil {
		return nil, fmt.Errorf("servers: create a PgBouncer: %w", err)
	}
	s := &PgBouncerServer{program: program, target: target, settings: settings}
	s.kind, s.dir, s.as, s.life = "PgBouncer", dir, as, s
	enlist(s)
	if err := errors.Join(as.own(dir), s.startSomewhere(ctx)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// NewPgBouncer starts a PgBouncer for this test, in front of the database of a
// URL, and closes it at the end. The test fails if PgBouncer is not installed.
func NewPgBouncer(t testing.TB, database string, settings ...string) *PgBouncerServer {
	t.Helper()
	s, err := StartPgBouncer(t.Context(), database, settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.closeWith(t)
	return s
}

// choosePorts chooses a port. The URL avoids prepared statements:
// PgBouncer before 1.21 does not support them in transaction mode.
func (s *PgBouncerServer) choosePorts() (err error) {
	s.port, err = freePort()
	s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/pooled?sslmode=disable&"+
		"default_query_exec_mode=cache_describe", s.port)
	return err
}

// configure writes PgBouncer's configuration file.
func (s *PgBouncerServer) configure() (path string, err error) {
	database := fmt.Sprintf("host=%s port=%s dbname=%s user=postgres", s.target.Hostname(), s.target.Port(),
		strings.TrimPrefix(s.target.Path, "/"))
	if schema := s.target.Query().Get("search_path"); schema != "" {
		database += fmt.Sprintf(" connect_query='SET search_path TO %s'", schema)
	}
	settings := append([]string{
		"listen_addr=127.0.0.1", "listen_port=" + strconv.Itoa(s.port), "unix_socket_dir=", "auth_type=any",
		"pool_mode=transaction", "max_client_conn=1000", "default_pool_size=40",
	}, s.settings...)
	text := "[databases]\npooled = " + database + "\n[pgbouncer]\n" + strings.Join(settings, "\n") + "\n"
	path = filepath.Join(s.dir, "pgbouncer.ini")
	return path, errors.Join(os.WriteFile(path, []byte(text), 0o644), s.as.own(path))
}

// start runs the pooler on its port and waits until it accepts connections.
func (s *PgBouncerServer) start(ctx context.Context) error {
	path, err := s.configure()
	if err != nil {
		return err
	}
	if s.proc, err = s.run(exec.Command(s.program, path), cleanEnviron("PG"), syscall.SIGKILL); err != nil {
		return fmt.Errorf("servers: start PgBouncer: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = await(ctx, "PgBouncer accepts connections", func() (bool, error) {
		if s.proc.Ended() {
			return true, errors.New("it has ended")
		}
		conn, err := net.DialTimeout("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), time.Second)
		if err != nil {
			return false, nil
		}
		return true, conn.Close()
	})
	if err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	go s.revive(s.proc)
	return nil
}

// revive restarts the pooler after an unexpected end, as a service manager does: before
// 1.21, PgBouncer ends if a server answers while its statement is being cancelled.
func (s *PgBouncerServer) revive(running *proc.Process) {
	<-running.Done()
	_ = s.control(func() error { // the tests notice a missing pooler
		if s.proc != running {
			return nil // it was ended on purpose
		}
		return s.startAgain()
	})
}

// stop kills the pooler, which stores nothing.
func (s *PgBouncerServer) stop() error { return s.kill() }

// end kills the pooler, which leaves nothing outside of its directory.
func (s *PgBouncerServer) end() error { return s.kill() }

func (s *PgBouncerServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	return running.KillTree()
}
