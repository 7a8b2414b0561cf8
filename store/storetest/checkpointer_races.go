package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// testCheckpointerRaces makes steps race with each other, and with callers that take their records away.
func testCheckpointerRaces(t *testing.T, h Harness) {
	h.test(t, "taken over during the step", stepTakenOver)
	h.test(t, "settled during the step", stepSettled)
	h.test(t, "marked during the step", stepMarked)
	h.test(t, "many keys", stepNeighbours)
	h.test(t, "one key", stepCrowd)
	h.test(t, "the caller leaves", stepCancelled)
	h.test(t, "the caller leaves during the step", stepCancelledInWork)
	if has[store.Transactor](h.probe) {
		h.test(t, "beside transactions", stepBesideTransactions)
	}
}

// beside runs f while a step runs, and waits briefly for it: on a store with one writer f can only begin when the step
// is over.
func beside(f func()) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(glance):
	}
	return done
}

// stepTakenOver lets the lease run out during a step, and another attempt reserve the record. Either the step was
// first, and the other attempt finds its point; or the other attempt was first, and nothing of the step is there.
func stepTakenOver(e *env) {
	c := e.own(id("key"), resume, lease(e.brief()))
	var taken store.Verdict
	var takeErr error
	var ended <-chan struct{}
	err := e.checkpointTx(c, e.stepping("row", func(context.Context) (store.Checkpoint, error) {
		ended = beside(func() {
			for takeErr == nil && taken.Decision != store.DecisionExecute {
				if e.Advance != nil {
					e.Advance(e.brief())
				}
				taken, takeErr = e.Store.Reserve(e.ctx, request(c.ID, resume))
			}
		})
		return checkpointAt("charged"), nil
	}))
	await.Value(e, "the end of the other attempt", ended)
	e.must(takeErr)
	if taken.Decision != store.DecisionExecute || taken.Origin != store.OriginResumed {
		e.Fatalf("section 4: the next attempt got (%s, %s), want to resume", taken.Decision, taken.Origin)
	}
	if err != nil {
		e.wantFenced(err, "S6: a step whose record was taken over")
	}
	e.checkStep(c, "row", "charged", err)
	if reached := taken.Record.Point == "charged"; reached != (err == nil) {
		e.Errorf("E3: the step got %v, and the next attempt began at point %q", err, taken.Record.Point)
	}
	next := store.Claim{ID: c.ID, Attempt: taken.Record.Attempt}
	e.must(e.checkpointTx(next, e.stepping("next", reaching("shipped"))))
	e.checkStep(next, "next", "shipped", nil)
}

// stepSettled makes the owner itself settle the record while its step runs, as a confused owner might.
func stepSettled(e *env) {
	settlements := map[string]func(c store.Claim) error{
		"completed": func(c store.Claim) error {
			_, err := e.Store.Complete(e.ctx, c, answer("done"))
			return err
		},
		"released":  func(c store.Claim) error { return e.Store.Release(e.ctx, c, "no stock") },
		"abandoned": func(c store.Claim) error { return e.Store.Abandon(e.ctx, c, "timeout") },
	}
	if has[store.Buster](e.Instance) {
		settlements["busted"] = func(c store.Claim) error { return e.Store.(store.Buster).Bust(e.ctx, c.ID, true) }
	}
	for name, settle := range settlements {
		c := e.own(id(name))
		var settleErr error
		var ended <-chan struct{}
		err := e.checkpointTx(c, e.stepping(name, func(context.Context) (store.Checkpoint, error) {
			ended = beside(func() { settleErr = settle(c) })
			return checkpointAt("charged"), nil
		}))
		await.Value(e, "the end of the settlement", ended)
		e.must(settleErr)
		rows := 0
		if err == nil {
			rows = 1
		} else {
			e.wantFenced(err, "S6: a step whose record was "+name)
		}
		e.wantRows(name, rows, "E3: a step whose record was "+name)
		if rec := e.get(c.ID); rec.State == store.StateInProgress {
			e.Errorf("S2: a step undid that its record was %s", name)
		}
	}
}

// stepMarked makes the owner store marks in another transaction while its step runs, as the guard does when an answer
// is sent. Neither write loses the other, and the step is not run a second time because of it.
func stepMarked(e *env) {
	for name, p := range map[string]store.Checkpoint{
		"point": {Point: "shipped"}, "point and data": checkpointAt("shipped"), "empty data": {Data: []byte{}},
		"its own id": {Point: "shipped", ProviderID: "ch_step"},
	} {
		c := e.own(id(name))
		e.must(e.Store.Checkpoint(e.ctx, c, checkpointAt("charged")))
		want := e.get(c.ID)
		marks := store.Checkpoint{NotReplayable: true, ProviderID: "ch_meanwhile"}
		var markErr error
		var ended <-chan struct{}
		runs := 0
		e.must(e.checkpointTx(c, e.stepping(name, func(context.Context) (store.Checkpoint, error) {
			runs++
			ended = beside(func() { markErr = e.Store.Checkpoint(e.ctx, c, marks) })
			return p, nil
		})))
		await.Value(e, "the end of the marks", ended)
		e.must(markErr)
		got := e.get(c.ID)
		first, last := marks, p
		if p.ProviderID != "" && got.ProviderID == marks.ProviderID {
			first, last = p, marks // on a store with one writer
		}
		for _, p := range []store.Checkpoint{first, last} {
			event := store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt, Checkpoint: p}
			var err error
			want, _, err = store.Step(want, event, e.now())
			e.must(err)
		}
		if diff := diffRecords(got, want, 0); diff != "" {
			e.Errorf("S2: %s beside marks of the same attempt made it %s", name, diff)
		}
		if runs != 1 && !e.features.Certifies {
			e.Errorf("E3: %s beside marks of the same attempt was run %d times", name, runs)
		}
		e.wantRows(name, 1, "E3: a step beside marks of the same attempt")
	}
}

// stepNeighbours runs the steps of many records at once; every third step fails. No step affects another.
func stepNeighbours(e *env) {
	owned := make([]store.Claim, crowd)
	for i, target := range ids(crowd) {
		owned[i] = e.own(target)
	}
	for _, point := range []string{"charged", "shipped"} {
		errs := make([]error, crowd)
		together(crowd, func(i int) {
			errs[i] = e.checkpointTx(owned[i],
				e.stepping(fmt.Sprint(point, i), func(context.Context) (store.Checkpoint, error) {
					if i%3 == 2 {
						return checkpointAt(point), errDeclined
					}
					return checkpointAt(point), nil
				}))
		})
		for i, err := range errs {
			if fails := i%3 == 2; fails != errors.Is(err, errDeclined) || !fails && err != nil {
				e.Errorf("E3: step %d of %d at once got %v", i, crowd, err)
			}
			e.checkStep(owned[i], fmt.Sprint(point, i), point, err)
		}
	}
}

// stepCrowd makes one attempt run many steps at once. Steps that cannot run get an error that asks for a retry; no step
// is lost or half done.
func stepCrowd(e *env) {
	for _, target := range ids(rounds) {
		c := e.own(target)
		errs := make([]error, 8)
		together(len(errs), func(i int) { errs[i] = e.checkpointTx(c, e.stepping(target.Key, reaching("charged"))) })
		done := 0
		for _, err := range errs {
			switch {
			case err == nil:
				done++
			case !errors.Is(err, store.ErrUnavailable):
				e.Errorf("E3: one of several steps at once got %v, want ErrUnavailable", err)
			}
		}
		if done == 0 {
			e.Error("E3: none of several steps at once succeeded")
		}
		e.wantRows(target.Key, done, "E3: several steps at once")
	}
}

// stepCancelled cancels steps at every moment.
func stepCancelled(e *env) {
	typical := e.duration()
	moments := cuts(typical)
	for i, target := range ids(moments) {
		c := e.own(target)
		var err error
		e.interrupted(2*typical*time.Duration(i)/time.Duration(moments), func(ctx context.Context) {
			err = e.Store.(store.TxCheckpointer).CheckpointTx(ctx, c, calm, e.stepping(target.Key, reaching("charged")))
		})
		e.checkStep(c, target.Key, "charged", err)
		if err == nil {
			continue
		}
		e.must(e.insist(c, e.stepping(target.Key, reaching("charged"))))
		e.wantRows(target.Key, 1, "E3: a step that was cut off, and done again")
	}
}

// insist runs a step as soon as the store can: the lock of a cancelled step may remain until the server notices the
// cancellation.
func (e *env) insist(c store.Claim, w stepWork) (err error) {
	e.Helper()
	await.That(e, "the store can do the step", func() bool {
		err = e.checkpointTx(c, w)
		return !errors.Is(err, store.ErrUnavailable)
	})
	return err
}

// stepCancelledInWork cancels the caller when the writes are done: the step counts completely, or not at all.
func stepCancelledInWork(e *env) {
	for i, target := range ids(3 * rounds) {
		c := e.own(target)
		ctx, cancel := context.WithCancel(e.ctx)
		failure := []error{nil, errDeclined}[i%2]
		err := e.Store.(store.TxCheckpointer).CheckpointTx(ctx, c, calm,
			e.stepping(target.Key, func(context.Context) (store.Checkpoint, error) {
				cancel()
				return checkpointAt("charged"), failure
			}))
		cancel()
		if err == nil && failure != nil {
			e.Errorf("E3: a step that failed got no error")
		}
		e.checkStep(c, target.Key, "charged", err)
	}
}

// stepBesideTransactions mixes steps with operations in transactional mode, on keys of their own.
func stepBesideTransactions(e *env) {
	owned := make([]store.Claim, crowd/2)
	targets := ids(crowd)
	for i := range owned {
		owned[i] = e.own(targets[i])
	}
	errs := make([]error, crowd)
	together(crowd, func(i int) {
		if i < len(owned) {
			errs[i] = e.checkpointTx(owned[i], e.stepping(targets[i].Key, reaching("charged")))
			return
		}
		_, errs[i] = e.transact(request(targets[i]), e.inserting(targets[i].Key, settling(store.TxAction(i%3), "done")))
	})
	e.must(errors.Join(errs...))
	for i, target := range targets {
		if i < len(owned) {
			e.checkStep(owned[i], target.Key, "charged", nil)
			continue
		}
		e.checkAtomic(target, target.Key, store.TxAction(i%3), nil)
	}
}
