package storetest

import (
	"errors"
	"testing"

	"github.com/onceward/onceward/store"
)

// testRepeats checks reservations that must not create, and those that are repeated because their reply was lost (S9).
func testRepeats(t *testing.T, h Harness) {
	h.test(t, "not to create", func(e *env) {
		for range 3 {
			v := e.wantDecision(request(id("key"), noCreate), store.DecisionRefused, "S9: a new key that must not be created")
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

// granted is a reservation that will be granted in one of the ways there are.
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

// repeats sends a reservation again and wants the first grant.
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
		e.Errorf("M1: %d of the calls with one nonce were counted as %s, want 1 and the others as repeated", firsts, origin)
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
