package postgres_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// shown is a row of the view of records.
type shown struct {
	Hash, Scope, Key, Operation, State                       string
	DeadLetter                                               bool
	Attempt                                                  int64
	CreatedAt, LeaseUntil, ReconcileAt, SettledAt, ExpiresAt *time.Time
	Retention                                                time.Duration
	Point, FirstError, LastError, ReconcileError             *string
	ReconcileCount                                           int
	ProviderID, TraceID                                      *string
	AnswerStatus                                             *int
}

const selectShown = `SELECT hash, scope, key, operation, state, dead_letter, attempt, created_at, lease_until, reconcile_at,
	settled_at, expires_at, retention, point, first_error, last_error, reconcile_error, reconcile_count, provider_id, trace_id,
	answer_status FROM onceward_records`

// wantShown compares the view of records with what the store says.
func wantShown(t *testing.T, s *postgres.Store, admin *pgxpool.Pool) int {
	t.Helper()
	rows, err := admin.Query(t.Context(), selectShown)
	must(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[shown])
	must(t, err)
	for _, got := range all {
		rec, err := s.Get(t.Context(), store.ID{Scope: got.Scope, Key: got.Key})
		if err != nil {
			t.Errorf("of %+v the store says: %v", got, err)
			continue
		}
		for what, pair := range map[string][2]any{
			"hash": {got.Hash, rec.Hash()}, "operation": {got.Operation, rec.Operation}, "state": {got.State, rec.State.String()},
			"dead letter": {got.DeadLetter, rec.DeadLetter}, "attempt": {got.Attempt, rec.Attempt},
			"created": {orZero(got.CreatedAt), rec.CreatedAt}, "lease": {orZero(got.LeaseUntil), rec.LeaseUntil},
			"reconcile": {orZero(got.ReconcileAt), rec.ReconcileAt}, "settled": {orZero(got.SettledAt), rec.SettledAt},
			"expires": {orZero(got.ExpiresAt), rec.ExpiresAt}, "retention": {got.Retention, rec.Retention},
			"point": {or(got.Point), rec.Point}, "first error": {or(got.FirstError), rec.FirstError},
			"last error": {or(got.LastError), rec.LastError}, "reconcile error": {or(got.ReconcileError), rec.ReconcileError},
			"reconcile count": {got.ReconcileCount, rec.ReconcileCount}, "provider's id": {or(got.ProviderID), rec.ProviderID},
			"trace": {or(got.TraceID), rec.TraceID}, "status": {or(got.AnswerStatus), rec.Response.Status},
		} {
			if pair[0] != pair[1] {
				t.Errorf("of %s the view shows %s %v, want %v", got.Key, what, pair[0], pair[1])
			}
		}
	}
	return len(all)
}

func or[T any](v *T) (value T) {
	if v != nil {
		value = *v
	}
	return value
}

func orZero(at *time.Time) time.Time { return or(at).UTC() }

// fill makes records of every kind, and returns how many.
func fill(t testing.TB, s *postgres.Store) int {
	t.Helper()
	ctx := t.Context()
	begin := func(key string, edits ...func(*store.Reservation)) store.Claim {
		r := reservation(key)
		r.TraceID, r.Operation = "4bf92f3577b34da6a3ce929d0e0e4736", "POST /"+key
		for _, edit := range edits {
			edit(r)
		}
		return own(t, s, r)
	}
	must(t, s.Checkpoint(ctx, begin("in progress", func(r *store.Reservation) { r.TraceID = "a trace" }),
		store.Checkpoint{Point: "charged", ProviderID: "ch_1", Data: []byte{0, 255}}))
	begin("resumable", func(r *store.Reservation) { r.OnLost = store.LostResume })
	begin("0f8fad5b-d9cb-469f-a165-70867728950e")
	begin("bound", func(r *store.Reservation) {
		r.Fingerprints[0].Session = [16]byte{7}
		r.Fingerprints[0].Secret = 1 << 31
	})
	begin("sub-second", func(r *store.Reservation) { r.Retention = 1500 * time.Microsecond })
	_, err := s.Complete(ctx, begin("completed"), answer("done"))
	must(t, err)
	transacted(t, s, "transacted", func(context.Context) error { return nil })
	failed := begin("released")
	must(t, s.Release(ctx, failed, "out of stock"))
	lost := begin("unknown")
	must(t, s.Abandon(ctx, lost, "no reply"))
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

// TestRecordsView: the view shows what the store says, and no row that is no record.
func TestRecordsView(t *testing.T) {
	t.Parallel()
	at := servers.Postgres(t).SchemaURL(t)
	s := openStore(t, at)
	want := fill(t, s)
	if n := wantShown(t, s, openAdmin(t, at)); n != want {
		t.Errorf("the view shows %d records, want %d", n, want)
	}
}

// TestOddBytesInViews: what is no text, or damaged, is shown as far as it goes, and hides nothing else.
func TestOddBytesInViews(t *testing.T) {
	t.Parallel()
	at := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, at), openAdmin(t, at)
	r := reservation("odd")
	r.ID = store.ID{Scope: "a\x00b", Key: "\xff\xfe"}
	must(t, s.Abandon(t.Context(), own(t, s, r), "gr\xfc\x00n"))
	for name, column := range map[string]string{
		"cut": `fingerprint = ''`, "alien": `version = 99`, "late": `created_at = 9223372036854775807`,
		"early": `created_at = -9223372036854775808`, "never": `due = 9223372036854775807`,
	} {
		c := own(t, s, reservation(name))
		exec(t, admin, `UPDATE onceward_record SET `+column+` WHERE id = '`+s.RecordID(c.ID)+`'`)
	}
	var scope, key, last string
	must(t, admin.QueryRow(t.Context(),
		`SELECT scope, key, last_error FROM onceward_records WHERE state = 'unknown'`).Scan(&scope, &key, &last))
	if scope != `a\000b` || key != `\377\376` || last != `gr\374\000n` {
		t.Errorf("what is no text is shown as %q, %q and %q", scope, key, last)
	}
	// Only what is asked for is computed.
	if n := number(t, admin, `SELECT count(r::text) FROM onceward_records AS r`); n != 6 {
		t.Errorf("the view shows %d records, want 6", n)
	}
	for _, state := range []int{10, 11, 20, 30, 40, 41, 50} {
		for _, due := range []string{"-9223372036854775808", "0", "9223372036854775807"} {
			exec(t, admin, fmt.Sprintf(
				`UPDATE onceward_record SET state = %d, due = %s, retention = 2147483647 WHERE state > 0`, state, due))
			if n := number(t, admin, `SELECT count(r::text) FROM onceward_records AS r`); n != 6 {
				t.Errorf("in state %d and due %s the view shows %d records, want 6", state, due, n)
			}
		}
	}
}

// TestOtherViews: messages and both audits are shown in words.
func TestOtherViews(t *testing.T) {
	t.Parallel()
	at := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, at), openAdmin(t, at)
	box, err := outbox.New(s, outbox.Config{})
	must(t, err)
	must(t, s.InTx(t.Context(), func(ctx context.Context) error {
		for _, topic := range []string{"new", ""} {
			if _, err := box.Add(ctx, onceward.Tx(ctx), outbox.Message{
				Topic: topic, AggregateType: "order", AggregateID: "7", Type: "paid", Payload: []byte("{}"),
			}); err != nil {
				return err
			}
		}
		return nil
	}))
	id := store.ID{Scope: "alice", Key: "0f8fad5b-d9cb-469f-a165-70867728950e"}
	must(t, s.AddAudit(t.Context(),
		store.AuditEntry{ID: id, Attempt: 3, Actor: "zoé", Action: "bust", Reason: "why", Outcome: "done"}))
	must(t, s.AddExecution(t.Context(), store.ExecutionEntry{
		ID: id, Attempt: 3, Actor: "zoé", Operation: "POST /x", Decision: store.DecisionExecute, Origin: store.OriginRetried,
	}))
	must(t, s.AddExecution(t.Context(), store.ExecutionEntry{ID: id, Decision: store.DecisionRefused}))
	for statement, want := range map[string]string{
		`SELECT string_agg(concat_ws(' ', topic, aggregate_type, aggregate_id, type, state, attempts, payload_bytes), ';' ORDER BY state)
			FROM onceward_messages WHERE created_at > now() - interval '1 hour'`: " order 7 paid captured 0 2;new order 7 paid ready 0 2",
		`SELECT concat_ws(' ', scope, key, attempt, actor, action, reason, outcome) FROM onceward_audit_log`:                                     "alice 0f8fad5b-d9cb-469f-a165-70867728950e 3 zoé bust why done",
		`SELECT string_agg(concat_ws(' ', scope, attempt, actor, operation, decision, origin), ';' ORDER BY number) FROM onceward_execution_log`: "alice 3 zoé POST /x execute retried;alice 0   refused",
	} {
		var got string
		must(t, admin.QueryRow(t.Context(), statement).Scan(&got))
		if got != want {
			t.Errorf("%s\nshows %q, want %q", statement, got, want)
		}
	}
}

// TestViewPlans: a query for one record, or for those of one state, goes by an index in a table of any size.
func TestViewPlans(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table")
	at := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, at), openAdmin(t, at)
	fill(t, s)
	exec(t, admin, `INSERT INTO onceward_record (id, attempt, due, retention, status, body, state, version, fingerprint, operation, scope, key)
		SELECT md5(i::text)::uuid, i, extract(epoch FROM now() + interval '1 day')::bigint * 1000000, 86400000000, r.status, r.body, r.state,
			r.version, r.fingerprint, r.operation, r.scope, r.key
		FROM generate_series(1, 30000) AS i, onceward_record AS r WHERE r.id = '`+s.RecordID(reservation("completed").ID)+`'`)
	exec(t, admin, `ANALYZE onceward_record`)
	walks := regexp.MustCompile(`Seq Scan on onceward_record`)
	for condition, index := range map[string]string{
		`id = '` + reservation("unknown").ID.Hash() + `'`: "onceward_record_pkey",
		`state = 'unknown'`:                          "onceward_record_open",
		`state = 'unknown' AND dead_letter`:          "onceward_record_open",
		`state = 'in_progress' ORDER BY lease_until`: "onceward_record_open",
	} {
		rows, err := admin.Query(t.Context(), `EXPLAIN SELECT * FROM onceward_records WHERE `+condition)
		must(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		if plan := strings.Join(lines, "\n"); walks.MatchString(plan) || !strings.Contains(plan, index) {
			t.Errorf("where %s:\n%s", condition, plan)
		}
	}
}

// TestComments: every table, column and view says what it holds.
func TestComments(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	openStore(t, server.URL()+"&search_path="+schema)
	admin := openAdmin(t, server.URL()+"&search_path="+schema)
	rows, err := admin.Query(t.Context(), `
		SELECT c.relname || coalesce('.' || a.attname, '')
		FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND c.relkind = 'r'
		WHERE c.relnamespace = $1::regnamespace AND c.relkind IN ('r', 'v')
			AND (obj_description(c.oid, 'pg_class') IS NULL OR a.attname IS NOT NULL AND col_description(c.oid, a.attnum) IS NULL)
		ORDER BY 1`, schema)
	must(t, err)
	silent, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if must(t, err); len(silent) > 0 {
		t.Errorf("without a comment are %v", slices.Compact(silent))
	}
}
