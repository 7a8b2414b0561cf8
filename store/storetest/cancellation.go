package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testCancellation cancels callers at each step: their request was executed or was not, and no other caller is
// affected.
func testCancellation(t *testing.T, h Harness) {
	h.test(t, "before the call", func(e *env) {
		for _, c := range calls(h.probe) {
			e.Run(c.name, func(t *testing.T) { e.with(t).refusesTheGone(c) })
		}
	})
	h.test(t, "during reserve and complete", cancelDuringCalls)
	h.test(t, "beside neighbours", cancelBesideNeighbours)
}

const (
	// maxCuts and minCuts bound the number of moments at which a call is cancelled: it is lower if the store, or the
	// machine, is slow.
	maxCuts, minCuts = 200, 20
	// cutOperations is how long it takes to cancel a call and to check the result, in operations.
	cutOperations = 4
	// cutTime is about how long all of these calls may take.
	cutTime = 15 * time.Second
)

// cuts returns at how many moments there is time to cancel an operation that takes this long.
func cuts(typical time.Duration) int {
	return min(max(int(cutTime/(cutOperations*max(typical, time.Nanosecond))), minCuts), maxCuts)
}

// refusesTheGone makes a call with a context that is already cancelled.
func (e *env) refusesTheGone(c call) {
	e.Helper()
	target := id(c.name)
	claim := c.prepare(e, target)
	before := e.get(target)
	gone, cancel := context.WithCancel(e.ctx)
	cancel()
	err := c.call(gone, e.Store, claim)
	if !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrUnavailable) {
		e.Errorf("%s for a caller who has left got %v, want the context's error or ErrUnavailable", c.name, err)
	}
	late, cancel := context.WithDeadline(e.ctx, time.Now().Add(-time.Second))
	defer cancel()
	if err := c.call(late, e.Store, claim); !errors.Is(err, context.DeadlineExceeded) {
		e.Errorf("L2: %s without time got %v, want an error that wraps context.DeadlineExceeded: "+
			"clients are asked to wait longer for a store that is silent", c.name, err)
	}
	if diff := diffRecords(e.get(target), before, 0); diff != "" {
		e.Errorf("S9: %s for a caller who has left changed the record: %s", c.name, diff)
	}
}

// call is a method of a store that takes a context.
type call struct {
	name    string
	needed  bool
	prepare func(e *env, id store.ID) store.Claim
	call    func(ctx context.Context, s store.Store, c store.Claim) error
}

func calls(i Instance) []call {
	transacts, checkpoints := has[store.Transactor](i), has[store.TxCheckpointer](i)
	waits, sweeps := has[store.Waiter](i), has[store.Sweeper](i)
	reaps, reconciles := has[store.Reaper](i), has[store.Reconciler](i)
	busts, lists := has[store.Buster](i), has[store.Lister](i)
	own := func(e *env, id store.ID) store.Claim { return e.own(id) }
	lose := func(e *env, id store.ID) store.Claim { return e.lose(id) }
	loseResumable := func(e *env, id store.ID) store.Claim { return e.lose(id, resume) }
	nothing := func(_ *env, id store.ID) store.Claim { return store.Claim{ID: id} }
	lapsed := func(e *env, id store.ID) store.Claim {
		c := e.own(id, lease(e.brief()))
		lapse(e)
		return c
	}
	expired := func(e *env, id store.ID) store.Claim {
		c := e.own(id, retain(e.brief()))
		e.until(e.complete(c, "stored"))
		return c
	}
	all := []call{
		{"reserve", true, nothing, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.Reserve(ctx, request(c.ID))
			return err
		}},
		{"reserve of a lapsed record", true, lapsed, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.Reserve(ctx, request(c.ID))
			return err
		}},
		{"extend", true, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.Extend(ctx, c, 3*calm)
		}},
		{"checkpoint", true, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.Checkpoint(ctx, c, store.Checkpoint{Point: "charged"})
		}},
		{"complete", true, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.Complete(ctx, c, answer("done"))
			return err
		}},
		{"release", true, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.Release(ctx, c, "no stock")
		}},
		{"abandon", true, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.Abandon(ctx, c, "timeout")
		}},
		{"get", true, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.Get(ctx, c.ID)
			return err
		}},
		{"sweep", sweeps, lapsed, func(ctx context.Context, s store.Store, _ store.Claim) error {
			_, err := s.(store.Sweeper).Sweep(ctx, everything)
			return err
		}},
		{"reap", reaps, expired, func(ctx context.Context, s store.Store, _ store.Claim) error {
			_, err := s.(store.Reaper).Reap(ctx, everything, false)
			return err
		}},
		{"resolve completed", reconciles, lose, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Reconciler).ResolveCompleted(ctx, c, answer("found"))
		}},
		{"resolve not executed", reconciles, lose, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Reconciler).ResolveNotExecuted(ctx, c, "never arrived")
		}},
		{"resolve step", reconciles, loseResumable, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Reconciler).ResolveStep(ctx, c, store.Checkpoint{Point: "shipped"})
		}},
		{"begin reconcile", reconciles, lose, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Reconciler).BeginReconcile(ctx, c, 0, time.Minute)
		}},
		{"postpone", reconciles, lose, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Reconciler).Postpone(ctx, c, notYet(0, 1))
		}},
		{"requeue", reconciles, lose, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Reconciler).Requeue(ctx, c, "the provider is back")
		}},
		{"bust", busts, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Buster).Bust(ctx, c.ID, true)
		}},
		{"list", lists, own, func(ctx context.Context, s store.Store, _ store.Claim) error {
			_, err := s.(store.Lister).List(ctx, store.Filter{})
			return err
		}},
		{"retain", has[store.Retainer](i), own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.Retainer).Retain(ctx, c.ID, time.Hour)
			return err
		}},
		{"find hash", has[store.Finder](i), own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.Finder).FindHash(ctx, c.Hash())
			return err
		}},
		{"find provider id", has[store.Finder](i), own, func(ctx context.Context, s store.Store, _ store.Claim) error {
			_, err := s.(store.Finder).FindProviderID(ctx, "ch_1")
			return err
		}},
		{"stats", lists, own, func(ctx context.Context, s store.Store, _ store.Claim) error {
			_, err := s.(store.Lister).Stats(ctx)
			return err
		}},
		{"wait", waits, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Waiter).Wait(ctx, c.ID, c.Attempt)
		}},
		{"transact", transacts, nothing, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.Transactor).Transact(ctx, request(c.ID), committing("done"))
			return err
		}},
		{"checkpoint with work", checkpoints, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.TxCheckpointer).CheckpointTx(ctx, c, calm, reaching("charged"))
		}},
	}
	var possible []call
	for _, c := range append(all, evidenceCalls(i)...) {
		if c.needed {
			possible = append(possible, c)
		}
	}
	return possible
}

// evidenceCalls are the methods for the items that are kept beside the records.
func evidenceCalls(i Instance) []call {
	keepsLate, keepsEvents := has[store.LateCompletionKeeper](i), has[store.ExternalEventKeeper](i)
	audits, lists, executes := has[store.Auditor](i), has[store.AuditLister](i), has[store.ExecutionAuditor](i)
	own := func(e *env, id store.ID) store.Claim { return e.own(id) }
	return []call{
		{"add late completion", keepsLate, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.LateCompletionKeeper).AddLateCompletion(ctx,
				store.LateCompletion{Claim: c, Response: answer("late").Response})
		}},
		{"late completions", keepsLate, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.LateCompletionKeeper).LateCompletions(ctx, c.ID)
			return err
		}},
		{"add external event", keepsEvents, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.ExternalEventKeeper).AddExternalEvent(ctx, externalEvent("psp", c.Key, c.Key))
			return err
		}},
		{"external events", keepsEvents, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.ExternalEventKeeper).ExternalEvents(ctx,
				store.ExternalEventFilter{Source: "psp", Scope: externalEventScope, Subjects: []string{c.Key}})
			return err
		}},
		{"purge external events", keepsEvents, own, func(ctx context.Context, s store.Store, _ store.Claim) error {
			_, err := s.(store.ExternalEventKeeper).PurgeExternalEvents(ctx, 0, everything)
			return err
		}},
		{"add audit", audits, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.Auditor).AddAudit(ctx, entry(c.ID, c.Attempt))
		}},
		{"audit", audits, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.Auditor).Audit(ctx, c.ID)
			return err
		}},
		{"list audit", lists, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.AuditLister).ListAudit(ctx, store.AuditFilter{ID: c.ID})
			return err
		}},
		{"add execution", executes, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			return s.(store.ExecutionAuditor).AddExecution(ctx, requested(c.ID, c.Attempt))
		}},
		{"list executions", executes, own, func(ctx context.Context, s store.Store, c store.Claim) error {
			_, err := s.(store.ExecutionAuditor).ListExecutions(ctx, store.AuditFilter{ID: c.ID})
			return err
		}},
		{"purge executions", executes, own, func(ctx context.Context, s store.Store, _ store.Claim) error {
			_, err := s.(store.ExecutionAuditor).PurgeExecutions(ctx, 0, everything)
			return err
		}},
		{"purge audit", audits, own, func(ctx context.Context, s store.Store, _ store.Claim) error {
			_, err := s.(store.Auditor).PurgeAudit(ctx, 0, everything)
			return err
		}},
	}
}

// coarse is how late a timer may be.
const coarse = time.Millisecond

// interrupted calls f with a context that is cancelled after the delay. The interesting delays are shorter than the
// resolution of a timer, so the canceller spins at the end; it is already running when the call begins.
func (e *env) interrupted(delay time.Duration, f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(e.ctx)
	var spinning, began atomic.Bool
	var leaving sync.WaitGroup
	leaving.Go(func() {
		defer cancel()
		for spinning.Store(true); !began.Load(); {
			runtime.Gosched()
		}
		start := time.Now()
		time.Sleep(delay - coarse)
		for time.Since(start) < delay {
			runtime.Gosched()
		}
	})
	for !spinning.Load() {
		runtime.Gosched()
	}
	began.Store(true)
	f(ctx)
	leaving.Wait()
}

// duration returns about how long an operation takes on this store: the interesting delays are within that time.
func (e *env) duration() time.Duration {
	e.Helper()
	start := time.Now()
	for _, id := range ids(10) {
		id.Scope = "duration"
		e.must(e.operate(e.ctx, id))
	}
	return time.Since(start) / 10
}

// cancelDuringCalls cancels calls at every moment and then repeats them, as a guard does that does not know their
// result.
func cancelDuringCalls(e *env) {
	typical := e.duration()
	moments := cuts(typical)
	for i, id := range ids(moments) {
		delay := typical * time.Duration(i) / time.Duration(moments)
		r := request(id)
		e.interrupted(delay, func(ctx context.Context) { _, _ = e.Store.Reserve(ctx, r) })
		v := e.wantDecision(r, store.DecisionExecute, "S9: the same nonce after a reserve that was cut off")
		c := store.Claim{ID: id, Attempt: v.Record.Attempt}
		var first error
		e.interrupted(delay, func(ctx context.Context) { _, first = e.Store.Complete(ctx, c, answer("done")) })
		if rec := e.get(id); first == nil && rec.State != store.StateCompleted {
			e.Errorf("E7: complete reported success, but the record is %s", describe(rec))
		}
		if _, err := e.Store.Complete(e.ctx, c, answer("done")); err != nil {
			e.Errorf("S6: repeating a complete that was cut off got %v, want success", err)
		}
		e.wantState(id, store.StateCompleted, "S6: after a repeated complete")
	}
}

// cancelBesideNeighbours cancels half of the callers while the others, perhaps in the same batch, continue.
func cancelBesideNeighbours(e *env) {
	typical := e.duration()
	targets := ids(crowd)
	errs := make([]error, crowd)
	together(crowd, func(i int) {
		for round := range 10 {
			target := targets[i]
			target.Scope = fmt.Sprint("round ", round)
			if i%2 == 0 {
				e.interrupted(typical*time.Duration(round*i)/crowd,
					func(ctx context.Context) { _ = e.operate(ctx, target) })
				continue
			}
			errs[i] = errors.Join(errs[i], e.operate(e.ctx, target))
		}
	})
	if err := errors.Join(errs...); err != nil {
		e.Errorf("E6: callers who stayed got errors because others left: %v", err)
	}
	for i := 1; i < crowd; i += 2 {
		for round := range 10 {
			target := targets[i]
			target.Scope = fmt.Sprint("round ", round)
			e.wantState(target, store.StateCompleted, "E7: an answer that was reported as stored")
		}
	}
}

// operate reserves and completes an operation.
func (e *env) operate(ctx context.Context, id store.ID) error {
	v, err := e.Store.Reserve(ctx, request(id))
	if err != nil {
		return fmt.Errorf("reserve: %w", err)
	}
	if v.Decision != store.DecisionExecute {
		return fmt.Errorf("a new key got %s", v.Decision)
	}
	if _, err := e.Store.Complete(ctx, store.Claim{ID: id, Attempt: v.Record.Attempt}, answer(id.Key)); err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	return nil
}
