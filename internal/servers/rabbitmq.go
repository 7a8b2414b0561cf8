package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// rabbitmqVariable names the environment variable that holds the URL of a broker to use instead of starting one.
const rabbitmqVariable = "ONCEWARD_TEST_RABBITMQ"

var errNotOurRabbitMQ = errors.New("servers: this RabbitMQ was not started here, so it is not stopped, killed or frozen here")

// RabbitMQServer is a running RabbitMQ. All of its methods can be called at the same time.
type RabbitMQServer struct {
	url string
	// keepsQueues says that the broker outlives the test that declares a queue.
	keepsQueues bool

	// The rest is for a broker that was started here; dir is empty otherwise.
	programs rabbitmqPrograms
	as       owner
	dir      string
	// node is its name among Erlang nodes, by which it is told from another broker that has taken the port.
	node  string
	ports rabbitmqPorts

	mu sync.Mutex
	// proc and epmd are nil while it does not run.
	proc, epmd *process
	closed     bool
}

// rabbitmqPorts are where a broker listens: for clients, for other Erlang nodes, and where its epmd does.
type rabbitmqPorts struct{ client, node, epmd int }

// StartRabbitMQ starts a private broker without plugins and without queues, on loopback alone. It takes about four seconds,
// nearly all of which Erlang needs to load the broker's code. The context limits the start only. Close it when done.
func StartRabbitMQ(ctx context.Context) (*RabbitMQServer, error) {
	programs, err := findRabbitMQ(thisMachine())
	if err != nil {
		return nil, err
	}
	as, err := rabbitmqOwner()
	if err != nil {
		return nil, err
	}
	s := &RabbitMQServer{programs: programs, as: as, node: "onceward-" + strings.ToLower(rand.Text())}
	if s.dir, err = newRabbitMQDir(as); err != nil {
		return nil, fmt.Errorf("servers: create a RabbitMQ: %w", err)
	}
	enlist(s)
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// startSomewhere starts the broker on ports that are free.
func (s *RabbitMQServer) startSomewhere(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for try := 1; ; try++ {
		for _, port := range []*int{&s.ports.client, &s.ports.node, &s.ports.epmd} {
			var err error
			if *port, err = freePort(); err != nil {
				return err
			}
		}
		s.url = fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", s.ports.client)
		err := s.start(ctx)
		if err == nil || try == portTries || !errors.Is(err, errPortTaken) {
			return err
		}
	}
}

// URL is where the broker is, for a user who may do everything.
func (s *RabbitMQServer) URL() string { return s.url }

// Log is what the broker has written to its log, at most the last 16 KiB; empty if it was not started here.
func (s *RabbitMQServer) Log() string {
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

func (s *RabbitMQServer) logFile() string { return filepath.Join(s.dir, "output") }

// Kill ends the broker and all of its processes, with the epmd that was started for it, at one point in time, as a power
// loss of a machine whose disks keep what they were told would. It returns when none of them is left. Nothing happens if it
// does not run. Persistent messages that were confirmed survive in durable queues, but a queue that was declared a moment
// before does not: see Queue.
func (s *RabbitMQServer) Kill() error { return s.control(s.kill) }

// Restart starts a broker that was stopped or killed again, with the same data on the same ports, and returns when it
// accepts connections. One that runs is stopped first.
func (s *RabbitMQServer) Restart() error {
	return s.control(func() error {
		if err := s.stop(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		return s.start(ctx)
	})
}

// Pause freezes the broker: its connections stay open, and nothing answers.
func (s *RabbitMQServer) Pause() error {
	return s.control(func() error {
		if s.proc == nil {
			return errors.New("servers: the RabbitMQ to pause does not run")
		}
		_, err := s.proc.freeze()
		return err
	})
}

// Resume lets a broker go on that was paused.
func (s *RabbitMQServer) Resume() error {
	return s.control(func() error {
		if s.proc == nil {
			return errors.New("servers: the RabbitMQ to resume does not run")
		}
		return s.proc.thaw()
	})
}

// Stop shuts the broker down as its operator would. It can be started again with Restart.
func (s *RabbitMQServer) Stop() error { return s.control(s.stop) }

// Close ends the broker for good and removes its data, for which it need not end in order. A broker that was not started
// here is left alone.
func (s *RabbitMQServer) Close() error {
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
	return errors.Join(s.kill(), os.RemoveAll(s.dir))
}

// control does one thing at a time with a broker that is ours.
func (s *RabbitMQServer) control(do func() error) error {
	if s.dir == "" {
		return errNotOurRabbitMQ
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("servers: this RabbitMQ is closed")
	}
	return do()
}

// stop shuts down what runs, frozen or not. What does not follow in time is killed, and epmd always is: it keeps nothing.
func (s *RabbitMQServer) stop() error {
	if s.proc == nil {
		return s.kill()
	}
	err := errors.Join(s.proc.thaw(), s.proc.signal(syscall.SIGTERM), s.proc.waitEnd(stopLimit))
	return errors.Join(err, s.kill())
}

// kill kills what runs.
func (s *RabbitMQServer) kill() error {
	var errs []error
	for _, proc := range []*process{s.proc, s.epmd} {
		if proc != nil {
			errs = append(errs, killWithDescendants(proc))
		}
	}
	s.proc, s.epmd = nil, nil
	return errors.Join(errs...)
}
