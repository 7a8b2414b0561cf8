package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/store"
)

// testIdentity checks that different IDs stay different, whatever they consist of (H8).
func testIdentity(t *testing.T, h Harness) {
	families := map[string][]store.ID{
		"two scopes": {{Scope: "a", Key: "k"}, {Scope: "b", Key: "k"}},
		"where the scope ends": {
			{Scope: "a", Key: "bc"},
			{Scope: "ab", Key: "c"},
			{Scope: "abc", Key: "x"},
			{Scope: "a", Key: "bcx"},
		},
		"separators": {
			{Scope: "a", Key: "b:c"},
			{Scope: "a:b", Key: "c"},
			{Scope: "a/b", Key: "c"},
			{Scope: "a", Key: "b/c"},
			{Scope: "a\x00b", Key: "c"},
			{Scope: "a\x00", Key: "b"},
		},
		"case": {
			{Scope: "a", Key: "key"},
			{Scope: "a", Key: "KEY"},
			{Scope: "a", Key: "Key"},
			{Scope: "A", Key: "key"},
		},
		"spellings of a UUID": uuids(),
		"spaces": {
			{Scope: "a", Key: "k"},
			{Scope: "a", Key: "k "},
			{Scope: "a", Key: "k  "},
			{Scope: "a", Key: " k"},
			{Scope: "a ", Key: "k"},
		},
		"odd characters":      oddKeys(),
		"scopes of any bytes": oddScopes(),
		"long":                longIDs(),
		"numbers": {
			{Scope: "a", Key: "1"},
			{Scope: "a", Key: "01"},
			{Scope: "a", Key: "1.0"},
			{Scope: "a", Key: "1e0"},
			{Scope: "a", Key: "+1"},
		},
		"wildcards": {
			{Scope: "a", Key: "a%"},
			{Scope: "a", Key: "a_"},
			{Scope: "a", Key: "a*"},
			{Scope: "a", Key: "aa"},
			{Scope: "%", Key: "aa"},
		},
	}
	if !h.Features.NoEmptyScope {
		families["empty scope"] = []store.ID{{Scope: "", Key: "ab"}, {Scope: "a", Key: "b"}, {Scope: "ab", Key: "ab"}}
	}
	for name, family := range families {
		h.test(t, name, func(e *env) { e.distinct(family) })
	}
}

func uuids() []store.ID {
	const uuid = "0190b5f2-7c3a-7def-8abc-0123456789ab"
	keys := []string{
		uuid, strings.ToUpper(uuid), strings.ReplaceAll(uuid, "-", ""), "{" + uuid + "}", "urn:uuid:" + uuid,
		uuid[:35] + "B", uuid[:8] + "_" + uuid[9:], "0190b5f2-7c3a-7def-8abc-0123456789ac", uuid + "0", uuid[:35],
		// These are sixteen characters, and a UUID whose packed bytes are the same.
		"abcdefghijklmnop", "61626364-6566-6768-696a-6b6c6d6e6f70",
	}
	return inScope("a", keys)
}

func inScope(scope string, keys []string) []store.ID {
	named := make([]store.ID, len(keys))
	for i, key := range keys {
		named[i] = store.ID{Scope: scope, Key: key}
	}
	return named
}

// oddKeys returns keys that together contain every allowed character.
func oddKeys() []store.ID {
	var keys []string
	for c := byte(' '); c <= '~'; c++ {
		keys = append(keys, "k"+string(rune(c))+"k")
	}
	return inScope("a", append(keys, `'; DROP TABLE records; --`, `\`, `"`, `''`))
}

func oddScopes() []store.ID {
	scopes := []string{
		"\xff\xfe", "\xff", "\x00", "\x00\x00", "caf\u00e9", "cafe\u0301", "caf\xe9", "ß", "ss", "\u212a", "k", "K",
		"日本", "🙂", "a\nb", "a\r\nb",
	}
	named := make([]store.ID, len(scopes))
	for i, scope := range scopes {
		named[i] = store.ID{Scope: scope, Key: "k"}
	}
	return named
}

func longIDs() []store.ID {
	long := strings.Repeat("x", 254)
	return []store.ID{
		{Scope: "a", Key: long + "1"},
		{Scope: "a", Key: long + "2"},
		{Scope: "a", Key: long},
		{Scope: long + "1", Key: "k"},
		{Scope: long + "2", Key: "k"},
		{Scope: long + "1", Key: long + "1"},
		{Scope: long + "2", Key: long + "1"},
	}
}

// distinct gives each ID a record with its own answer and checks that each record keeps its answer.
func (e *env) distinct(family []store.ID) {
	e.Helper()
	content := func(id store.ID) string { return fmt.Sprintf("%q in %q", id.Key, id.Scope) }
	for _, id := range family {
		v := e.reserve(request(id))
		if v.Decision != store.DecisionExecute || v.Origin != store.OriginCreated {
			e.Errorf("H8: %s is a key of its own, but got (%s, %s)", content(id), v.Decision, v.Origin)
			continue
		}
		e.complete(store.Claim{ID: id, Attempt: v.Record.Attempt}, content(id))
	}
	for _, id := range family {
		v := e.reserve(request(id))
		if v.Decision != store.DecisionReplay || string(v.Record.Response.Body) != content(id) {
			e.Errorf("H8: %s got (%s, %q), want its own answer", content(id), v.Decision, v.Record.Response.Body)
		}
		if rec := e.get(id); rec.ID != id || v.Record.ID != id {
			e.Errorf("H8: %s came back as %s and %s", content(id), content(rec.ID), content(v.Record.ID))
		}
	}
	if has[store.Lister](e.Instance) {
		e.listed(family)
	}
}

// listed checks that each ID is found unchanged in the list, also page by page. The test reads few pages: on some
// stores each page is a scan of all keys of the database, including keys of other tests.
func (e *env) listed(family []store.ID) {
	e.Helper()
	var found []store.ID
	for _, rec := range e.pages(store.Filter{Limit: max(2, len(family)/4)}) {
		found = append(found, rec.ID)
	}
	for _, id := range family {
		if !slices.Contains(found, id) {
			e.Errorf("H8: %q in %q is not listed", id.Key, id.Scope)
		}
	}
	if len(found) != len(family) {
		e.Errorf("H8: %d records are listed, want %d", len(found), len(family))
	}
}

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
					e.Errorf("S8: a record (%s) made with a secret that is gone got %v, want ErrUnreadable", f.name,
						err)
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
			e.Errorf("section 4: a record that was made again has the fingerprint %+v, want %+v",
				v.Record.Fingerprint, other)
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
		e.wantDecision(request(target, other), store.DecisionMismatch,
			"S4: a mismatch is reported before anything else, "+f.name)
		e.wantDecision(request(target, other, resume), store.DecisionMismatch, "S4: whatever the policy, "+f.name)
		e.wantDecision(request(target, other, noCreate), store.DecisionMismatch, "S4: and with NoCreate, "+f.name)
		if before.State == store.StateInProgress {
			e.wantDecision(request(target, other, nonce(before.Nonce)), store.DecisionMismatch,
				"S4: and with the nonce, "+f.name)
		}
		if diff := diffRecords(e.get(target), before, 0); diff != "" {
			e.Errorf("S4: a mismatch changed the record: %s", diff)
		}
	}
	v := e.wantDecision(request(id("completed")), store.DecisionReplay,
		"S4: after a mismatch the original still replays")
	if string(v.Record.Response.Body) != "stored" {
		e.Errorf("S4: after a mismatch %q is replayed, want the original", v.Record.Response.Body)
	}
}

// rotatedSecret sends requests whose current secret is newer than the secret of the record.
func rotatedSecret(e *env) {
	current := store.Fingerprint{Secret: 8, Rules: 1, Sum: [32]byte{1}}
	old := fingerprint("request")
	e.complete(e.own(id("key"), fingerprints(old)), "stored")
	e.wantDecision(request(id("key"), fingerprints(current, old)), store.DecisionReplay,
		"F1: rotation causes no false mismatch")
	if got := e.get(id("key")).Fingerprint; got != old {
		e.Errorf("F1: the stored fingerprint became %+v, want %+v", got, old)
	}
	wrong := fingerprint("other")
	e.wantDecision(request(id("key"), fingerprints(current, wrong)), store.DecisionMismatch,
		"F1: compared under the record's own secret")
	v := e.reserve(request(id("new"), fingerprints(current, old)))
	if v.Record.Fingerprint != current {
		e.Errorf("F1: a new record has the fingerprint %+v, want the one under the current secret",
			v.Record.Fingerprint)
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
	e.wantDecision(request(id("unbound"), session(1)), store.DecisionReplay,
		"L4: a record that is not bound accepts any session")
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
		e.wantDecision(request(id("key"), fingerprints(other)), store.DecisionMismatch,
			"F1: a request that differs in one bit")
	}
	other := stored
	other.Session[15] = 2
	e.wantDecision(request(id("key"), fingerprints(other)), store.DecisionMismatch,
		"L4: a session that differs in its last byte")
	e.wantDecision(request(id("key"), fingerprints(stored)), store.DecisionReplay, "F1: the same request")
}
