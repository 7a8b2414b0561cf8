package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/onceward/onceward/outbox"
)

// testOutboxFinishTx checks that a message is finished together with its worker's writes, or neither happens (O3).
func testOutboxFinishTx(t *testing.T, h Harness) {
	h.test(t, "both", finishedWithWork)
	h.test(t, "each state", func(e *env) {
		for _, state := range []outbox.State{outbox.StateDone, outbox.StateDead, outbox.StateHolding, outbox.StateReady} {
			id := e.add(about("", "as "+state.String()))[0]
			end := to(state, e.claimOne(id, "O2"))
			end.Error, end.After, end.Attempts = "because", calm, 5
			e.must(e.box().FinishMessageTx(e.ctx, end, func(context.Context) error { return nil }))
			kept := e.wantMessage(id, state, "O3: the state of an outcome")
			e.wantAttempts(kept, 5, "O3: the attempts of an outcome")
			if kept.LastError != "because" {
				e.Errorf("O3: the last error is %q, want that of the outcome", kept.LastError)
			}
		}
	})
	h.test(t, "those behind are freed", func(e *env) {
		ids := e.lane("x", 3)
		head := e.claimOne(ids[0], "O2")
		e.wantIDs(e.claim(everything), "O2: those behind one that is leased")
		e.must(e.box().FinishMessageTx(e.ctx, to(outbox.StateDone, head), func(context.Context) error { return nil }))
		e.wantDelivery("O2: when the head is done", ids[1:]...)
	})
	h.test(t, "neither, by an error", func(e *env) {
		e.leavesLease(func(work func(ctx context.Context) error) func(ctx context.Context) error {
			return func(ctx context.Context) error { return errors.Join(work(ctx), errDeclined) }
		})
	})
	h.test(t, "neither, by a panic", func(e *env) {
		e.leavesLease(func(work func(ctx context.Context) error) func(ctx context.Context) error {
			return func(ctx context.Context) error { panic(errors.Join(work(ctx), errDeclined)) }
		})
	})
	h.test(t, "neither, without the lease", func(e *env) {
		id := e.add(about("x", "lost"))[0]
		old := e.claimBriefly()
		e.wantIDs(old, "O2", id)
		lapse(e)
		e.claimOne(id, "O2: a lease that ran out")
		var follow []string
		e.wantLost(e.box().FinishMessageTx(e.ctx, to(outbox.StateDone, old[0]), e.adding(&follow, about("y", "follow-up"))),
			"I6: FinishMessageTx by a worker that was replaced")
		e.wantMessage(id, outbox.StateLeased, "I6: a message that another worker has")
		e.wantIDs(e.claim(everything), "I6: what a replaced worker added")
	})
	if h.Features.ConcurrentTx {
		h.test(t, "the lease is lost during the work", lostDuringWork)
	}
}

// finishedWithWork adds a follow-up message in the transaction that finishes the first one.
func finishedWithWork(e *env) {
	id := e.add(about("x", "charge"))[0]
	claimed := e.claimOne(id, "O2")
	end := to(outbox.StateDone, claimed)
	end.ProviderID = "ch_1"
	var follow []string
	e.must(e.box().FinishMessageTx(e.ctx, end, func(ctx context.Context) error {
		follow = nil
		return e.adding(&follow, about("x", "receipt"), about("", "mail"))(ctx)
	}))
	kept := e.wantMessage(id, outbox.StateDone, "O3: a message that was delivered")
	if kept.ProviderID != "ch_1" {
		e.Errorf("O3: a done message has the provider's id %q, want ch_1", kept.ProviderID)
	}
	e.wantIDs(e.claim(everything), "O1: what was added with the end of another message", follow...)
	e.refusesLease(claimed)
}

// leavesLease makes work fail after it has written. The worker still has its lease, and can end it.
func (e *env) leavesLease(failing func(work func(ctx context.Context) error) func(ctx context.Context) error) {
	e.Helper()
	ids := e.lane("x", 2)
	head := e.claimOne(ids[0], "O2")
	before := e.message(ids[0])
	var follow []string
	end := to(outbox.StateDone, head)
	end.ProviderID = "ch_1"
	err := panicked(func() error {
		return e.box().FinishMessageTx(e.ctx, end, failing(e.adding(&follow, about("y", "follow-up"))))
	})
	if !errors.Is(err, errDeclined) {
		e.Errorf("O3: work that failed came back as %v, want its own error", err)
	}
	if diff := diffEntries(e.message(ids[0]), before); diff != "" {
		e.Errorf("O3: work that failed changed the message: %s", diff)
	}
	e.wantIDs(e.claim(everything), "I10: what was added by work that failed, and what waits behind its message")
	e.must(e.box().FinishMessageTx(e.ctx, end, func(context.Context) error { return nil }))
	e.wantDelivery("O2: when the work succeeded", ids[1])
}

// panicked calls f, and returns its error, even if f panics with it.
func panicked(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err, _ = r.(error)
		}
	}()
	return f()
}

// lostDuringWork lets a lease run out while the work is running, and another worker claim the message. The store either
// does not give the message to the other worker, or undoes the work.
func lostDuringWork(e *env) {
	id := e.add(about("x", "slow"))[0]
	old := e.claimBriefly()
	e.wantIDs(old, "O2", id)
	until := old[0].Due
	var follow []string
	var taken []outbox.Claimed
	err := e.box().FinishMessageTx(e.ctx, to(outbox.StateDone, old[0]), func(ctx context.Context) (err error) {
		follow = nil
		if err := e.adding(&follow, about("y", "follow-up"))(ctx); err != nil {
			return err
		}
		e.until(until)
		taken, err = e.box().ClaimMessages(e.ctx, []outbox.ClaimRequest{{Topic: topic, Limit: 9}}, calm)
		return err
	})
	switch {
	case len(taken) > 0:
		e.wantLost(err, "I6: FinishMessageTx of a worker that was replaced during its work")
		e.wantMessage(id, outbox.StateLeased, "I6: a message that another worker has")
		e.wantIDs(e.claim(everything), "I6: what a replaced worker added")
	case err == nil:
		e.wantMessage(id, outbox.StateDone, "O3: a message that was delivered")
		e.wantIDs(e.claim(everything), "O1: what was added with the end of another message", follow...)
	default:
		e.wantLost(err, "I6: FinishMessageTx after the lease ran out")
		e.wantIDs(e.claim(everything), "O2: a message whose worker lost its lease", id)
	}
}
