package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// postgresVariable names the environment variable that holds the URL of a server to use instead of starting one.
const postgresVariable = "ONCEWARD_TEST_POSTGRES"

// postgresBinVariable names the environment variable that holds the directory of the programs of the server to start.
const postgresBinVariable = "ONCEWARD_TEST_POSTGRES_BIN"

// PostgresServer is a running PostgreSQL. All of its methods can be called at the same time.
type PostgresServer struct {
	server
	programs postgresPrograms
	settings []string
	port     int
	// guest is the database of this process on a server that was there before; nil on one that was started here.
	guest *guestDatabase
}

// StartPostgres starts a private server with an empty database. Each setting is one of PostgreSQL's, as in "fsync=off";
// what is not set is as a careful operator would have it: each commit is on disk before it is acknowledged. The context
// limits the start only. Close it when done.
func StartPostgres(ctx context.Context, settings ...string) (*PostgresServer, error) {
	programs, err := findPostgres(thisMachine())
	if err != nil {
		return nil, err
	}
	as, err := serverOwner("postgres", postgresInstall)
	if err != nil {
		return nil, err
	}
	dir, err := newPostgresDir(ctx, programs, as)
	if err != nil {
		return nil, fmt.Errorf("servers: create a PostgreSQL: %w", err)
	}
	s := newPostgresServer(programs, as, dir, settings)
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newPostgresServer is a server that does not run yet, on the data of a directory.
func newPostgresServer(programs postgresPrograms, as owner, dir string, settings []string) *PostgresServer {
	s := &PostgresServer{programs: programs, settings: settings}
	s.kind, s.dir, s.as, s.life = "PostgreSQL", dir, as, s
	enlist(s)
	return s
}

// Dir is where the server keeps its data; empty if it was not started here.
func (s *PostgresServer) Dir() string {
	if s.dir == "" {
		return ""
	}
	return filepath.Join(s.dir, "data")
}

// Exec runs statements on a connection of its own; several can be given in one text, which are then one transaction.
func (s *PostgresServer) Exec(ctx context.Context, sql string) error {
	_, err := s.Query(ctx, sql)
	return err
}

// Query runs statements like Exec, and returns the rows of the last one, as text: a line each, with | between the
// columns. It speaks enough of the protocol to ask a private server, and runs psql for another one, which may want a
// password: this package needs no driver. A test that asks often uses one.
func (s *PostgresServer) Query(ctx context.Context, sql string) (string, error) {
	address, err := url.Parse(s.url)
	if err != nil {
		return "", err
	}
	if !s.stays {
		return s.ask(ctx, address, sql)
	}
	environ := os.Environ()
	if password, ok := address.User.Password(); ok { // all users of a machine see the arguments of a process
		environ = append(environ, "PGPASSWORD="+password)
		address.User = url.User(address.User.Username())
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, s.programs.psql, "-X", "-q", "-A", "-t", "-w", "-d", address.String(), "-c", sql)
	cmd.Env, cmd.Stderr, cmd.WaitDelay = environ, &said, time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("psql: %w: %s", errors.Join(err, ctx.Err()), strings.TrimSpace(said.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

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
