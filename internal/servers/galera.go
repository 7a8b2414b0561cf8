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

// GaleraCluster is a running Galera cluster: MariaDB servers that all take writes, of which the losers of a conflict
// are refused at COMMIT. All of its methods can be called at the same time.
type GaleraCluster struct {
	nodes []*MariaDBServer
}

// galeraNode is what makes a server one of a cluster.
type galeraNode struct {
	provider string
	// group, copies and changes are where the other nodes reach this one: with messages, with all of their data, and
	// with what it has missed.
	group, copies, changes int
	// members are the addresses of all nodes.
	members string
	// first says that the next start makes a new group.
	first bool
	// position is which state of the group the data is in; empty if that is not known since it ran.
	position string
}

// askGaleraEvery is how often nodes are asked for their state. Each question is a process, and takes from a busy
// machine what the nodes need.
const askGaleraEvery = 200 * time.Millisecond

// galeraNowhere is the position of data that was never in a group.
const galeraNowhere = "00000000-0000-0000-0000-000000000000:-1"

// GaleraCatchUp is how long a node may take to have what the others have: while they go on, on a busy machine, it
// applies one after the other what it has missed and what comes in the meantime.
const GaleraCatchUp = 5 * time.Minute

// galeraSize is how many nodes a cluster has: with one gone, the others are a majority.
const galeraSize = 3

// StartGalera starts a private cluster of three nodes, with settings of all nodes like those of StartMariaDB. A node
// that is gone is given up after three seconds. The context limits the start only. Close it when done.
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

// newGalera is a cluster that does not run yet.
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

// startFrom starts all nodes, of which none runs, one of them as the beginning of a new group.
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

// arguments are the settings of a node. One that has been silent for three seconds is given up.
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

// writeState writes the file in which a node keeps which state of the group its data is, as one that has ended in order
// and may begin a group again.
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

// recoverPosition finds which state of the group the data of a node is that does not run, as the node's operator does
// before it is started again.
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
	position, _, _ = strings.Cut(position, ",") // what follows is about replication of another kind
	return strings.TrimSpace(position), nil
}

// Nodes are the servers, running or not, in the same order at all times.
func (c *GaleraCluster) Nodes() []*MariaDBServer { return c.nodes }

// Name makes a name that no other test has: the servers may be shared.
func (c *GaleraCluster) Name(t testing.TB) string {
	t.Helper()
	return uniqueName(t.Name())
}

// URL names all nodes, as mysql://user@host:port,host:port/database.
func (c *GaleraCluster) URL() string {
	addresses := make([]string, len(c.nodes))
	for i, s := range c.nodes {
		addresses[i] = s.Addr()
	}
	return "mysql://root@" + strings.Join(addresses, ",") + "/" + mariadbDatabase
}

// Database creates a database for this test, on all nodes. It returns its name.
func (c *GaleraCluster) Database(t testing.TB) string {
	t.Helper()
	return c.nodes[0].Database(t)
}

// DatabaseURL creates a database like Database, and returns its URL, which names all nodes.
func (c *GaleraCluster) DatabaseURL(t testing.TB) string {
	t.Helper()
	return strings.TrimSuffix(c.URL(), mariadbDatabase) + c.Database(t)
}

// galeraStatus is what a node says of itself.
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

// AwaitReady waits until all nodes that run are in one group and have what it has.
func (c *GaleraCluster) AwaitReady(ctx context.Context) error {
	running := 0
	for _, s := range c.nodes {
		if s.Runs() {
			running++
		}
	}
	return c.AwaitSize(ctx, running)
}

// AwaitSize waits until so many nodes are in one group that decides, and have what it has. The others are not asked.
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

// AwaitNoQuorum waits until a node says that its group cannot decide.
func (c *GaleraCluster) AwaitNoQuorum(ctx context.Context, s *MariaDBServer) error {
	return awaitEvery(ctx, askGaleraEvery, "the node has no quorum", func() (bool, error) {
		status, err := s.galeraStatus(ctx)
		return err == nil && status["wsrep_cluster_status"] == "non-Primary", nil
	})
}

// CutOff makes a node lose all messages from and to the others until Rejoin, as a network that is divided does. Clients
// reach it as before.
func (c *GaleraCluster) CutOff(ctx context.Context, s *MariaDBServer) error {
	return s.isolate(ctx, 1)
}

// Rejoin lets a node that was cut off hear the others again.
func (c *GaleraCluster) Rejoin(ctx context.Context, s *MariaDBServer) error {
	return s.isolate(ctx, 0)
}

func (s *MariaDBServer) isolate(ctx context.Context, isolated int) error {
	return s.Exec(ctx, fmt.Sprintf("SET GLOBAL wsrep_provider_options='gmcast.isolate=%d'", isolated))
}

// Bootstrap makes a node decide alone whose group has lost its quorum, as its operator does when the others are known
// to be dead: those must not run.
func (c *GaleraCluster) Bootstrap(ctx context.Context, s *MariaDBServer) error {
	if err := s.Exec(ctx, "SET GLOBAL wsrep_provider_options='pc.bootstrap=true'"); err != nil {
		return err
	}
	return awaitWithin(ctx, GaleraCatchUp, askGaleraEvery, "the node decides", func() (bool, error) {
		status, err := s.galeraStatus(ctx)
		return err == nil && status["wsrep_cluster_status"] == "Primary" && status["wsrep_ready"] == "ON", nil
	})
}

// KillAll ends all nodes at nearly the same time, as a power loss does.
func (c *GaleraCluster) KillAll() error {
	errs := make([]error, len(c.nodes))
	var killing sync.WaitGroup
	for i, s := range c.nodes {
		killing.Go(func() { errs[i] = s.Kill() })
	}
	killing.Wait()
	return errors.Join(errs...)
}

// StartAll starts all nodes again, of which none runs: the one whose data is newest begins the group.
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
		if err := os.RemoveAll(filepath.Join(s.Dir(), "gvwstate.dat")); err != nil { // the old group is not awaited
			return err
		}
	}
	if err := newest.writeState(newest.node.position); err != nil {
		return err
	}
	return c.startFrom(ctx, newest)
}

// Close ends all nodes for good and removes their data.
func (c *GaleraCluster) Close() error {
	var errs []error
	for _, s := range c.nodes {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// closeWith closes all nodes at the end of the test, which shows their logs if it has failed.
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
