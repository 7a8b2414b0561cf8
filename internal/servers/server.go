package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
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

	"github.com/onceward/onceward/internal/proc"
)

const (
	// startLimit is the time in which a server must accept
	// connections, including recovery after a crash on a slow machine.
	startLimit = 2 * time.Minute
	// stopLimit is how long a clean shutdown may take.
	stopLimit = 2 * time.Minute
	// pollEvery is the pause between two checks of a server.
	pollEvery = 3 * time.Millisecond
	// portTries is the number of ports to try: another process may take a free port before it is used.
	portTries = 5
)

var (
	// errNotOurs is returned for an attempt to stop, kill or pause a server that was not started here.
	errNotOurs = errors.New("servers: this server was not started here, so it is not stopped, killed or paused here")
	// errPortTaken is returned when another process took a free port before it was used.
	errPortTaken = errors.New("servers: the port is taken")
)

// server is the common part of all kinds of servers: the address and the life cycle. It is safe for concurrent use.
type server struct {
	// kind is the name of the kind of server, for people.
	kind string
	url  string
	// shared means that the server outlives the test that uses it.
	shared bool
	// stays means that the server outlives this run of tests, so that tests must remove what they create there.
	stays bool

	// The remaining fields are for servers that were started here; otherwise dir is empty.
	dir  string
	as   owner
	life lifecycle

	mu     sync.Mutex
	proc   *proc.Process // nil while it does not run
	closed bool
}

// lifecycle is the part of a server's life that differs by kind.
// All methods except Close are called by one goroutine at a time.
type lifecycle interface {
	io.Closer
	// choosePorts chooses the ports.
	choosePorts() error
	// start runs the server on its ports, and waits until it accepts connections.
	start(ctx context.Context) error
	// stop shuts the server down in order, paused or not. If this takes too long, the server is killed.
	stop() error
	// kill kills all processes at one point in time.
	kill() error
	// end stops or kills the server, whichever is enough if its data are not needed any more.
	end() error
}

// startSomewhere starts the server on free ports.
func (s *server) startSomewhere(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for try := 1; ; try++ {
		if err := s.life.choosePorts(); err != nil {
			return err
		}
		err := s.life.start(ctx)
		if err == nil || try == portTries || !errors.Is(err, errPortTaken) {
			return err
		}
	}
}

// freePort returns a port on which nothing listens. It is below the ports of outgoing connections: otherwise a client
// that tries to reach a stopped server could get the server's own port for its connection, and block its restart.
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

// run starts a program of the server in its directory, as its owner, with its output
// in the log. The orphaned signal is sent to the program if this process ends first.
func (s *server) run(cmd *exec.Cmd, environ []string, orphaned syscall.Signal) (*proc.Process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own copy by then
	cmd.Dir, cmd.Env = s.dir, environ
	cmd.Stdout, cmd.Stderr = log, log
	s.as.runs(cmd)
	return proc.StartUntil(cmd, orphaned)
}

// cleanEnviron returns this process's environment without the variables that begin with one of the prefixes.
func cleanEnviron(prefixes ...string) (environ []string) {
	for _, each := range os.Environ() {
		keep := true
		for _, prefix := range prefixes {
			keep = keep && !strings.HasPrefix(each, prefix)
		}
		if keep {
			environ = append(environ, each)
		}
	}
	return environ
}

// startFailure adds the log of this start to the error, because only the log shows the reason.
func (s *server) startFailure(err error) error {
	log := s.Log()
	end := log[max(0, len(log)-4000):]
	if saysPortTaken(end) {
		return fmt.Errorf("%w: %s\n%s", errPortTaken, s.url, log)
	}
	return fmt.Errorf("servers: %s does not start: %w\n%s", s.kind, err, log)
}

// saysPortTaken reports whether a server's log contains a known message for a taken port.
func saysPortTaken(log string) bool {
	log = strings.ToLower(log)
	for _, words := range []string{"address already in use", "eaddrinuse", "dist_port_already_used"} {
		if strings.Contains(log, words) {
			return true
		}
	}
	return false
}

// URL returns the server's URL, for a user with all rights.
func (s *server) URL() string { return s.url }

// PID returns the ID of the process that was started here; zero while it is not running.
func (s *server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.PID()
}

// Log returns the end of the server's log, at most 16 KiB; empty if the server was not started here.
func (s *server) Log() string {
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

func (s *server) logFile() string { return filepath.Join(s.dir, "log") }

// Kill kills all processes of the server at one point in time. This is like a power loss of a machine whose disks
// keep all flushed data. It returns when all processes are gone. It does nothing if the server is not running.
func (s *server) Kill() error { return s.control(func() error { return s.life.kill() }) }

// Restart starts a stopped or killed server again, with the same data and port,
// and returns when it accepts connections. A running server is stopped first.
func (s *server) Restart() error {
	return s.control(func() error {
		if err := s.life.stop(); err != nil {
			return err
		}
		return s.startAgain()
	})
}

func (s *server) startAgain() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	return s.life.start(ctx)
}

// Pause stops all processes of the server: its connections stay open, and nothing answers.
func (s *server) Pause() error {
	return s.control(func() error {
		if s.proc == nil {
			return fmt.Errorf("servers: the %s to pause does not run", s.kind)
		}
		return s.proc.PauseTree()
	})
}

// Resume continues a paused server.
func (s *server) Resume() error {
	return s.control(func() error {
		if s.proc == nil {
			return fmt.Errorf("servers: the %s to resume does not run", s.kind)
		}
		return s.proc.ResumeTree()
	})
}

// Stop shuts the server down in order: connections are closed, and committed data are written. Restart starts it again.
func (s *server) Stop() error { return s.control(func() error { return s.life.stop() }) }

// Close ends the server permanently and removes its data. A server that was not started here is left alone.
func (s *server) Close() error {
	if s.dir == "" {
		return nil
	}
	dismiss(s.life)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.life.end(), os.RemoveAll(s.dir))
}

// control runs one operation at a time on a server that was started here.
func (s *server) control(do func() error) error {
	if s.dir == "" {
		return errNotOurs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("servers: this %s is closed", s.kind)
	}
	return do()
}

// stopBy sends the signal that shuts the server down, and waits for its end. The exit status does not matter.
func (s *server) stopBy(signal os.Signal) error {
	err := errors.Join(s.proc.ResumeTree(), s.proc.Signal(signal))
	if slow := s.proc.Wait(stopLimit); errors.Is(slow, proc.ErrRunning) {
		err = errors.Join(err, slow)
	}
	return err
}
