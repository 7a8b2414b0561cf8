package check

import (
	"maps"
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// excuses are histories that look broken and are not.
var excuses = map[string]func(*story){
	"a grant that never came back has the same token": func(s *story) {
		twin := *s.writeOf("moved", 0)
		twin.Ended = 0
		s.Writes = append(s.Writes, twin)
	},
	"a reservation was repeated with its nonce": func(s *story) {
		first := s.writeOf("moved", 0)
		first.Nonce = "n1"
		twin := *first
		s.Writes = append(s.Writes, twin)
	},
	"a transaction that was not committed has an old token": func(s *story) {
		s.write(history.Write{Call: history.CallTransact, Key: "booked", Attempt: 1, Granted: true, Err: "rolled back"})
	},
	"a transaction learned that another one has stored its answer": func(s *story) {
		s.transactTwins("n2", "d-B1", 5)
	},
	"two grants at once came back in the other order": func(s *story) {
		s.grant("moved", 9)
		s.grant("moved", 8)
		last := len(s.Writes) - 1
		s.Writes[last].Began = s.Writes[last-1].Ended
	},
	"a write that overlaps the grant of the next token": func(s *story) {
		next := s.writeOf("booked", 1)
		s.Writes = append(s.Writes, history.Write{
			Call: history.CallExtend, Scope: "s", Key: "booked", Attempt: 1, Accepted: true, Began: next.Ended, Ended: next.Ended + 5,
		})
	},
	"a completion is said again after a transaction that ended without trace": func(s *story) {
		s.write(history.Write{Call: history.CallTransact, Key: "moved", Attempt: 9, Granted: true, Accepted: true})
		s.complete("moved", 6, "d-T1")
	},
	"an operator busted a record": func(s *story) {
		s.write(history.Write{Call: history.CallBust, Key: "moved", Accepted: true})
		s.dropRecord("moved")
	},
	"an operator may have busted a record, and the key was used again": func(s *story) {
		s.write(history.Write{Call: history.CallBust, Key: "refused"})
		s.writeOf("refused", 2).Ended = 0
		s.complete("refused", 7, "else")
		s.ask(history.Attempt{Kind: "refund", Key: "refused", Reference: "R2", Status: 410, Body: "other"})
	},
	"an operator may have busted a record, and another answer is stored": func(s *story) {
		s.write(history.Write{Call: history.CallBust, Key: "moved", Accepted: true})
		s.recordOf("moved").Body = "else"
	},
	"a record expired, and its answer with it": func(s *story) {
		*s.recordOf("refused") = history.Record{Scope: "s", Key: "refused", State: "expired", Attempt: 1}
	},
	"a node has an operation of its own": func(s *story) {
		s.grant("sweep", 1)
		s.writeOf("sweep", 0).Scope = "node"
	},
	"a client gave up what was never begun": func(s *story) { s.giveUp("booking", "lost") },
	"a client gave up what was released": func(s *story) {
		s.giveUp("refund", "lost")
		s.grant("lost", 1)
		s.write(history.Write{Call: history.CallAbandon, Key: "lost", Attempt: 1, Accepted: true})
		s.write(history.Write{Call: history.CallResolveNotExecuted, Key: "lost", Attempt: 1, Accepted: true})
		s.record("lost", "failed_retryable", 1, "")
	},
	"a client gave up what was done": func(s *story) {
		s.giveUp("booking", "lost")
		s.ask(problem("booking", "lost", "lost-r", 500, "outcome-unknown"))
		s.grant("lost", 1)
		s.complete("lost", 1, "d")
		s.record("lost", "completed", 1, "d").Status = 201
		s.book("lost", "lost-r")
		s.effect("charges", "lost", "lost-r")
	},
	"a client gave up what was refused": func(s *story) {
		s.giveUp("transfer", "lost")
		s.record("lost", "completed", 1, "d").Status = 402
		s.effect("transfers", "lost", "lost-r").Declined = true
	},
	"a mistaken client gave up, and the right one too": func(s *story) {
		s.giveUp("transfer", "lost")
		s.ask(problem("transfer", "lost", "lost-q", 422, "mismatch"))
		s.record("lost", "completed", 1, "d").Status = 201
		s.effect("transfers", "lost", "lost-r")
	},
	"answers that are never stored differ": func(s *story) {
		for _, status := range []int{408, 425, 429, 500, 502} {
			s.ask(history.Attempt{Kind: "transfer", Key: "moved", Reference: "T1", Status: status, Body: "try again"})
		}
	},
	"a problem that is new to the checker": func(s *story) { s.ask(problem("transfer", "moved", "T1", 409, "brand-new")) },
	"an account that is no scope":          func(s *story) { s.attemptOf("idle", 0).Body = `{"account":"DE89"} "account":"other` },
}

func TestExcusesAreAccepted(t *testing.T) {
	t.Parallel()
	all := maps.Clone(excuses)
	maps.Copy(all, harderExcuses)
	for name, change := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &story{Run: clean(), clock: 1_000_000}
			change(s)
			for _, v := range Check(s.Run) {
				t.Error(v)
			}
		})
	}
}

func TestUnknownOutcomeExplainsAnEffect(t *testing.T) {
	t.Parallel()
	s := &story{Run: clean(), clock: 1_000_000}
	s.ask(history.Attempt{Kind: "transfer", Key: "open", Reference: "T5", Lost: "timeout"})
	s.record("open", "unknown", 1, "")
	s.effect("transfers", "open", "T5")
	violations := Check(s.Run)
	if len(violations) != 1 || violations[0].Invariant != "I13" {
		t.Errorf("violations %v, want one of I13", violations)
	}
}

func TestViolationReadsWell(t *testing.T) {
	t.Parallel()
	if got, want := (Violation{"I1", "s", "k", "two"}).String(), "I1: s/k: two"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := (Violation{Invariant: "I14", Detail: "none"}).String(), "I14: none"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
