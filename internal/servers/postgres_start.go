package servers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// postgresTemplate is an empty database, which is copied for each server.
var postgresTemplate = template{name: "postgres"}

// newPostgresDir returns a directory with the data of a new server.
func newPostgresDir(ctx context.Context, programs postgresPrograms, as owner) (string, error) {
	return postgresTemplate.newDir(as, func(dir string) error { return initPostgres(ctx, programs, as, dir) })
}

// initPostgres creates the data directory of a server. It need not survive a power loss, so it is not flushed.
func initPostgres(ctx context.Context, programs postgresPrograms, as owner, dir string) error {
	if err := as.makeDir(dir); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, programs.initdb, "-D", dir,
		"-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C")
	cmd.Dir = dir
	cmd.Env = postgresEnviron(dir)
	as.runs(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", programs.initdb, err, out)
	}
	return nil
}

// postgresEnviron returns our environment without what would change
// the server: client settings, and the language of messages.
func postgresEnviron(home string) []string {
	return append(cleanEnviron("PG", "LC_"), "HOME="+home, "LC_ALL=C")
}

// choosePorts chooses a port.
func (s *PostgresServer) choosePorts() (err error) {
	s.port, err = freePort()
	s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	return err
}

// start runs the server on its port and waits until it accepts connections.
func (s *PostgresServer) start(ctx context.Context) (err error) {
	cmd := exec.Command(s.programs.postgres, s.arguments()...)
	if s.proc, err = s.run(cmd, postgresEnviron(s.dir), syscall.SIGQUIT); err != nil {
		return fmt.Errorf("servers: start PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err = s.awaitReady(ctx); err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	return nil
}

// arguments returns the command line; later settings take precedence. Shared memory of parallel processes
// is in files of the data directory, so that nothing of it remains elsewhere when a server is killed.
func (s *PostgresServer) arguments() []string {
	settings := []string{
		"listen_addresses=127.0.0.1",
		"max_connections=300",
		"shared_buffers=128MB",
		"dynamic_shared_memory_type=mmap",
	}
	args := []string{"-D", s.Dir(), "-p", strconv.Itoa(s.port), "-k", s.dir}
	for _, each := range append(settings, s.settings...) {
		args = append(args, "-c", each)
	}
	return args
}

// awaitReady waits until the server reports in its PID file, which pg_ctl uses too, that it accepts connections. The
// file contains the server's process ID, so that a file that an earlier server left is not mistaken for the new one.
func (s *PostgresServer) awaitReady(ctx context.Context) error {
	for {
		lines, err := s.pidFile()
		switch {
		case s.proc.Ended():
			return errors.New("it has ended")
		case err == nil && lines[0] == strconv.Itoa(s.proc.PID()) && strings.TrimSpace(lines[7]) == "ready":
			return nil
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(pollEvery)
	}
}

// pidFile returns the eight lines of the server's PID file. Lines that are not written yet are empty.
func (s *PostgresServer) pidFile() (lines [8]string, err error) {
	text, err := os.ReadFile(filepath.Join(s.Dir(), "postmaster.pid"))
	copy(lines[:], strings.Split(string(text), "\n"))
	return lines, err
}

// stop shuts the server down in the mode that PostgreSQL calls fast.
func (s *PostgresServer) stop() error { return s.shutDown(syscall.SIGINT) }

// end shuts the server down in the mode that PostgreSQL calls immediate, which does not write what
// is in memory. The server is not killed, because something would remain outside of its directory.
func (s *PostgresServer) end() error { return s.shutDown(syscall.SIGQUIT) }

func (s *PostgresServer) shutDown(signal syscall.Signal) error {
	if s.proc == nil {
		return nil
	}
	if err := s.stopBy(signal); err != nil {
		return errors.Join(err, s.kill())
	}
	s.proc = nil
	return nil
}

// kill kills the server. If the server has ended already, some of its processes may remain, and they are
// not known. Its own precautions then remain in place, so that it refuses to start again beside them.
func (s *PostgresServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	if err := running.KillTree(); err != nil {
		return err
	}
	return s.clearAfterCrash()
}

// clearAfterCrash removes what a killed server leaves: its PID file, and a piece of shared
// memory, which would exist until the machine is restarted. All of its processes must be gone.
func (s *PostgresServer) clearAfterCrash() error {
	lines, err := s.pidFile()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was shut down in order
	}
	if err != nil {
		return err
	}
	if words := strings.Fields(lines[6]); len(words) == 2 {
		_ = exec.Command("ipcrm", "-m", words[1]).Run() // if this fails, the next start uses the piece again
	}
	return os.Remove(filepath.Join(s.Dir(), "postmaster.pid"))
}
