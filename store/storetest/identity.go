package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/store"
)

// testIdentity checks that distinct IDs stay distinct, whatever they are made of (H8).
func testIdentity(t *testing.T, h Harness) {
	families := map[string][]store.ID{
		"two scopes":           {{Scope: "a", Key: "k"}, {Scope: "b", Key: "k"}},
		"where the scope ends": {{Scope: "a", Key: "bc"}, {Scope: "ab", Key: "c"}, {Scope: "abc", Key: "x"}, {Scope: "a", Key: "bcx"}},
		"separators":           {{Scope: "a", Key: "b:c"}, {Scope: "a:b", Key: "c"}, {Scope: "a/b", Key: "c"}, {Scope: "a", Key: "b/c"}, {Scope: "a\x00b", Key: "c"}, {Scope: "a\x00", Key: "b"}},
		"case":                 {{Scope: "a", Key: "key"}, {Scope: "a", Key: "KEY"}, {Scope: "a", Key: "Key"}, {Scope: "A", Key: "key"}},
		"spellings of a UUID":  uuids(),
		"spaces":               {{Scope: "a", Key: "k"}, {Scope: "a", Key: "k "}, {Scope: "a", Key: "k  "}, {Scope: "a", Key: " k"}, {Scope: "a ", Key: "k"}},
		"odd characters":       oddKeys(),
		"scopes of any bytes":  oddScopes(),
		"long":                 longIDs(),
		"numbers":              {{Scope: "a", Key: "1"}, {Scope: "a", Key: "01"}, {Scope: "a", Key: "1.0"}, {Scope: "a", Key: "1e0"}, {Scope: "a", Key: "+1"}},
		"wildcards":            {{Scope: "a", Key: "a%"}, {Scope: "a", Key: "a_"}, {Scope: "a", Key: "a*"}, {Scope: "a", Key: "aa"}, {Scope: "%", Key: "aa"}},
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
		// Sixteen characters, the bytes of which are those of a packed UUID.
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

// oddKeys holds every character that a key may have.
func oddKeys() []store.ID {
	var keys []string
	for c := byte(' '); c <= '~'; c++ {
		keys = append(keys, "k"+string(rune(c))+"k")
	}
	return inScope("a", append(keys, `'; DROP TABLE records; --`, `\`, `"`, `''`))
}

func oddScopes() []store.ID {
	scopes := []string{
		"\xff\xfe", "\xff", "\x00", "\x00\x00", "caf\u00e9", "cafe\u0301", "caf\xe9", "ß", "ss", "\u212a", "k", "K", "日本", "🙂", "a\nb", "a\r\nb",
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

// distinct gives each ID a record with its own answer and checks that each one keeps its own.
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

// listed checks that each ID is found in the list as it was given, also page by page.
func (e *env) listed(family []store.ID) {
	e.Helper()
	var found []store.ID
	for _, rec := range e.pages(store.Filter{Limit: 2}) {
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
