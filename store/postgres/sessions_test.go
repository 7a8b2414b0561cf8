package postgres_test

import (
	neturl "net/url"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
)

// TestStoreInEveryQueryMode runs each statement of the store in each way in which pgx can run one, as the URL or the
// pool of a service says: behind a pooler that keeps no prepared statements, and for GORM's PreferSimpleProtocol, another
// way than the usual one is needed. TestStore has the usual one, cache_statement. On each change it is the mode in which
// pgx knows the least of the types.
func TestStoreInEveryQueryMode(t *testing.T) {
	every := []string{"cache_describe", "describe_exec", "exec", "simple_protocol"}
	for _, mode := range nightly.Either(every, every[3:]) {
		t.Run(mode, func(t *testing.T) {
			place := func(t, run testing.TB) (url, admin string) {
				admin = servers.Postgres(t).SchemaURL(run)
				return admin + "&default_query_exec_mode=" + mode, admin
			}
			pgxHandle.conformOn(t, place, servers.UnlessAllStores("Random", "OutboxRandom", "Lister", "Rewriter", "Finder",
				"LateCompletions", "ExternalEvents", "Audit", "AuditLister", "Executions", "Transactor", "Checkpointer",
				"OutboxTransactions", "OutboxAnswer", "OutboxFinishTx", "OutboxOperator", "OutboxUpkeep", "Inbox",
				"InboxTransactions", "Natural")...)
		})
	}
}

// TestStoreAtStricterDefaults runs what depends on the level of the handlers' connections, which is that of their
// database, in databases that do not have the usual one.
func TestStoreAtStricterDefaults(t *testing.T) {
	for _, level := range nightly.Either([]string{"repeatable read", "serializable"}, []string{"serializable"}) {
		t.Run(level, func(t *testing.T) {
			place := func(t, run testing.TB) (url, admin string) {
				admin = servers.Postgres(t).SchemaURL(run) + "&default_transaction_isolation=" + neturl.PathEscape(level)
				return admin, admin
			}
			pgxHandle.conformOn(t, place, servers.UnlessAllStores("Isolation", "Transactor", "TransactorRaces", "LostCommit",
				"Checkpointer", "CheckpointerRaces", "OutboxTransactions", "OutboxAnswer", "OutboxFinishTx",
				"InboxTransactions", "Natural")...)
		})
	}
}
