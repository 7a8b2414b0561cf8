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

// postgresVariable is the environment variable with the URL of a server to use instead of starting one.
const postgresVariable = "ONCEWARD_TEST_POSTGRES"

// postgresBinVariable is the environment variable with the directory of the server programs to start.
const postgresBinVariable = "ONCEWARD_TEST_POSTGRES_BIN"

// PostgresServer is a running PostgreSQL. It is safe for concurrent use.
type PostgresServer struct {
	server
	programs postgresPrograms
	settings []string
	port     int
	// guest is the database of this process on a server that existed before; nil on a server that was started here.
	guest *guestDatabase
}

// StartPostgres starts a private server with an empty database. Each setting is a setting of PostgreSQL,
// as in "fsync=off". Other settings are as a careful operator would choose them: each commit is on disk
// before it is acknowledged. The context only limits the start. The caller closes the server.
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

// newPostgresServer returns a server that is not running yet, with the data of a directory.
func newPostgresServer(programs postgresPrograms, as owner, dir string, settings []string) *PostgresServer {
	s := &PostgresServer{programs: programs, settings: settings}
	s.kind, s.dir, s.as, s.life = "PostgreSQL", dir, as, s
	enlist(s)
	return s
}

// Dir returns the server's data directory; empty if the server was not started here.
func (s *PostgresServer) Dir() string {
	if s.dir == "" {
		return ""
	}
	return filepath.Join(s.dir, "data")
}

// Exec runs statements on its own connection. Several statements in one text are one transaction.
func (s *PostgresServer) Exec(ctx context.Context, sql string) error {
	_, err := s.Query(ctx, sql)
	return err
}

// Query runs statements like Exec, and returns the rows of the last one as text: one line for each row, with |
// between the columns. It queries a private server directly in a simple form of the protocol, and other servers with
// psql, because they may require a password: this package needs no driver. A test with many queries uses a driver.
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

// withParameter returns a URL with a further parameter.
func withParameter(address, name, value string) (string, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	query := parsed.Query()
	query.Set(name, value)
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus sign literally
	return parsed.String(), nil
}
