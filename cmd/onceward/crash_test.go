package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// TestKilledInFlight kills the demo while requests are in flight, starts it again on the same data, and retries them all:
// nothing is executed twice, nothing acknowledged is lost (RELIABILITY I1, I2, I3).
func TestKilledInFlight(t *testing.T) {
	t.Parallel()
	const rounds, clients = 4, 16
	dir := t.TempDir()
	want := 0
	for round := range rounds {
		s := startDemo(t, "--dir", dir)
		before := killDuring(s, fmt.Sprintf("round-%d", round), clients)
		cutOff := 0
		s = startDemo(t, "--dir", dir)
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
		if n := s.payments(t, "alice"); n != want {
			t.Fatalf("round %d: %d payments, want one for each of %d keys", round, n, want)
		}
		s.kill()
	}
}

// killDuring lets clients pay one after the other until the server is killed in the middle, and returns what each key got.
func killDuring(s *server, prefix string, clients int) map[string]reply {
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := make(map[string]reply)
	for client := range clients {
		all.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("%s-%d-%d", prefix, client, i)
				r := s.pay(key, payment)
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

func retryPayment(t *testing.T, s *server, key string, before reply) {
	t.Helper()
	r := s.must(t, "POST", "/payments", "alice", key, payment)
	if r.status != 201 {
		t.Errorf("retry of %s after the crash: %d %s", key, r.status, r.body)
	}
	if before.status == 201 && r.body != before.body {
		t.Errorf("%s was answered with %s before the crash and %s after it", key, before.body, r.body)
	}
}

// TestKilledWhileSlow kills the demo while a reserved handler runs: nobody knows what it did, so it is never run again.
func TestKilledWhileSlow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startDemo(t, "--dir", dir)
	sent := make(chan reply)
	go func() { sent <- s.send("POST", "/slow?ms=60000", "alice", "slow", "") }()
	await(t, "the execution to start", func() bool { return s.slowExecutions(t) == 1 })
	s.kill()
	if r := <-sent; r.err == nil {
		t.Fatalf("the killed server answered %d", r.status)
	}
	s = startDemo(t, "--dir", dir)
	if r := s.must(t, "POST", "/slow?ms=60000", "alice", "slow", ""); r.status != 409 {
		t.Errorf("a retry right after the crash: %d %s, want 409", r.status, r.body)
	}
	await(t, "the outcome to be unknown", func() bool {
		r := s.must(t, "POST", "/slow?ms=60000", "alice", "slow", "")
		if r.status != 409 || r.header.Get("Retry-After") == "" {
			t.Fatalf("a retry after the crash: %d %s, want 409 with Retry-After", r.status, r.body)
		}
		return problemCode(t, r) == "outcome-unknown"
	})
	if n := s.slowExecutions(t); n != 1 {
		t.Errorf("%d executions, want 1", n)
	}
}

func problemCode(t *testing.T, r reply) string {
	t.Helper()
	var problem struct{ Code string }
	if err := json.Unmarshal([]byte(r.body), &problem); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return problem.Code
}

// await polls a process that has no other way to tell.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(30 * time.Second)
	for !done() {
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatalf("waited too long for %s", what)
		}
	}
}
