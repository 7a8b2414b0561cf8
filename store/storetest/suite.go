// Package storetest proves that a store keeps the promises of [store.Store]. It runs the rules of the specification,
// by their numbers, against any implementation: the project's own and yours.
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
// The suite sees by itself which optional interfaces the store implements, of package store as well as [outbox.Store],
// [inbox.Store] and [natural.Store], and proves each of them; go test -v lists them. An interface that the store must
// not lose by accident is best asserted in its own code: var _ store.Sweeper = (*Store)(nil).
//
// The model is [store.Step]: what the suite expects of a store is what that function says.
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
	// Open makes a fresh, empty store for one test and closes it by t.Cleanup. It is called many times, also at the
	// same time, and returns the same kind of instance each time.
	Open func(t testing.TB) Instance
	// Features says what the suite cannot see for itself. Default: the zero value.
	Features Features
	// Groups are the chapters to run, by the names that go test -v shows, for a quick look at one of many combinations;
	// only all of them together prove a store. Default: all.
	Groups []string

	// probe is the instance that shows what the others are like. It is closed already.
	probe Instance
	// patience is what a test of the suite itself sets that fails on purpose. Default: the constant of this name.
	patience time.Duration
}

// Instance is one store that was opened for one test.
type Instance struct {
	// Store is the store.
	Store store.Store
	// Advance moves the clock of this store forward; between its calls that clock stands still. It is nil where the
	// clock is that of a real server: the suite then uses short leases and retentions, and waits for them. It also
	// leaves out the random tests, which live on thousands of steps in time, and checks the exact microsecond of a
	// lease or an expiry only against the clock that the store reports.
	Advance func(time.Duration)
	// Reopen is a restart: it closes the store and opens it again on the same data. It is nil if nothing survives; what
	// a restart does to records is not tested then.
	Reopen func(t testing.TB) store.Store
	// Business is a table beside the store. It is required if the store is a [store.Transactor] or a
	// [store.TxCheckpointer]; nil for others.
	Business *Business
	// Lossy opens the store a second time on the same data, as another process does whose clock stands where that of Store
	// does, and whose way to the server can be cut. It is nil if no COMMIT can be lost on its way, such as of a store
	// without a server: what a process makes of a lost COMMIT is not tested then.
	Lossy func(t testing.TB) Lossy
}

// Lossy is the store of another process, whose next COMMIT can be lost on its way.
type Lossy struct {
	// Store is the store.
	Store store.Store
	// LoseCommit loses the next COMMIT of the store: the request, which the store may send again, or the reply to it. It
	// returns at once. lost waits until that has happened, and from then on the store reaches no server, and so asks nothing,
	// until restore is called.
	LoseCommit func(reply bool) (lost func(ctx context.Context) error, restore func())
}

// Business is a table of the application in the same database as the store.
type Business struct {
	// Insert adds a row through the transaction that the context carries, and returns what the database says.
	Insert func(ctx context.Context, value string) error
	// Count returns how many rows with the value are committed. It must not wait for a transaction in flight.
	Count func(value string) int
	// Define runs a statement outside of any transaction, such as a DDL where that ends one. It is nil where the tables
	// of a test can be made through a transaction of the store.
	Define func(statement string) error
	// Pool is of the application's own in the same database, past the store, with the level of isolation that the
	// handlers' connections have. It is nil where the database has no levels of isolation; that the work is isolated as
	// it would be without the store is not tested then.
	Pool *sql.DB
	// Conflicts holds statements that fail as one does by which a transaction meets its neighbours, such as in a deadlock,
	// each with a word of the error. What work makes of such an error is not tested without them.
	Conflicts map[string]string
	// NoWait is a statement that fails at once if another transaction has inserted into the table and not ended. It is not
	// needed where there are no Conflicts.
	NoWait string
	// Slow is a statement that takes a minute and does nothing. It is not needed where there is no Pool.
	Slow string
	// Enders holds further statements that end a transaction on this database, such as a DDL where that commits. COMMIT
	// and ROLLBACK are always tried.
	Enders []string
	// Collects says that the context carries no *sql.Tx: Insert adds to what is sent, all of it at once, when the work has
	// ended. There are no statements then that fail or end a transaction in mid-work, and what they would do is not
	// tested; that there is no *sql.Tx is. Default: false.
	Collects bool
}

// Features says of a store what its methods do not show.
type Features struct {
	// ConcurrentTx says that one transaction of InTx can be under way while another one begins, writes elsewhere and
	// commits. Leave it out for a database with one writer: what two transactions at once do to each other is not
	// tested then. Default: false.
	ConcurrentTx bool
	// Certifies says that two transactions that write the same row need not wait for each other: one of them is refused at
	// its commit, and run again. So do the nodes of a cluster without a common lock. That one waits for the other is not
	// tested then, only what the two come to; nor are the levels of isolation, which isolate the transactions of one node:
	// test them on one. Default: false.
	Certifies bool
	// NoEmptyScope says that the store refuses an empty scope. Default: false.
	NoEmptyScope bool
	// MaxBody is the largest body that the store keeps, if that is less than 1 MiB. Default: 1 MiB.
	MaxBody int
	// Resolution is the finest step of time that the store keeps. Default: one microsecond.
	Resolution time.Duration
}

// group is one chapter of the suite, named as its tests are.
type group struct {
	name string
	// needed says whether such a store has to pass it; nil for every store.
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

// Run proves a store. It returns when all of its tests have ended.
func Run(t *testing.T, h Harness) {
	t.Helper()
	// The tests are parallel; a group around them is what waits for them.
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

// look opens a store to see what it implements, and refuses one that the suite could not prove.
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

// has reports whether the store is a T.
func has[T any](i Instance) bool {
	_, ok := store.As[T](i.Store)
	return ok
}

// hasClock reports whether the clock of the store is moved by the suite alone.
func hasClock(i Instance) bool { return i.Advance != nil }

// restarts reports whether records survive a restart.
func restarts(i Instance) bool { return i.Reopen != nil }

// alike reports whether what one instance can do the other can too.
func alike(a, b Instance) bool {
	return reflect.TypeOf(a.Store) == reflect.TypeOf(b.Store) && hasClock(a) == hasClock(b) &&
		restarts(a) == restarts(b) &&
		(a.Business == nil) == (b.Business == nil)
}
