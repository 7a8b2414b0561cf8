package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitmqVictimVariable makes this program start a broker and wait to be killed.
const rabbitmqVictimVariable = "ONCEWARD_SERVICETEST_RABBITMQ_VICTIM"

// It stands beside TestMain, which does the same for PostgreSQL.
func init() {
	if os.Getenv(rabbitmqVictimVariable) == "" {
		return
	}
	server, err := StartRabbitMQ(context.Background())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(strings.Trim(fmt.Sprint(rabbitmqPIDs(server)), "[]"))
	select {}
}

// rabbitmqPIDs are those of all processes of a broker.
func rabbitmqPIDs(server *RabbitMQServer) []int {
	below, _ := descendantsOf(server.proc.pid)
	return append(below, server.proc.pid, server.epmd.pid)
}

func TestRabbitMQEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	victim := exec.Command(os.Args[0])
	victim.Env = append(os.Environ(), rabbitmqVictimVariable+"=1", "TMPDIR="+reachableDir(t))
	out, err := victim.StdoutPipe()
	must(t, err)
	must(t, victim.Start())
	t.Cleanup(func() { _ = victim.Process.Kill() }) // unless that was the test
	lines := bufio.NewScanner(out)
	lines.Scan()
	var pids []int
	for _, word := range strings.Fields(lines.Text()) {
		var pid int
		if _, err := fmt.Sscan(word, &pid); err != nil {
			t.Fatalf("the victim said %q", lines.Text())
		}
		pids = append(pids, pid)
	}
	if len(pids) < 3 {
		t.Fatalf("the victim said %q", lines.Text())
	}
	must(t, victim.Process.Kill())
	_ = victim.Wait() // it was killed
	must(t, waitStates(isGone, pids...))
}

// publish sends a persistent message and waits until the broker has it.
func publish(t testing.TB, server *RabbitMQServer, queue, body string) {
	t.Helper()
	must(t, server.Do(func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, message)
		if err != nil {
			return err
		}
		if !confirm.Wait() {
			return errors.New("not confirmed")
		}
		return nil
	}))
}

func TestSharedRabbitMQ(t *testing.T) {
	t.Parallel()
	server := RabbitMQ(t)
	if server != RabbitMQ(t) {
		t.Error("two calls gave two brokers")
	}
	var name string
	t.Run("queues", func(t *testing.T) {
		first, second := server.Queue(t, nil), server.Queue(t, nil)
		publish(t, server, first, "hello")
		if n, m := server.Depth(t, first), server.Depth(t, second); n != 1 || m != 0 {
			t.Errorf("%d and %d messages, want 1 and 0", n, m)
		}
		if taken := server.Take(t, first); len(taken) != 1 || string(taken[0].Body) != "hello" {
			t.Errorf("took %v", taken)
		}
		name = first
	})
	err := server.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	if refusal := (*amqp.Error)(nil); !errors.As(err, &refusal) || refusal.Code != amqp.NotFound {
		t.Errorf("the queue after its test: %v", err)
	}
}

// One broker goes through everything, because each start takes seconds.
func TestRabbitMQIsKilledAndRestarted(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	server := NewRabbitMQ(t)
	t.Logf("the broker started in %v", time.Since(begun))
	queue := server.Queue(t, nil)
	publish(t, server, queue, "kept")
	pids := rabbitmqPIDs(server)
	must(t, server.Kill())
	must(t, waitStates(isGone, pids...))
	if err := server.Do(func(*amqp.Channel) error { return nil }); err == nil {
		t.Error("a killed broker answers")
	}
	must(t, server.Kill()) // a second time does nothing

	begun = time.Now()
	must(t, server.Restart())
	t.Logf("the broker started again in %v", time.Since(begun))
	if n := server.Depth(t, queue); n != 1 {
		t.Errorf("%d messages after the crash, want 1", n)
	}

	must(t, server.Pause())
	answered := make(chan error, 1)
	go func() { answered <- server.Do(func(*amqp.Channel) error { return nil }) }()
	select {
	case err := <-answered:
		t.Errorf("a frozen broker answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	must(t, server.Resume())
	must(t, <-answered)

	must(t, server.Pause())
	must(t, server.Stop())
	must(t, server.Close())
	must(t, server.Close())
	if err := server.Restart(); err == nil {
		t.Error("a closed broker was started again")
	}
	if _, err := os.Stat(server.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestRabbitMQListensOnLoopbackAlone(t *testing.T) {
	t.Parallel()
	server := NewRabbitMQ(t)
	text, err := os.ReadFile("/proc/net/tcp")
	must(t, err)
	for _, port := range []int{server.ports.client, server.ports.node, server.ports.epmd} {
		if !strings.Contains(string(text), fmt.Sprintf(" 0100007F:%04X 00000000:0000 0A ", port)) {
			t.Errorf("nobody listens on 127.0.0.1:%d", port)
		}
		if strings.Contains(string(text), fmt.Sprintf(" 00000000:%04X ", port)) {
			t.Errorf("somebody listens on port %d of all addresses", port)
		}
	}
}

func TestFailedRabbitMQStartShowsTheLog(t *testing.T) {
	t.Parallel()
	programs, err := findRabbitMQ(thisMachine())
	must(t, err)
	as, err := rabbitmqOwner()
	must(t, err)
	dir, err := newRabbitMQDir(as)
	must(t, err)
	server := &RabbitMQServer{programs: programs, as: as, dir: dir, node: "no good name"}
	enlist(server)
	t.Cleanup(func() { must(t, server.Close()) })
	if err := server.startSomewhere(t.Context()); err == nil || !strings.Contains(err.Error(), "no good name") {
		t.Errorf("err = %v, want the broker's own words", err)
	}
}

func TestOtherRabbitMQIsUsedAndLeftAlone(t *testing.T) {
	t.Parallel()
	shared := RabbitMQ(t)
	server, err := startSharedRabbitMQ(shared.URL())
	must(t, err)
	for name, do := range map[string]func() error{
		"Kill": server.Kill, "Restart": server.Restart, "Pause": server.Pause, "Resume": server.Resume, "Stop": server.Stop,
	} {
		if err := do(); !errors.Is(err, errNotOurRabbitMQ) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, server.Close())
	must(t, shared.Do(func(*amqp.Channel) error { return nil }))
}

func TestUnusableRabbitMQIsNamedWithoutItsPassword(t *testing.T) {
	for _, url := range []string{"localhost", "amqp://user:hidden@127.0.0.1:1/", "http://user:hidden@localhost/", "amqp://user:hidden@localhost:port/"} {
		_, err := startSharedRabbitMQ(url)
		if err == nil || !strings.Contains(err.Error(), rabbitmqVariable) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: err = %v, want the name of the variable in it, and no password", url, err)
		}
	}
}
