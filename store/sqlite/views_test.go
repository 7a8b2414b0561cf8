package sqlite_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// rows are what the shell of SQLite shows for a query.
func rows(t testing.TB, path, query string) (found []map[string]any) {
	t.Helper()
	out, err := shell(t, path, ".mode json\n"+query)
	if err != nil {
		t.Fatalf("%s: %v\n%s", query, err, out)
	}
	if strings.TrimSpace(out) != "" {
		must(t, json.Unmarshal([]byte(out), &found))
	}
	return found
}

// fill makes records of every kind, and returns how many.
func fill(t testing.TB, s *sqlite.Store) int {
	t.Helper()
	ctx := t.Context()
	begin := func(key string, edits ...func(*store.Reservation)) store.Claim {
		r := reservation(key, edits...)
		r.TraceID, r.Operation = "4bf92f3577b34da6a3ce929d0e0e4736", "POST /"+key
		v, err := s.Reserve(ctx, r)
		if err != nil || v.Decision != store.DecisionExecute {
			t.Fatalf("%s: %v (%v)", key, v.Decision, err)
		}
		return store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
	}
	must(t, s.Checkpoint(ctx, begin("in progress"),
		store.Checkpoint{Point: "charged", ProviderID: "ch_1", Data: []byte(strings.Repeat("x", 300))}))
	begin("resumable", func(r *store.Reservation) { r.OnLost = store.LostResume })
	begin("0f8fad5b-d9cb-469f-a165-70867728950e")
	begin("bound", func(r *store.Reservation) {
		r.Fingerprints[0].Session, r.Fingerprints[0].Secret = [16]byte{7}, 1<<31
	})
	begin("long scope", func(r *store.Reservation) { r.Scope = strings.Repeat("s", 300) })
	_, err := s.Complete(ctx, begin("completed"), answerOf("done"))
	must(t, err)
	laden := begin("laden")
	must(t, s.Checkpoint(ctx, laden, store.Checkpoint{Point: "charged", Data: []byte(strings.Repeat("x", 20_000))}))
	_, err = s.Complete(ctx, laden, answerOf("done"))
	must(t, err)
	must(t, s.Release(ctx, begin("released"), "out of stock"))
	must(t, s.Abandon(ctx, begin("unknown"), "no reply"))
	letter := begin("letter")
	must(t, s.Release(ctx, letter, "délai dépassé"))
	letter = begin("letter")
	must(t, s.Abandon(ctx, letter, "no reply"))
	for count := range 200 { // more than a byte holds
		must(t, s.BeginReconcile(ctx, letter, count, time.Hour))
	}
	must(t, s.Postpone(ctx, letter, store.Postponement{Count: 200, Wait: time.Hour, MaxAttempts: 1, Reason: "not found"}))
	must(t, s.Reject(ctx, begin("rejected")))
	return 11
}

// TestRecordsView: the shell of SQLite shows what the store says.
func TestRecordsView(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := openBusiness(t, path)
	want := fill(t, s)
	all := rows(t, path, `SELECT * FROM onceward_records;`)
	if len(all) != want {
		t.Errorf("the view shows %d records, want %d", len(all), want)
	}
	moment := func(at time.Time) any {
		if at.IsZero() {
			return nil
		}
		return at
	}
	text := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	for _, got := range all {
		rec, err := s.Get(t.Context(), store.ID{Scope: fmt.Sprint(got["scope"]), Key: fmt.Sprint(got["key"])})
		if err != nil {
			t.Errorf("of %v the store says: %v", got, err)
			continue
		}
		status, dead := any(nil), 0.0
		if rec.Response.Status != 0 {
			status = float64(rec.Response.Status)
		}
		if rec.DeadLetter {
			dead = 1
		}
		for column, want := range map[string]any{
			"hash": rec.Hash(), "operation": text(rec.Operation), "state": rec.State.String(), "dead_letter": dead,
			"attempt": float64(rec.Attempt), "due": moment(rec.Due()), "created_at": moment(rec.CreatedAt),
			"lease_until": moment(rec.LeaseUntil), "reconcile_at": moment(rec.ReconcileAt), "settled_at": moment(rec.SettledAt),
			"expires_at": moment(rec.ExpiresAt), "retention_seconds": rec.Retention.Seconds(), "point": text(rec.Point),
			"first_error": text(rec.FirstError), "last_error": text(rec.LastError), "reconcile_error": text(rec.ReconcileError),
			"reconcile_count": float64(rec.ReconcileCount), "provider_id": text(rec.ProviderID), "trace_id": text(rec.TraceID),
			"answer_status": status,
		} {
			if at, ok := want.(time.Time); ok { // to the millisecond, however it is rounded
				seen, err := time.Parse("2006-01-02 15:04:05.000Z", fmt.Sprint(got[column]))
				if err == nil && seen.Sub(at).Abs() <= time.Millisecond {
					continue
				}
			}
			if got[column] != want {
				t.Errorf("of %s the view shows %s %v, want %v", rec.Key, column, got[column], want)
			}
		}
	}
}

// TestErrorsInView: two errors are told apart, whatever bytes they hold.
func TestErrorsInView(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := openBusiness(t, path)
	texts := []string{
		"", "no reply", "no\x00reply", "\x00", "\x007", "a\x00b\x001", "a\x00\x000", "12",
		"a\x0099999999999999999999", "gr\xfcn",
	}
	for _, first := range texts {
		for _, last := range texts {
			key := fmt.Sprintf("%x-%x", first, last)
			must(t, s.Release(t.Context(), claimed(t, s, key), first))
			must(t, s.Abandon(t.Context(), claimed(t, s, key), last))
		}
	}
	all := rows(t, path, `SELECT key, hex(ifnull(first_error, '')) AS first, hex(ifnull(last_error, '')) AS last
		FROM onceward_records;`)
	if len(all) != len(texts)*len(texts) {
		t.Errorf("the view shows %d records", len(all))
	}
	for _, got := range all {
		rec, err := s.Get(t.Context(), reservation(fmt.Sprint(got["key"])).ID)
		must(t, err)
		first, last := fmt.Sprintf("%X", rec.FirstError), fmt.Sprintf("%X", rec.LastError)
		if got["first"] != first || got["last"] != last {
			t.Errorf("the view shows the errors %v and %v, want %v and %v", got["first"], got["last"], first, last)
		}
	}
}

// TestDamagedInView: a record that cannot be read is shown as far as it goes, and hides no other.
func TestDamagedInView(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := openBusiness(t, path)
	want := fill(t, s)
	must(t, s.Close())
	for i, record := range []string{`x''`, `x'01'`, `x'0101000080'`, `substr(record, 1, 70)`, `CAST(zeroblob(50) AS BLOB)`, `x'ffffffffffffffffffffffffffffffff'`} {
		if out, err := shell(t, path, fmt.Sprintf(`UPDATE onceward_record SET record = %s WHERE rowid = %d;`, record, i+1)); err != nil {
			t.Fatal(err, out)
		}
	}
	if all := rows(t, path, `SELECT * FROM onceward_records;`); len(all) != want {
		t.Errorf("the view shows %d records, want %d", len(all), want)
	}
}

// TestOtherViews: messages and both audits are shown in words.
func TestOtherViews(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := openBusiness(t, path)
	box, err := outbox.New(s, outbox.Config{})
	must(t, err)
	must(t, s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := box.Add(context.Background(), tx, outbox.Message{Topic: "new", AggregateType: "order", AggregateID: "7", Type: "paid", Payload: []byte("{}")})
		return err
	}))
	id := store.ID{Scope: "alice", Key: "0f8fad5b-d9cb-469f-a165-70867728950e"}
	must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: id, Attempt: 3, Actor: "zoé", Action: "bust", Reason: "why", Outcome: "done"}))
	must(t, s.AddExecution(t.Context(), store.ExecutionEntry{ID: id, Attempt: 3, Actor: "zoé", Operation: "POST /x", Decision: store.DecisionExecute, Origin: store.OriginRetried}))
	must(t, s.AddExecution(t.Context(), store.ExecutionEntry{ID: id, Decision: store.DecisionRefused}))
	for query, want := range map[string]string{
		`SELECT concat FROM (SELECT topic||' '||aggregate_type||' '||aggregate_id||' '||type||' '||state||' '||attempts||' '||payload_bytes||' '||(origin_scope IS NULL) AS concat FROM onceward_messages);`: "new order 7 paid ready 0 2 1",
		`SELECT scope||' '||key||' '||attempt||' '||actor||' '||action||' '||reason||' '||outcome AS concat FROM onceward_audit_log;`:                                                                        "alice 0f8fad5b-d9cb-469f-a165-70867728950e 3 zoé bust why done",
		`SELECT group_concat(scope||' '||attempt||' '||actor||' '||operation||' '||decision||' '||ifnull(origin,''),';') AS concat FROM onceward_execution_log;`:                                             "alice 3 zoé POST /x execute retried;alice 0   refused ",
	} {
		if got := rows(t, path, query); len(got) != 1 || got[0]["concat"] != want {
			t.Errorf("%s\nshows %q, want %q", query, got, want)
		}
	}
}

// TestViewPlans: a query for one record, or for those of one state, goes by an index.
func TestViewPlans(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	must(t, openBusiness(t, path).Close())
	for condition, index := range map[string]string{
		`id = x'00112233445566778899aabbccddeeff'`: "SEARCH r USING INDEX sqlite_autoindex_onceward_record",
		`state_code IN (40, 41)`:                   "SEARCH r USING INDEX onceward_record_due (state=?)",
	} {
		out, err := shell(t, path, `EXPLAIN QUERY PLAN SELECT * FROM onceward_records WHERE `+condition+`;`)
		if err != nil || !strings.Contains(out, index) || strings.Contains(out, "SCAN r\n") {
			t.Errorf("where %s (%v):\n%s", condition, err, out)
		}
	}
}
