package storetest

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/onceward/onceward/outbox"
)

// testOutboxFencing makes workers write after they lost their lease: nothing changes, and they get an error (I6, O2).
func testOutboxFencing(t *testing.T, h Harness) {
	h.test(t, "taken by another", takenByAnother)
	h.test(t, "ended by itself", endedByItself)
	h.test(t, "a message that is not there", func(e *env) {
		stranger := outbox.Claimed{Entry: outbox.Entry{ID: uuid()}, Token: 1}
		e.refusesWrites(stranger)
	})
	h.test(t, "a token that was never given out", func(e *env) {
		id := e.add(about("x", "fenced"))[0]
		held := e.claimOne(id, "O2")
		held.Token++
		e.refusesLease(held)
	})
	h.test(t, "some held, some lost", someHeld)
	h.test(t, "both leases of one message", bothLeases)
	h.test(t, "the provider's id", providerIDs)
	h.test(t, "the answer", answers)
}

// takenByAnother makes a worker return after another worker has the message, and after the other worker has ended it.
func takenByAnother(e *env) {
	for _, state := range []outbox.State{
		outbox.StateLeased, outbox.StateDone, outbox.StateReady, outbox.StateDead, outbox.StateHolding,
	} {
		id := e.add(about("aggregate "+state.String(), "taken, and then "+state.String()))[0]
		old := e.claimBriefly()
		e.wantIDs(old, "O2", id)
		lapse(e)
		next := e.claimOne(id, "O2: a lease that ran out")
		if state != outbox.StateLeased {
			end := to(state, next)
			end.After = calm // so that this message does not block the next one
			e.finish(end)
		}
		e.wantMessage(id, state, "O2: the end of the worker that has the lease")
		e.refusesLease(old[0])
	}
}

// bothLeases makes a worker that got a message a second time write under both leases at once: each write is decided by
// its token.
func bothLeases(e *env) {
	for _, oldFirst := range []bool{true, false} {
		id := e.add(about("", "given twice"))[0]
		old := e.claimBriefly()
		e.wantIDs(old, "O2", id)
		lapse(e)
		next := e.claimOne(id, "O2: a lease that ran out")
		both := []outbox.Lease{next.Lease(), old[0].Lease()}
		outcomes := []outbox.Outcome{to(outbox.StateDone, next), to(outbox.StateReady, old[0])}
		if oldFirst {
			slices.Reverse(both)
			slices.Reverse(outcomes)
		}
		want := []outbox.Lease{old[0].Lease()}
		if lost, err := e.box().ExtendMessages(e.ctx, both, calm); err != nil || !slices.Equal(lost, want) {
			e.Errorf("I6: ExtendMessages under both leases of a message returned (%v, %v), want the older", lost, err)
		}
		if fenced, err := e.box().FinishMessages(e.ctx, outcomes); err != nil || !slices.Equal(fenced, want) {
			e.Errorf("I6: FinishMessages under both leases of a message returned (%v, %v), want the older", fenced, err)
		}
		e.wantMessage(id, outbox.StateDone, "I6: the end under the lease that is held")
	}
}

// endedByItself makes a worker write once more after it has ended its lease.
func endedByItself(e *env) {
	for _, state := range []outbox.State{
		outbox.StateDone, outbox.StateDead, outbox.StateHolding, outbox.StateReady, outbox.StateBehind,
	} {
		ids := e.lane("aggregate "+state.String(), 2)
		run := e.claim(everything)
		e.wantRun(run, "O2", ids...)
		e.finish(to(state, run[1])) // behind the other message, which stays leased
		e.refusesLease(run[1])
	}
}

// refusesLease checks that writes under a lease change nothing.
func (e *env) refusesLease(old outbox.Claimed) {
	e.Helper()
	before := e.message(old.ID)
	e.refusesWrites(old)
	if diff := diffEntries(e.message(old.ID), before); diff != "" {
		e.Errorf("I6: writes under a lease that is no longer held changed the message: %s", diff)
	}
}

// refusesWrites checks that each write under a lease is refused.
func (e *env) refusesWrites(old outbox.Claimed) {
	e.Helper()
	lease := []outbox.Lease{old.Lease()}
	for _, state := range []outbox.State{
		outbox.StateDone, outbox.StateDead, outbox.StateHolding, outbox.StateReady, outbox.StateBehind,
	} {
		end := outbox.Outcome{Lease: old.Lease(), State: state, Attempts: 77, ProviderID: "late", Error: "late"}
		fenced, err := e.box().FinishMessages(e.ctx, []outbox.Outcome{end})
		if err != nil || !slices.Equal(fenced, lease) {
			e.Errorf("I6: FinishMessages as %s under a lease that is not held returned (%v, %v), want that lease", state, fenced,
				err)
		}
		err = e.box().FinishMessageTx(e.ctx, end, func(context.Context) error {
			e.Errorf("I6: FinishMessageTx as %s ran its work under a lease that is not held", state)
			return nil
		})
		e.wantLost(err, "I6: FinishMessageTx under a lease that is not held")
	}
	lost, err := e.box().ExtendMessages(e.ctx, lease, 3*calm)
	if err != nil || !slices.Equal(lost, lease) {
		e.Errorf("I6: ExtendMessages of a lease that is not held returned (%v, %v), want that lease", lost, err)
	}
	e.wantLost(e.box().RecordEffect(e.ctx, old.Lease(), "late", []byte("late")), "I6: RecordEffect under a lost lease")
}

// someHeld sends leases that are held together with leases that are not.
func someHeld(e *env) {
	ids := e.add(about("x", "lost"), about("y", "held"), about("", "lost, free"), about("", "held, free"))
	old := e.claim(everything)
	e.wantIDs(old, "O2", ids...)
	byID := make(map[string]outbox.Claimed)
	for _, c := range old {
		byID[c.ID] = c
	}
	gone := []outbox.Lease{{ID: ids[0], Token: old[0].Token + 1}, {ID: ids[2], Token: old[0].Token + 1}}
	held := []outbox.Claimed{byID[ids[1]], byID[ids[3]]}
	from := e.now()
	lost, err := e.box().ExtendMessages(e.ctx, []outbox.Lease{gone[0], held[0].Lease(), gone[1], held[1].Lease()}, 2*calm)
	if err != nil || !sameLeases(lost, gone) {
		e.Errorf("O2: ExtendMessages of two leases that are held and two that are not returned (%v, %v), want %v", lost, err,
			gone)
	}
	for _, c := range held {
		e.wantMoment("the end of a lease that was extended beside lost ones", e.message(c.ID).Due, from, 2*calm)
	}
	fenced, err := e.box().FinishMessages(e.ctx, []outbox.Outcome{
		{Lease: gone[0], State: outbox.StateDead},
		to(outbox.StateDone, held[0]),
		{Lease: gone[1], State: outbox.StateDead},
		to(outbox.StateDone, held[1]),
	})
	if err != nil || !sameLeases(fenced, gone) {
		e.Errorf("O2: FinishMessages of two leases that are held and two that are not returned (%v, %v), want %v", fenced,
			err, gone)
	}
	for i, want := range []outbox.State{outbox.StateLeased, outbox.StateDone, outbox.StateLeased, outbox.StateDone} {
		e.wantMessage(ids[i], want, "O2: held and lost leases in one call")
	}
}

// sameLeases compares leases in any order.
func sameLeases(a, b []outbox.Lease) bool {
	for _, l := range a {
		if !slices.Contains(b, l) {
			return false
		}
	}
	return len(a) == len(b)
}

// answers checks that the part of the receiver's answer that a handler keeps is there for the next worker, and so is
// what a person found out (O3).
func answers(e *env) {
	id := e.add(about("x", "charge"))[0]
	held := e.claimOne(id, "O2")
	if held.Answer != nil {
		e.Errorf("O3: a new message has the answer %q", held.Answer)
	}
	want := func(rule string, answer []byte, providerID string, got outbox.Entry) {
		e.Helper()
		if !bytes.Equal(got.Answer, answer) || got.ProviderID != providerID {
			e.Errorf("O3: %s: the answer is %.100q with the provider's id %q, want %.100q with %q", rule, got.Answer,
				got.ProviderID, answer, providerID)
		}
	}
	first, last := []byte("sent"), append(bytes.Repeat([]byte("\x00\xff'ü"), 1<<18), '.')
	e.must(e.box().RecordEffect(e.ctx, held.Lease(), "ch_1", first))
	want("both", first, "ch_1", e.message(id))
	e.must(e.box().RecordEffect(e.ctx, held.Lease(), "", last))
	want("an answer alone", last, "ch_1", e.message(id))
	e.must(e.box().RecordEffect(e.ctx, held.Lease(), "ch_2", nil))
	want("a provider's id alone", last, "ch_2", e.message(id))
	e.finish(to(outbox.StateReady, held))
	held = e.claimOne(id, "O2")
	want("the next worker", last, "ch_2", held.Entry)
	e.finish(to(outbox.StateDead, held))
	e.must(e.box().ReplayMessage(e.ctx, id, nil))
	want("a replay", last, "ch_2", e.message(id))
	held = e.claimOne(id, "O2")
	e.finish(to(outbox.StateHolding, held))
	e.must(e.box().ReplayMessage(e.ctx, id, first))
	held = e.claimOne(id, "O2")
	want("an answer that a person found out", first, "ch_2", held.Entry)
	e.must(e.box().FinishMessageTx(e.ctx, to(outbox.StateDone, held), func(context.Context) error { return nil }))
	want("a message that is done", first, "ch_2", e.message(id))
}

// providerIDs checks that the receiver's id for the effect is kept until the next worker needs it (O3).
func providerIDs(e *env) {
	const last = "ch_2 für 東京"
	id := e.add(about("x", "charge"))[0]
	held := e.claimOne(id, "O2")
	for _, name := range []string{"ch_1", last} {
		e.must(e.box().RecordEffect(e.ctx, held.Lease(), name, nil))
		if kept := e.wantMessage(id, outbox.StateLeased,
			"O3: the provider's id is recorded before the end"); kept.ProviderID != name {
			e.Errorf("O3: the provider's id %q was recorded, but %q is kept", name, kept.ProviderID)
		}
	}
	if e.Advance != nil {
		e.Advance(calm)
		held = e.claimOne(id, "scenario 26: the worker died after the provider's success")
		if held.ProviderID != last {
			e.Errorf("O3: the next worker finds the provider's id %q, want %q, which was recorded", held.ProviderID, last)
		}
	}
	e.finish(to(outbox.StateReady, held))
	held = e.claimOne(id, "O2")
	if held.ProviderID != last {
		e.Errorf("O3: an outcome without a provider's id left %q, want %q, which was known before", held.ProviderID, last)
	}
	end := to(outbox.StateDone, held)
	end.ProviderID = "ch_3"
	e.finish(end)
	if got := e.message(id).ProviderID; got != "ch_3" {
		e.Errorf("O3: an outcome with the provider's id ch_3 left %q", got)
	}
}
