package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/servers"
)

// patroni is two PostgreSQL servers, of which one takes over from the other. In front of each are a proxy that knows
// its protocol and a wire, for the nodes of the run, which look for the primary themselves. Who goes past all faults
// does so, too.
type patroni struct {
	world   *World
	servers *servers.PatroniCluster
	proxies []*servers.Proxy // as the servers are
	wires   []*wire          // as the servers are
	// acts makes those who change which server is the primary, and those who cut commits, wait for each other.
	acts sync.Mutex
}

func openPatroni(ctx context.Context, w *World) (database, error) {
	p := &patroni{world: w}
	var err error
	if p.servers, err = servers.StartPatroni(ctx); err != nil {
		return nil, err
	}
	for i, node := range p.servers.Nodes() {
		if err := p.lay(fmt.Sprintf("postgres-%d", i), node); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	if err := preparePostgres(ctx, p.direct()); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// lay puts a proxy and a wire in front of a server.
func (p *patroni) lay(name string, node *servers.PatroniNode) error {
	proxy, err := servers.StartProxy(node.URL())
	if err != nil {
		return err
	}
	p.proxies = append(p.proxies, proxy)
	wire, err := p.world.network.lay(name, proxy.Addr())
	if err != nil {
		return err
	}
	p.wires = append(p.wires, wire)
	return nil
}

func (p *patroni) url() string {
	addresses := make([]string, len(p.wires))
	for i, wire := range p.wires {
		addresses[i] = wire.addr()
	}
	return servers.PatroniURL(addresses...)
}

func (p *patroni) direct() string    { return p.servers.URL() }
func (p *patroni) front() string     { return "" }
func (p *patroni) clockFile() string { return "" }
func (p *patroni) plain() bool       { return false }

func (p *patroni) busy(ctx context.Context) string { return postgresBusy(ctx, p.direct()) }

func (p *patroni) close() error {
	var errs []error
	for _, proxy := range p.proxies {
		errs = append(errs, proxy.Close())
	}
	return errors.Join(append(errs, p.servers.Close())...)
}

// setClock asks until a primary has answered: it may be about to be replaced.
func (p *patroni) setClock(ctx context.Context, offset time.Duration) error {
	for deadline := time.Now().Add(2 * switchLimit); ; {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := onPostgres(asking, p.direct(), setPostgresClock(offset))
		cancel()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// queued is how long the faults take that wait for each other.
func (p *patroni) queued() time.Duration { return 10 * 4 * servers.PatroniLease }

func (p *patroni) faults() []Fault {
	faults := []Fault{
		{"primary-kill", func(ctx context.Context) error { return p.replace(ctx, (*servers.PatroniNode).Kill, restart) }},
		{"primary-pause", func(ctx context.Context) error { return p.replace(ctx, (*servers.PatroniNode).Pause, resume) }},
		{"primary-cut-off", func(ctx context.Context) error { return p.replace(ctx, cutOff, rejoin) }},
		{"primary-crash", p.crash},
		{"standby-kill", func(ctx context.Context) error { return p.onStandby(ctx, (*servers.PatroniNode).Kill, restart) }},
		{"standby-pause", func(ctx context.Context) error { return p.onStandby(ctx, (*servers.PatroniNode).Pause, resume) }},
		{"standby-cut-off", func(ctx context.Context) error { return p.onStandby(ctx, cutOff, rejoin) }},
		{"quorum-lost", p.loseQuorum},
		{"commit-reply-cut", func(ctx context.Context) error { return p.trap(ctx, (*servers.Proxy).CutReply) }},
		{"commit-request-cut", func(ctx context.Context) error { return p.trap(ctx, (*servers.Proxy).CutRequest) }},
	}
	return append(faults, p.world.wireFaults("database", p.wires...)...)
}

// act is something that is done to a server.
type act func(*servers.PatroniNode) error

func restart(n *servers.PatroniNode) error { return n.Restart() }
func resume(n *servers.PatroniNode) error  { return n.Resume() }

func cutOff(n *servers.PatroniNode) error {
	n.CutOff(true)
	return nil
}

func rejoin(n *servers.PatroniNode) error {
	n.CutOff(false)
	return nil
}

// replace does something to the primary, by which the standby takes over, and brings it back as the standby.
func (p *patroni) replace(ctx context.Context, begin, end act) error {
	p.acts.Lock()
	defer p.acts.Unlock()
	if err := p.servers.AwaitReady(ctx); err != nil {
		return err
	}
	old, err := p.servers.AwaitLeader(ctx)
	if err != nil {
		return err
	}
	if err := begin(old); err != nil {
		return err
	}
	// One that is cut off says that it is the primary until it gives up.
	taken := until(ctx, "the standby has taken over", func() (bool, error) {
		next, err := p.servers.Leader(ctx)
		return err == nil && next != old, nil
	})
	pause(ctx, p.world.between(100*time.Millisecond, 2*time.Second))
	return errors.Join(taken, end(old), p.servers.AwaitReady(ctx))
}

// crash kills the processes of the primary's PostgreSQL: it starts again, or is replaced.
func (p *patroni) crash(ctx context.Context) error {
	p.acts.Lock()
	defer p.acts.Unlock()
	primary, err := p.servers.AwaitLeader(ctx)
	if err != nil {
		return err
	}
	return errors.Join(primary.KillPostgres(), p.servers.AwaitReady(ctx))
}

// onStandby does something to the standby. Until the primary has given it up, commits wait for it.
func (p *patroni) onStandby(ctx context.Context, begin, end act) error {
	p.acts.Lock()
	defer p.acts.Unlock()
	primary, err := p.servers.AwaitLeader(ctx)
	if err != nil {
		return err
	}
	nodes := p.servers.Nodes()
	standby := nodes[1-slices.Index(nodes, primary)]
	if err := begin(standby); err != nil {
		return err
	}
	pause(ctx, p.world.between(200*time.Millisecond, servers.PatroniLease))
	return errors.Join(end(standby), p.servers.AwaitReady(ctx))
}

// loseQuorum stops what decides who is the primary, until there is none, and lets it go on.
func (p *patroni) loseQuorum(ctx context.Context) error {
	p.acts.Lock()
	defer p.acts.Unlock()
	if err := p.servers.Etcd().Pause(); err != nil {
		return err
	}
	lost := until(ctx, "the primary has given up", func() (bool, error) {
		_, err := p.servers.Leader(ctx)
		return err != nil, nil
	})
	pause(ctx, p.world.between(100*time.Millisecond, 2*time.Second))
	return errors.Join(lost, p.servers.Etcd().Resume(), p.servers.AwaitReady(ctx))
}

// trap catches some commits on their way to the primary, one after the other.
func (p *patroni) trap(ctx context.Context, arm func(*servers.Proxy, func(sql string) bool)) error {
	p.acts.Lock()
	defer p.acts.Unlock()
	primary, err := p.servers.Leader(ctx)
	if err != nil {
		return errNotFired
	}
	proxy := p.proxies[slices.Index(p.servers.Nodes(), primary)]
	return trapCommits(ctx, proxy, func(match func(sql string) bool) { arm(proxy, match) })
}
