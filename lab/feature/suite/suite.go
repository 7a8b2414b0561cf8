// Package suite is the one table of behaviours that every adapter has to pass: what a caller of a protected operation
// can depend on, whichever framework or transport is between them. An adapter's own test starts a real server of its
// framework on loopback, says what its transport has, and runs the table:
//
//	func TestGin(t *testing.T) {
//		suite.Run(t, suite.Adapter{Name: "gin", Operation: "POST /accounts/:account/payments", Serve: serve, …})
//	}
//
// The operation takes payments, in terms that all transports share: a [Payment] comes, a [Reply] goes. The store is
// SQLite, so that transactions are real.
package suite

import (
	"testing"

	"github.com/onceward/onceward"
)

// Serve starts a server that does the work for payments and for refunds: two operations of one guard, protected with
// the same options. It ends with the test.
type Serve func(t *testing.T, guard *onceward.Guard, work Work, options ...onceward.Option) Caller

// Adapter is what the suite is run for.
type Adapter struct {
	// Name is that of the framework or transport.
	Name string
	// Operation is the name under which the guard has to know the operation of payments, whatever is in a payment.
	Operation string
	// Serve protects as a user of the adapter does.
	Serve Serve
	// State serves payments by a handler that replies with what its framework says of the request and of the answer so
	// far, and then changes whatever of it can be changed. With no guard it serves without protection. Default: it is not
	// tested.
	State func(t *testing.T, guard *onceward.Guard, options ...onceward.Option) Caller
	// Hooks serves payments behind a hook that sets [HookHeader], in the header that the framework's context shows it, when
	// the answer begins. The handler answers by [WriteAs]. With no guard it serves without protection. Default: it is not
	// tested.
	Hooks func(t *testing.T, guard *onceward.Guard, options ...onceward.Option) Caller
	// Deadline protects as Serve does, behind a middleware that gives the context of the request a deadline, by
	// [FrontDeadline]. Default: it is not tested.
	Deadline Serve
	// Envelope protects as Serve does, where an error that the work replies with is answered with 200. Default: it is not
	// tested.
	Envelope Serve
	// OwnContext protects as Serve does, and its work gets the framework's own context, if that is a [context.Context].
	// Default: it is not tested.
	OwnContext Serve
	// Wrong are ways to protect that a user may try first, and that must be noticed. Default: none.
	Wrong []Wrong
	// Features are what the transport has. Default: what all have.
	Features Features
	// Configure changes the configuration of the guard before it is made. Its Scope is that of HTTP: the tenant is the
	// bearer token. Default: none.
	Configure func(config *onceward.Config)
}

// Wrong is a wrapper that lets the handler answer past the guard.
type Wrong struct {
	// Name says what is wrong about it.
	Name string
	// Serve protects in the wrong way. The work replies with a status alone.
	Serve Serve
	// Mistake is what the guard notices of it. Default: [AnsweredPast].
	Mistake Mistake
	// RunsAgain says that the framework goes on to the handler by itself, also when the guard has replayed an answer, as
	// gin does without c.Abort. Default: a retry executes nothing.
	RunsAgain bool
}

// Mistake is what a wrong wrapper does.
type Mistake uint8

const (
	// AnsweredPast is an answer to another writer than the guard's. The client has it, and retries do not get it.
	AnsweredPast Mistake = iota
	// AnsweredLate is an answer that the framework makes when the guard has ended.
	AnsweredLate
	// NoAnswer is an answer of which the guard sees nothing at all, and it stores an empty one.
	NoAnswer
	// NotRerun is a handler that cannot run again when its transaction was undone.
	NotRerun
)

// Features is what a transport has. What it has not is not tested.
type Features struct {
	// Headers says that a handler's answer has header fields of its own, which are stored with it. Default: false.
	Headers bool
	// KeyLines says that a request can carry its key more than once. Default: false.
	KeyLines bool
	// FirstSent says that a request can carry the time at which it was first sent. Default: false.
	FirstSent bool
	// Refusals says that an answer by which a handler refuses a request (4xx) is stored and replayed. A transport whose
	// handlers return a value or an error keeps values alone. Default: false.
	Refusals bool
	// Silence says that a handler may return without an answer. Default: false.
	Silence bool
	// Errors says that a failure of a handler is an error that it returns, or notes with its framework. Default: false.
	Errors bool
	// LateErrors says that a handler can return an error after it has replied. Default: false.
	LateErrors bool
	// ProblemForUnknown means that a failure whose outcome is unknown is answered by a problem in the place of the
	// handler's answer: the text of a tool's error is for operators. Default: false.
	ProblemForUnknown bool
	// NoBodyLimit says that the transport, not the guard, bounds the size of a request. Default: false.
	NoBodyLimit bool
}

// behaviour is one row of the table.
type behaviour struct {
	name string
	// needs says whether a transport has what it is about; nil for all.
	needs func(Features) bool
	// has says whether an adapter has the server that it is about; nil for all.
	has func(Adapter) bool
	run func(s *service)
	// inMode is run in place of run, once for each mode.
	inMode func(s *service, mode onceward.Option)
}

// behaviours is the table.
var behaviours = []behaviour{
	{name: "Replay", inMode: testReplay},
	{name: "ReplayOfHeaders", needs: func(f Features) bool { return f.Headers }, run: testReplayOfHeaders},
	{name: "Names", run: testNames},
	{name: "ReusedMemory", run: testReusedMemory},
	{name: "Mismatch", inMode: testMismatch},
	{name: "SharedName", inMode: testSharedName},
	{name: "OtherTenant", inMode: testOtherTenant},
	{name: "Unauthenticated", run: testUnauthenticated},
	{name: "BadKeys", run: testBadKeys},
	{name: "TwoKeys", needs: func(f Features) bool { return f.KeyLines }, run: testTwoKeys},
	{name: "KeyOptional", run: testKeyOptional},
	{name: "FirstSent", needs: func(f Features) bool { return f.FirstSent }, run: testFirstSent},
	{name: "BodyLimit", needs: func(f Features) bool { return !f.NoBodyLimit }, run: testBodyLimit},
	{name: "ResponseLimit", run: testResponseLimit},
	{name: "Limiter", inMode: testLimiter},
	{name: "StoreDown", inMode: testStoreDown},
	{name: "Conflict", run: testConflict},
	{name: "Wait", run: testWait},
	{name: "Duplicates", inMode: testDuplicates},
	{name: "ManyKeys", inMode: testManyKeys},
	{name: "CallerLeaves", run: testCallerLeaves},
	{name: "Refused", needs: func(f Features) bool { return f.Refusals }, run: testRefused},
	{name: "KeepWrites", needs: func(f Features) bool { return f.Refusals }, run: testKeepWrites},
	{name: "FailureRetry", run: testFailureRetry},
	{name: "FailureStore", run: testFailureStore},
	{name: "FailureUnknown", run: testFailureUnknown},
	{name: "FailureInTransaction", run: testFailureInTransaction},
	{name: "Errors", needs: func(f Features) bool { return f.Errors }, inMode: testErrors},
	{name: "LateErrors", needs: func(f Features) bool { return f.LateErrors }, run: testLateErrors},
	{name: "Envelope", has: func(a Adapter) bool { return a.Envelope != nil }, run: testEnvelope},
	{name: "Unavailable", run: testUnavailable},
	{name: "Reject", inMode: testReject},
	{name: "NotExecuted", run: testNotExecuted},
	{name: "Unknown", run: testUnknown},
	{name: "Panic", run: testPanic},
	{name: "Deadline", run: testDeadline},
	{name: "DeadlineInFront", has: func(a Adapter) bool { return a.Deadline != nil }, inMode: testDeadlineInFront},
	{name: "Rerun", run: testRerun},
	{name: "State", has: func(a Adapter) bool { return a.State != nil }, run: testState},
	{name: "Hooks", has: func(a Adapter) bool { return a.Hooks != nil }, run: testHooks},
	{name: "OwnContext", has: func(a Adapter) bool { return a.OwnContext != nil }, run: testOwnContext},
	{name: "Silence", needs: func(f Features) bool { return f.Silence }, run: testSilence},
}

var modes = map[string]onceward.Option{"transactional": onceward.Transactional(), "reserved": reserved}

// reserved is the mode of most behaviours that need no transaction.
var reserved = onceward.Reserved(onceward.FailureUnknown)

// Run runs the table for an adapter, each behaviour on a store and a server of its own.
func Run(t *testing.T, adapter Adapter) {
	t.Helper()
	for _, b := range behaviours {
		if b.needs != nil && !b.needs(adapter.Features) || b.has != nil && !b.has(adapter) {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			if b.run != nil {
				b.run(newService(t, adapter))
				return
			}
			for name, mode := range modes {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					b.inMode(newService(t, adapter), mode)
				})
			}
		})
	}
	for _, wrong := range adapter.Wrong {
		t.Run("Wrong/"+wrong.Name, func(t *testing.T) {
			t.Parallel()
			wrongly := adapter
			wrongly.Serve = wrong.Serve
			wrongs[wrong.Mistake](newService(t, wrongly), wrong)
		})
	}
}
