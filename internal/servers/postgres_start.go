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

// postgresTemplate is an empty database that is copied for each server.
var postgresTemplate = template{name: "postgres"}

// newPostgresDir makes a directory with the data of a server that never ran.
func newPostgresDir(ctx context.Context, programs postgresPrograms, as owner) (string, error) {
	return postgresTemplate.newDir(as, func(dir string) error { return initPostgres(ctx, programs, as, dir) })
}

// initPostgres makes the data directory of a server. It need not survive a power loss, so it is not flushed.
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

// postgresEnviron is ours without what would change the server: settings of clients, and the language of its messages.
func postgresEnviron(home string) []string {
	return append(cleanEnviron("PG", "LC_"), "HOME="+home, "LC_ALL=C")
}

// choosePorts finds a port to listen on.
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

// arguments are the command line; a setting that comes later wins. Memory that processes of the server share for a
// while lies in files of the data directory, so that a server that is killed leaves none of it outside.
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

// awaitReady waits until the server says, in the file that pg_ctl looks at too, that it accepts connections. The file
// tells which process has written it, so that what a server left that was killed is not mistaken for it.
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

// pidFile reads the eight lines of the file in which a server says that it runs. Those that are not written yet are
// empty.
func (s *PostgresServer) pidFile() (lines [8]string, err error) {
	text, err := os.ReadFile(filepath.Join(s.Dir(), "postmaster.pid"))
	copy(lines[:], strings.Split(string(text), "\n"))
	return lines, err
}

// stop shuts the server down in the order that its operator would call fast.
func (s *PostgresServer) stop() error { return s.shutDown(syscall.SIGINT) }

// end shuts the server down in the way that its operator would call immediate: what is in memory is not written any
// more. It is not killed, because what would be left lies partly outside of its directory.
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

// kill kills what runs. If the server has ended by itself, some of its processes may be left, and nothing here knows
// which: then its own precautions stay in place, and it refuses to start again beside them.
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

// clearAfterCrash removes what a server leaves that had no time to clean up: the file that says that it runs, and a
// piece of shared memory, which would stay until the machine is restarted. All of its processes are known to be gone.
func (s *PostgresServer) clearAfterCrash() error {
	lines, err := s.pidFile()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it ended in order
	}
	if err != nil {
		return err
	}
	if words := strings.Fields(lines[6]); len(words) == 2 {
		_ = exec.Command("ipcrm", "-m", words[1]).Run() // without it, the next start uses the piece again
	}
	return os.Remove(filepath.Join(s.Dir(), "postmaster.pid"))
}
