package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/cmd/onceward/internal/story"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

func lookKeysList(t *testing.T, s *service) {
	t.Helper()
	says(t, s.must(t, "keys", "list"), s.paid.Hash(), s.unknown.Hash(), "completed 200", "unknown (dead letter)",
		"POST /payments", "alice", "order-paid", "failed_retryable", `key\x1b[2J`)
	says(t, s.must(t, "keys", "list", "--state", "expired"), "None.")
	for args, want := range map[string]int{
		"--state unknown": 4, "--scope alice --state completed": 1, "--operation POST./bookings": 1, "--limit 2": 2,
	} {
		words := append([]string{"keys", "list"}, strings.Fields(args)...)
		for i := range words {
			words[i] = strings.Replace(words[i], "POST./", "POST /", 1)
		}
		if got := objects[view.Record](t, s, words...); len(got) != want {
			t.Errorf("%q lists %d records, want %d", words, len(got), want)
		}
	}
}

// lookPages: pages follow each other without a gap.
func lookPages(t *testing.T, s *service) {
	t.Helper()
	seen := make(map[string]bool)
	for after := ""; ; {
		page := objects[view.Record](t, s, "keys", "list", "--limit", "4", "--after", after)
		for _, rec := range page {
			if seen[rec.Hash] {
				t.Errorf("%s is listed twice", rec.Hash)
			}
			seen[rec.Hash] = true
		}
		if len(page) < 4 {
			break
		}
		after = page[len(page)-1].Cursor
	}
	if len(seen) != 7 {
		t.Errorf("%d records are listed, want 7", len(seen))
	}
	says(t, s.must(t, "keys", "list", "--limit", "4"), "There are more: --after ")
}

// lookKeysShow: an operation is found by its hash, by its key and by its provider's id, and its story is told.
func lookKeysShow(t *testing.T, s *service) {
	t.Helper()
	for _, args := range [][]string{
		{s.paid.Hash()},
		{"order-paid", "--scope", "alice"},
		{"pi_order-paid"},
		{"--by", "provider", "pi_order-paid"},
		{"--by", "hash", s.paid.Hash()},
		{"--by", "key", "--scope", "alice", "order-paid"},
	} {
		text := s.must(t, append([]string{"keys", "show"}, args...)...)
		says(t, text, "POST /payments "+s.paid.Hash(), "completed with 200", "reserved", "trace 4bf92f3577b34da6",
			"pi_order-paid", "A retry now: the stored answer, 200, until", "onceward keys bust "+s.paid.Hash())
		if strings.Contains(text, "secret body") {
			t.Errorf("the body is shown without --reveal: %s", text)
		}
	}
	text := s.must(t, "keys", "show", s.unknown.Hash())
	says(t, text, "became unknown", "the bank hung up", "409 outcome-unknown",
		"onceward unknown resolve "+s.unknown.Hash()+" --attempt ", "--not-executed", "onceward unknown retry ")
	says(t, s.must(t, "keys", "show", s.dead.Hash()), "a dead letter", "the bank is down", "onceward dead retry ")
	says(t, s.must(t, "keys", "show", s.hostile.Hash()), `key\x1b[2J\x1b]0;owned\a\r\nfake line \u202e\xff`)
	says(t, s.must(t, "keys", "show", s.hostile.Key, "--scope", s.hostile.Scope), s.hostile.Hash())   // byte for byte
	s.wantCode(t, exitNotFound, "add --scope", "keys", "show", strings.Repeat("0123456789abcdef", 2)) // it may be no hash
}

// lookKeysShowPhased: the steps are shown, and their downstream keys to who has the secret.
func lookKeysShowPhased(t *testing.T, s *service) {
	t.Helper()
	text := s.must(t, "keys", "show", s.phased.Hash())
	says(t, text, "hold", "charge", "in doubt", "confirm", "pending", "ONCEWARD_SECRET", "--step charge --done")
	rec := s.record(t, s.phased)
	key, err := s.guard.DownstreamKey(&rec, "charge")
	if err != nil {
		t.Fatal(err)
	}
	secret := []string{"ONCEWARD_STORE=" + s.url, "ONCEWARD_SECRET=" + serviceSecret, "ONCEWARD_NAMESPACE=test"}
	for _, args := range [][]string{{s.phased.Hash()}, {key}, {key, "--by", "downstream"}} {
		result := runCommand(t, secret, append([]string{"keys", "show"}, args...)...)
		if result.Code != exitOK {
			t.Errorf("%q: exit code %d: %s", args, result.Code, result.Stderr)
		}
		says(t, result.Stdout, key, s.phased.Hash())
	}
	s.wantCode(t, exitUsage, "ONCEWARD_SECRET", "keys", "show", "--by", "downstream", key)
	s.wantCode(t, exitNotFound, "ONCEWARD_SECRET", "keys", "show", key)
}

func lookKeysShowJSON(t *testing.T, s *service) {
	t.Helper()
	told := objects[story.Story](t, s, "keys", "show", s.hostile.Hash())
	if len(told) != 1 || told[0].Record.State != "unknown" || told[0].Record.KeyBase64 == "" {
		t.Fatalf("told %+v", told)
	}
	if !strings.HasPrefix(told[0].Record.Key, "key\x1b[2J") || len(told[0].Next) != 3 {
		t.Errorf("told %+v", told[0])
	}
}

func TestKeysNotFound(t *testing.T) {
	onSQLite(t, func(t *testing.T, s *service) {
		gone := store.ID{Scope: "alice", Key: "nothing"}
		s.wantCode(t, exitNotFound, "has expired", "keys", "show", gone.Hash())
		s.wantCode(t, exitNotFound, "in another store", "keys", "show", "--scope", "alice", "nothing")
		s.wantCode(t, exitNotFound, "add --scope", "keys", "show", "order-paid")
		s.wantCode(t, exitUsage, "--scope", "keys", "show", "--by", "key", "order-paid")
		s.wantCode(t, exitUsage, "--after", "keys", "list", "--after", "nonsense")
		s.wantCode(t, exitUsage, "--limit", "keys", "list", "--limit", "0")
		s.wantCode(t, exitUsage, "--state", "keys", "list", "--state", "lost")
		says(t, s.must(t, "keys", "show", "--by", "provider", "pi_order-paid"), s.paid.Hash())
		s.wantCode(t, exitUsage, "no hash", "keys", "show", "--by", "hash", "order-paid")
		s.wantCode(t, exitNotFound, "no record", acting("keys", "bust", "--scope", "alice", "nothing")...)
	})
}

// tryReveal: content is shown only when it is asked for, and that is audited.
func tryReveal(t *testing.T, s *service) {
	t.Helper()
	says(t, s.must(t, "keys", "show", s.paid.Hash(), "--reveal", "--why", "a complaint", "--who", "ann"),
		`{"id":"secret body of order-paid"}`)
	says(t, s.must(t, "keys", "show", s.phased.Hash(), "--reveal", "--why", "a complaint"), `"secret guest"`)
	wantAudit(t, s, s.paid, "reveal", "a complaint")
	says(t, s.must(t, "keys", "show", s.paid.Hash()), "reveal", "ann", "a complaint")
}

// wantAudit fails the test if the last act on an ID is another one, or did not end well.
func wantAudit(t *testing.T, s *service, id store.ID, action, why string) {
	t.Helper()
	entries := s.audited(t, id)
	if len(entries) < 2 {
		t.Fatalf("the audit has %+v", entries)
	}
	begun, ended := entries[len(entries)-2], entries[len(entries)-1]
	if begun.Action != action || begun.Reason != why || begun.Outcome != "" || ended.Outcome != "done" || begun.Actor == "" {
		t.Errorf("the audit has %+v, want %s because of %s", entries, action, why)
	}
}

// TestBustRefused: what is refused changes nothing, and is not in the audit.
func TestBustRefused(t *testing.T) {
	onSQLite(t, func(t *testing.T, s *service) {
		s.wantCode(t, exitUsage, "--why", "keys", "show", s.paid.Hash(), "--reveal")
		says(t, s.must(t, "keys", "bust", s.paid.Hash(), "--dry-run"), "the next request with the key executes", "Dry run")
		s.wantCode(t, exitRefused, "--yes", "keys", "bust", s.paid.Hash(), "--why", "wrong answer")
		s.wantCode(t, exitUsage, "--why", "keys", "bust", s.paid.Hash(), "--yes")
		s.wantCode(t, exitRefused, "moved on", acting("keys", "bust", s.paid.Hash(), "--attempt", "12345")...)
		s.wantCode(t, exitRefused, "--force", acting("keys", "bust", s.unknown.Hash())...)
		if s.record(t, s.paid).State != store.StateCompleted || len(s.audited(t, s.paid))+len(s.audited(t, s.unknown)) != 0 {
			t.Fatal("what was refused has changed something")
		}
	})
}

func tryBust(t *testing.T, s *service) {
	t.Helper()
	says(t, s.must(t, acting("keys", "bust", s.paid.Hash())...), "Done")
	says(t, s.must(t, acting("keys", "bust", s.hostile.Hash(), "--force")...), "TWICE", "Done")
	wantAudit(t, s, s.paid, "bust", by.Why)
	wantAudit(t, s, s.hostile, "bust by force", by.Why)
	says(t, s.must(t, "keys", "show", s.paid.Hash()), "bust", "ann", "it executes: there is no record")
}

func tryExtend(t *testing.T, s *service) {
	t.Helper()
	before := s.record(t, s.paid).ExpiresAt
	acted := objects[acted](t, s, acting("keys", "extend", s.paid.Hash(), "--for", "720h")...)
	after := s.record(t, s.paid).ExpiresAt
	if len(acted) != 1 || !acted[0].Done || after.Sub(before).Hours() < 600 {
		t.Errorf("%+v: it expires at %s, before at %s", acted, after, before)
	}
	wantAudit(t, s, s.paid, "retain for 720h0m0s", by.Why)
}

func TestExtendRefused(t *testing.T) {
	onSQLite(t, func(t *testing.T, s *service) {
		before := s.record(t, s.paid).ExpiresAt
		says(t, s.must(t, "keys", "extend", s.paid.Hash(), "--for", "720h", "--dry-run"), "Dry run")
		if !s.record(t, s.paid).ExpiresAt.Equal(before) {
			t.Error("a dry run has changed the record")
		}
		s.wantCode(t, exitRefused, "settled", acting("keys", "extend", s.unknown.Hash(), "--for", "1h")...)
		s.wantCode(t, exitUsage, "--for", acting("keys", "extend", s.paid.Hash())...)
	})
}

// tryHistory: the first cause is told as well as the last, and what the other system has answered each time.
func tryHistory(t *testing.T, s *service) {
	t.Helper()
	id := s.do(t, "alice", "order-released", onceward.OutcomeUnknown(errors.New("the bank hung up")))
	answers := []string{"being looked into", "still being looked into"}
	poller, err := reconcile.NewPoller(s.guard, s.store, reconcile.Config{
		Rules: map[string]reconcile.Rule{"POST /payments": {
			Resolver: reconcile.ResolverFunc(func(context.Context, *store.Record) (reconcile.Answer, error) {
				defer func() { answers = answers[1:] }()
				return reconcile.StillUnknown(answers[0]), nil
			}),
		}},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := poller.Reconcile(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	says(t, s.must(t, "keys", "show", id.Hash()), "first error", "the bank was closed", "last error", "the bank hung up",
		"reconcile attempt 1: being looked into", "reconcile attempt 2: still being looked into", "2 times")
	s.must(t, acting("unknown", "resolve", id.Hash(), "--completed", "--status", "201")...)
	says(t, s.must(t, "keys", "show", id.Hash()), "completed with 201",
		"was unknown: the first error was the bank was closed", "reconcile attempt 1: being looked into", "resolve completed")
}

// TestUnreadable: a record that cannot be read is told apart from one that is gone.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["PostgreSQL"](t))
	execute(t, connect(t, s.url), `UPDATE onceward_record SET fingerprint = '' WHERE id = '`+s.paid.Hash()+`'`)
	says(t, s.must(t, "keys", "show", s.paid.Hash()), "cannot be read", "500 record-unreadable")
	says(t, s.must(t, "keys", "list"), "(unreadable)", s.unknown.Hash())
}

// TestProviderIDsOfMessages: an operation is found by the id that a receiver gave to the effect of a message that the
// operation has added, and its story shows the id.
func TestProviderIDsOfMessages(t *testing.T) {
	onEach(t, func(t *testing.T, s *service) {
		db := s.store.(*storeurl.Database)
		box, err := outbox.New(db, outbox.Config{Guard: s.guard})
		if err != nil {
			t.Fatal(err)
		}
		id := store.ID{Scope: "alice", Key: "order-charged"}
		call := onceward.Call{Scope: id.Scope, Key: id.Key, Operation: "POST /payments"}
		_, err = s.guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
			_, err := box.Add(ctx, onceward.Tx(ctx), outbox.Message{Topic: "captures", Type: "order.paid", Payload: []byte("{}")})
			return nil, err
		}, onceward.Transactional())
		if err != nil {
			t.Fatal(err)
		}
		claimed, err := db.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "captures", Limit: 1}}, time.Minute)
		if err != nil || len(claimed) != 1 {
			t.Fatalf("claimed %+v, %v", claimed, err)
		}
		_, err = db.FinishMessages(t.Context(), []outbox.Outcome{{
			Lease: claimed[0].Lease(), State: outbox.StateDone, Attempts: 1, ProviderID: "ch_by_outbox",
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"ch_by_outbox"}, {"--by", "provider", "ch_by_outbox"}} {
			told := objects[story.Story](t, s, append([]string{"keys", "show"}, args...)...)[0]
			if told.Record.Hash != id.Hash() || len(told.Messages) != 1 || told.Messages[0].ProviderID != "ch_by_outbox" {
				t.Errorf("O3: %q shows %+v", args, told)
			}
		}
		says(t, s.must(t, "keys", "show", id.Hash()), "ch_by_outbox")
	}, "SQLite", "PostgreSQL", "MySQL")
}
