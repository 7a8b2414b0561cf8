package pages_test

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// exampleHash is the hash that the page shows; the test puts a real one in its place.
const exampleHash = "00112233445566778899aabbccddeeff"

// block is a query of the page, behind its heading and the databases that it is for.
var block = regexp.MustCompile("(?s)```sql\n-- ([A-Za-z, ]+)\n(.*?);\n```")

// TestQuestionsInSQL: each query of the page answers its question, on each database that it is for.
func TestQuestionsInSQL(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "sql.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{
		"PostgreSQL": servers.Postgres(t).SchemaURL(t),
		"SQLite":     filepath.Join(t.TempDir(), "store.db"),
		"MySQL":      servers.MariaDB(t).DatabaseURL(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := storeurl.Open(t.Context(), address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			fill(t, db)
			asked := 0
			for _, found := range block.FindAllStringSubmatch(string(page), -1) {
				if !strings.Contains(found[1], name) {
					continue
				}
				asked++
				answers(t, db.Reads(), strings.ReplaceAll(found[2], exampleHash, store.ID{Scope: "alice", Key: "letter"}.Hash()))
			}
			if asked < 12 {
				t.Errorf("the page has %d queries for %s", asked, name)
			}
		})
	}
}

// answers runs a query that must find something.
func answers(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Errorf("%s: %v", query, err)
		return
	}
	n := 0
	for rows.Next() {
		n++
	}
	if err := rows.Err(); err != nil || n == 0 {
		t.Errorf("%s: %d rows (%v)", query, n, err)
	}
	_ = rows.Close() // it was only read
}

// fill makes what the questions are about.
func fill(t *testing.T, db *storeurl.Database) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	begin := func(key string, lease time.Duration) store.Claim {
		v, err := db.Reserve(ctx, &store.Reservation{
			ID: store.ID{Scope: "alice", Key: key}, Operation: "POST /payments", Fingerprints: []store.Fingerprint{{Secret: 1}},
			Nonce: store.Nonce{1}, Lease: lease, Retention: time.Hour,
		})
		must(err)
		return store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
	}
	begin("lost", time.Microsecond)
	must(db.Abandon(ctx, begin("unknown", time.Minute), "no reply"))
	letter := begin("letter", time.Minute)
	must(db.Checkpoint(ctx, letter, store.Checkpoint{ProviderID: "ch_1"}))
	must(db.Abandon(ctx, letter, "no reply"))
	must(db.BeginReconcile(ctx, letter, 0, time.Minute))
	must(db.Postpone(ctx, letter, store.Postponement{Count: 1, Wait: time.Minute, MaxAttempts: 1, Reason: "not found"}))
	must(db.AddAudit(ctx, store.AuditEntry{ID: letter.ID, Attempt: letter.Attempt, Actor: "zoe", Action: "look", Reason: "ticket"}))
	box, err := outbox.New(db, outbox.Config{})
	must(err)
	guard, err := onceward.New(db, onceward.Config{
		Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit,
	})
	must(err)
	h := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, topic := range []string{"orders", "letters"} {
			if _, err := box.Add(r.Context(), onceward.Tx(r.Context()), outbox.Message{Topic: topic, AggregateID: "7", Type: "paid"}); err != nil {
				t.Error(err)
			}
		}
		w.WriteHeader(http.StatusCreated)
	}, onceward.Transactional(), onceward.OperationName("pay"), onceward.AuditExecutions(func(*http.Request) string { return "ann" }))
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/pay", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", `"ordered"`)
	h.ServeHTTP(httptest.NewRecorder(), r)
	claimed, err := db.ClaimMessages(ctx, []outbox.ClaimRequest{{Topic: "letters", Limit: 1}}, time.Minute)
	must(err)
	if len(claimed) != 1 {
		t.Fatalf("%d messages were claimed, want 1", len(claimed))
	}
	_, err = db.FinishMessages(context.WithoutCancel(ctx), []outbox.Outcome{{Lease: claimed[0].Lease(), State: outbox.StateDead, Error: "refused"}})
	must(err)
}
