package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// postgresVariable names the environment variable that holds the URL of a server to use instead of starting one.
	postgresVariable = "ONCEWARD_TEST_POSTGRES"
	// startLimit is how long a server may take to accept connections, with recovery after a crash on a slow machine.
	startLimit = 2 * time.Minute
	// stopLimit is how long a clean shutdown may take.
	stopLimit = 30 * time.Second
	// portTries is how many ports are tried: between finding a free one and using it another process may take it.
	portTries = 5
)

var errNotOurs = errors.New("servers: this PostgreSQL was not started here, so it is not stopped, killed or frozen here")

// PostgresServer is a running PostgreSQL. All of its methods can be called at the same time.
type PostgresServer struct {
	url string
	// keepsSchemas says that the server outlives the test that makes a schema.
	keepsSchemas bool

	// The rest is for a server that was started here; dir is empty otherwise.
	programs postgresPrograms
	as       owner
	settings []string
	dir      string
	port     int

	mu     sync.Mutex
	proc   *process // nil while it does not run
	closed bool
}

// StartPostgres starts a private server with an empty database. Each setting is one of PostgreSQL's, as in "fsync=off"; what
// is not set is as a careful operator would have it: each commit is on disk before it is acknowledged. The context limits
// the start only. Close it when done.
func StartPostgres(ctx context.Context, settings ...string) (*PostgresServer, error) {
	programs, err := findPostgres(thisMachine())
	if err != nil {
		return nil, err
	}
	as, err := postgresOwner()
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{programs: programs, as: as, settings: settings}
	if s.dir, err = newPostgresDir(ctx, programs, as); err != nil {
		return nil, fmt.Errorf("servers: create a PostgreSQL: %w", err)
	}
	enlist(s)
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// startSomewhere starts the server on a port that is free.
func (s *PostgresServer) startSomewhere(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for try := 1; ; try++ {
		var err error
		if s.port, err = freePort(); err != nil {
			return err
		}
		s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
		err = s.start(ctx)
		if err == nil || try == portTries || !errors.Is(err, errPortTaken) {
			return err
		}
	}
}

// URL is where the server is, for its superuser.
func (s *PostgresServer) URL() string { return s.url }

// withParameter adds a parameter to a URL.
func withParameter(address, name, value string) (string, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	query := parsed.Query()
	query.Set(name, value)
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus sign as it stands
	return parsed.String(), nil
}

// Dir is where the server keeps its data; empty if it was not started here.
func (s *PostgresServer) Dir() string {
	if s.dir == "" {
		return ""
	}
	return filepath.Join(s.dir, "data")
}

// Log is what the server has written to its log, at most the last 16 KiB; empty if it was not started here.
func (s *PostgresServer) Log() string {
	const most = 16 << 10
	if s.dir == "" {
		return ""
	}
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

func (s *PostgresServer) logFile() string { return filepath.Join(s.dir, "log") }

// Exec runs statements on a connection of its own; several can be given in one text.
func (s *PostgresServer) Exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return errors.Join(err, conn.Close(ctx))
}

// Kill ends the server and all of its processes at one point in time, as a power loss of a machine whose disks keep what
// they were told would. It returns when none of them is left. Nothing happens if it does not run.
func (s *PostgresServer) Kill() error {
	return s.control(s.kill)
}

// Restart starts a server that was stopped or killed again, with the same data on the same port, and returns when it
// accepts connections. One that runs is stopped first.
func (s *PostgresServer) Restart() error {
	return s.control(func() error {
		if err := s.stop(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		return s.start(ctx)
	})
}

// Pause freezes all processes of the server: its connections stay open, and nothing answers.
func (s *PostgresServer) Pause() error {
	return s.control(func() error {
		if s.proc == nil {
			return errors.New("servers: the PostgreSQL to pause does not run")
		}
		_, err := s.proc.freeze()
		return err
	})
}

// Resume lets a server go on that was paused.
func (s *PostgresServer) Resume() error {
	return s.control(func() error {
		if s.proc == nil {
			return errors.New("servers: the PostgreSQL to resume does not run")
		}
		return s.proc.thaw()
	})
}

// Stop shuts the server down as its operator would: connections are closed, and what is committed is written. It can be
// started again with Restart.
func (s *PostgresServer) Stop() error { return s.control(s.stop) }

// Close stops the server for good and removes its data. A server that was not started here is left alone.
func (s *PostgresServer) Close() error {
	if s.dir == "" {
		return nil
	}
	dismiss(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.stop(), os.RemoveAll(s.dir))
}

// control does one thing at a time with a server that is ours.
func (s *PostgresServer) control(do func() error) error {
	if s.dir == "" {
		return errNotOurs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("servers: this PostgreSQL is closed")
	}
	return do()
}

// stop shuts down what runs, frozen or not. What does not follow in time is killed.
func (s *PostgresServer) stop() error {
	if s.proc == nil {
		return nil
	}
	err := errors.Join(s.proc.thaw(), s.proc.signal(syscall.SIGINT))
	if slow := s.proc.waitEnd(stopLimit); slow != nil {
		return errors.Join(err, slow, s.kill())
	}
	s.proc = nil
	return err
}

// kill kills what runs. If the server has ended by itself, some of its processes may be left, and nothing here knows which:
// then its own precautions stay in place, and it refuses to start again beside them.
func (s *PostgresServer) kill() error {
	proc := s.proc
	s.proc = nil
	if proc == nil || proc.ended() {
		return nil
	}
	if err := proc.kill(); err != nil {
		return err
	}
	return s.clearAfterCrash()
}
