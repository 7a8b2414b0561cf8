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
	// startLimit is how long a server may take to accept connections, with recovery after a crash on a slow machine.
	startLimit = 2 * time.Minute
	// stopLimit is how long a clean shutdown may take.
	stopLimit = 2 * time.Minute
	// pollEvery is how often a server that is being waited for is looked at.
	pollEvery = 3 * time.Millisecond
	// portTries is how many ports are tried: between finding a free one and using it another process may take it.
	portTries = 5
)

var (
	// errNotOurs is returned when a server that was not started here is to be stopped, killed or paused.
	errNotOurs = errors.New("servers: this server was not started here, so it is not stopped, killed or paused here")
	// errPortTaken is returned when another process took the port between looking for a free one and using it.
	errPortTaken = errors.New("servers: the port is taken")
)

// server is what all kinds of servers have in common: where it is, and its life. All of its methods can be called at
// the same time.
type server struct {
	// kind is its name for people.
	kind string
	url  string
	// shared says that the server outlives the test that makes something in it.
	shared bool
	// stays says that the server outlives this run of tests, so that what a test makes there has to be removed.
	stays bool

	// The rest is for a server that was started here; dir is empty otherwise.
	dir  string
	as   owner
	life lifecycle

	mu     sync.Mutex
	proc   *proc.Process // nil while it does not run
	closed bool
}

// lifecycle is what each kind of server does in its own way. All but Close are called by one goroutine at a time.
type lifecycle interface {
	io.Closer
	// choosePorts finds where to listen.
	choosePorts() error
	// start runs the server where it was before, and waits until it accepts connections.
	start(ctx context.Context) error
	// stop shuts down what runs, paused or not, as its operator would. What does not follow in time is killed.
	stop() error
	// kill ends what runs at one point in time.
	kill() error
	// end is stop or kill, whichever is enough for a server whose data is not needed any more.
	end() error
}

// startSomewhere starts the server on ports that are free.
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

// freePort finds a port on which nothing listens. It lies below those that the system gives to outgoing connections: a
// client that tries to reach a server which is down would otherwise get the server's own port one day, and block its
// return.
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

// run starts a program of the server in its directory, as its owner, with its output in the log. The signal is for one
// that this process leaves behind.
func (s *server) run(cmd *exec.Cmd, environ []string, orphaned syscall.Signal) (*proc.Process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own by then
	cmd.Dir, cmd.Env = s.dir, environ
	cmd.Stdout, cmd.Stderr = log, log
	s.as.runs(cmd)
	return proc.StartUntil(cmd, orphaned)
}

// cleanEnviron is that of this process without the variables that begin with one of the prefixes.
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

// startFailure puts the log of this start into the error, because it alone says what is wrong.
func (s *server) startFailure(err error) error {
	log := s.Log()
	end := log[max(0, len(log)-4000):]
	if saysPortTaken(end) {
		return fmt.Errorf("%w: %s\n%s", errPortTaken, s.url, log)
	}
	return fmt.Errorf("servers: %s does not start: %w\n%s", s.kind, err, log)
}

// saysPortTaken is whether a server's log says so: each of them has words of its own, and RabbitMQ has three.
func saysPortTaken(log string) bool {
	log = strings.ToLower(log)
	for _, words := range []string{"address already in use", "eaddrinuse", "dist_port_already_used"} {
		if strings.Contains(log, words) {
			return true
		}
	}
	return false
}

// URL is where the server is, for a user who may do everything.
func (s *server) URL() string { return s.url }

// PID is the number of the process that was started here; zero while it does not run.
func (s *server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.PID()
}

// Log is what the server has written to its log, at most the last 16 KiB; empty if it was not started here.
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

// Kill ends the server and all of its processes at one point in time, as a power loss of a machine whose disks keep
// what they were told would. It returns when none of them is left. Nothing happens if it does not run.
func (s *server) Kill() error { return s.control(func() error { return s.life.kill() }) }

// Restart starts a server that was stopped or killed again, with the same data on the same port, and returns when it
// accepts connections. One that runs is stopped first.
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

// Pause stops all processes of the server where they are: its connections stay open, and nothing answers.
func (s *server) Pause() error {
	return s.control(func() error {
		if s.proc == nil {
			return fmt.Errorf("servers: the %s to pause does not run", s.kind)
		}
		return s.proc.PauseTree()
	})
}

// Resume lets a server go on that was paused.
func (s *server) Resume() error {
	return s.control(func() error {
		if s.proc == nil {
			return fmt.Errorf("servers: the %s to resume does not run", s.kind)
		}
		return s.proc.ResumeTree()
	})
}

// Stop shuts the server down as its operator would: connections are closed, and what is committed is written. It can be
// started again with Restart.
func (s *server) Stop() error { return s.control(func() error { return s.life.stop() }) }

// Close ends the server for good and removes its data. A server that was not started here is left alone.
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

// control does one thing at a time with a server that is ours.
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

// stopBy sends the signal that shuts the server down in order, and waits for the end, however that is reported.
func (s *server) stopBy(signal os.Signal) error {
	err := errors.Join(s.proc.ResumeTree(), s.proc.Signal(signal))
	if slow := s.proc.Wait(stopLimit); errors.Is(slow, proc.ErrRunning) {
		err = errors.Join(err, slow)
	}
	return err
}
