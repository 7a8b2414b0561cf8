package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// redisVariable is the environment variable with the URL of a server to use instead of starting one.
const redisVariable = "ONCEWARD_TEST_REDIS"

// RedisServer is a running Redis, or a process of Redis Cluster or Redis Sentinel. It is safe for concurrent use.
type RedisServer struct {
	server
	program  string
	settings []string
	port     int
	// bus is the port for the other nodes of the cluster; zero outside of a cluster.
	bus int
	// announced is the port that the node announces, if it is not its own port.
	announced int
	// sentinel means that the process watches other servers and has no data.
	sentinel bool
}

// StartRedis starts a private server without data. Each setting is a line of redis.conf, as in "appendfsync
// no". Other settings are as a careful operator would choose them: each write is on disk before it is
// acknowledged, and nothing is evicted. The context only limits the start. The caller closes the server.
func StartRedis(ctx context.Context, settings ...string) (*RedisServer, error) {
	s, err := newRedis("Redis", settings)
	if err != nil {
		return nil, err
	}
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newRedis returns a server that is not running yet. Unlike other
// servers, it runs as the user of this process, root or not.
func newRedis(kind string, settings []string) (*RedisServer, error) {
	program, err := findRedis(thisMachine())
	if err != nil {
		return nil, err
	}
	parent, err := workspace.dir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "redis-*")
	if err != nil {
		return nil, fmt.Errorf("servers: create a %s: %w", kind, err)
	}
	s := &RedisServer{program: program, settings: settings}
	s.kind, s.dir, s.life = kind, dir, s
	enlist(s)
	return s, nil
}

// choosePorts chooses a port, and writes the configuration. A
// server later rewrites its configuration when its role changes.
func (s *RedisServer) choosePorts() (err error) {
	if s.port, err = freePort(); err != nil {
		return err
	}
	s.url = fmt.Sprintf("redis://127.0.0.1:%d", s.port)
	return s.configure()
}

// configure writes the configuration; later settings take precedence.
func (s *RedisServer) configure() error {
	lines := []string{"bind 127.0.0.1", "port " + strconv.Itoa(s.port), "dir " + s.dir}
	if !s.sentinel {
		lines = append(lines, `save ""`, "appendonly yes", "appendfsync always", "maxmemory-policy noeviction",
			"repl-diskless-sync-delay 0") // by default a replica waits five seconds for others
	}
	text := strings.Join(append(lines, s.settings...), "\n") + "\n"
	return os.WriteFile(s.configFile(), []byte(text), 0o600)
}

func (s *RedisServer) configFile() string { return filepath.Join(s.dir, "redis.conf") }

// start runs the server on its port and waits until it has loaded its data.
func (s *RedisServer) start(ctx context.Context) (err error) {
	cmd := exec.Command(s.program, s.configFile())
	if s.sentinel {
		cmd.Args = append(cmd.Args, "--sentinel")
	}
	if s.proc, err = s.run(cmd, cleanEnviron("LC_"), syscall.SIGKILL); err != nil {
		return fmt.Errorf("servers: start %s: %w", s.kind, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err = s.awaitReady(ctx); err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	return nil
}

// awaitReady waits until the server answers with its process ID, so that another
// server that has taken the port is not mistaken for it, and has loaded its data.
func (s *RedisServer) awaitReady(ctx context.Context) error {
	pid := strconv.Itoa(s.proc.PID())
	return await(ctx, s.kind+" answers", func() (bool, error) {
		if s.proc.Ended() {
			return true, errors.New("it has ended")
		}
		info, err := s.Info(ctx)
		return err == nil && info["process_id"] == pid && (s.sentinel || info["loading"] == "0"), nil
	})
}

// await waits until a condition holds, for at most the time of a server's start. An error ends the wait.
func await(ctx context.Context, what string, is func() (bool, error)) error {
	return awaitEvery(ctx, pollEvery, what, is)
}

// awaitEvery is like await, for conditions that cost more to check.
func awaitEvery(ctx context.Context, every time.Duration, what string, is func() (bool, error)) error {
	return awaitWithin(ctx, startLimit, every, what, is)
}

// awaitWithin is like awaitEvery, for conditions that may take longer than a start.
func awaitWithin(ctx context.Context, limit, every time.Duration, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		so, err := is()
		switch {
		case err != nil || so:
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("servers: waiting until %s: %w", what, ctx.Err())
		}
		time.Sleep(every)
	}
}

// Do sends a command on its own connection. The reply is a string, an
// int64, nil, or a slice of these. A refused command returns a RedisError.
func (s *RedisServer) Do(ctx context.Context, command ...string) (any, error) {
	return askRedis(ctx, s.url, append(redisGreeting(s.url), command)...)
}

// Info returns the server's information.
func (s *RedisServer) Info(ctx context.Context) (map[string]string, error) {
	reply, err := s.Do(ctx, "INFO")
	if err != nil {
		return nil, err
	}
	return redisFields(reply), nil
}

// redisFields parses lines with a name and a value.
func redisFields(reply any) map[string]string {
	text, _ := reply.(string)
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// Addr returns the host and the port for clients.
func (s *RedisServer) Addr() string { return strings.TrimPrefix(s.url, "redis://") }

// knownPort returns the port by which others know the server.
func (s *RedisServer) knownPort() int { return cmp.Or(s.announced, s.port) }

// Dir returns the server's data directory; empty if the server was not started here.
func (s *RedisServer) Dir() string { return s.dir }

// Runs reports whether the server was started here, and neither killed nor stopped since.
func (s *RedisServer) Runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil && !s.proc.Ended()
}

// DropClients closes all connections of clients, at any point. Connections of replicas remain open.
func (s *RedisServer) DropClients(ctx context.Context) error {
	for _, kind := range []string{"normal", "pubsub"} {
		if _, err := s.Do(ctx, "CLIENT", "KILL", "TYPE", kind); err != nil {
			return err
		}
	}
	return nil
}

// stop shuts the server down.
func (s *RedisServer) stop() error {
	if s.proc == nil {
		return nil
	}
	if err := s.stopBy(syscall.SIGTERM); err != nil {
		return errors.Join(err, s.kill())
	}
	s.proc = nil
	return nil
}

// end kills the server, which leaves nothing outside of its directory.
func (s *RedisServer) end() error { return s.kill() }

// kill kills the server, with any process that rewrites its data.
func (s *RedisServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	return running.KillTree()
}
