package main

import (
	"strings"
	"testing"

	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

func tryOutbox(t *testing.T, s *service) {
	t.Helper()
	if s.letter == "" {
		s.wantCode(t, exitUsage, "this store does not keep messages", "outbox", "list")
		s.wantCode(t, exitUsage, "this store does not keep messages", "outbox", "show", "x")
		s.wantCode(t, exitUsage, "this store does not keep messages", acting("outbox", "retry", "x")...)
		return
	}
	says(t, s.must(t, "outbox", "list"), s.letter, "order.paid", "charges", "mails", "the receiver said no")
	if got := objects[view.Message](t, s, "outbox", "list", "--state", "dead", "--state", "holding"); len(got) != 1 {
		t.Errorf("dead letters: %+v", got)
	}
	text := s.must(t, "outbox", "show", s.letter)
	says(t, text, s.letter, "holding", "the receiver said no", "25 bytes of application/json")
	if strings.Contains(text, "secret") {
		t.Errorf("the payload or the answer is shown: %s", text)
	}
	says(t, s.must(t, "outbox", "show", s.letter, "--reveal", "--why", "a complaint"), "secret payload",
		"a secret answer")
	wantAudit(t, s, store.ID{Key: s.letter}, "outbox reveal "+s.letter, "a complaint")
	says(t, s.must(t, "outbox", "retry", s.letter, "--dry-run"), "delivered again", "Dry run")
	says(t, s.must(t, "outbox", "retry", "--all", "--topic", "charges", "--dry-run"), s.letter, "Dry run")
	health := []string{"health", "--max-dead", "9", "--max-unknown-age", "99h"}
	s.wantCode(t, exitFailed, "not all is well", health...)
	says(t, s.must(t, acting("outbox", "discard", s.letter)...), "Done")
	wantMessage(t, s, outbox.StateDead)
	s.must(t, health...) // a person has decided
	says(t, s.must(t, "outbox", "list", "--state", "dead"), s.letter)
	says(t, s.must(t, "outbox", "list", "--state", "dead", "--open"), "None.")
	says(t, s.must(t, acting("outbox", "discard", "--all")...), "None.") // what was discarded is not found again
	says(t, s.must(t, acting("outbox", "retry", "--all")...), "None.")   // nor delivered with others
	says(t, s.must(t, acting("outbox", "retry", s.letter)...), "Done")
	wantMessage(t, s, outbox.StateReady)
	wantAudit(t, s, store.ID{Key: s.letter}, "outbox replay "+s.letter, by.Why)
	s.wantCode(t, exitRefused, "only dead letters", acting("outbox", "retry", s.letter)...)
	s.wantCode(t, exitNotFound, "no message", "outbox", "show", "0b7c1f5e-5a3c-4d37-9b3c-000000000000")
	s.wantCode(t, exitUsage, "--all", acting("outbox", "retry")...)
}

// wantMessage fails the test if the dead letter of the service is in another state now.
func wantMessage(t *testing.T, s *service, want outbox.State) {
	t.Helper()
	box, _ := store.As[outbox.Store](s.store)
	found, err := box.Messages(t.Context(), outbox.Filter{ID: s.letter})
	if err != nil || len(found) != 1 || found[0].State != want {
		t.Errorf("the message is %+v, %v, want it %s", found, err, want)
	}
}
