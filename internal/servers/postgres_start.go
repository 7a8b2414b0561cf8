package servers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// errPortTaken is returned when another process took the port between looking for a free one and using it.
var errPortTaken = errors.New("servers: the port is taken")

// postgresTemplate is an empty database that is copied for each server: to make one takes a second, to copy it much less.
var postgresTemplate template

type template struct {
	mu sync.Mutex
	// dir is inside the workspace, so it is gone if that was removed in between.
	dir  string
	made int
}

// newPostgresDir makes a directory with the data of a server that never ran.
func newPostgresDir(ctx context.Context, programs postgresPrograms, as owner) (string, error) {
	parent, err := workspace.dir()
	if err != nil {
		return "", err
	}
	t := &postgresTemplate
	t.mu.Lock()
	defer t.mu.Unlock()
	if filepath.Dir(t.dir) != parent {
		dir := filepath.Join(parent, "postgres-template")
		if err := initPostgres(ctx, programs, as, dir); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
		t.dir = dir
	}
	t.made++
	dir := filepath.Join(parent, "postgres-"+strconv.Itoa(t.made))
	if err := as.makeDir(dir); err != nil {
		return "", err
	}
	if err := as.copyTree(t.dir, filepath.Join(dir, "data")); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
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
	cmd.SysProcAttr = attributes(as, 0)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", programs.initdb, err, out)
	}
	return nil
}

// postgresEnviron is ours without what would change the server: settings of clients, and the language of its messages.
func postgresEnviron(home string) []string {
	var environ []string
	for _, each := range os.Environ() {
		if !strings.HasPrefix(each, "PG") && !strings.HasPrefix(each, "LC_") {
			environ = append(environ, each)
		}
	}
	return append(environ, "HOME="+home, "LC_ALL=C")
}

// freePort finds a port that nobody listens on. It lies below those that the system gives to outgoing connections: a client
// that tries to reach a server which is down would otherwise get the server's own port one day, and block its return.
func freePort() (int, error) {
	const lowest, count = 15000, 15000
	var last error
	for range 100 {
		port := lowest + rand.IntN(count)
		listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
		last = err
	}
	return 0, fmt.Errorf("servers: no free port: %w", last)
}

// start runs the server on its port and waits until it accepts connections.
func (s *PostgresServer) start(ctx context.Context) error {
	log, err := os.OpenFile(s.logFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own by then
	cmd := exec.Command(s.programs.postgres, s.arguments()...)
	cmd.Dir = s.dir
	cmd.Env = postgresEnviron(s.dir)
	cmd.Stdout, cmd.Stderr = log, log
	if s.proc, err = startProcess(cmd, s.as, syscall.SIGQUIT); err != nil {
		return fmt.Errorf("servers: start PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err = s.awaitReady(ctx); err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	return nil
}

// arguments are the command line; a setting that comes later wins. Memory that processes of the server share for a while
// lies in files of the data directory, so that a server that is killed leaves none of it outside.
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

// awaitReady asks until the server answers. It asks for the directory, so that another server that has taken the port is
// not mistaken for this one.
func (s *PostgresServer) awaitReady(ctx context.Context) error {
	for {
		dir, err := askDir(ctx, s.url)
		switch {
		case s.proc.ended():
			return errors.New("it has ended")
		case err == nil && dir == s.Dir():
			return nil
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(pollEvery)
	}
}

// askDir asks the server at a URL where its data is. The limit is for another server that listens and does not answer.
func askDir(ctx context.Context, url string) (dir string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, "SHOW data_directory").Scan(&dir)
	return dir, err
}

// startFailure puts the log of this start into the error, because it alone says what is wrong.
func (s *PostgresServer) startFailure(err error) error {
	log := s.Log()
	if strings.Contains(log[max(0, len(log)-1000):], "Address already in use") {
		return fmt.Errorf("%w: %d\n%s", errPortTaken, s.port, log)
	}
	return fmt.Errorf("servers: PostgreSQL does not start: %w\n%s", err, log)
}

// clearAfterCrash removes what a server leaves that had no time to clean up: the file that says that it runs, and a piece of
// shared memory, which would stay until the machine is restarted. All of its processes are known to be gone.
func (s *PostgresServer) clearAfterCrash() error {
	file := filepath.Join(s.Dir(), "postmaster.pid")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it ended in order
	}
	if err != nil {
		return err
	}
	if lines := strings.Split(string(text), "\n"); len(lines) > 6 {
		if words := strings.Fields(lines[6]); len(words) == 2 {
			_ = exec.Command("ipcrm", "-m", words[1]).Run() // without it, the next start uses the piece again
		}
	}
	return os.Remove(file)
}
