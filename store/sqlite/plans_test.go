package sqlite

import (
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/outbox"
)

// TestPlans: neither the hot path nor background work reads a table from end to end.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	for name, text := range map[string]string{
		"get": selectRecord, "insert": insertRecord, "change": updateRecord, "remove": deleteRecord,
		"floor": selectFloor, "raise the floor": raiseFloor,
		"due": selectDue, "add a late completion": insertLateCompletion, "late completions": selectLateCompletion,
		"forget late completions": deleteLateCompletion,
		"add an external event":   insertExternalEvent, "external events": selectExternalEvent,
		"purge external events": deleteExternalEvent,
		"add an act":            insertAudit, "acts": selectAudit, "purge acts": deleteAudit,
		"by hash": selectHash, "by provider's id": selectProvider, "change a provider's id": updateProvider,
		"oldest unknown": selectUnknown, "lost owners": selectLost, "page": selectPage,
		"lease a message": leaseMessage, "park a message": parkMessage, "bury a message": buryMessage,
		"free a message": freeMessage,
		"held":           selectHeld, "extend a lease": extendMessage, "effect": recordEffect,
		"finish a message": finishMessage,
		"replay":           replayMessage, "drop": dropMessage, "number of a message": selectNumber,
		"add a message": insertMessage, "add an event": insertEvent, "consumed": selectEvent,
	} {
		plan := explain(t, s, text)
		if strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") && name != "late completions" {
			t.Errorf("%s: %s", name, plan)
		}
	}
	// What is open is few, and is sorted when it was found.
	if plan := explain(t, s, selectOpen); !strings.Contains(plan, "USING INDEX onceward_record_due (state=?") {
		t.Errorf("open: %s", plan)
	}
	// Operators' questions may walk an index; they do not read the records.
	for name, text := range map[string]string{"counts": selectCounts} {
		if plan := explain(t, s, text); !strings.Contains(plan, "USING COVERING INDEX") {
			t.Errorf("%s: %s", name, plan)
		}
	}
}

// TestMessagePlans: what workers do again and again goes by the index that is meant for it, and reads no message that
// is done. Where it is sorted, it is sorted by the index.
func TestMessagePlans(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	dead, _ := messageQuery(outbox.Filter{States: []outbox.State{outbox.StateDead, outbox.StateHolding}}, 0)
	byID, _ := messageQuery(outbox.Filter{ID: "id", States: []outbox.State{outbox.StateDead}}, 0)
	next, _ := messageQuery(outbox.Filter{Topic: "topic"}, 1)
	for text, want := range map[string]string{
		selectAnyDue:     "SEARCH onceward_outbox USING COVERING INDEX onceward_outbox_claim (topic=? AND due<?); ",
		selectCandidates: "SEARCH onceward_outbox USING INDEX onceward_outbox_claim (topic=? AND due<?); ",
		selectFront:      "SEARCH onceward_outbox USING COVERING INDEX onceward_outbox_order (lane=?); ",
		countLive:        "SCAN onceward_outbox USING COVERING INDEX onceward_outbox_claim; ",
		countBehind:      "SCAN onceward_outbox USING COVERING INDEX onceward_outbox_behind; ",
		countDead:        "SCAN onceward_outbox USING INDEX onceward_outbox_dead; ",
		dead:             "SEARCH onceward_outbox USING INDEX onceward_outbox_dead (number>?); ",
		byID:             "SEARCH onceward_outbox USING INDEX sqlite_autoindex_onceward_outbox_1 (id=?); ",
		next:             "SEARCH onceward_outbox USING INTEGER PRIMARY KEY (rowid>?); ",
	} {
		if plan := explain(t, s, text); plan != want {
			t.Errorf("%s: %s, want %s", text, plan, want)
		}
	}
	for text, wants := range map[string][]string{
		deleteMessages: {"USING INTEGER PRIMARY KEY (rowid=?)", "USING INDEX onceward_outbox_purge (due<?)"},
		deleteEvent: {
			"USING PRIMARY KEY (event_id=? AND consumer=?)",
			"USING COVERING INDEX onceward_inbox_applied_at (applied_at<?)",
		},
		selectStuck: {
			"SEARCH onceward_outbox USING COVERING INDEX onceward_outbox_behind",
			"USING COVERING INDEX onceward_outbox_behind (lane>?)",
			"USING COVERING INDEX onceward_outbox_order (lane=?)",
		},
	} {
		plan := explain(t, s, text)
		for _, want := range wants {
			if !strings.Contains(plan, want) || strings.Contains(plan, "TEMP B-TREE") ||
				strings.Contains(plan, "SCAN onceward") {
				t.Errorf("%s: %s, want %s", text, plan, want)
			}
		}
	}
}

func explain(t *testing.T, s *Store, text string) (plan string) {
	t.Helper()
	err := s.writer.do(t.Context(), newFunction(func(r *records, _ time.Time) error {
		return query(r.conn, `EXPLAIN QUERY PLAN `+text, nil, func(stmt *sqlite3.Stmt) error {
			plan += stmt.ColumnText(3) + "; "
			return nil
		})
	}))
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
