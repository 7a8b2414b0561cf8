package main

import (
	"testing"

	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestAudit: who acted is listed, the newest first, for one operation or for all.
func TestAudit(t *testing.T) {
	onEach(t, func(t *testing.T, s *service) {
		says(t, s.must(t, "audit"), "None.")
		s.must(t, acting("unknown", "retry", s.unknown.Hash())...)
		s.must(t, acting("keys", "bust", s.paid.Hash())...)
		says(t, s.must(t, "audit"), "bust", "ann", by.Why, "done", "(begun)", s.paid.Hash())
		all := objects[view.Audit](t, s, "audit", "--since", "1h")
		if len(all) != 4 || all[0].Action != "bust" || all[0].Outcome != "done" || all[3].Action != "retry now" {
			t.Errorf("the audit has %+v", all)
		}
		if some := objects[view.Audit](t, s, "audit", s.unknown.Hash()); len(some) != 2 {
			t.Errorf("about one operation it has %+v", some)
		}
		if some := objects[view.Audit](t, s, "audit", "--until", "1h"); len(some) != 0 {
			t.Errorf("before an hour ago it has %+v", some)
		}
		if some := objects[view.Audit](t, s, "audit", "--limit", "1"); len(some) != 1 {
			t.Errorf("with a limit it has %+v", some)
		}
		says(t, s.must(t, "audit", "--limit", "1"), "There may be more: --until 20")
		s.wantCode(t, exitUsage, "at most 1000", "audit", "--limit", "1001") // and not a part of it without a word
	}, servers.UnlessAllStores("SQLite", "PostgreSQL")...)
}

func TestAuditUsage(t *testing.T) {
	t.Parallel()
	result := runCommand(t, []string{"ONCEWARD_STORE=none.db"}, "audit", "--since", "yesterday")
	if result.Code != exitUsage {
		t.Errorf("exit code %d", result.Code)
	}
	says(t, result.Stderr, "an age such as 24h")
}

// tryAuditOfExecutions: requests of routes that are audited so are listed apart.
func tryAuditOfExecutions(t *testing.T, s *service) {
	t.Helper()
	auditor, ok := store.As[store.ExecutionAuditor](s.store)
	if !ok {
		t.Fatal("the store keeps no audit of executions")
	}
	err := auditor.AddExecution(t.Context(), store.ExecutionEntry{
		ID: s.paid, Operation: "POST /payments", Actor: "caller\x1b", Decision: store.DecisionExecute,
		Origin: store.OriginCreated, Attempt: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	says(t, s.must(t, "audit", "--executions"), `caller\x1b`, "execute", "created", s.paid.Hash())
	if got := objects[view.Execution](t, s, "audit", "--executions", s.paid.Hash()); len(got) != 1 || got[0].Attempt != 7 {
		t.Errorf("listed %+v", got)
	}
	says(t, s.must(t, "keys", "show", s.paid.Hash()), "requested: execute, created")
}
