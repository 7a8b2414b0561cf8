package servers

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc"
)

// greet asks a broker for its name, as each client does first.
func greet(t testing.TB, s *RabbitMQServer) error {
	t.Helper()
	address, err := url.Parse(s.URL())
	must(t, err)
	about, err := greetRabbitMQ(t.Context(), address)
	if err == nil && !strings.Contains(about, s.node+"@") {
		t.Errorf("the broker said %q, want its name", about)
	}
	return err
}

// TestRabbitMQIsKilledAndRestarted: one broker goes through everything, because each start takes seconds. What messages
// and queues come to is tested in lab/servers, with a client.
func TestRabbitMQIsKilledAndRestarted(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the server is slow to start") // others kill theirs too
	begun := time.Now()
	s := NewRabbitMQ(t)
	t.Logf("the broker started in %v", time.Since(begun))
	must(t, greet(t, s))
	wantLoopback(t, s)
	wantLeftAlone(t, s)
	pids := rabbitmqPIDs(s)
	must(t, s.Kill())
	must(t, proc.AwaitGone(pids...))
	if err := greet(t, s); err == nil {
		t.Error("a killed broker answers")
	}
	must(t, s.Kill()) // a second time does nothing

	begun = time.Now()
	must(t, s.Restart())
	t.Logf("the broker started again in %v", time.Since(begun))
	must(t, s.Pause())
	answered := make(chan error, 1)
	go func() { answered <- greet(t, s) }()
	select {
	case err := <-answered:
		t.Errorf("a paused broker answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	must(t, s.Resume())
	must(t, <-answered)

	must(t, s.Pause())
	must(t, s.Stop())
	must(t, s.Close())
	must(t, s.Close())
	if err := s.Restart(); err == nil {
		t.Error("a closed broker was started again")
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

// wantLoopback: no other machine can reach a broker of the tests.
func wantLoopback(t *testing.T, s *RabbitMQServer) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/tcp")
	must(t, err)
	for _, port := range []int{s.ports.client, s.ports.node, s.ports.epmd} {
		if !strings.Contains(string(text), fmt.Sprintf(" 0100007F:%04X 00000000:0000 0A ", port)) {
			t.Errorf("nothing listens on 127.0.0.1:%d", port)
		}
		if strings.Contains(string(text), fmt.Sprintf(" 00000000:%04X ", port)) {
			t.Errorf("something listens on port %d of all addresses", port)
		}
	}
}

func TestFailedRabbitMQStartShowsTheLog(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the server is slow to start")
	s, err := newRabbitMQ("no good name")
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	if err := s.startSomewhere(t.Context()); err == nil || !strings.Contains(err.Error(), "no good name") {
		t.Errorf("err = %v, want the broker's own words", err)
	}
}

// TestTakenPortForNodesIsSeen: it has words of its own for that, and another port is tried.
func TestTakenPortForNodesIsSeen(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "the server is slow to start")
	s, err := newRabbitMQ("onceward-taken")
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	must(t, s.choosePorts())
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	s.ports.node = taken.Addr().(*net.TCPAddr).Port
	if err := s.start(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("err = %v, want that the port is taken", err)
	}
}

// wantLeftAlone: a broker that was not started here is used and left alone.
func wantLeftAlone(t *testing.T, s *RabbitMQServer) {
	t.Helper()
	server, err := useRabbitMQ(t.Context(), s.URL())
	must(t, err)
	for name, do := range map[string]func() error{
		"Kill": server.Kill, "Restart": server.Restart, "Pause": server.Pause, "Resume": server.Resume, "Stop": server.Stop,
	} {
		if err := do(); !errors.Is(err, errNotOurs) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, server.Close())
	must(t, greet(t, s))
}

func TestUnusableRabbitMQIsNamedWithoutItsPassword(t *testing.T) {
	for _, url := range []string{"localhost", "amqp://user:hidden@127.0.0.1:1/", "http://user:hidden@localhost/", "amqp://user:hidden@localhost:port/"} {
		_, err := useRabbitMQ(t.Context(), url)
		if err == nil || !strings.Contains(err.Error(), rabbitmqVariable) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: err = %v, want the name of the variable in it, and no password", url, err)
		}
	}
}
