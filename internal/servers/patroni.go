package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/proc"
)

// PatroniCluster is two PostgreSQL servers. Patroni makes one the primary and the
// other its synchronous standby, which takes over when the primary is lost, with all
// acknowledged data. The roles are stored in etcd. It is safe for concurrent use.
type PatroniCluster struct {
	etcd  *EtcdServer
	nodes []*PatroniNode
}

// PatroniNode is a PostgreSQL server with its Patroni. Both are
// killed and paused together. It is safe for concurrent use.
type PatroniNode struct {
	server
	programs patroniPrograms
	name     string
	// port is the port of PostgreSQL, and api the port of Patroni's status page.
	port, api int
	// standbys is the proxy between the other node and this PostgreSQL,
	// and decisions the proxy between this Patroni and etcd.
	standbys, decisions *TCPProxy
	settings            map[string]string
}

// These are Patroni's times: if the primary does not renew its lease in time, the
// other node takes over. A primary that cannot reach etcd demotes itself before that.
const (
	patroniLease = 6
	patroniLoop  = 1
	patroniRetry = 2
)

// PatroniLease is the time after which a lost primary is replaced.
const PatroniLease = patroniLease * time.Second

// StartPatroni starts a private etcd and two servers with an empty database. Each
// setting is a setting of PostgreSQL, as in "max_connections=50". It takes some
// ten seconds. The context only limits the start. The caller closes the cluster.
func StartPatroni(ctx context.Context, settings ...string) (*PatroniCluster, error) {
	return retryPorts(func() (*PatroniCluster, error) {
		c := new(PatroniCluster)
		err := c.start(ctx, settings)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	})
}

func (c *PatroniCluster) start(ctx context.Context, settings []string) error {
	programs, err := findPatroni(thisMachine())
	if err != nil {
		return err
	}
	if c.etcd, err = startEtcd(ctx, programs.etcd); err != nil {
		return err
	}
	for i := range 2 {
		node, err := newPatroniNode(programs, c.etcd, fmt.Sprintf("node%d", i+1), settings)
		if node != nil {
			c.nodes = append(c.nodes, node)
		}
		if err != nil {
			return err
		}
		if err := node.control(func() error { return node.start(ctx) }); err != nil {
			return err
		}
	}
	return c.AwaitReady(ctx)
}

// newPatroniNode returns a node that is not running yet.
func newPatroniNode(programs patroniPrograms, etcd *EtcdServer, name string, settings []string) (*PatroniNode, error) {
	as, err := serverOwner("postgres", postgresInstall)
	if err != nil {
		return nil, err
	}
	parent, err := workspace.dir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "patroni-*")
	if err != nil {
		return nil, fmt.Errorf("servers: create a Patroni: %w", err)
	}
	n := &PatroniNode{programs: programs, name: name, settings: make(map[string]string)}
	n.kind, n.dir, n.as, n.life = "Patroni", dir, as, n
	enlist(n)
	for _, setting := range settings {
		key, value, _ := strings.Cut(setting, "=")
		n.settings[key] = value
	}
	if err := errors.Join(as.own(dir), n.choosePorts()); err != nil {
		return n, err
	}
	if n.standbys, err = StartTCPProxy("127.0.0.1:" + strconv.Itoa(n.port)); err != nil {
		return n, err
	}
	if n.decisions, err = StartTCPProxy(etcd.Addr()); err != nil {
		return n, err
	}
	return n, n.configure()
}

// choosePorts chooses the ports of PostgreSQL and Patroni.
func (n *PatroniNode) choosePorts() (err error) {
	if n.api, err = freePort(); err != nil {
		return err
	}
	n.port, err = freePort()
	n.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", n.port)
	return err
}

// tree is one level of a configuration.
type tree = map[string]any

// configure writes Patroni's file. The file is YAML, which includes JSON.
func (n *PatroniNode) configure() error {
	api := "127.0.0.1:" + strconv.Itoa(n.api)
	parameters := tree{"max_connections": "300", "dynamic_shared_memory_type": "mmap", "wal_keep_size": "256MB"}
	for key, value := range n.settings {
		parameters[key] = value
	}
	config := tree{
		"scope": "tests", "name": n.name,
		"restapi": tree{"listen": api, "connect_address": api},
		// This is the second version of etcd's protocol: with the third, Patroni 3.0 keeps a
		// copy that may stay outdated permanently after its connection was silent for a while.
		"etcd": tree{"hosts": []string{n.decisions.Addr()}, "use_proxies": true},
		"bootstrap": tree{
			"dcs": tree{
				"ttl": patroniLease, "loop_wait": patroniLoop, "retry_timeout": patroniRetry,
				"synchronous_mode": true, "maximum_lag_on_failover": 16 << 20,
				// An old primary is copied again instead of being rewound: with pg_rewind, Patroni 3.0 sometimes
				// gave it a checkpoint of its own on the primary's timeline, after which it never followed.
				"postgresql": tree{"use_pg_rewind": false, "use_slots": true, "parameters": parameters},
			},
			"initdb": []any{tree{"encoding": "UTF8"}, tree{"locale": "C"}, tree{"auth": "trust"}},
		},
		"postgresql": tree{
			"listen": "127.0.0.1:" + strconv.Itoa(n.port), "connect_address": n.standbys.Addr(),
			"data_dir": n.Dir(), "bin_dir": filepath.Dir(n.programs.postgres), "pgpass": filepath.Join(n.dir, "pgpass"),
			"authentication": tree{"superuser": tree{"username": "postgres"}, "replication": tree{"username": "postgres"}},
			"parameters":     tree{"unix_socket_directories": n.dir},
			"pg_hba": []string{
				"local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust",
			},
			"basebackup": []any{tree{"checkpoint": "fast"}, "no-sync"},
			"remove_data_directory_on_rewind_failure":     true,
			"remove_data_directory_on_diverged_timelines": true,
		},
		"watchdog": tree{"mode": "off"},
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.configFile(), text, 0o600); err != nil {
		return err
	}
	return n.as.own(n.configFile())
}

func (n *PatroniNode) configFile() string { return filepath.Join(n.dir, "patroni.yml") }

// Dir returns the server's data directory.
func (n *PatroniNode) Dir() string { return filepath.Join(n.dir, "data") }

// Addr returns the host and the port for clients of PostgreSQL.
func (n *PatroniNode) Addr() string { return "127.0.0.1:" + strconv.Itoa(n.port) }

// start runs Patroni, and waits until PostgreSQL accepts connections. If this process is
// killed, Patroni gets SIGTERM and stops PostgreSQL, which would otherwise outlive it.
func (n *PatroniNode) start(ctx context.Context) (err error) {
	environ := append(cleanEnviron("PG", "PATRONI_", "LC_"), "HOME="+n.dir, "LC_ALL=C")
	if n.proc, err = n.run(exec.Command(n.programs.patroni, n.configFile()), environ, syscall.SIGTERM); err != nil {
		return fmt.Errorf("servers: start Patroni: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = awaitEvery(ctx, 50*time.Millisecond, "PostgreSQL runs", func() (bool, error) {
		if n.proc.Ended() {
			return true, errors.New("it has ended")
		}
		status, err := n.status(ctx)
		return err == nil && status.State == "running", nil
	})
	if err != nil {
		return errors.Join(n.startFailure(err), n.kill())
	}
	return nil
}

// patroniStatus is the status of a node in Patroni's API.
type patroniStatus struct {
	State string `json:"state"`
	Role  string `json:"role"`
	Sync  bool   `json:"sync_standby"`
}

// status returns the status of the node, in any role.
func (n *PatroniNode) status(ctx context.Context) (status patroniStatus, err error) {
	text, err := get(ctx, fmt.Sprintf("http://127.0.0.1:%d/patroni", n.api))
	if err != nil {
		return status, err
	}
	return status, json.Unmarshal([]byte(text), &status)
}

// postmaster returns the ID of PostgreSQL's first process, which is not
// in Patroni's process tree. It is zero if PostgreSQL is not running.
func (n *PatroniNode) postmaster() int {
	text, err := os.ReadFile(filepath.Join(n.Dir(), "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 || !n.isPostgres(pid) {
		return 0
	}
	return pid
}

// isPostgres reports whether a process works in the data directory: the file of
// a process that was killed remains, and another process may have its ID by now.
func (n *PatroniNode) isPostgres(pid int) bool {
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && dir == n.Dir()
}

// pids returns the IDs of the running first processes.
func (n *PatroniNode) pids() (pids []int) {
	if n.proc != nil && !n.proc.Ended() {
		pids = append(pids, n.proc.PID())
	}
	if pid := n.postmaster(); pid != 0 {
		pids = append(pids, pid)
	}
	return pids
}

// Pause stops Patroni and PostgreSQL: connections stay open, and nothing answers.
func (n *PatroniNode) Pause() error {
	return n.control(func() error { return proc.PauseTrees(n.pids()...) })
}

// Resume continues a paused node.
func (n *PatroniNode) Resume() error {
	return n.control(func() error { return proc.ResumeTrees(n.pids()...) })
}

// KillPostgres kills only PostgreSQL. Patroni starts it again, or lets the other node take over.
func (n *PatroniNode) KillPostgres() error {
	return n.control(func() error {
		if pid := n.postmaster(); pid != 0 {
			return proc.KillTrees(pid)
		}
		return nil
	})
}

// CutOff separates the node from the other node and from etcd until it
// is called with false, as in a divided network. Clients still reach it.
func (n *PatroniNode) CutOff(cut bool) {
	n.standbys.Block(cut)
	n.decisions.Block(cut)
}

// Runs reports whether the node was started, and neither killed nor stopped since.
func (n *PatroniNode) Runs() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc != nil && !n.proc.Ended()
}

// stop makes Patroni shut down PostgreSQL and itself. The other node can then take over at once.
func (n *PatroniNode) stop() error {
	if n.proc == nil {
		return nil
	}
	if err := errors.Join(proc.ResumeTrees(n.pids()...), n.stopBy(syscall.SIGTERM)); err != nil {
		return errors.Join(err, n.kill())
	}
	n.proc = nil
	return nil
}

// end kills the node. It leaves nothing outside of its directory but a piece of shared memory.
func (n *PatroniNode) end() error { return n.kill() }

// kill kills Patroni and PostgreSQL at one point in time.
func (n *PatroniNode) kill() error {
	pids := n.pids()
	postgres := PostgresServer{server: server{dir: n.dir}}
	n.proc = nil
	if len(pids) == 0 {
		return nil
	}
	return errors.Join(proc.KillTrees(pids...), postgres.clearAfterCrash())
}

// Close ends the node permanently and removes its data.
func (n *PatroniNode) Close() error {
	err := n.server.Close()
	for _, p := range []*TCPProxy{n.standbys, n.decisions} {
		if p != nil {
			err = errors.Join(err, p.Close())
		}
	}
	return err
}

// Query runs statements on the node, like PostgresServer.Query.
func (n *PatroniNode) Query(ctx context.Context, sql string) (string, error) {
	s := PostgresServer{server: server{url: n.url}, programs: n.programs.postgresPrograms}
	return s.Query(ctx, sql)
}

// Nodes returns the servers, running or not, always in the same order.
func (c *PatroniCluster) Nodes() []*PatroniNode { return c.nodes }

// Etcd returns the server that the nodes need to choose the primary: without it, there is no primary.
func (c *PatroniCluster) Etcd() *EtcdServer { return c.etcd }

// URL returns a URL with both nodes, for a client that looks for the node that accepts writes.
func (c *PatroniCluster) URL() string {
	addresses := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addresses[i] = n.Addr()
	}
	return PatroniURL(addresses...)
}

// PatroniURL returns the URL of nodes at other addresses. A client does not wait long for a node that does not answer.
func PatroniURL(addresses ...string) string {
	return "postgres://postgres@" + strings.Join(addresses, ",") +
		"/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=2"
}

// Leader returns the node that is the primary, according to all
// running nodes. It is an error if there is none, or if there are two.
func (c *PatroniCluster) Leader(ctx context.Context) (leader *PatroniNode, err error) {
	for _, n := range c.nodes {
		if !n.Runs() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		status, err := n.status(ctx)
		cancel()
		if err != nil || status.State != "running" || status.Role != "master" && status.Role != "primary" {
			continue
		}
		if leader != nil {
			return nil, errors.New("servers: both nodes say that they are the primary")
		}
		leader = n
	}
	if leader == nil {
		return nil, errors.New("servers: no node is the primary")
	}
	return leader, nil
}

// AwaitLeader waits until a primary accepts writes, and returns it.
func (c *PatroniCluster) AwaitLeader(ctx context.Context) (leader *PatroniNode, err error) {
	err = awaitEvery(ctx, 50*time.Millisecond, "there is a primary", func() (bool, error) {
		if leader, err = c.Leader(ctx); err != nil {
			return false, nil
		}
		asking, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		answer, err := leader.Query(asking, "SELECT pg_is_in_recovery()")
		return err == nil && answer == "f", nil
	})
	return leader, err
}

// AwaitReady waits until there is a primary and the other node, if it is
// running, is its synchronous standby: otherwise that node would not take over.
func (c *PatroniCluster) AwaitReady(ctx context.Context) error {
	err := c.awaitReady(ctx)
	if err == nil {
		return nil
	}
	for _, n := range c.nodes {
		status, unknown := n.status(ctx)
		err = fmt.Errorf("%w\n%s: %+v, %v\n%s", err, n.name, status, unknown, lastLines(n.Log(), 20))
	}
	return err
}

func (c *PatroniCluster) awaitReady(ctx context.Context) error {
	return awaitEvery(ctx, 50*time.Millisecond, "the standby follows the primary", func() (bool, error) {
		leader, err := c.AwaitLeader(ctx)
		if err != nil {
			return false, err
		}
		others := slices.DeleteFunc(slices.Clone(c.nodes), func(n *PatroniNode) bool { return n == leader || !n.Runs() })
		for _, n := range others {
			if status, err := n.status(ctx); err != nil || !status.Sync {
				return false, nil
			}
		}
		return true, nil
	})
}

// Close ends all servers permanently and removes their data.
func (c *PatroniCluster) Close() error {
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.Close())
	}
	if c.etcd != nil {
		errs = append(errs, c.etcd.Close())
	}
	return errors.Join(errs...)
}

// NewPatroni starts a cluster for this test alone, and closes it at the end.
func NewPatroni(t testing.TB, settings ...string) *PatroniCluster {
	t.Helper()
	c, err := StartPatroni(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			if t.Failed() {
				t.Logf("the log of %s:\n%s", n.name, lastLines(n.Log(), 60))
			}
		}
		if err := c.Close(); err != nil {
			t.Errorf("close the servers: %v", err)
		}
	})
	return c
}
