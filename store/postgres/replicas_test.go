package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// setServer changes a setting of a running server for all sessions.
func setServer(t testing.TB, admin *pgxpool.Pool, setting, value string) {
	t.Helper()
	exec(t, admin, `ALTER SYSTEM SET `+setting+` = '`+value+`'`)
	exec(t, admin, `SELECT pg_reload_conf()`)
	await.That(t, setting+" is "+value, func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_settings WHERE name = $1 AND setting = $2`, setting, value) == 1
	})
}

// newPair is a primary, and a standby that its commits wait for.
func newPair(t testing.TB) (primary, standby *servers.PostgresServer, admin *pgxpool.Pool) {
	t.Helper()
	primary = servers.NewPostgres(t)
	standby = primary.NewStandby(t)
	admin = openAdmin(t, primary.URL())
	setServer(t, admin, "synchronous_standby_names", "*")
	await.That(t, "the standby is waited for", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'`) == 1
	})
	return primary, standby, admin
}

// TestSyncReplicasOnly: a server whose commits wait for no standby is refused, also later: while it is so nothing is
// executed, and what is there is still shown.
func TestSyncReplicasOnly(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	primary, _, admin := newPair(t)
	only := postgres.WithSyncReplicasOnly()
	for setting, says := range map[string]string{
		"remote_write": "synchronous_commit is remote_write", "local": "synchronous_commit is local",
		"off": "synchronous_commit is off",
	} {
		wantOpenFails(t, primary.URL()+"&synchronous_commit="+setting, says, only)
	}
	must(t, openStore(t, primary.URL()+"&synchronous_commit=remote_apply", only).Close())
	s := openStore(t, primary.URL(), only)
	transacted(t, s, "key", nothing)
	setServer(t, admin, "synchronous_standby_names", "")
	wantOpenFails(t, primary.URL(), "synchronous_standby_names is empty", only)
	refused := func() error {
		_, err := s.Reserve(t.Context(), reservation(time.Now().String()))
		return err
	}
	await.That(t, "writes are refused", func() bool { return refused() != nil })
	if err := refused(); !errors.Is(err, postgres.ErrNoSyncReplica) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without a synchronous standby a reservation got %v", err)
	}
	wantNotExecuted(t, s.InTx(t.Context(), func(context.Context) error { return nil }), "WithSyncReplicasOnly")
	wantState(t, s, "key", store.StateCompleted, "WithSyncReplicasOnly")
	setServer(t, admin, "synchronous_standby_names", "*")
	await.That(t, "writes are served again", func() bool { return refused() == nil })
	must(t, s.Close())
}

// TestConfirmationNeedsARight: a role that cannot wait for the standbys, and a session that would not be warned of a commit
// that did not wait for them, are refused, with what to do about it. A store that only looks needs neither.
func TestConfirmationNeedsARight(t *testing.T) {
	t.Parallel()
	base := databaseURL(t)
	admin := openAdmin(t, base)
	must(t, openStore(t, base).Close()) // makes the tables
	var function string                 // a later version of PostgreSQL has one more parameter
	must(t, admin.QueryRow(t.Context(), `SELECT oid::regprocedure::text FROM pg_proc
		WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 'text'::regtype`).Scan(&function))
	exec(t, admin, `REVOKE EXECUTE ON FUNCTION `+function+` FROM PUBLIC`)
	role, as := userRole(t, admin, "public")
	at, err := url.Parse(as)
	must(t, err)
	of, err := url.Parse(base)
	must(t, err)
	at.Path = of.Path
	grant(t, admin, grants, "public", role)
	wantOpenFails(t, at.String(), "grant it EXECUTE on the function pg_logical_emit_message")
	must(t, openStore(t, at.String(), postgres.WithReadOnly()).Close())
	silent := base + "&client_min_messages=error"
	wantOpenFails(t, silent, "client_min_messages is error")
	must(t, openStore(t, silent, postgres.WithReadOnly()).Close())
	exec(t, admin, `GRANT EXECUTE ON FUNCTION `+function+` TO `+role)
	must(t, openStore(t, at.String()).Close())
}

// waiting counts the sessions whose commit waits for the standby.
const waiting = `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`

// TestCommitCutOffFromItsStandby: a commit whose wait for the standby is cut off, by an administrator who ends the session
// or cancels its statement, can be seen before the standby has it. No answer is sent for it until then.
func TestCommitCutOffFromItsStandby(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	ways := map[string]func(ctx context.Context, s *postgres.Store, key string) error{
		"Transact": func(ctx context.Context, s *postgres.Store, key string) error {
			_, err := s.Transact(ctx, booking(key), committing(key, nothing))
			return err
		},
		"Reserve": func(ctx context.Context, s *postgres.Store, key string) error {
			_, err := s.Reserve(ctx, booking(key))
			return err
		},
		"Release": func(ctx context.Context, s *postgres.Store, key string) error {
			return s.Release(ctx, store.Claim{ID: accountID("released"), Attempt: 1}, key)
		},
	}
	primary, standby, admin := newPair(t)
	s := openStore(t, primary.URL())
	_, err := s.Reserve(t.Context(), booking("released")) // the operation is known then
	must(t, err)
	for name, way := range ways {
		for _, act := range []string{"pg_terminate_backend", "pg_cancel_backend"} {
			key := name + " " + act
			if name == "Release" {
				must(t, s.Bust(t.Context(), accountID("released"), true))
				v, err := s.Reserve(t.Context(), booking("released"))
				must(t, err)
				way = func(ctx context.Context, s *postgres.Store, key string) error {
					return s.Release(ctx, store.Claim{ID: accountID("released"), Attempt: v.Record.Attempt}, key)
				}
			}
			must(t, standby.Pause())
			done := make(chan error, 1)
			go func() { done <- way(context.Background(), s, key) }()
			await.That(t, key+" waits for the standby", func() bool { return number(t, admin, waiting) == 1 })
			cut := number(t, admin, `SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
			exec(t, admin, `SELECT `+act+`($1)`, cut)
			// What waits then is the confirmation, in a transaction of its own.
			await.That(t, key+" is confirmed", func() bool {
				return number(t, admin, waiting+` AND query LIKE '%pg_logical_emit_message%'`) == 1
			})
			select {
			case err := <-done:
				t.Errorf("%s: it ended with %v before the standby had it", key, err)
			default:
			}
			must(t, standby.Resume())
			if err := await.Value(t, key, done); err != nil {
				t.Errorf("%s: it ended with %v when the standby had it", key, err)
			}
		}
	}
}

// TestRepeatsWaitForTheStandby: a call that finds its own write made, by an attempt that was cut off from the standby, is
// not answered before the standby has the write.
func TestRepeatsWaitForTheStandby(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	primary, standby, admin := newPair(t)
	s := openStore(t, primary.URL())
	owned := func(key string) store.Claim {
		v, err := s.Reserve(t.Context(), booking(key))
		must(t, err)
		return store.Claim{ID: accountID(key), Attempt: v.Record.Attempt}
	}
	released, completed := owned("released"), owned("completed")
	must(t, s.Release(t.Context(), released, "not now"))
	first, second := booking("first"), booking("released")
	reserve := func(r *store.Reservation) func() error {
		return func() error {
			v, err := s.Reserve(context.Background(), r)
			if err == nil && v.Decision != store.DecisionExecute {
				t.Errorf("I1: %s %s, want to execute", v.Decision, v.Origin)
			}
			return err
		}
	}
	canceled, paid := booking("canceled"), owned("paid")
	complete := func(c store.Claim) func() error {
		return func() error {
			_, err := s.Complete(context.Background(), c, answer("paid"))
			return err
		}
	}
	add := func(event string) func() error {
		return func() error {
			_, err := s.AddExternalEvent(context.Background(), store.ExternalEvent{Source: "psp", EventID: event})
			return err
		}
	}
	for _, test := range []struct {
		name, act string
		call      func() error
	}{
		{"a first grant", "pg_terminate_backend", reserve(first)},
		{"a grant once more", "pg_terminate_backend", reserve(second)},
		{"a completion", "pg_terminate_backend", complete(completed)},
		{"a first grant, canceled", "pg_cancel_backend", reserve(canceled)},
		{"a completion, canceled", "pg_cancel_backend", complete(paid)},
		{"an external event", "pg_terminate_backend", add("paid")},
		{"an external event, canceled", "pg_cancel_backend", add("refunded")},
		{"an event of the inbox", "pg_terminate_backend", func() error {
			return s.InTx(context.Background(), func(ctx context.Context) error {
				_, err := s.RememberEvent(ctx, onceward.Tx(ctx), "consumer", "paid")
				return err
			})
		}},
	} {
		name, call := test.name, test.call
		t.Run(name, func(t *testing.T) {
			must(t, standby.Pause())
			done := make(chan error, 1)
			go func() { done <- call() }()
			await.That(t, "the call is cut off, again and again, until it ends", func() bool {
				exec(t, admin, `SELECT `+test.act+`(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
				return len(done) == 1
			})
			if err := <-done; err == nil {
				t.Error("I2: the call succeeded before the standby had its write")
			}
			go func() { done <- call() }()
			await.That(t, "the repeat waits for the standby", func() bool {
				return len(done) == 1 || number(t, admin, waiting+` AND query LIKE '%pg_logical_emit_message%'`) == 1
			})
			if len(done) == 1 {
				t.Error("I2: the repeat ended before the standby had the write")
			}
			must(t, standby.Resume())
			if err := await.Value(t, name, done); err != nil {
				t.Errorf("the repeat ended with %v when the standby had the write", err)
			}
		})
	}
}
