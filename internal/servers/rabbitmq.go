package servers

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/onceward/onceward/internal/proc"
)

// rabbitmqVariable is the environment variable with the URL of a broker to use instead of starting one.
const rabbitmqVariable = "ONCEWARD_TEST_RABBITMQ"

// RabbitMQServer is a running RabbitMQ. It is safe for concurrent use. Confirmed persistent messages
// in durable queues survive Kill, but a queue that was declared just before does not: see AwaitQueue.
type RabbitMQServer struct {
	server
	programs rabbitmqPrograms
	// node is the broker's Erlang node name, which distinguishes it from another broker that has taken the port.
	node  string
	ports rabbitmqPorts
	// epmd is nil while it is not running.
	epmd *proc.Process
}

// rabbitmqPorts are the ports of a broker: for clients, for other Erlang nodes, and for its epmd.
type rabbitmqPorts struct{ client, node, epmd int }

// StartRabbitMQ starts a private broker without plugins and without queues, on the loopback interface. It takes about
// four seconds, mostly for loading the broker's code. The context only limits the start. The caller closes the broker.
func StartRabbitMQ(ctx context.Context) (*RabbitMQServer, error) {
	s, err := newRabbitMQ("onceward-" + strings.ToLower(rand.Text()))
	if err != nil {
		return nil, err
	}
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newRabbitMQ returns a broker that is not running yet.
func newRabbitMQ(node string) (*RabbitMQServer, error) {
	programs, err := findRabbitMQ(thisMachine())
	if err != nil {
		return nil, err
	}
	as, err := serverOwner("rabbitmq", rabbitmqInstall)
	if err != nil {
		return nil, err
	}
	dir, err := newRabbitMQDir(as)
	if err != nil {
		return nil, fmt.Errorf("servers: create a RabbitMQ: %w", err)
	}
	s := &RabbitMQServer{programs: programs, node: node}
	s.kind, s.dir, s.as, s.life = "RabbitMQ", dir, as, s
	enlist(s)
	return s, nil
}

// choosePorts chooses the ports.
func (s *RabbitMQServer) choosePorts() (err error) {
	for _, port := range []*int{&s.ports.client, &s.ports.node, &s.ports.epmd} {
		if *port, err = freePort(); err != nil {
			return err
		}
	}
	s.url = fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", s.ports.client)
	return nil
}

// newRabbitMQDir returns the directory of a new broker, with its own
// Erlang cookie, so that no other node can join it, and no plugins.
func newRabbitMQDir(as owner) (string, error) {
	parent, err := workspace.dir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, "rabbitmq-*")
	if err != nil {
		return "", err
	}
	for name, text := range map[string]string{".erlang.cookie": rand.Text(), "enabled_plugins": "[].\n", "log": ""} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), as.own(path)); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return dir, errors.Join(as.makeDir(filepath.Join(dir, "plugins")), as.own(dir))
}

// start runs epmd and the broker on their ports and waits until the broker accepts connections.
func (s *RabbitMQServer) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := s.startPrograms(ctx)
	if err == nil {
		err = s.awaitReady(ctx)
	}
	if err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	return nil
}

// startPrograms starts epmd in the foreground, and the broker when epmd listens: a broker without epmd starts it
// as a daemon, which nothing would end. Both are killed when this process dies, because they need no cleanup.
func (s *RabbitMQServer) startPrograms(ctx context.Context) (err error) {
	epmd := exec.Command(s.programs.epmd, "-port", strconv.Itoa(s.ports.epmd), "-address", "127.0.0.1")
	if s.epmd, err = s.run(epmd, s.environ(), syscall.SIGKILL); err != nil {
		return err
	}
	if err := awaitListener(ctx, s.epmd, s.ports.epmd); err != nil {
		return fmt.Errorf("epmd: %w", err)
	}
	s.proc, err = s.run(exec.Command(s.programs.server, "-noinput"), s.environ(), syscall.SIGKILL)
	return err
}

// environ returns our environment without what would change the
// broker, and with what separates it from others on this machine.
func (s *RabbitMQServer) environ() []string {
	at := func(name string) string { return filepath.Join(s.dir, name) }
	return append(cleanEnviron("RABBITMQ_", "ERL_", "LC_"),
		"LC_ALL=C.UTF-8",
		"HOME="+s.dir,
		"ERL_EPMD_PORT="+strconv.Itoa(s.ports.epmd),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_CRASH_DUMP_BYTES=0",
		"RABBITMQ_NODENAME="+s.node+"@localhost",
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+strconv.Itoa(s.ports.client),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(s.ports.node),
		"RABBITMQ_MNESIA_BASE="+at("mnesia"),
		"RABBITMQ_LOG_BASE="+at("logs"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_ENABLED_PLUGINS_FILE="+at("enabled_plugins"),
		"RABBITMQ_PLUGINS_DIR="+at("plugins"), // scanning the real ones takes half a second
		"RABBITMQ_PID_FILE="+at("pid"),
		"RABBITMQ_CONF_ENV_FILE="+at("no-env.conf"),
		"RABBITMQ_CONFIG_FILE="+at("no-rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+at("no-advanced.config"),
		// The script becomes the broker instead of starting it, so that the known process is the broker itself.
		"RABBITMQ_ALLOW_INPUT=1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+strings.Join([]string{
			"-kernel inet_dist_use_interface {127,0,0,1}",
			"-rabbit num_tcp_acceptors 1",
			"-mnesia dump_log_write_threshold 1", // for AwaitQueue
			"-rabbit disk_free_limit 1000000",    // by default publishers are blocked when 50 MB are left
		}, " "),
	)
}

// awaitListener waits until something listens on the port.
func awaitListener(ctx context.Context, running *proc.Process, port int) error {
	for {
		conn, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		switch {
		case err == nil:
			return conn.Close()
		case running.Ended():
			return errors.New("it has ended")
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(pollEvery)
	}
}

// awaitReady waits until the broker answers with its node name, so
// that another broker that has taken the port is not mistaken for it.
func (s *RabbitMQServer) awaitReady(ctx context.Context) error {
	address, err := url.Parse(s.url)
	if err != nil {
		return err
	}
	for {
		if err := awaitListener(ctx, s.proc, s.ports.client); err != nil {
			return err
		}
		about, err := greetRabbitMQ(ctx, address)
		if err == nil && strings.Contains(about, s.node+"@") {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(pollEvery)
	}
}

// greetRabbitMQ begins a connection with a broker and returns the broker's first
// message, which precedes the password: the encoded Connection.Start of AMQP 0-9-1,
// which contains the node name. This package therefore needs no client library.
func greetRabbitMQ(ctx context.Context, address *url.URL) (about string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	dial, port := new(net.Dialer).DialContext, "5672"
	if address.Scheme == "amqps" {
		dial, port = new(tls.Dialer).DialContext, "5671"
	}
	if address.Port() != "" {
		port = address.Port()
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(address.Hostname(), port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return "", err
	}
	head := make([]byte, 7) // the type of the frame, its channel, its size
	if _, err := io.ReadFull(conn, head); err != nil {
		return "", err
	}
	const method, most = 1, 64 << 10
	size := binary.BigEndian.Uint32(head[3:])
	if head[0] != method || size > most {
		return "", fmt.Errorf("servers: this is no AMQP 0-9-1: %q", head)
	}
	body := make([]byte, size)
	_, err = io.ReadFull(conn, body)
	return string(body), err
}

// stop shuts the broker down. Its epmd is always killed: it stores nothing.
func (s *RabbitMQServer) stop() (err error) {
	if s.proc != nil {
		err = s.stopBy(syscall.SIGTERM)
	}
	return errors.Join(err, s.kill())
}

// end kills the broker, which leaves nothing outside of its directory. A normal shutdown takes long.
func (s *RabbitMQServer) end() error { return s.kill() }

// kill kills the broker and its epmd.
func (s *RabbitMQServer) kill() error {
	var errs []error
	for _, running := range []*proc.Process{s.proc, s.epmd} {
		if running != nil {
			errs = append(errs, running.KillTree())
		}
	}
	s.proc, s.epmd = nil, nil
	return errors.Join(errs...)
}
