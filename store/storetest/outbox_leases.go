package storetest

import (
	"slices"
	"testing"

	"github.com/onceward/onceward/outbox"
)

// testOutboxLeases checks leases that end, are extended or run out (O2, O3).
func testOutboxLeases(t *testing.T, h Harness) {
	h.test(t, "one new token for each claim", tokensOfClaims)
	h.test(t, "a lease that ran out", leaseRanOut)
	h.test(t, "extended", leaseExtended)
	h.test(t, "a run that was lost", runLost)
	h.test(t, "a run that was lost is claimed in parts", runLostInParts)
	h.test(t, "another attempt at once", anotherAttempt)
	h.test(t, "behind nothing", behindNothing)
	h.test(t, "nothing to end, nothing to extend", func(e *env) {
		e.finish()
		if lost, err := e.box().ExtendMessages(e.ctx, nil, calm); err != nil || len(lost) != 0 {
			e.Errorf("O2: to extend no leases lost %d (%v)", len(lost), err)
		}
	})
	if hasClock(h.probe) {
		h.test(t, "at the very end of a lease", func(e *env) {
			id := e.add(about("", "free"))[0]
			until := e.claimBriefly()[0].Due
			e.until(until.Add(-e.resolution()))
			e.wantIDs(e.claim(everything), "O2: just before the lease is over")
			e.until(until)
			e.claimOne(id, "O2: when the lease is over")
		})
	}
}

// claimBriefly claims all due messages for a lease that is meant to run out.
func (e *env) claimBriefly() []outbox.Claimed {
	e.Helper()
	return e.claimFor(e.brief(), outbox.ClaimRequest{Topic: topic, Limit: everything})
}

func tokensOfClaims(e *env) {
	e.lane("x", 3)
	e.add(about("", "free"))
	seen := make(map[int64]bool)
	for range 4 {
		claimed := e.claim(everything)
		if len(claimed) != 4 {
			e.Fatalf("O2: claimed %d messages, want all four", len(claimed))
		}
		token := claimed[0].Token
		var again []outbox.Outcome
		for _, c := range claimed {
			if c.Token != token {
				e.Errorf("O2: one claim gave out the tokens %d and %d", token, c.Token)
			}
			again = append(again, to(outbox.StateReady, c))
		}
		if seen[token] {
			e.Errorf("O2: token %d was given out twice: it would not fence", token)
		}
		seen[token] = true
		e.finish(again...)
	}
}

// leaseRanOut loses workers repeatedly: each time the message is claimed, and the attempt is counted (scenario 26).
func leaseRanOut(e *env) {
	ids := e.add(about("", "free"), about("x", "head"))
	for attempt := 1; attempt <= 3; attempt++ {
		claimed := e.claimBriefly()
		e.wantIDs(claimed, "scenario 26: messages whose worker died", ids...)
		for _, c := range claimed {
			e.wantAttempts(c.Entry, attempt, "O3: a delivery that was begun counts, also if its worker died")
			e.wantAttempts(e.message(c.ID), attempt, "O3: a delivery that was begun is counted before its outcome is known")
		}
		lapse(e)
	}
}

// leaseExtended extends a lease past its first end. On a real clock only the end of the lease is checked.
func leaseExtended(e *env) {
	id := e.add(about("", "free"))[0]
	first := 30 * e.brief()
	claimed := e.claimFor(first, outbox.ClaimRequest{Topic: topic, Limit: 1})
	e.wantIDs(claimed, "O2", id)
	from := e.now()
	lost, err := e.box().ExtendMessages(e.ctx, []outbox.Lease{claimed[0].Lease()}, calm)
	if err != nil || len(lost) != 0 {
		e.Fatalf("O2: to extend a lease that is held lost %d (%v)", len(lost), err)
	}
	kept := e.wantMessage(id, outbox.StateLeased, "O2: a lease that was extended")
	e.wantMoment("the end of a lease that was extended", kept.Due, from, calm)
	e.wantAttempts(kept, 1, "O3: to extend a lease is no attempt")
	if e.Advance != nil {
		e.Advance(first)
		e.wantIDs(e.claim(everything), "O2: a lease that was extended outlives its first end")
	}
	e.done(claimed...)
}

// runLost makes a worker die with a run: only the first message was certainly begun.
func runLost(e *env) {
	ids := e.lane("x", 3)
	for attempt := 1; attempt <= 3; attempt++ {
		run := e.claimBriefly()
		e.wantRun(run, "O2: a run, again after its worker died", ids...)
		e.wantAttempts(run[0].Entry, attempt, "O3: the first of a run was begun")
		e.wantAttempts(run[1].Entry, 0, "O3: of a run only the first counts: the others may not have been begun")
		e.wantAttempts(run[2].Entry, 0, "O3: of a run only the first counts: the others may not have been begun")
		lapse(e)
	}
	run := e.claim(everything)
	e.wantRun(run, "O2", ids...)
	e.done(run[0])
	last := to(outbox.StateReady, run[1])
	last.Attempts, last.Error = 1, "receiver is down"
	e.finish(last, to(outbox.StateBehind, run[2]))
	e.wantAttempts(e.claimOne(ids[1], "O2: the next attempt").Entry, 2, "O3: what the worker said, and one more")
}

// runLostInParts claims fewer messages than were lost: the others wait, although their leases ran out too.
func runLostInParts(e *env) {
	ids := e.lane("x", 3)
	e.wantRun(e.claimBriefly(), "O2", ids...)
	lapse(e)
	head := e.claimOne(ids[0], "O2: the first of a run that was lost")
	e.wantIDs(e.claim(everything), "O2: the others of a run that was lost, while the first is leased")
	e.done(head)
	if got := e.delivered(); !slices.Equal(got, ids[1:]) {
		e.Errorf("O2: after the first of a run that was lost %s was delivered, want the others in order", e.describe(got))
	}
}

// anotherAttempt ends leases with an immediate further attempt.
func anotherAttempt(e *env) {
	id := e.add(about("", "free"))[0]
	for attempt := 1; attempt <= 3; attempt++ {
		claimed := e.claimOne(id, "O3: another attempt at once")
		e.wantAttempts(claimed.Entry, attempt, "O3: each attempt counts")
		end := to(outbox.StateReady, claimed)
		end.Error = "receiver is down"
		e.finish(end)
		kept := e.wantMessage(id, outbox.StateReady, "O3: another attempt")
		e.wantAttempts(kept, attempt, "O3: the end of an attempt is none")
		if kept.LastError != end.Error {
			e.Errorf("O3: the last error is %q, want %q", kept.LastError, end.Error)
		}
	}
}

// behindNothing makes a worker put back messages that it had not begun, after the message in front of them was
// finished, so that no other worker will free them.
func behindNothing(e *env) {
	ids := e.lane("x", 3)
	run := e.claim(everything)
	e.wantRun(run, "O2", ids...)
	e.done(run[0])
	e.finish(to(outbox.StateBehind, run[1]), to(outbox.StateBehind, run[2]))
	stuck := e.message(ids[1]).State == outbox.StateBehind
	freed, err := e.box().FreeMessages(e.ctx)
	e.must(err)
	if stuck && freed == 0 {
		e.Error("O2: FreeMessages freed nothing, although a message was behind nothing")
	}
	e.wantMessage(ids[1], outbox.StateReady, "O2: a message behind nothing, after FreeMessages")
	if again, err := e.box().FreeMessages(e.ctx); err != nil || again != 0 {
		e.Errorf("O2: FreeMessages freed %d (%v) where nothing was left to free", again, err)
	}
	e.wantDelivery("O2: after FreeMessages", ids[1:]...)
}
