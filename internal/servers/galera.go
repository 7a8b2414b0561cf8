package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// GaleraCluster is a running Galera cluster: MariaDB servers that all accept writes,
// where the losers of a conflict are refused at COMMIT. It is safe for concurrent use.
type GaleraCluster struct {
	nodes []*MariaDBServer
}

// galeraNode makes a server a node of a cluster.
type galeraNode struct {
	provider string
	// group, copies and changes are the ports at which the other nodes reach this
	// node: for messages, for complete copies of the data, and for missed changes.
	group, copies, changes int
	// members are the addresses of all nodes.
	members string
	// first means that the next start makes a new group.
	first bool
	// position is the state of the group that the data contains; empty if it is not known after a run.
	position string
}

// askGaleraEvery is the pause between two queries of the nodes' state.
// Each query is a process, which slows the nodes down on a busy machine.
const askGaleraEvery = 200 * time.Millisecond

// galeraNowhere is the position of data that was never in a group.
const galeraNowhere = "00000000-0000-0000-0000-000000000000:-1"

// GaleraCatchUp is the longest time in which a node may catch up with the others. On a busy machine
// it applies both what it has missed and the new changes of the other nodes, one after the other.
const GaleraCatchUp = 5 * time.Minute

// galeraSize is the number of nodes of a cluster: when one is lost, the others are a majority.
const galeraSize = 3

// StartGalera starts a private cluster of three nodes, with settings for all nodes like those of StartMariaDB. A
// lost node is excluded after three seconds. The context only limits the start. The caller closes the cluster.
func StartGalera(ctx context.Context, settings ...string) (*GaleraCluster, error) {
	return retryPorts(func() (*GaleraCluster, error) {
		c, err := newGalera(ctx, settings)
		if err == nil {
			err = c.startFrom(ctx, c.nodes[0])
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	})
}

// newGalera returns a cluster that is not running yet.
func newGalera(ctx context.Context, settings []string) (*GaleraCluster, error) {
	c := new(GaleraCluster)
	provider, err := findGalera(thisMachine())
	if err != nil {
		return c, err
	}
	var members []string
	for range galeraSize {
		s, err := newMariaDB(ctx, "Galera", settings)
		if err != nil {
			return c, err
		}
		c.nodes = append(c.nodes, s)
		s.node = &galeraNode{provider: provider, position: galeraNowhere}
		if err := s.choosePorts(); err != nil {
			return c, err
		}
		for _, port := range []*int{&s.node.group, &s.node.copies, &s.node.changes} {
			if *port, err = freePort(); err != nil {
				return c, err
			}
		}
		members = append(members, "127.0.0.1:"+strconv.Itoa(s.node.group))
	}
	for _, s := range c.nodes {
		s.node.members = strings.Join(members, ",")
	}
	return c, nil
}

// startFrom starts all nodes, none of which is running. One of them begins a new group.
func (c *GaleraCluster) startFrom(ctx context.Context, first *MariaDBServer) error {
	err := first.control(func() error {
		first.node.first = true
		defer func() { first.node.first = false }()
		return first.start(ctx)
	})
	if err != nil {
		return err
	}
	errs := make([]error, len(c.nodes))
	var starting sync.WaitGroup
	for i, s := range c.nodes {
		if s != first {
			starting.Go(func() { errs[i] = s.control(func() error { return s.start(ctx) }) })
		}
	}
	starting.Wait()
	return errors.Join(append(errs, c.AwaitReady(ctx))...)
}

// arguments returns the settings of a node. A node that is silent for three seconds is excluded.
func (n *galeraNode) arguments() []string {
	address := "gcomm://" + n.members
	if n.first {
		address = "gcomm://"
	}
	options := []string{
		fmt.Sprintf("gmcast.listen_addr=tcp://127.0.0.1:%d", n.group),
		fmt.Sprintf("ist.recv_addr=127.0.0.1:%d", n.changes),
		"evs.keepalive_period=PT0.4S", "evs.inactive_check_period=PT0.2S", "evs.suspect_timeout=PT3S",
		"evs.inactive_timeout=PT6S", "evs.install_timeout=PT6S", "gcache.size=64M", "pc.announce_timeout=PT1S",
	}
	settings := []string{
		"binlog-format=ROW", "default-storage-engine=InnoDB", "innodb-autoinc-lock-mode=2", "wsrep-on=ON",
		"wsrep-provider=" + n.provider, "wsrep-cluster-name=tests", "wsrep-cluster-address=" + address,
		fmt.Sprintf("wsrep-node-address=127.0.0.1:%d", n.group), "wsrep-sst-method=rsync",
		fmt.Sprintf("wsrep-sst-receive-address=127.0.0.1:%d", n.copies),
		"wsrep-provider-options=" + strings.Join(options, ";"), "wsrep-start-position=" + n.position,
	}
	if n.first {
		settings = append(settings, "wsrep-new-cluster")
	}
	return settings
}

// writeState writes the file in which a node stores the state of the group that its data
// contains. The file marks the node as shut down in order, so that it may begin a group again.
func (s *MariaDBServer) writeState(position string) error {
	group, number, _ := strings.Cut(position, ":")
	text := fmt.Sprintf("# GALERA saved state\nversion: 2.1\nuuid:    %s\nseqno:   %s\nsafe_to_bootstrap: 1\n",
		group, number)
	file := filepath.Join(s.Dir(), "grastate.dat")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	return s.as.own(file)
}

// recoverPosition finds the state of the group that a stopped
// node's data contains, as an operator does before a restart.
func (s *MariaDBServer) recoverPosition(ctx context.Context) (string, error) {
	args := append(s.arguments(), append(s.settings, "wsrep-recover")...)
	cmd := exec.CommandContext(ctx, s.programs.server, dashed(args)...)
	cmd.Dir, cmd.Env = s.dir, mariadbEnviron(s.dir)
	s.as.runs(cmd)
	out, err := cmd.CombinedOutput()
	const found = "Recovered position: "
	_, said, ok := strings.Cut(string(out), found)
	if err != nil || !ok {
		return "", fmt.Errorf("servers: no position of a Galera node: %w\n%s", errors.Join(err, ctx.Err()), out)
	}
	position, _, _ := strings.Cut(said, "\n")
	position, _, _ = strings.Cut(position, ",") // what follows is about another kind of replication
	return strings.TrimSpace(position), nil
}

// Nodes returns the servers, running or not, always in the same order.
func (c *GaleraCluster) Nodes() []*MariaDBServer { return c.nodes }

// Name returns a name that no other test uses: the servers may be shared.
func (c *GaleraCluster) Name(t testing.TB) string {
	t.Helper()
	return uniqueName(t.Name())
}

// URL returns a URL with all nodes, as mysql://user@host:port,host:port/database.
func (c *GaleraCluster) URL() string {
	addresses := make([]string, len(c.nodes))
	for i, s := range c.nodes {
		addresses[i] = s.Addr()
	}
	return "mysql://root@" + strings.Join(addresses, ",") + "/" + mariadbDatabase
}

// Database creates a database for this test, on all nodes, and returns its name.
func (c *GaleraCluster) Database(t testing.TB) string {
	t.Helper()
	return c.nodes[0].Database(t)
}

// DatabaseURL creates a database like Database, and returns its URL with all nodes.
func (c *GaleraCluster) DatabaseURL(t testing.TB) string {
	t.Helper()
	return strings.TrimSuffix(c.URL(), mariadbDatabase) + c.Database(t)
}

// galeraStatus returns a node's status.
func (s *MariaDBServer) galeraStatus(ctx context.Context) (map[string]string, error) {
	text, err := s.Query(ctx, `SHOW STATUS WHERE Variable_name IN
		('wsrep_cluster_status', 'wsrep_cluster_size', 'wsrep_local_state_comment', 'wsrep_ready')`)
	status := make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		status[name] = value
	}
	return status, err
}

// AwaitReady waits until all running nodes are synchronised members of one group.
func (c *GaleraCluster) AwaitReady(ctx context.Context) error {
	running := 0
	for _, s := range c.nodes {
		if s.Runs() {
			running++
		}
	}
	return c.AwaitSize(ctx, running)
}

// AwaitSize waits until this number of nodes are synchronised
// members of one group with a quorum. Other nodes are not queried.
func (c *GaleraCluster) AwaitSize(ctx context.Context, size int) error {
	said := make([]string, len(c.nodes))
	what := fmt.Sprintf("%d nodes are in one group", size)
	err := awaitWithin(ctx, GaleraCatchUp, askGaleraEvery, what, func() (bool, error) {
		ready := 0
		for i, s := range c.nodes {
			if !s.Runs() {
				continue
			}
			asking, cancel := context.WithTimeout(ctx, 5*time.Second)
			status, err := s.galeraStatus(asking)
			cancel()
			said[i] = fmt.Sprint(status, err)
			if err == nil && status["wsrep_cluster_status"] == "Primary" && status["wsrep_ready"] == "ON" &&
				status["wsrep_local_state_comment"] == "Synced" && status["wsrep_cluster_size"] == strconv.Itoa(size) {
				ready++
			}
		}
		return ready == size, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(said, "; "))
	}
	return nil
}

// AwaitNoQuorum waits until a node reports that its group has no quorum.
func (c *GaleraCluster) AwaitNoQuorum(ctx context.Context, s *MariaDBServer) error {
	return awaitEvery(ctx, askGaleraEvery, "the node has no quorum", func() (bool, error) {
		status, err := s.galeraStatus(ctx)
		return err == nil && status["wsrep_cluster_status"] == "non-Primary", nil
	})
}

// CutOff makes a node lose all messages from and to the others
// until Rejoin, as in a divided network. Clients still reach it.
func (c *GaleraCluster) CutOff(ctx context.Context, s *MariaDBServer) error {
	return s.isolate(ctx, 1)
}

// Rejoin ends the effect of CutOff.
func (c *GaleraCluster) Rejoin(ctx context.Context, s *MariaDBServer) error {
	return s.isolate(ctx, 0)
}

func (s *MariaDBServer) isolate(ctx context.Context, isolated int) error {
	return s.Exec(ctx, fmt.Sprintf("SET GLOBAL wsrep_provider_options='gmcast.isolate=%d'", isolated))
}

// Bootstrap makes a node whose group has lost its quorum continue alone, as its
// operator does when the others are known to be dead. The others must not be running.
func (c *GaleraCluster) Bootstrap(ctx context.Context, s *MariaDBServer) error {
	if err := s.Exec(ctx, "SET GLOBAL wsrep_provider_options='pc.bootstrap=true'"); err != nil {
		return err
	}
	return awaitWithin(ctx, GaleraCatchUp, askGaleraEvery, "the node decides", func() (bool, error) {
		status, err := s.galeraStatus(ctx)
		return err == nil && status["wsrep_cluster_status"] == "Primary" && status["wsrep_ready"] == "ON", nil
	})
}

// KillAll kills all nodes at nearly the same time, as a power loss does.
func (c *GaleraCluster) KillAll() error {
	errs := make([]error, len(c.nodes))
	var killing sync.WaitGroup
	for i, s := range c.nodes {
		killing.Go(func() { errs[i] = s.Kill() })
	}
	killing.Wait()
	return errors.Join(errs...)
}

// StartAll starts all nodes again, none of which is running. The node with the newest data begins the group.
func (c *GaleraCluster) StartAll(ctx context.Context) error {
	newest, most := c.nodes[0], int64(-1)
	for _, s := range c.nodes {
		position, err := s.recoverPosition(ctx)
		if err != nil {
			return err
		}
		s.node.position = position
		_, number, _ := strings.Cut(position, ":")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n > most {
			newest, most = s, n
		}
		if err := os.RemoveAll(filepath.Join(s.Dir(), "gvwstate.dat")); err != nil { // do not wait for the old group
			return err
		}
	}
	if err := newest.writeState(newest.node.position); err != nil {
		return err
	}
	return c.startFrom(ctx, newest)
}

// Close ends all nodes permanently and removes their data.
func (c *GaleraCluster) Close() error {
	var errs []error
	for _, s := range c.nodes {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// closeWith closes all nodes at the end of the test, and shows their logs if the test has failed.
func (c *GaleraCluster) closeWith(t testing.TB) {
	t.Cleanup(func() {
		for _, s := range c.nodes {
			if t.Failed() {
				t.Logf("the log of %s at %s:\n%s", s.kind, s.Addr(), lastLines(s.Log(), 40))
			}
		}
		if err := c.Close(); err != nil {
			t.Errorf("close the servers: %v", err)
		}
	})
}
