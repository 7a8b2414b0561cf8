package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
)

// TestCurlLines is the first five minutes of a user: what the demo prints is what happens.
func TestCurlLines(t *testing.T) {
	t.Parallel()
	s := startDemo(t, t.TempDir())
	sh, lines := openShell(t), s.steps(t, 12)
	first, again := sh.run(t, lines[0]), sh.run(t, lines[1])
	if !strings.HasPrefix(first, "HTTP/1.1 201 Created") || strings.Contains(first, "Idempotent-Replayed") {
		t.Errorf("a payment: %s", first)
	}
	_, body, _ := strings.Cut(first, "\n\n")
	replayed := strings.Contains(again, "Idempotent-Replayed: true")
	if !strings.HasPrefix(again, "HTTP/1.1 201") || !replayed || !strings.HasSuffix(again, body) {
		t.Errorf("the same again: %s, want the first answer: %s", again, first)
	}
	if changed := sh.run(t, lines[2]); !strings.HasPrefix(changed, "HTTP/1.1 422") {
		t.Errorf("another amount: %s", changed)
	}
	await.That(t, "the payment is charged", func() bool { return strings.Contains(sh.run(t, lines[3]), `"state":"charged"`) })
	if refund := sh.run(t, lines[4]); !strings.HasPrefix(refund, "HTTP/1.1 201") {
		t.Errorf("a refund: %s", refund)
	}
	if booking := sh.run(t, lines[5]); !strings.HasPrefix(booking, "HTTP/1.1 201") || !strings.Contains(booking, `"state":"confirmed"`) {
		t.Errorf("a booking: %s", booking)
	}
	if ledger := s.ledger(t); len(ledger) != 3 {
		t.Errorf("the ledger holds %v, want a payment, a refund and a booking", ledger)
	}
}

func TestScopesAndTokens(t *testing.T) {
	t.Parallel()
	s := startDemo(t, t.TempDir(), "--in-flight", "accepted")
	alice := s.must(t, "POST", "/payments", "alice", "same", payment)
	bob := s.must(t, "POST", "/payments", "bob", "same", payment)
	if alice.status != 201 || bob.status != 201 || alice.body == bob.body {
		t.Errorf("the same key of two accounts: %d and %d, want two payments", alice.status, bob.status)
	}
	for _, token := range []string{"", "mallory", "Alice"} {
		for _, path := range []string{"/payments", "/operations/same"} {
			if r := s.must(t, "GET", path, token, "", ""); r.status != 401 {
				t.Errorf("GET %s as %q: %d, want 401", path, token, r.status)
			}
		}
	}
	if r := s.must(t, "GET", "/operations/same", "alice", "", ""); r.status != 200 {
		t.Errorf("status of an own key: %d %s", r.status, r.body)
	}
	s.must(t, "POST", "/payments", "bob", "only-bobs", payment)
	foreign := s.must(t, "GET", "/operations/only-bobs", "alice", "", "")
	absent := s.must(t, "GET", "/operations/nobodys-k", "alice", "", "")
	instance := regexp.MustCompile(`urn:uuid:[0-9a-f-]+`) // names each occurrence
	if foreign.status != 404 || instance.ReplaceAllString(foreign.body, "") != instance.ReplaceAllString(absent.body, "") {
		t.Errorf("a foreign key answers %d %s, an absent one %d %s", foreign.status, foreign.body, absent.status, absent.body)
	}
}

func TestBadPayments(t *testing.T) {
	t.Parallel()
	s := startDemo(t, t.TempDir())
	for i, body := range []string{
		``, `{`, `{"customer":"","amount":1,"currency":"EUR"}`, `{"customer":"c","amount":0,"currency":"EUR"}`,
		`{"customer":"c","amount":1,"currency":"Euro"}`,
	} {
		r := s.must(t, "POST", "/payments", "alice", fmt.Sprintf("bad-%d", i), body)
		if r.status != 400 || !strings.Contains(r.body, "error") {
			t.Errorf("%s: %d %s, want 400 with what is wrong", body, r.status, r.body)
		}
	}
	if r := s.must(t, "GET", "/payments", "alice", "", ""); strings.TrimSpace(r.body) != "[]" {
		t.Errorf("payments were made: %s", r.body)
	}
	metrics := s.must(t, "GET", "/metrics", "", "", "").body
	for _, line := range []string{
		`onceward_reservations_total{decision="created",route="POST /payments"} 5`,
		`onceward_attempts_settled_total{route="POST /payments",state="rejected"} 5`,
	} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("M1: the metrics have no line %s:\n%s", line, metrics)
		}
	}
}

// duplicates sends one request many times at once.
func (s *server) duplicates(n int, path, key, body string) []reply {
	replies := make([]reply, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range replies {
		all.Go(func() {
			<-start
			replies[i] = s.send("POST", path, "alice", key, body)
		})
	}
	close(start)
	all.Wait()
	return replies
}

// TestTwoHundredAtOnce: one key, 200 goroutines, over HTTP, on both kinds of route, under each policy.
func TestTwoHundredAtOnce(t *testing.T) {
	t.Parallel()
	many := nightly.Either(200, 50)
	for _, policy := range []string{"conflict", "wait", "accepted"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := startDemo(t, t.TempDir(), "--in-flight", policy)
			checkDuplicates(t, policy, s.duplicates(many, "/payments", "key", payment))
			path := s.charged(t, "key")
			checkDuplicates(t, policy, s.duplicates(many, path+"/refund", "refund", `{"amount":5}`))
			if ledger := s.ledger(t); len(ledger) != 2 {
				t.Errorf("the ledger holds %v, want one charge and one refund", ledger)
			}
		})
	}
}

// checkDuplicates: exactly one reply is the execution's own; the others are replays of it, or what the policy says.
func checkDuplicates(t *testing.T, policy string, replies []reply) {
	t.Helper()
	firsts, body := 0, ""
	for _, r := range replies {
		if r.err != nil {
			t.Fatal(r.err)
		}
		if r.status == 201 && r.header.Get("Idempotent-Replayed") == "" {
			firsts++
			body = r.body
		}
	}
	if firsts != 1 {
		t.Fatalf("%d replies claim to be the first, want 1", firsts)
	}
	for _, r := range replies {
		switch {
		case r.status == 201 && r.body == body:
		case r.status == 409 && policy == "conflict" && r.header.Get("Retry-After") != "":
		case r.status == 202 && policy == "accepted" && r.header.Get("Location") != "" && r.header.Get("Retry-After") != "":
		default:
			t.Errorf("a duplicate under %s got %d %v %s", policy, r.status, r.header, r.body)
		}
	}
}

// TestInterruptServing: a demo that only serves has done its work when it is asked to end.
func TestInterruptServing(t *testing.T) {
	t.Parallel()
	s := startDemo(t, t.TempDir())
	if err := s.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(await.Limit); err != nil {
		t.Errorf("the demo ended with %v", err)
	}
}
