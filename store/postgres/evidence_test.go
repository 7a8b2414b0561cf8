package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestAuditIsReadableByItself: an entry names its record in words, also to an operator who has no more than SQL, and
// when the record is long gone.
func TestAuditIsReadableByItself(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	c := own(t, s, reservation("key"))
	must(t, s.AddAudit(t.Context(),
		store.AuditEntry{ID: c.ID, Attempt: c.Attempt, Actor: "ops", Action: "bust", Reason: "stuck"}))
	must(t, s.Bust(t.Context(), c.ID, true))
	must(t, s.Bust(t.Context(), c.ID, false))
	wantState(t, s, c.Key, store.StateNone, "section 4")
	var record, scope, key, actor, reason string
	must(t, admin.QueryRow(t.Context(),
		`SELECT id::text, convert_from(scope, 'UTF8'), convert_from(key, 'UTF8'), convert_from(actor, 'UTF8'), convert_from(reason, 'UTF8')
		FROM onceward_audit`).Scan(&record, &scope, &key, &actor, &reason))
	page, err := os.ReadFile("../../docs/postgresql.md")
	must(t, err)
	_, query, _ := strings.Cut(string(page), "The views show it in words:\n\n```sql\n")
	query, _, _ = strings.Cut(query, "```")
	rows, err := admin.Query(t.Context(), strings.ReplaceAll(query, "app.", ""))
	must(t, err)
	shown, err := pgx.CollectRows(rows, pgx.RowToMap)
	must(t, err)
	if len(shown) != 1 || shown[0]["actor"] != "ops" || shown[0]["action"] != "bust" || shown[0]["reason"] != "stuck" ||
		shown[0]["scope"] != c.Scope || shown[0]["key"] != c.Key {
		t.Errorf("L7: the query of docs/postgresql.md shows %v", shown)
	}
	if id := (store.ID{Scope: scope, Key: key}); id != c.ID || record != s.RecordID(c.ID) || actor != "ops" || reason != "stuck" {
		t.Errorf("L7: the entry is about %v, record %s, by %q because %q", id, record, actor, reason)
	}
}

// TestSchedulerPurges: a scheduler that knows no more than SQL does what the methods do, from whatever schema it calls.
func TestSchedulerPurges(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	s := openStore(t, server.URL()+"&search_path="+schema)
	scheduler := openAdmin(t, server.URL())
	for i := range 3 {
		_, err := s.AddExternalEvent(t.Context(), store.ExternalEvent{Source: "psp", EventID: fmt.Sprint(i)})
		must(t, err)
		must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: idOf("key")}))
		must(t, s.AddExecution(t.Context(), store.ExecutionEntry{ID: idOf("key")}))
		must(t, s.InTx(t.Context(), func(ctx context.Context) error {
			_, err := s.RememberEvent(ctx, onceward.Tx(ctx), "consumer", fmt.Sprint(i))
			return err
		}))
	}
	for table, column := range map[string]string{
		"external_event": "received_at", "audit": "at", "execution": "at", "inbox": "applied_at",
	} {
		// The last is from two years ago, which is further than any of the test's own.
		exec(t, scheduler, fmt.Sprintf(`UPDATE %s.onceward_%s SET %s = %s - 63115200000000 WHERE ctid = (SELECT max(ctid) FROM %[1]s.onceward_%[2]s)`,
			schema, table, column, column))
		function := schema + ".onceward_purge"
		for _, call := range []struct {
			arguments string
			want      int
		}{{"'3 years'", 0}, {"'1 year'", 1}, {"'1 year'", 0}, {"'-1 second', 1", 1}, {"'-1 second'", 1}} {
			if n := number(t, scheduler, `SELECT `+function+`('`+table+`', `+call.arguments+`)`); n != call.want {
				t.Errorf("L7: %s(%s, %s) removed %d, want %d", function, table, call.arguments, n, call.want)
			}
		}
	}
	if _, err := scheduler.Exec(t.Context(), `SELECT `+schema+`.onceward_purge('record', '1 year')`); err == nil {
		t.Error("S2: a scheduler purged records by their age")
	}
}

// TestNoticesWhereAllIsSerializable: where a database makes every transaction serializable, an event that many tell of
// at once is still added by one of them and known to the others.
func TestExternalEventsWhereAllIsSerializable(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers.Postgres(t).SchemaURL(t)+"&default_transaction_isolation=serializable")
	for round := range 20 {
		var group sync.WaitGroup
		var mu sync.Mutex
		added, errs := 0, []error(nil)
		for range 8 {
			group.Go(func() {
				was, err := s.AddExternalEvent(t.Context(),
					store.ExternalEvent{Source: "psp", EventID: fmt.Sprint(round), At: time.Now()})
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				if was {
					added++
				}
			})
		}
		group.Wait()
		if err := errors.Join(errs...); err != nil || added != 1 {
			t.Fatalf("B3: one event was added %d times (%v)", added, err)
		}
	}
}

// TestPurgersAtOnce: several who purge at once count each row once.
func TestPurgersAtOnce(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers.Postgres(t).SchemaURL(t))
	const n = 60
	for i := range n {
		_, err := s.AddExternalEvent(t.Context(), store.ExternalEvent{Source: "psp", EventID: fmt.Sprint(i)})
		must(t, err)
	}
	var mu sync.Mutex
	total := 0
	ended := crowd(t.Context(), 4, func(ctx context.Context, _ int) {
		for {
			purged, err := s.PurgeExternalEvents(ctx, -time.Second, 7)
			if err != nil {
				t.Errorf("L7: one of several who purge got %v", err)
			}
			if purged == 0 {
				return
			}
			mu.Lock()
			total += purged
			mu.Unlock()
		}
	})
	ended()
	if left, err := s.ExternalEvents(t.Context(),
		store.ExternalEventFilter{Source: "psp", Subjects: []string{""}}); err != nil || len(left)+total != n {
		t.Errorf("L7: %d were purged and %d are left (%v), want %d together", total, len(left), err, n)
	}
}
