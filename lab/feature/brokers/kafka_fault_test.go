package brokers_test

import (
	"net"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/await"
)

// Records that were applied and whose offsets were never committed come again, and are not applied again.
func TestCommitsThatFail(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	for p := range partitions {
		b.produce(t, int32(p), idsKafka(p, 0, 5)...)
	}
	refused := b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1,
	})
	c := b.config(t)
	run := startKafka(t, c)
	b.awaitApplied(t, 5*partitions)
	run.stop(t)
	c.Client.CloseAllowingRebalance()
	refused.Remove()
	b.expectOnce(t, 5)

	run = startKafka(t, b.config(t))
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, 5)
}

// awaitApplied waits until so many events have been applied: the group says nothing of it, as it commits nothing.
func (b *kafkaBench) awaitApplied(t *testing.T, n int) {
	t.Helper()
	await.That(t, "the events are applied", func() bool { return len(b.applied(t)) >= n })
}

// Members join and leave while events arrive: each is applied once, and none is left.
func TestRebalances(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	const rounds, events = 6, 5
	first := b.config(t)
	members := []*running{startKafka(t, first)}
	for round := range rounds {
		for p := range partitions {
			b.produce(t, int32(p), idsKafka(p, events*round, events*(round+1))...)
		}
		switch round {
		case 1, 2:
			members = append(members, startKafka(t, b.config(t)))
		case 4:
			members[0].stop(t)
			first.Client.CloseAllowingRebalance()
		}
	}
	b.awaitCommitted(t)
	for _, member := range members[1:] {
		member.stop(t)
	}
	b.expectOnce(t, rounds*events)
}

// keptPorts are ports that brokers listen on again when they restart: no other program can take them meanwhile.
type keptPorts struct {
	numbers []int

	mu   sync.Mutex
	kept map[string]*keptPort
	over sync.WaitGroup
}

// keptPort accepts connections for the broker that has the port now. If there is no broker it closes them.
type keptPort struct {
	net.Listener
	mu   sync.Mutex
	lent *lentPort
}

// lentPort is the port for one broker, until the broker closes it.
type lentPort struct {
	*keptPort
	accepted chan net.Conn
	once     sync.Once
	closed   chan struct{}
}

// listen implements what [kfake.ListenFn] takes.
func (p *keptPorts) listen(network, address string) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	port := p.kept[address]
	if port == nil {
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, err
		}
		port = &keptPort{Listener: l}
		if p.kept == nil {
			p.kept = make(map[string]*keptPort)
		}
		p.kept[l.Addr().String()] = port
		p.numbers = append(p.numbers, l.Addr().(*net.TCPAddr).Port)
		p.over.Go(port.serve)
	}
	lent := &lentPort{keptPort: port, accepted: make(chan net.Conn), closed: make(chan struct{})}
	port.mu.Lock()
	defer port.mu.Unlock()
	port.lent = lent
	return lent, nil
}

func (p *keptPorts) close() {
	for _, port := range p.kept {
		_ = port.Listener.Close()
	}
	p.over.Wait()
}

func (p *keptPort) serve() {
	for {
		conn, err := p.Listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		lent := p.lent
		p.mu.Unlock()
		select {
		case lent.accepted <- conn:
		case <-lent.closed:
			_ = conn.Close()
		}
	}
}

// Accept implements [net.Listener].
func (l *lentPort) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]. The port is kept.
func (l *lentPort) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// All brokers go away in the middle and come back, and leaders move.
func TestBrokersRestart(t *testing.T) {
	t.Parallel()
	dir, ports := t.TempDir(), new(keptPorts)
	t.Cleanup(ports.close)
	b := newKafkaBench(t, kfake.ListenFn(ports.listen), kfake.DataDir(dir))
	for p := range partitions {
		b.produce(t, int32(p), idsKafka(p, 0, 5)...)
	}
	run := startKafka(t, b.config(t))
	b.awaitCommitted(t, 5, 0, 0, 0)
	b.cluster.Close()
	again, err := kfake.NewCluster(kfake.Ports(ports.numbers...), kfake.ListenFn(ports.listen), kfake.DataDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	b.cluster = again
	again.ShufflePartitionLeaders()
	for p := range partitions {
		b.produce(t, int32(p), idsKafka(p, 5, 10)...)
	}
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, 10)
}
