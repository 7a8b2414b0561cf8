// Package storetest tests that a store keeps the promises of [store.Store]. It runs the rules of the specification, by
// their numbers, against any implementation: the project's own and yours.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			Open: func(t testing.TB) storetest.Instance {
//				s := mystore.New()
//				t.Cleanup(s.Close)
//				return storetest.Instance{Store: s}
//			},
//		})
//	}
//
// The suite detects which optional interfaces the store implements, of package store as well as [outbox.Store],
// [inbox.Store] and [natural.Store], and tests each of them; go test -v lists them. To make sure that your store does
// not lose an interface by accident, assert it in the store's code: var _ store.Sweeper = (*Store)(nil).
//
// The model is [store.Step]: the suite expects of a store the results of that function.
package storetest

import (
	"context"
	"database/sql"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// Harness is a store under test. Open is all that most stores need.
type Harness struct {
	// Open opens a fresh, empty store for one test and closes it by t.Cleanup. It is called many times, also
	// concurrently, and returns the same kind of instance each time.
	Open func(t testing.TB) Instance
	// Features describes what the suite cannot detect. Default: the zero value.
	Features Features
	// Groups are the chapters to run, by the names that go test -v shows, for a quick check of one of many
	// combinations; only all of them together test a store completely. Default: all.
	Groups []string

	// probe is the instance that shows what the others are like. It is closed already.
	probe Instance
	// patience is set by tests of the suite itself that fail on purpose. Default: the constant of this name.
	patience time.Duration
}

// Instance is a store that was opened for one test.
type Instance struct {
	// Store is the store.
	Store store.Store
	// Advance moves the clock of this store forward; between its calls the clock stands still. It is nil if the store
	// uses the clock of a real server: the suite then uses short leases and retentions, and waits for them. It also
	// leaves out the random tests, which need thousands of steps in time, and checks the exact microsecond of a lease
	// or an expiry only against the clock that the store reports.
	Advance func(time.Duration)
	// Reopen is a restart: it closes the store and opens it again on the same data. It is nil if no data survives;
	// restarts are then not tested.
	Reopen func(t testing.TB) store.Store
	// Business is a table beside the store. It is required if the store is a [store.Transactor] or a
	// [store.TxCheckpointer]; nil for others.
	Business *Business
	// Lossy opens the store a second time on the same data, as another process whose clock shows the same time as the
	// clock of Store, and whose connection to the server can be cut. It is nil if no COMMIT can be lost on its way, for
	// example in a store without a server: the handling of a lost COMMIT is then not tested.
	Lossy func(t testing.TB) Lossy
}

// Lossy is the store of another process, whose next COMMIT can be lost on its way.
type Lossy struct {
	// Store is the store.
	Store store.Store
	// LoseCommit loses the next COMMIT of the store: the request, which the store may send again, or the reply to it.
	// It returns at once. lost waits until that has happened. From then on the store cannot reach a server, and so
	// cannot query the outcome, until restore is called.
	LoseCommit func(reply bool) (lost func(ctx context.Context) error, restore func())
}

// Business is a table of the application in the same database as the store.
type Business struct {
	// Insert adds a row through the transaction in the context, and returns the error of the database.
	Insert func(ctx context.Context, value string) error
	// Count returns how many rows with the value are committed. It must not wait for a transaction in progress.
	Count func(value string) int
	// Define runs a statement outside any transaction, for a database where a DDL statement ends one. It is nil if a
	// transaction of the store can create the tables of a test.
	Define func(statement string) error
	// Pool is a connection pool of the application in the same database, independent of the store, with the isolation
	// level of the handlers' connections. It is nil if the database has no isolation levels; whether the work is
	// isolated as it would be without the store is then not tested.
	Pool *sql.DB
	// Conflicts contains statements that fail like a statement in a conflict between transactions, such as a deadlock,
	// each with a word of its error. Without them the handling of such an error in the work is not tested.
	Conflicts map[string]string
	// NoWait is a statement that fails at once if another transaction has inserted into the table and not ended. It is
	// not needed without Conflicts.
	NoWait string
	// Slow is a statement that takes a minute and does nothing. It is not needed without Pool.
	Slow string
	// Enders contains further statements that end a transaction on this database, such as a DDL statement on a database
	// where it commits. COMMIT and ROLLBACK are always tried.
	Enders []string
	// Collects means that the context contains no *sql.Tx: Insert adds to the writes that are sent, all at once, when
	// the work has ended. There are then no statements that fail or end a transaction in the middle of the work, and
	// their effects are not tested; the absence of a *sql.Tx is. Default: false.
	Collects bool
}

// Features describes the properties of a store that its methods do not show.
type Features struct {
	// ConcurrentTx means that one transaction of InTx can be in progress while another one begins, writes elsewhere and
	// commits. Leave it out for a database with one writer: the effects of concurrent transactions on each other are
	// then not tested. Default: false.
	ConcurrentTx bool
	// Certifies means that two transactions that write the same row need not wait for each other: one of them is
	// refused at its commit, and run again, as on the nodes of a cluster without a common lock. Then only the results
	// of the two transactions are tested, not that one waits for the other. The isolation levels are not tested either,
	// because they isolate the transactions of one node: test them on one node. Default: false.
	Certifies bool
	// NoEmptyScope means that the store refuses an empty scope. Default: false.
	NoEmptyScope bool
	// MaxBody is the largest body that the store accepts, if that is less than 1 MiB. Default: 1 MiB.
	MaxBody int
	// Resolution is the finest step of time that the store keeps. Default: one microsecond.
	Resolution time.Duration
}

// group is one chapter of the suite, named like its tests.
type group struct {
	name string
	// needed reports whether such a store must pass the group; nil for every store.
	needed func(Instance) bool
	run    func(t *testing.T, h Harness)
}

var groups = []group{
	{name: "Transitions", run: testTransitions},
	{name: "Invalid", run: testInvalid},
	{name: "Crowds", run: testCrowds},
	{name: "Races", run: testRaces},
	{name: "RacesWithSweeper", needed: has[store.Sweeper], run: testSweeperRaces},
	{name: "RacesWithReaper", needed: has[store.Reaper], run: testReaperRaces},
	{name: "RacesWithReconciler", needed: has[store.Reconciler], run: testReconcilerRaces},
	{name: "RacesWithBuster", needed: has[store.Buster], run: testBusterRaces},
	{name: "Expiry", run: testExpiry},
	{name: "Lost", run: testLost},
	{name: "Fencing", run: testFencing},
	{name: "Tokens", run: testTokens},
	{name: "Repeats", run: testRepeats},
	{name: "Fingerprints", run: testFingerprints},
	{name: "Identity", run: testIdentity},
	{name: "Content", run: testContent},
	{name: "Cancellation", run: testCancellation},
	{name: "Restart", needed: restarts, run: testRestart},
	{name: "Waiter", needed: has[store.Waiter], run: testWaiter},
	{name: "Sweeper", needed: has[store.Sweeper], run: testSweeper},
	{name: "Reaper", needed: has[store.Reaper], run: testReaper},
	{name: "Reconciler", needed: has[store.Reconciler], run: testReconciler},
	{name: "Requeue", needed: has[store.Reconciler], run: testRequeue},
	{name: "ResolvedStep", needed: has[store.Reconciler], run: testResolvedStep},
	{name: "Buster", needed: has[store.Buster], run: testBuster},
	{name: "Lister", needed: has[store.Lister], run: testLister},
	{name: "Rewriter", needed: has[store.Rewriter], run: testRewriter},
	{name: "Finder", needed: has[store.Finder], run: testFinder},
	{name: "Retainer", needed: has[store.Retainer], run: testRetainer},
	{name: "LateCompletions", needed: has[store.LateCompletionKeeper], run: testLateCompletions},
	{name: "ExternalEvents", needed: has[store.ExternalEventKeeper], run: testExternalEvents},
	{name: "Audit", needed: has[store.Auditor], run: testAudit},
	{name: "AuditLister", needed: has[store.AuditLister], run: testAuditLister},
	{name: "Executions", needed: has[store.ExecutionAuditor], run: testExecutions},
	{name: "Transactor", needed: has[store.Transactor], run: testTransactor},
	{name: "TransactorRaces", needed: has[store.Transactor], run: testTransactorRaces},
	{name: "Isolation", needed: hasLevels, run: testIsolation},
	{name: "TransactorLeft", needed: hasLevels, run: testTransactorLeft},
	{name: "TransactorOwnership", needed: has[store.Transactor], run: testTransactorOwnership},
	{
		name: "LostCommit", needed: func(i Instance) bool { return has[store.Transactor](i) && i.Lossy != nil },
		run: testLostCommit,
	},
	{name: "Checkpointer", needed: has[store.TxCheckpointer], run: testCheckpointer},
	{name: "CheckpointerModel", needed: has[store.TxCheckpointer], run: testCheckpointerModel},
	{name: "CheckpointerRaces", needed: has[store.TxCheckpointer], run: testCheckpointerRaces},
	{name: "CheckpointerOwnership", needed: has[store.TxCheckpointer], run: testCheckpointerOwnership},
	{name: "Random", needed: hasClock, run: testRandom},
	{name: "Outbox", needed: has[outbox.Store], run: testOutbox},
	{name: "OutboxOrder", needed: has[outbox.Store], run: testOutboxOrder},
	{name: "OutboxTransactions", needed: has[outbox.Store], run: testOutboxTransactions},
	{
		name: "OutboxAnswer", needed: func(i Instance) bool { return has[outbox.Store](i) && has[store.Transactor](i) },
		run: testOutboxAnswer,
	},
	{name: "OutboxLeases", needed: has[outbox.Store], run: testOutboxLeases},
	{name: "OutboxFencing", needed: has[outbox.Store], run: testOutboxFencing},
	{name: "OutboxFinishTx", needed: has[outbox.Store], run: testOutboxFinishTx},
	{name: "OutboxOperator", needed: has[outbox.Store], run: testOutboxOperator},
	{name: "OutboxUpkeep", needed: has[outbox.Store], run: testOutboxUpkeep},
	{name: "OutboxCrowd", needed: has[outbox.Store], run: testOutboxCrowd},
	{
		name: "OutboxRandom", needed: func(i Instance) bool { return has[outbox.Store](i) && hasClock(i) },
		run: testOutboxRandom,
	},
	{name: "Inbox", needed: has[inbox.Store], run: testInbox},
	{name: "InboxTransactions", needed: has[inbox.Store], run: testInboxTransactions},
	{name: "Natural", needed: has[natural.Store], run: testNatural},
}

// Run tests a store. It returns when all of its tests have ended.
func Run(t *testing.T, h Harness) {
	t.Helper()
	// The tests are parallel; the group around them waits for them.
	t.Run("conformance", func(t *testing.T) {
		if !t.Run("Features", func(t *testing.T) { h.look(t) }) {
			return
		}
		if h.probe.Store == nil { // go test -run has left Features out
			h.look(t)
		}
		for _, g := range groups {
			if g.needed != nil && !g.needed(h.probe) || len(h.Groups) > 0 && !slices.Contains(h.Groups, g.name) {
				continue
			}
			t.Run(g.name, func(t *testing.T) {
				t.Parallel()
				g.run(t, h)
			})
		}
	})
}

// look opens a store to detect what it implements, and refuses a store that the suite could not test.
func (h *Harness) look(t *testing.T) {
	t.Helper()
	i := h.Open(t)
	if i.Store == nil {
		t.Fatal("Open returned an instance without a store")
	}
	for _, c := range capabilities {
		if c.implemented(i) {
			t.Logf("%T is a %s: proven", i.Store, c.name)
		} else {
			t.Logf("%T is no %s: not tested", i.Store, c.name)
		}
	}
	if i.Business == nil && (has[store.Transactor](i) || has[store.TxCheckpointer](i)) {
		t.Fatal("the store has transactions, but the instance has no Business to prove them with")
	}
	if !has[inTxer](i) && (has[outbox.Store](i) || has[inbox.Store](i) || has[natural.Store](i)) {
		t.Fatal("the store is an outbox.Store, an inbox.Store or a natural.Store, but lacks the InTx of inbox.Store, " +
			"by which the suite gets its transactions")
	}
	for _, name := range h.Groups {
		if !slices.ContainsFunc(groups, func(g group) bool { return g.name == name }) {
			t.Fatalf("Harness.Groups names %q, and there is no such chapter", name)
		}
	}
	h.probe = i
}

// capabilities are the interfaces that a store may implement.
var capabilities = []capability{
	being[store.Transactor](), being[store.TxCheckpointer](), being[store.Waiter](),
	being[store.Sweeper](), being[store.Reaper](), being[store.Reconciler](), being[store.Buster](),
	being[store.Lister](), being[store.LateCompletionKeeper](), being[store.ExternalEventKeeper](),
	being[store.Auditor](), being[store.AuditLister](), being[store.ExecutionAuditor](), being[store.Rewriter](),
	being[store.Finder](), being[store.Retainer](), being[outbox.Store](), being[outbox.AnswerStore](),
	being[inbox.Store](), being[natural.Store](),
}

type capability struct {
	name        string
	implemented func(Instance) bool
}

func being[T any]() capability { return capability{reflect.TypeFor[T]().String(), has[T]} }

// has reports whether the store implements T.
func has[T any](i Instance) bool {
	_, ok := store.As[T](i.Store)
	return ok
}

// hasClock reports whether only the suite moves the clock of the store.
func hasClock(i Instance) bool { return i.Advance != nil }

// restarts reports whether records survive a restart.
func restarts(i Instance) bool { return i.Reopen != nil }

// alike reports whether two instances have the same capabilities.
func alike(a, b Instance) bool {
	return reflect.TypeOf(a.Store) == reflect.TypeOf(b.Store) && hasClock(a) == hasClock(b) &&
		restarts(a) == restarts(b) &&
		(a.Business == nil) == (b.Business == nil)
}
