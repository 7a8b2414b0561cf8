package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/onceward/onceward/store"
)

// rounds is how often a race is run: each round is a new chance for the wrong interleaving.
const rounds = 10

// testRaces makes many callers race for one record, which only one of them may get (S1).
func testRaces(t *testing.T, h Harness) {
	h.test(t, "one new key", func(e *env) {
		for _, id := range ids(rounds) {
			e.contest(id, store.OriginCreated)
		}
	})
	h.test(t, "one retryable record", func(e *env) {
		for _, id := range ids(rounds) {
			e.must(e.Store.Release(e.ctx, e.own(id), "no stock"))
			e.contest(id, store.OriginRetried)
		}
	})
	h.test(t, "one expired record", func(e *env) {
		for _, id := range ids(rounds) {
			e.complete(e.own(id, retain(e.brief())), "stored")
		}
		lapse(e)
		for _, id := range ids(rounds) {
			e.contest(id, store.OriginRecreated)
		}
	})
	h.test(t, "one lost owner, resume", raceToResume)
	h.test(t, "one lost owner, reconcile", raceForLostOwner)
	h.test(t, "two payloads on one key", raceTwoPayloads)
	h.test(t, "two payloads on one retryable record", raceTwoPayloadsRetry)
	h.test(t, "many keys", raceManyKeys)
	h.test(t, "double complete", raceDoubleComplete)
	h.test(t, "complete and release", raceCompleteAndRelease)
	h.test(t, "complete and abandon", raceCompleteAndAbandon)
	h.test(t, "reject and the corrected request", raceRejectAndCorrected)
	h.test(t, "expiry against replay", raceExpiryAndReplay)
}

// crowdReserves sends one request from many callers at once.
func (e *env) crowdReserves(build func(i int) *store.Reservation) []store.Verdict {
	e.Helper()
	verdicts := make([]store.Verdict, crowd)
	errs := make([]error, crowd)
	together(crowd, func(i int) { verdicts[i], errs[i] = e.Store.Reserve(e.ctx, build(i)) })
	e.must(errors.Join(errs...))
	return verdicts
}

// contest checks that one of many callers gets the right to execute, and that the others get in progress.
func (e *env) contest(id store.ID, origin store.Origin) store.Verdict {
	e.Helper()
	verdicts := e.crowdReserves(func(int) *store.Reservation { return request(id, resume) })
	winner := e.onlyWinner(verdicts)
	if winner.Origin != origin {
		e.Errorf("section 4: the grant is %s, want %s", winner.Origin, origin)
	}
	for _, v := range verdicts {
		switch {
		case v.Decision == store.DecisionExecute:
		case v.Decision != store.DecisionInProgress:
			e.Errorf("S1: a caller that lost got %s, want in_progress", v.Decision)
		case v.Record.Attempt != winner.Record.Attempt:
			e.Errorf("S1: a caller that lost was told of attempt %d, but %d runs", v.Record.Attempt,
				winner.Record.Attempt)
		}
	}
	if rec := e.get(id); rec.Attempt != winner.Record.Attempt || rec.Nonce != winner.Record.Nonce {
		e.Errorf("S1: attempt %d was granted, but the record is at attempt %d", winner.Record.Attempt, rec.Attempt)
	}
	return winner
}

// onlyWinner returns the only verdict that grants.
func (e *env) onlyWinner(verdicts []store.Verdict) store.Verdict {
	e.Helper()
	var winners []store.Verdict
	for _, v := range verdicts {
		if v.Decision == store.DecisionExecute {
			winners = append(winners, v)
		}
	}
	if len(winners) != 1 {
		e.Fatalf("S1: %d of %d callers may execute the same operation at once, want 1", len(winners), len(verdicts))
	}
	return winners[0]
}

func raceToResume(e *env) {
	targets := ids(rounds)
	var old []store.Claim
	for _, id := range targets {
		old = append(old, e.ownAtPoint(id, resume, lease(e.brief())))
	}
	lapse(e)
	for i, id := range targets {
		winner := e.contest(id, store.OriginResumed)
		if winner.Record.Attempt <= old[i].Attempt || winner.Record.Point != "charged" {
			e.Errorf("section 4: resumed as attempt %d at point %q, want after attempt %d at point %q",
				winner.Record.Attempt, winner.Record.Point, old[i].Attempt, "charged")
		}
		_, err := e.Store.Complete(e.ctx, old[i], answer("late"))
		e.wantFenced(err, "S6: the owner that was replaced completes")
	}
}

func raceForLostOwner(e *env) {
	targets := ids(rounds)
	for _, id := range targets {
		e.own(id, lease(e.brief()))
	}
	lapse(e)
	for _, id := range targets {
		for _, v := range e.crowdReserves(func(int) *store.Reservation { return request(id) }) {
			if v.Decision != store.DecisionUnknown {
				e.Errorf("section 4: after a lost owner a caller got %s, want unknown", v.Decision)
			}
		}
		e.wantState(id, store.StateUnknown, "section 4: after a lost owner")
	}
}

// twoPayloads returns requests of which every second one has another payload.
func twoPayloads(id store.ID) func(i int) *store.Reservation {
	return func(i int) *store.Reservation {
		return request(id, fingerprints(fingerprint(fmt.Sprint("payload ", i%2))))
	}
}

func raceTwoPayloads(e *env) {
	for _, id := range ids(rounds) {
		verdicts := e.crowdReserves(twoPayloads(id))
		winner := e.onlyWinner(verdicts)
		for i, v := range verdicts {
			want := store.DecisionMismatch
			if winner.Record.Fingerprint == fingerprint(fmt.Sprint("payload ", i%2)) {
				want = store.DecisionInProgress
			}
			if v.Decision != store.DecisionExecute && v.Decision != want {
				e.Errorf("S4: same key, other body, at the same moment: got %s, want %s", v.Decision, want)
			}
		}
	}
}

func raceTwoPayloadsRetry(e *env) {
	for _, id := range ids(rounds) {
		e.must(e.Store.Release(e.ctx, e.own(id, fingerprints(fingerprint("payload 0"))), "no stock"))
		verdicts := e.crowdReserves(twoPayloads(id))
		e.onlyWinner(verdicts)
		for i, v := range verdicts {
			if mismatch := v.Decision == store.DecisionMismatch; mismatch != (i%2 == 1) {
				e.Errorf("S4: payload %d on a retryable record of payload 0 got %s", i%2, v.Decision)
			}
		}
	}
}

// raceManyKeys is normal traffic: no two callers use the same key.
func raceManyKeys(e *env) {
	targets := ids(crowd * 4)
	errs := make([]error, crowd)
	together(crowd, func(i int) {
		for _, id := range targets[i*4 : i*4+4] {
			v, err := e.Store.Reserve(e.ctx, request(id))
			if err == nil && v.Decision != store.DecisionExecute {
				err = fmt.Errorf("a new key got %s, want execute", v.Decision)
			}
			if err == nil {
				_, err = e.Store.Complete(e.ctx, store.Claim{ID: id, Attempt: v.Record.Attempt}, answer(id.Key))
			}
			errs[i] = errors.Join(errs[i], err)
		}
	})
	e.must(errors.Join(errs...))
	for _, id := range targets {
		if rec := e.get(id); string(rec.Response.Body) != id.Key {
			e.Errorf("H8: record %q holds the answer %q", id.Key, rec.Response.Body)
		}
	}
}

func raceDoubleComplete(e *env) {
	for _, id := range ids(rounds) {
		c := e.own(id)
		errs := make([]error, crowd)
		together(crowd, func(i int) { _, errs[i] = e.Store.Complete(e.ctx, c, answer(fmt.Sprint("answer ", i))) })
		stored := e.get(id).Response
		accepted := 0
		for i, err := range errs {
			var fenced *store.FencedError
			switch {
			case err == nil:
				accepted++
				if !stored.Equal(&answer(fmt.Sprint("answer ", i)).Response) {
					e.Errorf("S6: answer %d was accepted, but %q is stored", i, stored.Body)
				}
			case !errors.As(err, &fenced):
				e.Errorf("S6: a second answer got error %v, want a *FencedError", err)
			case fenced.Response == nil || !fenced.Response.Equal(&stored):
				e.Errorf("S6: an owner that lost must be told the stored answer, got %+v", fenced)
			}
		}
		if accepted != 1 {
			e.Errorf("S6: %d different answers were accepted for one operation, want 1", accepted)
		}
	}
}

func raceCompleteAndRelease(e *env) {
	for _, id := range ids(rounds * 2) {
		c := e.own(id)
		var completed, released error
		pair(func() { _, completed = e.Store.Complete(e.ctx, c, answer("done")) },
			func() { released = e.Store.Release(e.ctx, c, "no stock") })
		if (completed == nil) == (released == nil) {
			e.Errorf("S6: complete got %v and release got %v, want one of them to win", completed, released)
		}
		want := store.StateRetryable
		if completed == nil {
			want = store.StateCompleted
		}
		e.wantState(id, want, "S6: after complete raced release")
	}
}

func raceCompleteAndAbandon(e *env) {
	for _, id := range ids(rounds * 2) {
		c := e.own(id)
		var completed, abandoned error
		pair(func() { _, completed = e.Store.Complete(e.ctx, c, answer("done")) },
			func() { abandoned = e.Store.Abandon(e.ctx, c, "timeout") })
		if completed != nil {
			e.Errorf("section 4: the same attempt, finishing late, knows the answer, but complete got %v", completed)
		}
		if abandoned != nil && !errors.Is(abandoned, store.ErrFenced) {
			e.Errorf("S6: abandon got %v, want nil or ErrFenced", abandoned)
		}
		e.wantState(id, store.StateCompleted, "section 4: after complete raced abandon")
	}
}

// raceRejectAndCorrected rejects twice, as an owner does whose reply was lost, while the corrected request arrives: in
// any order, no reject changes the record of the corrected request (E5, S6).
func raceRejectAndCorrected(e *env) {
	for _, id := range ids(rounds) {
		c := e.own(id)
		corrected := request(id, fingerprints(fingerprint("corrected")))
		var rejected, repeated, reserved error
		var verdict store.Verdict
		pair(func() {
			rejected = e.Store.Reject(e.ctx, c)
			repeated = e.Store.Reject(e.ctx, c)
		}, func() {
			for verdict.Decision == 0 || verdict.Decision == store.DecisionMismatch {
				if verdict, reserved = e.Store.Reserve(e.ctx, corrected); reserved != nil {
					return
				}
			}
		})
		e.must(errors.Join(rejected, reserved))
		if repeated != nil && !errors.Is(repeated, store.ErrFenced) {
			e.Errorf("S6: a repeated reject got %v, want nil or ErrFenced", repeated)
		}
		if verdict.Origin != store.OriginRecreated && verdict.Origin != store.OriginCreated {
			e.Errorf("E5: the corrected request got %s, %s, want to execute", verdict.Decision, verdict.Origin)
		}
		if rec := e.get(id); rec.State != store.StateInProgress || rec.Attempt != verdict.Record.Attempt {
			e.Errorf("S6: after the corrected request took the key as attempt %d the record is %s",
				verdict.Record.Attempt, describe(rec))
		}
	}
}

// raceExpiryAndReplay lets a record expire while retries arrive: each gets the old answer or the only new grant.
func raceExpiryAndReplay(e *env) {
	id := id("key")
	expires := e.complete(e.own(id, retain(e.brief())), "stored")
	verdicts := make([]store.Verdict, crowd)
	errs := make([]error, crowd)
	var retries sync.WaitGroup
	retries.Go(func() {
		for i := range verdicts {
			verdicts[i], errs[i] = e.Store.Reserve(e.ctx, request(id))
		}
	})
	e.until(expires)
	retries.Wait()
	e.must(errors.Join(errs...))
	verdicts = append(verdicts, e.reserve(request(id)))
	e.onlyWinner(verdicts)
	for _, v := range verdicts {
		if (v.Decision == store.DecisionReplay) != v.Now.Before(expires) {
			e.Errorf("S2: at %s, with the expiry at %s, a retry got %s", v.Now, expires, v.Decision)
		}
	}
}

// pair calls two functions at the same moment.
func pair(a, b func()) {
	together(2, func(i int) {
		if i == 0 {
			a()
		} else {
			b()
		}
	})
}
