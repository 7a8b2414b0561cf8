package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/servers"
)

// galera is three MariaDB servers that all take writes. Each node of the run has another one of them first in its URL,
// so that requests with one key meet on different servers.
type galera struct {
	world   *World
	servers *servers.GaleraCluster
	fronts  []mariadb // as the servers are
	clock   mysqlClock
	// acts makes those who take servers out of the group, and those who cut commits, wait for each other: a group that
	// does not decide commits nothing.
	acts sync.Mutex
	// opened is how many URLs were given out.
	opened int
}

func openGalera(ctx context.Context, w *World) (database, error) {
	g := &galera{world: w}
	var err error
	if g.servers, err = servers.StartGalera(ctx); err != nil {
		return nil, err
	}
	for i, s := range g.servers.Nodes() {
		front, err := w.front(fmt.Sprintf("galera-%d", i), s, &g.clock)
		g.fronts = append(g.fronts, front)
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
	}
	if err := makeTables(ctx, g.direct()); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// url names all servers, each time with another one in front.
func (g *galera) url() string {
	first := g.opened % len(g.fronts)
	g.opened++
	return mysqlURL(g.addresses(first, func(m mariadb) string { return m.wire.addr() })...)
}

func (g *galera) direct() string {
	return mysqlURL(g.addresses(0, func(m mariadb) string { return m.past.Addr() })...)
}

// addresses are those of all servers, beginning with one.
func (g *galera) addresses(first int, of func(mariadb) string) (addresses []string) {
	for _, m := range slices.Concat(g.fronts[first:], g.fronts[:first]) {
		addresses = append(addresses, of(m))
	}
	return addresses
}

func (g *galera) front() string     { return "" }
func (g *galera) clockFile() string { return "" }
func (g *galera) plain() bool       { return false }

func (g *galera) close() error {
	var errs []error
	for _, m := range g.fronts {
		errs = append(errs, m.close())
	}
	return errors.Join(append(errs, g.servers.Close())...)
}

func (g *galera) busy(ctx context.Context) string {
	var busy []string
	for _, m := range g.fronts {
		if found := m.busy(ctx); found != "" {
			busy = append(busy, found)
		}
	}
	return strings.Join(busy, "; ")
}

func (g *galera) setClock(_ context.Context, offset time.Duration) error {
	g.clock.set(offset)
	return nil
}

// queued is how long the faults take that wait for each other. One of them may have to wait for a server to catch up.
func (g *galera) queued() time.Duration { return 8*40*time.Second + servers.GaleraCatchUp }

func (g *galera) faults() []Fault {
	wires := make([]*wire, len(g.fronts))
	for i, m := range g.fronts {
		wires[i] = m.wire
	}
	return append([]Fault{
		{"member-kill", func(ctx context.Context) error { return g.alone(ctx, g.kill) }},
		{"member-pause", func(ctx context.Context) error { return g.alone(ctx, g.sleep) }},
		{"member-cut-off", func(ctx context.Context) error { return g.alone(ctx, g.cutOff) }},
		{"quorum-lost", func(ctx context.Context) error { return g.alone(ctx, g.loseQuorum) }},
		{"quorum-lost-for-good", func(ctx context.Context) error { return g.alone(ctx, g.bootstrap) }},
		{"all-killed", func(ctx context.Context) error { return g.alone(ctx, g.killAll) }},
		{"commit-reply-cut", func(ctx context.Context) error { return g.trap(ctx, (*servers.Proxy).CutReply) }},
		{"commit-request-cut", func(ctx context.Context) error { return g.trap(ctx, (*servers.Proxy).CutRequest) }},
	}, g.world.wireFaults("database", wires...)...)
}

// alone does something to the group, in an order of its servers that is drawn, and waits until all are back.
func (g *galera) alone(ctx context.Context, do func(ctx context.Context, nodes []*servers.MariaDBServer) error) error {
	g.acts.Lock()
	defer g.acts.Unlock()
	nodes := g.servers.Nodes()
	first := pick(g.world, []int{0, 1, 2})
	err := do(ctx, slices.Concat(nodes[first:], nodes[:first]))
	return errors.Join(err, g.servers.AwaitReady(ctx))
}

// kill kills one server. It comes back when the others have given it up, or before.
func (g *galera) kill(ctx context.Context, nodes []*servers.MariaDBServer) error {
	if err := nodes[0].Kill(); err != nil {
		return err
	}
	pause(ctx, g.world.between(100*time.Millisecond, 4*time.Second))
	return nodes[0].Restart()
}

// sleep pauses one server, for less or more than the others wait for it.
func (g *galera) sleep(ctx context.Context, nodes []*servers.MariaDBServer) error {
	if err := nodes[0].Pause(); err != nil {
		return err
	}
	pause(ctx, g.world.between(200*time.Millisecond, 5*time.Second))
	return nodes[0].Resume()
}

// cutOff keeps one server from the others, until those go on without it. Nodes of the run reach it all the while.
func (g *galera) cutOff(ctx context.Context, nodes []*servers.MariaDBServer) error {
	return errors.Join(g.divide(ctx, nodes[:1], nodes[0]), g.rejoin(ctx, nodes[:1]))
}

// loseQuorum keeps all servers from each other, so that none may decide.
func (g *galera) loseQuorum(ctx context.Context, nodes []*servers.MariaDBServer) error {
	return errors.Join(g.divide(ctx, nodes[:2], nodes[2]), g.rejoin(ctx, nodes[:2]))
}

// divide keeps servers from all others, until one knows that it is without a quorum.
func (g *galera) divide(ctx context.Context, apart []*servers.MariaDBServer, knows *servers.MariaDBServer) error {
	for _, s := range apart {
		if err := g.servers.CutOff(ctx, s); err != nil {
			return err
		}
	}
	err := g.servers.AwaitNoQuorum(ctx, knows)
	pause(ctx, g.world.between(100*time.Millisecond, 2*time.Second))
	return err
}

func (g *galera) rejoin(ctx context.Context, apart []*servers.MariaDBServer) error {
	var errs []error
	for _, s := range apart {
		errs = append(errs, g.servers.Rejoin(ctx, s))
	}
	return errors.Join(errs...)
}

// bootstrap kills two servers, and has the third decide alone, as an operator does who knows that they are dead.
func (g *galera) bootstrap(ctx context.Context, nodes []*servers.MariaDBServer) error {
	if err := errors.Join(nodes[0].Kill(), nodes[1].Kill(), g.servers.AwaitNoQuorum(ctx, nodes[2])); err != nil {
		return err
	}
	if err := g.servers.Bootstrap(ctx, nodes[2]); err != nil {
		return err
	}
	pause(ctx, g.world.between(100*time.Millisecond, 2*time.Second))
	return errors.Join(nodes[0].Restart(), nodes[1].Restart())
}

// killAll kills all servers at once, and starts the group again from the one whose data is newest.
func (g *galera) killAll(ctx context.Context, _ []*servers.MariaDBServer) error {
	if err := g.servers.KillAll(); err != nil {
		return err
	}
	return g.servers.StartAll(ctx)
}

// trap catches some commits on their way to one server, one after the other: the first that is sent any, from one that
// is drawn. Nodes of the run stay with the server that was there when another one was not, so that one may have none.
func (g *galera) trap(ctx context.Context, arm func(*servers.Proxy, func(sql string) bool)) (err error) {
	g.acts.Lock()
	defer g.acts.Unlock()
	first := pick(g.world, []int{0, 1, 2})
	for _, m := range slices.Concat(g.fronts[first:], g.fronts[:first]) {
		err = trapCommits(ctx, m.proxy, func(match func(sql string) bool) { arm(m.proxy, match) })
		if !errors.Is(err, errNotFired) {
			return err
		}
	}
	return err
}
