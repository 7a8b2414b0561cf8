package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
)

// TestKilledInFlight kills the demo while requests are in flight, starts it again on the same data, and retries them
// all: nothing is executed twice, nothing acknowledged is lost (RELIABILITY I1, I2, I3).
func TestKilledInFlight(t *testing.T) {
	t.Parallel()
	const clients = 16
	dir := t.TempDir()
	want := 0
	for round := range nightly.Either(3, 1) {
		before := killDuring(startDemo(t, dir), fmt.Sprintf("round-%d", round), clients)
		cutOff := 0
		s := startDemo(t, dir)
		for key, answer := range before {
			retryPayment(t, s, key, answer)
			if answer.err != nil {
				cutOff++
			}
		}
		if cutOff == 0 {
			t.Errorf("round %d: the kill met no request in flight", round)
		}
		want += len(before)
		await.That(t, "all payments are charged", func() bool { return len(s.ledger(t)) >= want })
		for key := range before {
			if n := len(s.ledger(t).Charges(key)); n != 1 {
				t.Errorf("%s was charged %d times", key, n)
			}
		}
		s.kill()
	}
}

// killDuring lets clients pay one after the other until the server is killed in the middle, and returns what each key
// got.
func killDuring(s *server, prefix string, clients int) map[string]reply {
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := make(map[string]reply)
	for client := range clients {
		all.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("%s-%d-%d", prefix, client, i)
				r := s.pay(key, referenced(key))
				mu.Lock()
				answers[key] = r
				mu.Unlock()
				if r.err != nil {
					return
				}
			}
		})
	}
	time.AfterFunc(20*time.Millisecond+rand.N(80*time.Millisecond), s.kill)
	all.Wait()
	return answers
}

// referenced is a payment that the ledger knows by its key.
func referenced(key string) string {
	return fmt.Sprintf(`{"customer":"c1","amount":1999,"currency":"EUR","reference":%q}`, key)
}

func retryPayment(t *testing.T, s *server, key string, before reply) {
	t.Helper()
	r := s.must(t, "POST", "/payments", "alice", key, referenced(key))
	if r.status != 201 {
		t.Errorf("retry of %s after the crash: %d %s", key, r.status, r.body)
	}
	if before.status == 201 && r.body != before.body {
		t.Errorf("%s was answered with %s before the crash and %s after it", key, before.body, r.body)
	}
}

// TestCrashWalkThrough types what the demo says about a crash: a refund whose answer was never seen is neither
// forgotten nor made again.
func TestCrashWalkThrough(t *testing.T) {
	t.Parallel()
	addr := fmt.Sprint("127.0.0.1:", servers.FreePort(t))
	s := startDemo(t, t.TempDir(), "--addr", addr)
	sh, lines := openShell(t), s.steps(t, 12)
	sh.run(t, lines[0])
	await.That(t, "the payment is charged", func() bool { return strings.Contains(sh.run(t, lines[3]), `"state":"charged"`) })
	if held := sh.run(t, lines[6]); !strings.HasPrefix(held, "HTTP/1.1 204") {
		t.Fatalf("the faults: %s", held)
	}
	sh.run(t, lines[7])
	await.That(t, "the refund is made", func() bool { return len(s.ledger(t)) == 2 })
	sh.run(t, lines[8])
	_ = s.Wait(await.Limit) // it was killed
	want := "demo --no-load --addr " + addr + " --dir " + s.dir
	if !strings.HasSuffix(lines[9], want) {
		t.Errorf("to start again, the demo says %s, want %s", lines[9], want)
	}
	again := startDemo(t, s.dir, "--addr", addr)
	if repeated := again.steps(t, 12); repeated[10] != lines[10] || repeated[11] != lines[11] {
		t.Errorf("after the restart the demo says %q, want what it said before: %q", repeated[10:], lines[10:])
	}
	await.That(t, "the refund is settled", func() bool {
		refund := sh.run(t, lines[10])
		if !strings.HasPrefix(refund, "HTTP/1.1 409") && !strings.HasPrefix(refund, "HTTP/1.1 201") {
			t.Fatalf("a retry after the crash: %s, want 409 and then 201", refund)
		}
		return strings.HasPrefix(refund, "HTTP/1.1 201")
	})
	if count := strings.TrimSpace(sh.run(t, lines[11])); count != "1" {
		t.Errorf("the refund is in the ledger %s times", count)
	}
	if ledger := again.ledger(t); len(ledger) != 2 {
		t.Errorf("the ledger holds %v, want a charge and a refund", ledger)
	}
}
