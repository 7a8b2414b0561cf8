package oncewardtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Kind is the kind of a problem in a handler.
type Kind string

// These are the kinds of findings.
const (
	// KindFailed is a request that does not succeed even if nothing is made to fail.
	KindFailed Kind = "failed without a fault"
	// KindUncounted is a success without a counted effect, so that a check could find nothing.
	KindUncounted Kind = "nothing was counted"
	// KindTwice is an effect that one operation made more often than it does when nothing fails.
	KindTwice Kind = "ran twice"
	// KindLost is a success that was reported to the client, without its effect.
	KindLost Kind = "lost"
	// KindStuck is a client that never gets an answer, however often it retries.
	KindStuck Kind = "never answered"
	// KindPastTx is an effect that stayed although its transaction was rolled back.
	KindPastTx Kind = "outside of the transaction"
	// KindCallInTx is a call to another system inside a transaction: a rollback does not undo the call.
	KindCallInTx Kind = "call inside of a transaction"
	// KindNoKey is a call to another system without an idempotency key.
	KindNoKey Kind = "call without a key"
	// KindOtherKey is the same call with different keys in two attempts.
	KindOtherKey Kind = "another key in another attempt"
	// KindSharedKey is one key for calls of two operations.
	KindSharedKey Kind = "one key for two operations"
	// KindOtherBody is one key for calls with different bodies.
	KindOtherBody Kind = "another body under the same key"
	// KindEarly is an answer that was given before its effect was made.
	KindEarly Kind = "answered before it was done"
	// KindBypass is an answer that bypassed the guard.
	KindBypass Kind = "answered past the guard"
	// KindSecondConnection is a handler that takes a connection from a pool while its transaction holds another
	// connection of the pool. A check detects it for a pool that postgres.WatchPool watches.
	KindSecondConnection Kind = "second connection"
)

// remedies are the advice for each kind.
var remedies = map[Kind]string{
	KindFailed: "make the request of the check one that your service accepts, headers and tables included",
	KindUncounted: "count the effect in Config.Effects, or hand the provider over in Config.Providers; what is left " +
		"to a goroutine is gone with the request's context",
	KindTwice: "an attempt that ended without an answer had made it, and the retry made it again: write it with " +
		"onceward.Tx in a transactional route; or send the other system Operation.DownstreamKey, by which it recognises " +
		"the call; or say that the outcome is unknown (FailureUnknown, Operation.Unknown) once the call may be out",
	KindLost: "the handler answered a success although what it called had failed: look at each error that it drops, " +
		"and answer 5xx",
	KindStuck: "look at the last answers: the handler fails again in every attempt, or waits for what a lost one has " +
		"left behind",
	KindPastTx: "write through onceward.Tx(ctx) or postgres.Tx(ctx), and through no other handle; what leaves the " +
		"database belongs into the outbox",
	KindCallInTx: "put the call into the outbox, or make the route Reserved or phased: a rollback does not undo a call, " +
		"and others wait for the transaction while the call takes its time",
	KindNoKey:     "send Operation.DownstreamKey(step) along, so that the other system recognises the call of a retry",
	KindOtherKey:  "derive the key with Operation.DownstreamKey(step): it is the same in every attempt",
	KindSharedKey: "derive the key with Operation.DownstreamKey(step): it is another one for every operation",
	KindOtherBody: "take times and ids from the request, or ids from Operation.DownstreamKey, or keep them in the data " +
		"of a phased route: providers refuse another body under a key that they know",
	KindEarly: "do it before the handler returns; what may be done later belongs into the outbox: a goroutine is gone " +
		"with its process, and the client was told that all is done",
	KindBypass: "answer through the ResponseWriter that the guard hands to the handler; docs/routers.md shows how with " +
		"frameworks",
	KindSecondConnection: "give the handler and its repositories postgres.DB(pool), which uses the transaction that is there: " +
		"enough such requests at once wait for each other",
}

// Finding is a problem that a check has found.
type Finding struct {
	// Kind is the kind of the problem.
	Kind Kind
	// Request is the request that was sent.
	Request Request
	// Run is the name of the run, which describes what was made to fail.
	Run string
	// Detail describes what was observed.
	Detail string
	// History is what happened until then, with a line for each event.
	History string
	// Runs are the names of other runs that show the same problem.
	Runs []string
}

// String returns the finding as a test reports it.
func (f Finding) String() string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "oncewardtest: %s: %s: %s\n  when: %s", f.Request, f.Kind, f.Detail, f.Run)
	if len(f.Runs) > 0 {
		_, _ = fmt.Fprintf(&b, " (and in %d other runs)", len(f.Runs))
	}
	_, _ = fmt.Fprintf(&b, "\n  what to do: %s\n  history:\n%s", remedies[f.Kind], f.History)
	return b.String()
}

// findings collects the findings of all runs of a check, each problem once.
type findings struct {
	mu   sync.Mutex
	list []*Finding
	keys []string // the identities of the findings
}

func (f *findings) add(found Finding, about string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := string(found.Kind) + "\x00" + found.Request.String() + "\x00" + about
	if i := slices.Index(f.keys, key); i >= 0 {
		if f.list[i].Run != found.Run && !slices.Contains(f.list[i].Runs, found.Run) {
			f.list[i].Runs = append(f.list[i].Runs, found.Run)
		}
		return
	}
	f.list, f.keys = append(f.list, &found), append(f.keys, key)
}

// has reports whether something of this kind was found.
func (f *findings) has(kind Kind) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.list, func(one *Finding) bool { return one.Kind == kind })
}

// all returns the findings.
func (f *findings) all() []Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Finding
	for _, one := range f.list {
		all = append(all, *one)
	}
	return all
}
