package storetest

import (
	"errors"
	"testing"

	"github.com/onceward/onceward/store"
)

// testFingerprints checks how a store compares requests (F1, S4, L4).
func testFingerprints(t *testing.T, h Harness) {
	h.test(t, "mismatch before anything else", mismatchFirst)
	h.test(t, "rotated secret", rotatedSecret)
	h.test(t, "newer rules", func(e *env) {
		e.complete(e.own(id("key")), "stored")
		newer := store.Fingerprint{Secret: 7, Rules: 2, Sum: [32]byte{1}}
		r := request(id("key"), fingerprints(newer, fingerprint("request")))
		e.wantDecision(r, store.DecisionReplay, "F1: a deploy with newer rules causes no false mismatch")
	})
	h.test(t, "nothing to compare with", func(e *env) {
		for _, f := range ownerFixtures() {
			if f.absent {
				continue
			}
			target := id(f.name)
			f.build(e, []store.ID{target})
			before := e.get(target)
			for _, other := range []store.Fingerprint{{Secret: 8, Rules: 1}, {Secret: 7, Rules: 2}} {
				other.Sum = fingerprint("request").Sum
				_, err := e.Store.Reserve(e.ctx, request(target, fingerprints(other)))
				if !errors.Is(err, store.ErrUnreadable) {
					e.Errorf("S8: a record (%s) made with a secret that is gone got %v, want ErrUnreadable", f.name, err)
				}
			}
			if diff := diffRecords(e.get(target), before, 0); diff != "" {
				e.Errorf("S8: what cannot be read must not be changed: %s", diff)
			}
		}
	})
	h.test(t, "an expired record binds no one", func(e *env) {
		e.until(e.complete(e.own(id("key"), retain(e.brief())), "stored"))
		other := store.Fingerprint{Secret: 8, Rules: 2, Sum: [32]byte{1}}
		v := e.wantDecision(request(id("key"), fingerprints(other)), store.DecisionExecute, "section 4: as if absent")
		if v.Record.Fingerprint != other {
			e.Errorf("section 4: a record made anew has the fingerprint %+v, want %+v", v.Record.Fingerprint, other)
		}
	})
	h.test(t, "sessions", sessions)
	h.test(t, "one bit", oneBit)
}

func mismatchFirst(e *env) {
	other := fingerprints(fingerprint("other"))
	for _, f := range ownerFixtures() {
		if f.absent {
			continue
		}
		target := id(f.name)
		f.build(e, []store.ID{target})
		before := e.get(target)
		e.wantDecision(request(target, other), store.DecisionMismatch, "S4: a mismatch is reported before anything else, "+f.name)
		e.wantDecision(request(target, other, resume), store.DecisionMismatch, "S4: whatever the policy, "+f.name)
		e.wantDecision(request(target, other, noCreate), store.DecisionMismatch, "S4: and with NoCreate, "+f.name)
		if before.State == store.StateInProgress {
			e.wantDecision(request(target, other, nonce(before.Nonce)), store.DecisionMismatch, "S4: and with the nonce, "+f.name)
		}
		if diff := diffRecords(e.get(target), before, 0); diff != "" {
			e.Errorf("S4: a mismatch changed the record: %s", diff)
		}
	}
	v := e.wantDecision(request(id("completed")), store.DecisionReplay, "S4: after a mismatch the original still replays")
	if string(v.Record.Response.Body) != "stored" {
		e.Errorf("S4: after a mismatch %q is replayed, want the original", v.Record.Response.Body)
	}
}

// rotatedSecret sends requests whose current secret is newer than that of the record.
func rotatedSecret(e *env) {
	current := store.Fingerprint{Secret: 8, Rules: 1, Sum: [32]byte{1}}
	old := fingerprint("request")
	e.complete(e.own(id("key"), fingerprints(old)), "stored")
	e.wantDecision(request(id("key"), fingerprints(current, old)), store.DecisionReplay, "F1: rotation causes no false mismatch")
	if got := e.get(id("key")).Fingerprint; got != old {
		e.Errorf("F1: the stored fingerprint became %+v, want %+v", got, old)
	}
	wrong := fingerprint("other")
	e.wantDecision(request(id("key"), fingerprints(current, wrong)), store.DecisionMismatch, "F1: compared under the record's own secret")
	v := e.reserve(request(id("new"), fingerprints(current, old)))
	if v.Record.Fingerprint != current {
		e.Errorf("F1: a new record has the fingerprint %+v, want the one under the current secret", v.Record.Fingerprint)
	}
	e.must(e.Store.Release(e.ctx, store.Claim{ID: id("new"), Attempt: v.Record.Attempt}, "no stock"))
	e.wantDecision(request(id("new"), fingerprints(current)), store.DecisionExecute, "F1: a retry after the rotation")
}

// sessions checks keys that are bound to the caller's session (L4).
func sessions(e *env) {
	e.complete(e.own(id("bound"), session(1)), "stored")
	e.wantDecision(request(id("bound"), session(1)), store.DecisionReplay, "L4: the same session")
	e.wantDecision(request(id("bound"), session(2)), store.DecisionMismatch, "L4: another session")
	e.wantDecision(request(id("bound")), store.DecisionMismatch, "L4: no session")
	e.complete(e.own(id("unbound")), "stored")
	e.wantDecision(request(id("unbound"), session(1)), store.DecisionReplay, "L4: a record that is not bound accepts any session")
	if got := e.get(id("bound")).Fingerprint.Session; got != [16]byte{1} {
		e.Errorf("L4: the stored session is %x, want 01 and zeros", got)
	}
}

// oneBit checks that every byte of a fingerprint counts.
func oneBit(e *env) {
	stored := fingerprint("request")
	stored.Session = [16]byte{0: 1, 15: 1}
	e.complete(e.own(id("key"), fingerprints(stored)), "stored")
	for i := range stored.Sum {
		other := stored
		other.Sum[i] ^= 1
		e.wantDecision(request(id("key"), fingerprints(other)), store.DecisionMismatch, "F1: a request that differs in one bit")
	}
	other := stored
	other.Session[15] = 2
	e.wantDecision(request(id("key"), fingerprints(other)), store.DecisionMismatch, "L4: a session that differs in its last byte")
	e.wantDecision(request(id("key"), fingerprints(stored)), store.DecisionReplay, "F1: the same request")
}
