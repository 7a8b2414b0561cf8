package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testFencing checks that a write by any caller except the current owner changes nothing (S6).
func testFencing(t *testing.T, h Harness) {
	situations := []struct {
		name    string
		prepare func(e *env, id store.ID) (stale store.Claim, want store.FencedError)
	}{
		{"by a replaced owner", func(e *env, id store.ID) (store.Claim, store.FencedError) {
			old := e.ownAtPoint(id, resume, lease(e.brief()))
			lapse(e)
			return old, store.FencedError{Current: e.own(id, resume).Attempt, State: store.StateInProgress}
		}},
		{"after a retry took over", func(e *env, id store.ID) (store.Claim, store.FencedError) {
			old := e.own(id)
			e.must(e.Store.Release(e.ctx, old, "no stock"))
			return old, store.FencedError{Current: e.own(id).Attempt, State: store.StateInProgress}
		}},
		{"after the record was made again", func(e *env, id store.ID) (store.Claim, store.FencedError) {
			old := e.own(id, retain(e.brief()))
			e.until(e.complete(old, "old"))
			current := e.own(id)
			expires := e.complete(current, "new")
			return old, store.FencedError{
				Current: current.Attempt, State: store.StateCompleted, Response: &answer("new").Response,
				ExpiresAt: expires,
			}
		}},
		{"after the corrected request took the key", func(e *env, id store.ID) (store.Claim, store.FencedError) {
			old := e.own(id)
			e.must(e.Store.Reject(e.ctx, old))
			corrected := e.own(id, fingerprints(fingerprint("corrected")))
			return old, store.FencedError{Current: corrected.Attempt, State: store.StateInProgress}
		}},
		{"without a record", func(_ *env, id store.ID) (store.Claim, store.FencedError) {
			return store.Claim{ID: id, Attempt: 1}, store.FencedError{}
		}},
		{"without a record and an attempt", func(_ *env, id store.ID) (store.Claim, store.FencedError) {
			return store.Claim{ID: id}, store.FencedError{}
		}},
	}
	for _, s := range situations {
		h.test(t, s.name, func(e *env) {
			for _, w := range ownerWrites(has[store.Reconciler](h.probe)) {
				e.Run(w.name, func(t *testing.T) {
					e := e.with(t)
					stale, want := s.prepare(e, id(w.name))
					want.Attempt = stale.Attempt
					e.refuses(w, stale, want)
				})
			}
		})
	}
	h.test(t, "repeated settlements succeed", repeatedSettlements)
	h.test(t, "an owner that was resolved gets the stored answer", func(e *env) {
		c := e.own(id("key"))
		e.complete(c, "stored")
		_, err := e.Store.Complete(e.ctx, c, answer("other"))
		var fenced *store.FencedError
		if !errors.As(err, &fenced) || fenced.Response == nil || !fenced.Response.Equal(&answer("stored").Response) {
			e.Errorf("S6: a second answer got %v, want a *FencedError with the stored answer", err)
		}
	})
	h.test(t, "extend never revives unknown", func(e *env) {
		c := e.lose(id("key"))
		e.wantFenced(e.Store.Extend(e.ctx, c, calm), "S6: extend of an unknown record")
		e.wantState(c.ID, store.StateUnknown, "S6: after a refused extend")
	})
}

// ownerWrite is one of the writes that name an attempt.
type ownerWrite struct {
	name  string
	write func(e *env, c store.Claim) error
}

func ownerWrites(reconciles bool) []ownerWrite {
	writes := []ownerWrite{
		{"extend", func(e *env, c store.Claim) error { return e.Store.Extend(e.ctx, c, 5*calm) }},
		{"checkpoint", func(e *env, c store.Claim) error {
			return e.Store.Checkpoint(e.ctx, c,
				store.Checkpoint{Point: "stale", Data: []byte("stale"), NotReplayable: true})
		}},
		{"complete", func(e *env, c store.Claim) error {
			_, err := e.Store.Complete(e.ctx, c, answer("stale"))
			return err
		}},
		{"release", func(e *env, c store.Claim) error { return e.Store.Release(e.ctx, c, "stale") }},
		{"abandon", func(e *env, c store.Claim) error { return e.Store.Abandon(e.ctx, c, "stale") }},
		{"reject", func(e *env, c store.Claim) error { return e.Store.Reject(e.ctx, c) }},
	}
	if !reconciles {
		return writes
	}
	return append(writes,
		ownerWrite{"resolve completed", func(e *env, c store.Claim) error {
			return e.Store.(store.Reconciler).ResolveCompleted(e.ctx, c, answer("stale"))
		}},
		ownerWrite{"resolve not executed", func(e *env, c store.Claim) error {
			return e.Store.(store.Reconciler).ResolveNotExecuted(e.ctx, c, "stale")
		}},
		ownerWrite{"resolve step", func(e *env, c store.Claim) error {
			return e.resolver().ResolveStep(e.ctx, c, store.Checkpoint{Point: "stale", Data: []byte("stale")})
		}},
		ownerWrite{"begin reconcile", func(e *env, c store.Claim) error {
			return e.resolver().BeginReconcile(e.ctx, c, 0, time.Minute)
		}},
		ownerWrite{"postpone", func(e *env, c store.Claim) error {
			return e.resolver().Postpone(e.ctx, c, notYet(0, 1))
		}},
		ownerWrite{"requeue", func(e *env, c store.Claim) error {
			return e.Store.(store.Reconciler).Requeue(e.ctx, c, "stale")
		}})
}

// refuses checks that a write is refused, that the error contains the stored state, and that nothing changed.
func (e *env) refuses(w ownerWrite, c store.Claim, want store.FencedError) {
	e.Helper()
	before := e.get(c.ID)
	err := w.write(e, c)
	var fenced *store.FencedError
	if !errors.As(err, &fenced) {
		e.Fatalf("S6: %s by attempt %d got error %v, want a *FencedError", w.name, c.Attempt, err)
	}
	want.Op = w.name
	if problem := sameFenced(fenced, &want); problem != nil {
		e.Error(problem)
	}
	if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
		e.Errorf("S6: a fenced %s changed the record: %s", w.name, diff)
	}
}

// repeatedSettlements repeats a settlement that was already made, as an owner does whose reply was lost.
func repeatedSettlements(e *env) {
	settlements := []struct {
		name   string
		settle func(c store.Claim) error
	}{
		{"complete", func(c store.Claim) error {
			_, err := e.Store.Complete(e.ctx, c, rich())
			return err
		}},
		{"release", func(c store.Claim) error { return e.Store.Release(e.ctx, c, "no stock") }},
		{"abandon", func(c store.Claim) error { return e.Store.Abandon(e.ctx, c, "timeout") }},
		{"reject", func(c store.Claim) error { return e.Store.Reject(e.ctx, c) }},
	}
	for _, s := range settlements {
		c := e.own(id(s.name))
		e.must(s.settle(c))
		before := e.get(c.ID)
		e.pass(e.resolution())
		for range 3 {
			if err := s.settle(c); err != nil {
				e.Errorf("S6: repeating %s with the same content got %v, want success", s.name, err)
			}
		}
		if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
			e.Errorf("S6: repeating %s changed the record: %s", s.name, diff)
		}
	}
}

// testTokens checks that an attempt token is never used twice for one ID, however its record was removed (S7).
func testTokens(t *testing.T, h Harness) {
	for _, r := range removals(h.probe) {
		h.test(t, r.name, func(e *env) {
			var spent []int64
			for range 5 {
				spent = append(spent, e.spend(r))
			}
			e.wantGrowing(spent)
		})
		if !restarts(h.probe) {
			continue
		}
		h.test(t, r.name+", with restarts", func(e *env) {
			var spent []int64
			for range 3 {
				spent = append(spent, e.spend(r))
				e.reopen()
			}
			e.wantGrowing(spent)
		})
	}
	h.test(t, "in every way by turns", func(e *env) {
		var spent []int64
		for range 2 {
			for _, r := range removals(h.probe) {
				spent = append(spent, e.spend(r))
			}
		}
		e.wantGrowing(spent)
	})
}

// removal is a way by which a record can be created again, or granted again.
type removal struct {
	name string
	// lapses means that the lease is meant to run out.
	lapses bool
	remove func(e *env, c store.Claim)
}

// removals returns the removals that the store supports. Removals by an operator or an owner take no time: with a clock
// that stands still, the token must grow anyway.
func removals(i Instance) []removal {
	ways := []removal{ // the first way also ends records that cannot be rejected
		{name: "expired", remove: func(e *env, c store.Claim) { e.until(e.complete(c, "stored")) }},
		{name: "released", remove: func(e *env, c store.Claim) { e.must(e.Store.Release(e.ctx, c, "no stock")) }},
		{name: "rejected", remove: func(e *env, c store.Claim) { e.must(e.Store.Reject(e.ctx, c)) }},
		{name: "resumed", lapses: true, remove: func(e *env, c store.Claim) { e.until(e.get(c.ID).LeaseUntil) }},
	}
	if has[store.Reaper](i) {
		ways = append(ways, removal{name: "rejected and reaped", remove: func(e *env, c store.Claim) {
			e.must(e.Store.Reject(e.ctx, c))
			e.until(e.get(c.ID).ExpiresAt)
			e.reap(everything, true)
			e.wantState(c.ID, store.StateNone, "E5: after the reaper")
		}}, removal{name: "reaped", remove: func(e *env, c store.Claim) {
			e.until(e.complete(c, "stored"))
			e.reap(everything, false)
			e.wantState(c.ID, store.StateNone, "B2: after the reaper")
		}}, removal{name: "softly expired", remove: func(e *env, c store.Claim) {
			e.until(e.complete(c, "stored"))
			e.reap(everything, true)
		}}, removal{name: "softly expired and reaped", remove: func(e *env, c store.Claim) {
			e.until(e.complete(c, "stored"))
			e.reap(everything, true)
			e.until(e.get(c.ID).ExpiresAt)
			e.reap(everything, true)
			e.wantState(c.ID, store.StateNone, "B2: after the reaper came twice")
		}})
	}
	if has[store.Buster](i) {
		ways = append(ways, removal{name: "busted", remove: func(e *env, c store.Claim) {
			e.complete(c, "stored")
			e.bust(c.ID, false)
		}}, removal{name: "busted by force", remove: func(e *env, c store.Claim) {
			e.bust(c.ID, true)
		}}, removal{name: "busted by force and busted again", remove: func(e *env, c store.Claim) {
			e.bust(c.ID, true)
			e.bust(c.ID, false)
			e.wantState(c.ID, store.StateNone, "section 4: bust of an expired record")
		}})
	}
	if has[store.Reconciler](i) {
		ways = append(ways, removal{name: "resolved as not executed", remove: func(e *env, c store.Claim) {
			e.must(e.Store.Abandon(e.ctx, c, "timeout"))
			e.must(e.Store.(store.Reconciler).ResolveNotExecuted(e.ctx, c, "never arrived"))
		}}, removal{name: "resolved in a step", remove: func(e *env, c store.Claim) {
			e.must(e.Store.Abandon(e.ctx, c, "timeout"))
			e.must(e.resolver().ResolveStep(e.ctx, c, store.Checkpoint{Point: "shipped"}))
			e.wantFenceBehind(c)
		}})
	}
	return ways
}

// wantFenceBehind checks that a record in progress is past the attempt of the claim, which uses up another token.
func (e *env) wantFenceBehind(c store.Claim) {
	e.Helper()
	if rec := e.get(c.ID); rec.State != store.StateInProgress || rec.Attempt <= c.Attempt {
		e.Errorf("S7: behind attempt %d the record is %s", c.Attempt, describe(rec))
	}
}

// spend gets a token and gives up its grant with the removal.
func (e *env) spend(r removal) int64 {
	e.Helper()
	options := []option{resume, retain(e.brief())}
	if r.lapses {
		options = append(options, lease(e.brief()))
	}
	c := e.own(id("key"), options...)
	r.remove(e, c)
	return c.Attempt
}

func (e *env) wantGrowing(spent []int64) {
	e.Helper()
	for i := 1; i < len(spent); i++ {
		if spent[i] <= spent[i-1] {
			e.Fatalf("S7: an attempt token never comes again, but the tokens granted were %d", spent)
		}
	}
}

// testRepeats checks reservations that must not create a record, and reservations that are repeated because their reply
// was lost (S9).
func testRepeats(t *testing.T, h Harness) {
	h.test(t, "not to create", func(e *env) {
		for range 3 {
			v := e.wantDecision(request(id("key"), noCreate), store.DecisionRefused,
				"S9: a new key that must not be created")
			if v.Now.IsZero() {
				e.Error("S3: the verdict does not say what the store's clock is")
			}
		}
		if _, err := e.Store.Get(e.ctx, id("key")); !errors.Is(err, store.ErrNotFound) {
			e.Errorf("S9: a refused reservation left a record: Get returned %v, want ErrNotFound", err)
		}
		if v := e.reserve(request(id("key"))); v.Origin != store.OriginCreated {
			e.Errorf("S9: after a refused reservation a real one got (%s, %s), want a new record", v.Decision, v.Origin)
		}
	})
	h.test(t, "not to create, but to replay", func(e *env) {
		e.complete(e.own(id("key")), "stored")
		v := e.wantDecision(request(id("key"), noCreate), store.DecisionReplay, "A6: replays are free")
		if string(v.Record.Response.Body) != "stored" {
			e.Errorf("A6: replayed %q, want the stored answer", v.Record.Response.Body)
		}
	})
	h.test(t, "not to create what has expired", func(e *env) {
		e.until(e.complete(e.own(id("key"), retain(e.brief())), "stored"))
		before := e.get(id("key"))
		e.wantDecision(request(id("key"), noCreate), store.DecisionRefused, "S9: an expired key is a new key")
		if diff := diffRecords(e.get(id("key")), before, 0); diff != "" {
			e.Errorf("S9: a refused reservation changed the record: %s", diff)
		}
	})
	h.test(t, "same nonce, same grant", func(e *env) {
		for _, f := range grants() {
			r := f.prepare(e)
			e.repeats(e.reserve(r), r, f.name)
		}
	})
	h.test(t, "same nonce at once", func(e *env) {
		for _, f := range grants() {
			e.repeatsAtOnce(f.prepare(e), f.name)
		}
	})
	h.test(t, "another nonce, no grant", func(e *env) {
		e.own(id("key"))
		e.wantDecision(request(id("key")), store.DecisionInProgress, "S9: a different caller")
	})
	h.test(t, "same nonce after the end", nonceAfterEnd)
	if restarts(h.probe) {
		h.test(t, "same nonce after a restart", func(e *env) {
			for _, f := range grants() {
				r := f.prepare(e)
				first := e.reserve(r)
				e.reopen()
				e.repeats(first, r, f.name)
			}
		})
	}
}

// granted is a reservation that will be granted in one of the possible ways.
type granted struct {
	name    string
	prepare func(e *env) *store.Reservation
}

func grants() []granted {
	return []granted{
		{"created", func(*env) *store.Reservation { return request(id("created")) }},
		{"retried", func(e *env) *store.Reservation {
			e.must(e.Store.Release(e.ctx, e.own(id("retried")), "no stock"))
			return request(id("retried"))
		}},
		{"resumed", func(e *env) *store.Reservation {
			e.own(id("resumed"), resume, lease(e.brief()))
			lapse(e)
			return request(id("resumed"), resume)
		}},
		{"recreated", func(e *env) *store.Reservation {
			e.until(e.complete(e.own(id("recreated"), retain(e.brief())), "stored"))
			return request(id("recreated"))
		}},
	}
}

// repeats sends a reservation again and checks that it gets the first grant.
func (e *env) repeats(first store.Verdict, r *store.Reservation, origin string) {
	e.Helper()
	if first.Decision != store.DecisionExecute || first.Origin.String() != origin {
		e.Errorf("section 4: got (%s, %s), want (execute, %s)", first.Decision, first.Origin, origin)
	}
	if left := first.Record.LeaseUntil.Sub(first.Now); left > r.Lease || left < r.Lease-e.resolution() {
		e.Errorf("S5: of a lease of %s the grant says that %s are left", r.Lease, left)
	}
	e.pass(e.brief() / 2)
	for range 3 {
		again := e.reserve(r)
		if again.Decision != store.DecisionExecute || again.Origin != store.OriginRepeated {
			e.Errorf("S9: the same nonce got (%s, %s), want (execute, repeated)", again.Decision, again.Origin)
		}
		if again.Record.Attempt != first.Record.Attempt {
			e.Errorf("S9: the same nonce got attempt %d, then %d", first.Record.Attempt, again.Record.Attempt)
		}
		left := first.Record.LeaseUntil.Sub(first.Now)
		if got := again.Record.LeaseUntil.Sub(again.Now); got > left-e.brief()/2+e.resolution() {
			e.Errorf("S5: %s were left of the lease, and %s after another %s", left, got, e.brief()/2)
		}
	}
}

// repeatsAtOnce sends one reservation many times at once: all get one grant.
func (e *env) repeatsAtOnce(r *store.Reservation, origin string) {
	e.Helper()
	verdicts := e.crowdReserves(func(int) *store.Reservation { return r })
	firsts := 0
	for _, v := range verdicts {
		if v.Decision != store.DecisionExecute || v.Record.Attempt != verdicts[0].Record.Attempt {
			e.Errorf("S9: the same nonce got (%s, attempt %d) and (%s, attempt %d)",
				verdicts[0].Decision, verdicts[0].Record.Attempt, v.Decision, v.Record.Attempt)
		}
		if v.Origin.String() == origin {
			firsts++
		}
	}
	if firsts != 1 {
		e.Errorf("M1: %d of the calls with one nonce were counted as %s, want 1 and the others as repeated", firsts,
			origin)
	}
}

// nonceAfterEnd repeats a reservation whose grant is over: it gives no right any more.
func nonceAfterEnd(e *env) {
	r := request(id("completed"))
	c := store.Claim{ID: r.ID, Attempt: e.reserve(r).Record.Attempt}
	e.complete(c, "stored")
	e.wantDecision(r, store.DecisionReplay, "S9: the grant was used")

	r = request(id("unknown"))
	c = store.Claim{ID: r.ID, Attempt: e.reserve(r).Record.Attempt}
	e.must(e.Store.Abandon(e.ctx, c, "timeout"))
	e.wantDecision(r, store.DecisionUnknown, "S9: the grant was given up")

	r = request(id("lapsed"), lease(e.brief()))
	e.reserve(r)
	lapse(e)
	e.wantDecision(r, store.DecisionUnknown, "S9: the grant ran out")
}
