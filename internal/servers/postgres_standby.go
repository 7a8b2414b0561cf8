package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// NewStandby starts a standby of this server for this test, and closes
// it at the end. To copy its data, this server is stopped for a moment.
func (s *PostgresServer) NewStandby(t testing.TB) *PostgresServer {
	t.Helper()
	standby, err := s.StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	standby.closeWith(t)
	return standby
}

// NewStandbyBehind is like NewStandby, with a proxy between the two servers that can cut the standby off.
func (s *PostgresServer) NewStandbyBehind(t testing.TB, link *Proxy) *PostgresServer {
	t.Helper()
	_, port, err := net.SplitHostPort(link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	standby, err := s.startStandby(t.Context(), func() string { return port })
	if err != nil {
		t.Fatal(err)
	}
	standby.closeWith(t)
	return standby
}

// StartStandby starts a standby of this server, with the same settings on its own port.
// To copy its data, this server is stopped for a moment. The caller closes the standby.
func (s *PostgresServer) StartStandby(ctx context.Context) (*PostgresServer, error) {
	return s.startStandby(ctx, s.portText)
}

// portText returns the port of the server.
func (s *PostgresServer) portText() string { return strconv.Itoa(s.port) }

// startStandby starts a standby. It calls by for the port to this server, after this server has been restarted.
func (s *PostgresServer) startStandby(ctx context.Context, by func() string) (*PostgresServer, error) {
	var standby *PostgresServer
	err := s.control(func() error {
		if err := s.stop(); err != nil {
			return err
		}
		dir, err := copyPostgresDir(s.as, s.Dir())
		if err != nil {
			return err
		}
		standby = newPostgresServer(s.programs, s.as, dir, slices.Clone(s.settings))
		return s.start(ctx)
	})
	if err == nil {
		err = standby.follow(by())
	}
	if err == nil {
		err = standby.startSomewhere(ctx)
	}
	if err != nil && standby != nil {
		err = errors.Join(err, standby.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("servers: start a standby: %w", err)
	}
	return standby, nil
}

// Follow starts a server again as a standby of another server. If it was the primary before, the other
// server must have taken over after this one was stopped in order, so that it has all data of this server.
func (s *PostgresServer) Follow(primary *PostgresServer) error {
	return s.control(func() error {
		if err := s.stop(); err != nil {
			return err
		}
		if err := s.follow(primary.portText()); err != nil {
			return err
		}
		return s.startAgain()
	})
}

// follow makes the server a standby at its next start, which reaches its primary by a port.
func (s *PostgresServer) follow(port string) error {
	const setting = "primary_conninfo="
	s.settings = slices.DeleteFunc(s.settings, func(each string) bool { return strings.HasPrefix(each, setting) })
	s.settings = append(s.settings, setting+"host=127.0.0.1 port="+port+" user=postgres")
	file := filepath.Join(s.Dir(), "standby.signal")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	return s.as.own(file)
}

// Promote makes a standby a primary, and returns when it is one.
func (s *PostgresServer) Promote(ctx context.Context) error {
	return s.Exec(ctx, "SELECT pg_promote(true, 60)")
}

// AwaitStandby waits until a standby has applied all that this server has written so far.
func (s *PostgresServer) AwaitStandby(ctx context.Context, standby *PostgresServer) error {
	position, err := s.Query(ctx, `SELECT pg_current_wal_lsn()`)
	if err != nil {
		return err
	}
	for {
		applied, err := standby.Query(ctx, fmt.Sprintf(`SELECT pg_last_wal_replay_lsn() >= '%s'`, position))
		if err != nil || applied == "t" {
			return err
		}
		time.Sleep(pollEvery)
	}
}

// copyPostgresDir returns a directory with a copy of the data of a stopped server.
func copyPostgresDir(as owner, data string) (string, error) {
	parent, err := workspace.dir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, "postgres-standby-")
	if err != nil {
		return "", err
	}
	err = as.own(dir)
	if err == nil {
		err = as.copyTree(data, filepath.Join(dir, "data"))
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}
