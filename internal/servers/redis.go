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

// redisVariable names the environment variable that holds the URL of a server to use instead of starting one.
const redisVariable = "ONCEWARD_TEST_REDIS"

// RedisServer is a running Redis, or one of the processes of Redis Cluster and Redis Sentinel. All of its methods can
// be called at the same time.
type RedisServer struct {
	server
	program  string
	settings []string
	port     int
	// bus is where the nodes of a cluster reach this one; zero if it is not in a cluster.
	bus int
	// announced is where the node says that it is, if not at its port.
	announced int
	// sentinel says that it watches others and holds no data.
	sentinel bool
}

// StartRedis starts a private server without data. Each setting is a line of redis.conf, as in "appendfsync no"; what
// is not set is as a careful operator of a store would have it: each write is on disk before it is acknowledged, and
// nothing is evicted. The context limits the start only. Close it when done.
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

// newRedis is a server that does not run yet. Unlike other servers, it runs as the user of this process, root or not.
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

// choosePorts finds a port to listen on, and writes the configuration, which a server later rewrites by itself when
// its role changes.
func (s *RedisServer) choosePorts() (err error) {
	if s.port, err = freePort(); err != nil {
		return err
	}
	s.url = fmt.Sprintf("redis://127.0.0.1:%d", s.port)
	return s.configure()
}

// configure writes the configuration; a setting that comes later wins.
func (s *RedisServer) configure() error {
	lines := []string{"bind 127.0.0.1", "port " + strconv.Itoa(s.port), "dir " + s.dir}
	if !s.sentinel {
		lines = append(lines, `save ""`, "appendonly yes", "appendfsync always", "maxmemory-policy noeviction",
			"repl-diskless-sync-delay 0") // by default a replica waits five seconds for another one
	}
	text := strings.Join(append(lines, s.settings...), "\n") + "\n"
	return os.WriteFile(s.configFile(), []byte(text), 0o600)
}

func (s *RedisServer) configFile() string { return filepath.Join(s.dir, "redis.conf") }

// start runs the server on its port and waits until it has its data.
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

// awaitReady asks until the server answers by the id of its process, so that another one that has taken the port is not
// mistaken for this one, and has read its data.
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

// await asks until something is so, which it must be within the time that a server may take to start. An error ends it.
func await(ctx context.Context, what string, is func() (bool, error)) error {
	return awaitEvery(ctx, pollEvery, what, is)
}

// awaitEvery is await for what costs more to ask.
func awaitEvery(ctx context.Context, every time.Duration, what string, is func() (bool, error)) error {
	return awaitWithin(ctx, startLimit, every, what, is)
}

// awaitWithin is awaitEvery for what may take longer than a start.
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

// Do asks the server on a connection of its own. The reply is a string, an int64, nil, or a slice of these; what the
// server refuses is a RedisError.
func (s *RedisServer) Do(ctx context.Context, command ...string) (any, error) {
	return askRedis(ctx, s.url, append(redisGreeting(s.url), command)...)
}

// Info is what the server says of itself.
func (s *RedisServer) Info(ctx context.Context) (map[string]string, error) {
	reply, err := s.Do(ctx, "INFO")
	if err != nil {
		return nil, err
	}
	return redisFields(reply), nil
}

// redisFields reads a text of lines with a name and a value each.
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

// Addr is the host and the port that clients connect to.
func (s *RedisServer) Addr() string { return strings.TrimPrefix(s.url, "redis://") }

// knownPort is the port by which others know the server.
func (s *RedisServer) knownPort() int { return cmp.Or(s.announced, s.port) }

// Dir is where the server keeps its data; empty if it was not started here.
func (s *RedisServer) Dir() string { return s.dir }

// Runs says whether the server was started here and neither killed nor stopped since.
func (s *RedisServer) Runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil && !s.proc.Ended()
}

// DropClients closes all connections of clients, in the middle of what they do. Those of replicas stay.
func (s *RedisServer) DropClients(ctx context.Context) error {
	for _, kind := range []string{"normal", "pubsub"} {
		if _, err := s.Do(ctx, "CLIENT", "KILL", "TYPE", kind); err != nil {
			return err
		}
	}
	return nil
}

// stop shuts the server down in order.
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

// end is kill: a server leaves nothing outside of its directory.
func (s *RedisServer) end() error { return s.kill() }

// kill kills what runs, with the process that rewrites its data, if there is one.
func (s *RedisServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	return running.KillTree()
}
