package sqlite

import (
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
)

// TestPlans: neither the hot path nor background work reads a table from end to end.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	for name, text := range map[string]string{
		"get": selectRecord, "insert": insertRecord, "change": updateRecord, "remove": deleteRecord, "floor": selectFloor, "raise the floor": raiseFloor,
		"due": selectDue, "add a finding": insertFinding, "findings": selectFinding, "forget findings": deleteFinding,
		"add a notice": insertNotice, "notices": selectNotice, "purge notices": deleteNotice,
		"add an act": insertAudit, "acts": selectAudit, "purge acts": deleteAudit,
		"oldest unknown": selectUnknown, "page": selectPage,
	} {
		plan := explain(t, s, text)
		if strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") && name != "findings" {
			t.Errorf("%s: %s", name, plan)
		}
	}
	// What is open is few, and is sorted when it was found.
	if plan := explain(t, s, selectOpen); !strings.Contains(plan, "USING INDEX onceward_record_due (queue=?") {
		t.Errorf("open: %s", plan)
	}
	// Operators' questions may walk an index; they do not read the records.
	for name, text := range map[string]string{"counts": selectCounts} {
		if plan := explain(t, s, text); !strings.Contains(plan, "USING COVERING INDEX") {
			t.Errorf("%s: %s", name, plan)
		}
	}
}

func explain(t *testing.T, s *Store, text string) (plan string) {
	t.Helper()
	err := s.writer.do(t.Context(), newFunction(func(r *records, _ time.Time) error {
		return query(r.conn, `EXPLAIN QUERY PLAN `+text, func(*sqlite3.Stmt) error { return nil }, func(stmt *sqlite3.Stmt) error {
			plan += stmt.ColumnText(3) + "; "
			return nil
		})
	}))
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
