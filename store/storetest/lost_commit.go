package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// testLostCommit loses COMMITs of one process while another process with the same clock uses the same records. The
// conclusion of the process that lost the COMMIT is compared with the rows that are there: it must not take another
// process's commit for its own, nor a missing record for a proof.
func testLostCommit(t *testing.T, h Harness) {
	for _, over := range []string{"no record", "a retryable record"} {
		for _, lost := range []string{"request", "reply"} {
			for _, m := range meanwhiles {
				if m.removes && lost == "request" {
					continue
				}
				h.test(t, over+", "+lost+", "+m.name, func(e *env) {
					if over != "no record" {
						e.must(e.Store.Release(e.ctx, e.own(id("key")), "no stock"))
					}
					e.loseCommit(lost == "reply", m)
				})
			}
		}
	}
	h.test(t, "tokens", tokensOfTwins)
	if has[store.TxCheckpointer](h.probe) {
		h.test(t, "step, request", func(e *env) { e.loseStep(false, false) })
		h.test(t, "step, reply", func(e *env) { e.loseStep(true, false) })
		h.test(t, "step, reply, removed", func(e *env) { e.loseStep(true, true) })
	}
}

// meanwhile is what happens between the loss of a COMMIT and the query for its outcome.
type meanwhile struct {
	name string
	// removes means that the record is removed, and executes that another process then sends the same request.
	removes, executes bool
}

var meanwhiles = []meanwhile{
	{name: "nothing else"},
	{name: "another process executes", executes: true},
	{name: "removed", removes: true},
	{name: "removed, another process executes", removes: true, executes: true},
}

// transacting is the outcome of a call of Transact, with the token that its work got.
type transacting struct {
	verdict store.Verdict
	err     error
	token   int64
}

// lone runs a transaction whose row names its process. Both processes give the same answer.
func (e *env) lone(s store.Store, row string) (done transacting) {
	done.verdict, done.err = s.(store.Transactor).Transact(e.ctx, request(id("key")),
		e.inserting(row, func(_ context.Context, v store.Verdict) store.Settlement {
			done.token = v.Record.Attempt
			return store.Settlement{Action: store.TxCommit, Completion: *answer("paid")}
		}))
	return done
}

// awaited runs a transaction after the one before it has ended: the server may not have noticed yet that its connection
// was cut.
func (e *env) awaited(row string) (done transacting) {
	e.Helper()
	for {
		done = e.lone(e.Store, row)
		if done.err != nil || done.verdict.Decision != store.DecisionInProgress {
			e.must(done.err)
			return done
		}
		select {
		case <-time.After(glance):
		case <-e.ctx.Done():
			e.Fatal("a transaction whose connection was cut is still in flight")
		}
	}
}

// loseCommit loses a COMMIT, or the reply to it.
func (e *env) loseCommit(reply bool, m meanwhile) {
	l := e.Lossy(e)
	lost, restore := l.LoseCommit(reply)
	defer restore()
	owner := make(chan transacting, 1)
	go func() { owner <- e.lone(l.Store, "owner") }()
	e.must(lost(e.ctx))
	removed := m.removes && e.Store.(store.Buster).Bust(e.ctx, id("key"), false) == nil
	var other transacting
	if m.executes {
		if e.Business.Collects && !reply {
			e.pass(2 * calm) // the claim of work that collects its writes ends with its lease
		}
		other = e.awaited("other")
	}
	restore()
	got := await.Value(e, "what the owner makes of a lost COMMIT", owner)
	rows, others := e.Business.Count("owner"), e.Business.Count("other")
	if reply && rows != 1 {
		e.Fatalf("the reply to a COMMIT was lost, and there are %d rows", rows)
	}
	switch v := got.verdict; {
	case errors.Is(got.err, store.ErrOutcomeUnknown):
		if !m.executes && !m.removes {
			e.Errorf("E7: the server can be asked, and the owner got %v", got.err)
		}
	case got.err != nil && rows != 0:
		e.Errorf("S6: the work is committed, and the owner got %v", got.err)
	case got.err == nil && v.Decision == store.DecisionExecute && rows != 1:
		e.Errorf("S6: the work was undone, and the owner was answered as if it was executed: " +
			"it took the commit of another process for its own")
	case got.err == nil && v.Decision == store.DecisionReplay && rows+others == 0,
		got.err == nil && v.Decision != store.DecisionExecute && v.Decision != store.DecisionReplay:
		e.Errorf("S6: the owner got %s, and there are %d rows of its own and %d of others", v.Decision, rows, others)
	}
	if other.token != 0 && other.token == got.token {
		e.Errorf("S7: two processes executed under the token %d", got.token)
	}
	if !removed {
		e.awaited("other")
		if rows, others := e.Business.Count("owner"), e.Business.Count("other"); rows+others != 1 {
			e.Errorf("I1: after a retry there are %d rows of the owner and %d of others", rows, others)
		}
	}
}

// tokensOfTwins runs the work of two processes with one clock for one key, one after the other: the first work is
// undone, and anything that it sent to other systems carried another token (S7).
func tokensOfTwins(e *env) {
	l := e.Lossy(e)
	seen := make(map[int64]bool)
	const tries = 4
	for i := range tries {
		s := []store.Store{e.Store, l.Store}[i%2]
		_, err := s.(store.Transactor).Transact(e.ctx, request(id("key")),
			func(_ context.Context, v store.Verdict) store.Settlement {
				seen[v.Record.Attempt] = true
				return store.Settlement{Action: store.TxRollback}
			})
		e.must(err)
	}
	if len(seen) != tries {
		e.Errorf("S7: %d executions had the tokens %v", tries, seen)
	}
}

// loseStep loses the COMMIT of a step, or the reply to it.
func (e *env) loseStep(reply, removed bool) {
	l := e.Lossy(e)
	v, err := l.Store.Reserve(e.ctx, request(id("key"), resume))
	e.must(err)
	claim := store.Claim{ID: id("key"), Attempt: v.Record.Attempt}
	lost, restore := l.LoseCommit(reply)
	defer restore()
	owner := make(chan error, 1)
	go func() {
		owner <- l.Store.(store.TxCheckpointer).CheckpointTx(e.ctx, claim, calm,
			func(ctx context.Context) (store.Checkpoint, error) {
				return store.Checkpoint{Point: "charged"}, e.Business.Insert(ctx, "step")
			})
	}()
	e.must(lost(e.ctx))
	if removed {
		e.must(e.Store.(store.Buster).Bust(e.ctx, id("key"), true))
	}
	restore()
	err = await.Value(e, "what the owner makes of a lost COMMIT of a step", owner)
	rows := e.Business.Count("step")
	unknown := errors.Is(err, store.ErrOutcomeUnknown)
	if reply && rows != 1 || !unknown && (err == nil) != (rows == 1) || unknown && !removed {
		e.Errorf("E7: the COMMIT of a step was lost (the reply: %t): %d rows, and the owner got %v", reply, rows, err)
	}
}
