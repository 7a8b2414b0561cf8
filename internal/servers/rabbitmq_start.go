package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// newRabbitMQDir makes the directory of a broker that never ran: an Erlang cookie of its own, so that no other node can join
// it, and no plugins.
func newRabbitMQDir(as owner) (string, error) {
	parent, err := workspace.dir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, "rabbitmq-*")
	if err != nil {
		return "", err
	}
	for name, text := range map[string]string{".erlang.cookie": rand.Text(), "enabled_plugins": "[].\n", "output": ""} {
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

// startPrograms starts epmd in the foreground, and the broker when that listens: a broker that finds none starts a daemon,
// which nobody would end. Both are killed when this process dies: they have nothing to tidy up.
func (s *RabbitMQServer) startPrograms(ctx context.Context) (err error) {
	epmd := exec.Command(s.programs.epmd, "-port", strconv.Itoa(s.ports.epmd), "-address", "127.0.0.1")
	if s.epmd, err = s.startProgram(epmd); err != nil {
		return err
	}
	if err := awaitListener(ctx, s.epmd, s.ports.epmd); err != nil {
		return fmt.Errorf("epmd: %w", err)
	}
	s.proc, err = s.startProgram(exec.Command(s.programs.server, "-noinput"))
	return err
}

func (s *RabbitMQServer) startProgram(cmd *exec.Cmd) (*process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own by then
	cmd.Dir = s.dir
	cmd.Env = s.environ()
	cmd.Stdout, cmd.Stderr = log, log
	return startProcess(cmd, s.as, syscall.SIGKILL)
}

// environ is ours without what would change the broker, and all that keeps it apart from others on this machine.
func (s *RabbitMQServer) environ() []string {
	var environ []string
	for _, each := range os.Environ() {
		if !strings.HasPrefix(each, "RABBITMQ_") && !strings.HasPrefix(each, "ERL_") && !strings.HasPrefix(each, "LC_") {
			environ = append(environ, each)
		}
	}
	at := func(name string) string { return filepath.Join(s.dir, name) }
	return append(environ,
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
		"RABBITMQ_LOG_BASE="+at("log"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_ENABLED_PLUGINS_FILE="+at("enabled_plugins"),
		"RABBITMQ_PLUGINS_DIR="+at("plugins"), // to look through the real ones takes half a second
		"RABBITMQ_PID_FILE="+at("pid"),
		"RABBITMQ_CONF_ENV_FILE="+at("no-env.conf"),
		"RABBITMQ_CONFIG_FILE="+at("no-rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+at("no-advanced.config"),
		// The script becomes the broker instead of starting it, so that the process that is known here is the broker itself.
		"RABBITMQ_ALLOW_INPUT=1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+strings.Join([]string{
			"-kernel inet_dist_use_interface {127,0,0,1}",
			"-rabbit num_tcp_acceptors 1",
			"-mnesia dump_log_write_threshold 1", // for awaitOnDisk
			"-rabbit disk_free_limit 1000000",    // by default publishers are blocked when 50 MB are left
		}, " "),
	)
}

// awaitListener waits until somebody listens on the port.
func awaitListener(ctx context.Context, proc *process, port int) error {
	for {
		conn, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		switch {
		case err == nil:
			return conn.Close()
		case proc.ended():
			return errors.New("it has ended")
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(pollEvery)
	}
}

// awaitReady asks until the broker answers. It asks for the name, so that another one that has taken the port is not mistaken
// for this one.
func (s *RabbitMQServer) awaitReady(ctx context.Context) error {
	for {
		if err := awaitListener(ctx, s.proc, s.ports.client); err != nil {
			return err
		}
		name, err := askName(s.url)
		if err == nil && strings.HasPrefix(name, s.node+"@") {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(pollEvery)
	}
}

// askName asks the broker at a URL for its name.
func askName(url string) (string, error) {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return "", err
	}
	name, _ := conn.Properties["cluster_name"].(string)
	return name, conn.Close()
}

// startFailure puts the log of this start into the error, because it alone says what is wrong.
func (s *RabbitMQServer) startFailure(err error) error {
	log := s.Log()
	if last := log[max(0, len(log)-4000):]; strings.Contains(last, "eaddrinuse") || strings.Contains(last, "Address already in use") {
		return fmt.Errorf("%w: one of %+v\n%s", errPortTaken, s.ports, log)
	}
	return fmt.Errorf("servers: RabbitMQ does not start: %w\n%s", err, log)
}

// killWithDescendants ends a process and all that it has started, and what that has started in turn, and returns when all of
// them are gone. They are frozen first, so that none of them starts another in the meantime.
func killWithDescendants(p *process) error {
	if p.ended() {
		return nil
	}
	_, err := p.freeze()
	below, listErr := descendantsOf(p.pid)
	err = errors.Join(err, listErr, p.signal(syscall.SIGKILL), signalAll(syscall.SIGKILL, below))
	return errors.Join(err, p.waitEnd(signalLimit), waitStates(isGone, below...))
}

func descendantsOf(pid int) ([]int, error) {
	below, err := childrenOf(pid)
	for _, child := range below {
		further, childErr := descendantsOf(child)
		below, err = append(below, further...), errors.Join(err, childErr)
	}
	return below, err
}
