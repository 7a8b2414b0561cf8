package storetest

import (
	"testing"

	"github.com/onceward/onceward/store"
)

// testTokens checks that an attempt token is never used twice for one ID, however its record went (S7).
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

// removal is a way by which a record comes to be made anew, or granted again.
type removal struct {
	name string
	// lapses says that the lease is to run out.
	lapses bool
	remove func(e *env, c store.Claim)
}

// removals returns the ways that the store has. Those by an operator or an owner take no time: with a clock that stands
// still, the token must grow by itself.
func removals(i Instance) []removal {
	ways := []removal{
		{name: "released", remove: func(e *env, c store.Claim) { e.must(e.Store.Release(e.ctx, c, "no stock")) }},
		{name: "expired", remove: func(e *env, c store.Claim) { e.until(e.complete(c, "stored")) }},
		{name: "resumed", lapses: true, remove: func(e *env, c store.Claim) { e.until(e.get(c.ID).LeaseUntil) }},
	}
	if has[store.Reaper](i) {
		ways = append(ways, removal{name: "reaped", remove: func(e *env, c store.Claim) {
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

// wantFenceBehind checks that a record in progress has left an attempt behind, and spends the token that did.
func (e *env) wantFenceBehind(c store.Claim) {
	e.Helper()
	if rec := e.get(c.ID); rec.State != store.StateInProgress || rec.Attempt <= c.Attempt {
		e.Errorf("S7: behind attempt %d the record is %s", c.Attempt, describe(rec))
	}
}

// spend is granted a token and gives it up again.
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
