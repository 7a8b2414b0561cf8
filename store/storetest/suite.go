// Package storetest proves that a store keeps the promises of [store.Store]. It runs the rules of the specification,
// by their numbers, against any implementation: the project's own and yours.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			Open:     func(t testing.TB) storetest.Instance { … },
//			Features: storetest.Features{Clock: true, Sweeps: true, Reaps: true},
//		})
//	}
//
// The model is [store.Step]: what the suite expects of a store is what that function says. What a store promises beyond
// records, as an [outbox.Store], an [inbox.Store] or a [natural.Store], is proven as well.
package storetest

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// Harness is a store under test.
type Harness struct {
	// Open makes a fresh, empty store for one test and closes it by t.Cleanup. It is called many times, also at the same
	// time.
	Open func(t testing.TB) Instance
	// Features says what the store promises.
	Features Features
}

// Instance is one store that was opened for one test.
type Instance struct {
	// Store is the store.
	Store store.Store
	// Advance moves the clock of this store forward; between its calls that clock stands still. It is nil where the clock
	// is that of a real server: the suite then uses short leases and retentions, and waits for them.
	Advance func(time.Duration)
	// Reopen is a restart: it closes the store and opens it again on the same data. It is nil if nothing survives.
	Reopen func(t testing.TB) store.Store
	// Business is a table beside the store, for a store with transactions; nil for others.
	Business *Business
}

// Business is a table of the application in the same database as the store.
type Business struct {
	// Insert adds a row through the transaction that the context carries, and returns what the database says.
	Insert func(ctx context.Context, value string) error
	// Count returns how many rows with the value are committed. It must not wait for a transaction in flight.
	Count func(value string) int
	// Enders holds further statements that end a transaction on this database, such as a DDL where that commits. COMMIT
	// and ROLLBACK are always tried.
	Enders []string
}

// Features says what a store promises. Each promise is proven, and a capability that a store has but does not claim here
// fails the suite, so that nothing goes unproven.
type Features struct {
	// Transactions says that the store is a [store.Transactor] whose work takes a *sql.Tx from [onceward.Tx].
	// Instance.Business is needed then.
	Transactions bool
	// TxCheckpoints says that the store is a [store.TxCheckpointer] whose work takes a *sql.Tx from [onceward.Tx].
	// Instance.Business is needed then.
	TxCheckpoints bool
	// Waits says that the store is a [store.Waiter].
	Waits bool
	// Sweeps says that the store is a [store.Sweeper].
	Sweeps bool
	// Reaps says that the store is a [store.Reaper].
	Reaps bool
	// Reconciles says that the store is a [store.Reconciler].
	Reconciles bool
	// Busts says that the store is a [store.Buster].
	Busts bool
	// Lists says that the store is a [store.Lister].
	Lists bool
	// Findings says that the store is a [store.LateCompletionKeeper].
	Findings bool
	// Notices says that the store is a [store.ExternalEventKeeper].
	Notices bool
	// Audits says that the store is a [store.Auditor].
	Audits bool
	// Outbox says that the store is an [outbox.Store], Inbox that it is an [inbox.Store], and Natural that it is a
	// [natural.Store]. For each of them the store needs the InTx of [inbox.Store], which is where the suite gets its
	// transactions. Natural also needs that work finds a *sql.Tx with [onceward.Tx], through which the suite makes tables.
	Outbox  bool
	Inbox   bool
	Natural bool
	// ConcurrentTx says that one transaction of InTx can be under way while another one begins, writes elsewhere and commits.
	// Leave it out for a database with one writer: what two transactions at once do to each other is not tested then.
	ConcurrentTx bool
	// Durable says that records survive a restart. Instance.Reopen is needed then.
	Durable bool
	// Clock says that Instance.Advance is there. Without it the random test is not run: it lives on thousands of steps in
	// time, which a real clock would take hours to make. The exact microsecond of a lease or an expiry is then only
	// checked against the clock that the store reports.
	Clock bool
	// NoEmptyScope says that the store refuses an empty scope.
	NoEmptyScope bool
	// MaxBody is the largest body that the store keeps, if that is less than 1 MiB. Default 1 MiB.
	MaxBody int
	// Resolution is the finest step of time that the store keeps. Default one microsecond.
	Resolution time.Duration
}

// group is one chapter of the suite.
type group struct {
	name string
	// needed says whether a store with these features has to pass it; nil for every store.
	needed func(Features) bool
	run    func(t *testing.T, h Harness)
}

var groups = []group{
	{name: "Features", run: testFeatures},
	{name: "Transitions", run: testTransitions},
	{name: "Invalid", run: testInvalid},
	{name: "Races", run: testRaces},
	{name: "RacesWithSweeper", needed: func(f Features) bool { return f.Sweeps }, run: testSweeperRaces},
	{name: "RacesWithReaper", needed: func(f Features) bool { return f.Reaps }, run: testReaperRaces},
	{name: "RacesWithReconciler", needed: func(f Features) bool { return f.Reconciles }, run: testReconcilerRaces},
	{name: "RacesWithBuster", needed: func(f Features) bool { return f.Busts }, run: testBusterRaces},
	{name: "Expiry", run: testExpiry},
	{name: "Lost", run: testLost},
	{name: "Fencing", run: testFencing},
	{name: "Tokens", run: testTokens},
	{name: "Repeats", run: testRepeats},
	{name: "Fingerprints", run: testFingerprints},
	{name: "Identity", run: testIdentity},
	{name: "Content", run: testContent},
	{name: "Cancellation", run: testCancellation},
	{name: "Restart", needed: func(f Features) bool { return f.Durable }, run: testRestart},
	{name: "Waiter", needed: func(f Features) bool { return f.Waits }, run: testWaiter},
	{name: "Sweeper", needed: func(f Features) bool { return f.Sweeps }, run: testSweeper},
	{name: "Reaper", needed: func(f Features) bool { return f.Reaps }, run: testReaper},
	{name: "Reconciler", needed: func(f Features) bool { return f.Reconciles }, run: testReconciler},
	{name: "Requeue", needed: func(f Features) bool { return f.Reconciles }, run: testRequeue},
	{name: "ResolvedStep", needed: func(f Features) bool { return f.Reconciles }, run: testResolvedStep},
	{name: "Buster", needed: func(f Features) bool { return f.Busts }, run: testBuster},
	{name: "Lister", needed: func(f Features) bool { return f.Lists }, run: testLister},
	{name: "Findings", needed: func(f Features) bool { return f.Findings }, run: testLateCompletions},
	{name: "Notices", needed: func(f Features) bool { return f.Notices }, run: testExternalEvents},
	{name: "Audit", needed: func(f Features) bool { return f.Audits }, run: testAudit},
	{name: "Transactor", needed: func(f Features) bool { return f.Transactions }, run: testTransactor},
	{name: "TransactorRaces", needed: func(f Features) bool { return f.Transactions }, run: testTransactorRaces},
	{name: "TransactorOwnership", needed: func(f Features) bool { return f.Transactions }, run: testTransactorOwnership},
	{name: "Checkpointer", needed: func(f Features) bool { return f.TxCheckpoints }, run: testCheckpointer},
	{name: "CheckpointerModel", needed: func(f Features) bool { return f.TxCheckpoints }, run: testCheckpointerModel},
	{name: "CheckpointerRaces", needed: func(f Features) bool { return f.TxCheckpoints }, run: testCheckpointerRaces},
	{name: "CheckpointerOwnership", needed: func(f Features) bool { return f.TxCheckpoints }, run: testCheckpointerOwnership},
	{name: "Random", needed: func(f Features) bool { return f.Clock }, run: testRandom},
	{name: "Outbox", needed: func(f Features) bool { return f.Outbox }, run: testOutbox},
	{name: "OutboxOrder", needed: func(f Features) bool { return f.Outbox }, run: testOutboxOrder},
	{name: "OutboxTransactions", needed: func(f Features) bool { return f.Outbox }, run: testOutboxTransactions},
	{name: "OutboxAnswer", needed: func(f Features) bool { return f.Outbox && f.Transactions }, run: testOutboxAnswer},
	{name: "OutboxLeases", needed: func(f Features) bool { return f.Outbox }, run: testOutboxLeases},
	{name: "OutboxFencing", needed: func(f Features) bool { return f.Outbox }, run: testOutboxFencing},
	{name: "OutboxFinishTx", needed: func(f Features) bool { return f.Outbox }, run: testOutboxFinishTx},
	{name: "OutboxOperator", needed: func(f Features) bool { return f.Outbox }, run: testOutboxOperator},
	{name: "OutboxUpkeep", needed: func(f Features) bool { return f.Outbox }, run: testOutboxUpkeep},
	{name: "OutboxCrowd", needed: func(f Features) bool { return f.Outbox }, run: testOutboxCrowd},
	{name: "OutboxRandom", needed: func(f Features) bool { return f.Outbox && f.Clock }, run: testOutboxRandom},
	{name: "Inbox", needed: func(f Features) bool { return f.Inbox }, run: testInbox},
	{name: "InboxTransactions", needed: func(f Features) bool { return f.Inbox }, run: testInboxTransactions},
	{name: "Natural", needed: func(f Features) bool { return f.Natural }, run: testNatural},
}

// Run proves a store. It returns when all of its tests have ended.
func Run(t *testing.T, h Harness) {
	t.Helper()
	// The tests are parallel; a group around them is what waits for them.
	t.Run("conformance", func(t *testing.T) {
		for _, g := range groups {
			if g.needed != nil && !g.needed(h.Features) {
				continue
			}
			t.Run(g.name, func(t *testing.T) {
				t.Parallel()
				g.run(t, h)
			})
		}
	})
}

// claim is one of the features, with what has to be there for it.
type claim struct {
	field, evidence string
	claimed, has    bool
}

func claims(f Features, i Instance) []claim {
	return []claim{
		implementing[store.Transactor]("Transactions", f.Transactions, i),
		implementing[store.TxCheckpointer]("TxCheckpoints", f.TxCheckpoints, i),
		implementing[store.Waiter]("Waits", f.Waits, i),
		implementing[store.Sweeper]("Sweeps", f.Sweeps, i),
		implementing[store.Reaper]("Reaps", f.Reaps, i),
		implementing[store.Reconciler]("Reconciles", f.Reconciles, i),
		implementing[store.Buster]("Busts", f.Busts, i),
		implementing[store.Lister]("Lists", f.Lists, i),
		implementing[store.LateCompletionKeeper]("Findings", f.Findings, i),
		implementing[store.ExternalEventKeeper]("Notices", f.Notices, i),
		implementing[store.Auditor]("Audits", f.Audits, i),
		implementing[outbox.Store]("Outbox", f.Outbox, i),
		implementing[inbox.Store]("Inbox", f.Inbox, i),
		implementing[natural.Store]("Natural", f.Natural, i),
		implementing[inTxer]("Outbox, Inbox or Natural", f.Outbox || f.Inbox || f.Natural, i),
		{"Transactions or TxCheckpoints", "Instance.Business", f.Transactions || f.TxCheckpoints, i.Business != nil},
		{"Durable", "Instance.Reopen", f.Durable, i.Reopen != nil},
		{"Clock", "Instance.Advance", f.Clock, i.Advance != nil},
	}
}

// implementing claims that the store is a T.
func implementing[T any](field string, claimed bool, i Instance) claim {
	_, has := i.Store.(T)
	return claim{field, reflect.TypeFor[T]().String(), claimed, has}
}

// testFeatures holds a store to claiming exactly what it can do.
func testFeatures(t *testing.T, h Harness) {
	for _, c := range claims(h.Features, h.Open(t)) {
		t.Run(c.field+" by "+c.evidence, func(t *testing.T) {
			switch {
			case c.claimed && !c.has:
				t.Errorf("Features.%s is claimed, but there is no %s", c.field, c.evidence)
			case !c.claimed && c.has:
				t.Errorf("there is %s, but Features.%s is not claimed: it would go unproven", c.evidence, c.field)
			}
		})
	}
}
