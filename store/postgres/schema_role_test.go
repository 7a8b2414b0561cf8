package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// grants are what a role needs to use the tables that another one owns. The guide lists the same.
var grants = []string{
	`USAGE ON SCHEMA @schema`,
	`SELECT ON onceward_schema, onceward_secret`,
	`SELECT, INSERT ON onceward_operation`,
	`SELECT, INSERT, UPDATE, DELETE ON onceward_record`,
	`SELECT, INSERT, DELETE ON onceward_late_completion`,
	`SELECT, INSERT, DELETE ON onceward_external_event`,
	`SELECT, INSERT, DELETE ON onceward_audit`,
	`SELECT, INSERT, DELETE ON onceward_outbox`,
	`SELECT, INSERT, UPDATE, DELETE ON onceward_delivery`,
	`SELECT ON onceward_message`,
	`SELECT, INSERT, DELETE ON onceward_inbox`,
	`USAGE ON SEQUENCE onceward_attempt`,
	`USAGE ON SEQUENCE onceward_outbox_number`,
	`EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema`,
}

// userRole makes a role that may do nothing by itself, and returns its name and the URL by which it connects.
func userRole(t testing.TB, admin *pgxpool.Pool, schema string) (role, as string) {
	t.Helper()
	role = "onceward_test_" + strings.ToLower(rand.Text())
	exec(t, admin, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret'`, role))
	t.Cleanup(func() {
		exec(t, admin, `DROP OWNED BY `+role)
		exec(t, admin, `DROP ROLE `+role)
	})
	parsed, err := url.Parse(servers.Postgres(t).URL())
	must(t, err)
	parsed.User = url.UserPassword(role, "secret")
	query := parsed.Query()
	query.Set("search_path", schema)
	parsed.RawQuery = query.Encode()
	return role, parsed.String()
}

// grant gives a role the rights in a list.
func grant(t testing.TB, admin *pgxpool.Pool, rights []string, schema, role string) {
	t.Helper()
	for _, right := range rights {
		exec(t, admin, `GRANT `+strings.ReplaceAll(right, "@schema", pgx.Identifier{schema}.Sanitize())+` TO `+role)
	}
}

// TestRoleWithoutCreate: whoever may use the tables, and not make any, can do everything but migrate.
func TestRoleWithoutCreate(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	admin := openAdmin(t, server.URL()+"&search_path="+schema)
	migrate(t, admin, "Up")
	exec(t, admin, `REVOKE ALL ON ALL FUNCTIONS IN SCHEMA `+schema+` FROM PUBLIC`)
	role, as := userRole(t, admin, schema)
	grant(t, admin, grants, schema, role)
	for _, options := range [][]postgres.Option{nil, {postgres.WithManualMigration()}} {
		store := openStore(t, as, options...)
		exercise(t, store, fmt.Sprint("with ", len(options), " options"))
		must(t, tryBoxes(t.Context(), store, fmt.Sprint("event of ", len(options))))
		must(t, store.Migrate(t.Context()))
	}
	user := openAdmin(t, as)
	if _, err := user.Exec(t.Context(), `CREATE TABLE forbidden ()`); err == nil {
		t.Error("the role of the test may create tables, so that it proves nothing")
	}
}

// TestEachGrantIsNeeded: without any one of the grants something does not work.
func TestEachGrantIsNeeded(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	admin := openAdmin(t, server.URL()+"&search_path="+schema)
	migrate(t, admin, "Up")
	exec(t, admin, `REVOKE ALL ON ALL FUNCTIONS IN SCHEMA `+schema+` FROM PUBLIC`)
	role, as := userRole(t, admin, schema)
	for i, list := range grants {
		rights, of, _ := strings.Cut(list, " ON ")
		for _, right := range strings.Split(rights, ", ") {
			grant(t, admin, grants, schema, role)
			exec(t, admin, `REVOKE `+right+` ON `+strings.ReplaceAll(of, "@schema", schema)+` FROM `+role)
			if err := tryAll(t.Context(), as, fmt.Sprint("key-", i, right)); err == nil {
				t.Errorf("everything works without %s ON %s", right, of)
			}
		}
	}
}

// tryAll returns the first failure of a store that lacks a right.
func tryAll(ctx context.Context, as, key string) error {
	s, err := postgres.Open(ctx, as, quiet, postgres.WithManualMigration())
	if err != nil {
		return err
	}
	defer s.Close()
	r := reservation(key)
	r.Operation = "POST /" + key
	v, err := s.Reserve(ctx, r)
	if err != nil {
		return err
	}
	c := store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
	if err := s.Abandon(ctx, c, ""); err != nil {
		return err
	}
	if _, err := s.Sweep(ctx, 1); err != nil {
		return err
	}
	if _, err := s.Reap(ctx, 1, false); err != nil {
		return err
	}
	if err := s.AddLateCompletion(ctx, store.LateCompletion{Claim: c, Response: answer("late").Response}); err != nil {
		return err
	}
	if _, err := s.AddExternalEvent(ctx, store.ExternalEvent{Source: "psp", EventID: key}); err != nil {
		return err
	}
	added := s.AddAudit(ctx, store.AuditEntry{ID: c.ID, Attempt: c.Attempt})
	_, read := s.Audit(ctx, c.ID)
	_, purgedAudit := s.PurgeAudit(ctx, 0, 1)
	_, purgedExternalEvents := s.PurgeExternalEvents(ctx, 0, 1)
	return errors.Join(added, read, purgedAudit, purgedExternalEvents, tryBoxes(ctx, s, key))
}

// tryBoxes sends messages from their beginning to their end, and remembers one as an event.
func tryBoxes(ctx context.Context, store *postgres.Store, event string) error {
	box, err := outbox.New(store, outbox.Config{})
	if err != nil {
		return err
	}
	if err := store.InTx(ctx, func(ctx context.Context) error {
		_, ordered := postgres.AddMessage(ctx, box, postgres.Tx(ctx), outbox.Message{Topic: "topic", AggregateID: "1", Type: "t"})
		_, captured := postgres.AddMessage(ctx, box, postgres.Tx(ctx), outbox.Message{AggregateID: "1", Type: "t"})
		_, remembered := store.RememberEvent(ctx, onceward.Tx(ctx), "consumer", event)
		return errors.Join(ordered, captured, remembered)
	}); err != nil {
		return err
	}
	claimed, err := store.ClaimMessages(ctx, []outbox.ClaimRequest{{Topic: "topic", Limit: 10}}, time.Minute)
	if err != nil {
		return err
	}
	var endings []outbox.Outcome
	for i := range claimed {
		endings = append(endings, outbox.Outcome{Lease: claimed[i].Lease(), State: outbox.StateDone})
	}
	_, finished := store.FinishMessages(ctx, endings)
	_, freed := store.FreeMessages(ctx)
	_, listed := store.Messages(ctx, outbox.Filter{})
	_, counted := store.MessageStats(ctx)
	_, consumed := store.ConsumedEvents(ctx, event)
	_, purged := store.PurgeMessages(ctx, 0, 10)
	_, forgotten := store.PurgeEvents(ctx, 0, 10)
	return errors.Join(finished, freed, listed, counted, consumed, purged, forgotten)
}
