package store_test

import (
	"regexp"
	"testing"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/store"
)

const lowerUUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"

// packedUUID are the sixteen bytes of lowerUUID, as a key.
const packedUUID = "\x8e\x03\x97\x8e\x40\xd5\x43\xdd\xbc\x93\x68\x94\xa5\x7f\x93\x24"

// distinctIDs are pairwise different operations that a careless encoding would confuse (H8).
var distinctIDs = []store.ID{
	{Scope: "", Key: ""},
	{Scope: "a", Key: ""},
	{Scope: "", Key: "a"},
	{Scope: "ab", Key: "c"},
	{Scope: "a", Key: "bc"},
	{Scope: "A", Key: "bc"},
	{Scope: "a", Key: "bc "},
	{Scope: "a", Key: "\x00bc"},
	{Scope: "a\x00", Key: "bc"},
	{Scope: "a", Key: lowerUUID},
	{Scope: "a", Key: "8E03978E-40D5-43DD-BC93-6894A57F9324"},
	{Scope: "a", Key: "8e03978e-40d5-43dd-bc93-6894a57f932A"},
	{Scope: "a", Key: "8e03978e40d543ddbc936894a57f9324"},
	{Scope: "a", Key: "{" + lowerUUID + "}"},
	{Scope: "a", Key: "urn:uuid:" + lowerUUID},
	{Scope: "a", Key: "8e03978e-40d5-43dd-bc93-6894a57f932-"},
	{Scope: "a", Key: "8e03978e_40d5-43dd-bc93-6894a57f9324"},
	{Scope: "a", Key: "8e03978e-40d5-43dd-bc93-6894a57f932g"},
	{Scope: "a", Key: "8e03978e-40d5-43dd-bc93-6894a57f932"},
	{Scope: "a", Key: packedUUID},
	{Scope: "a", Key: "\x01" + packedUUID},
	{Scope: "a", Key: "00000000-0000-0000-0000-000000000000"},
	{Scope: lowerUUID, Key: "a"},
}

func TestIDsStayDistinct(t *testing.T) {
	t.Parallel()
	seen := make(map[string]store.ID)
	for _, id := range distinctIDs {
		encoded := string(id.AppendBinary(nil))
		if other, ok := seen[encoded]; ok {
			t.Errorf("%q and %q are both %x", id, other, encoded)
		}
		seen[encoded] = id
		if got, err := store.ParseID([]byte(encoded)); err != nil || got != id {
			t.Errorf("%q was read as %q, %v", id, got, err)
		}
	}
}

// TestIDEncodingIsFixed: keys are stored, so these bytes never change.
func TestIDEncodingIsFixed(t *testing.T) {
	t.Parallel()
	for id, want := range map[store.ID]string{
		{Scope: "tenant", Key: "k"}:       "\x06tenant\x00k",
		{Scope: "tenant", Key: lowerUUID}: "\x06tenant\x01" + packedUUID,
		{}:                                "\x00\x00",
	} {
		if got := string(id.AppendBinary([]byte("-"))); got != "-"+want {
			t.Errorf("%q is %q, want %q", id, got, "-"+want)
		}
	}
}

func TestIDRoundTrip(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(),
		rapid.StringMatching(`[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`))
	ids := rapid.Custom(func(t *rapid.T) store.ID {
		return store.ID{Scope: text.Draw(t, "scope"), Key: text.Draw(t, "key")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := ids.Draw(t, "a"), ids.Draw(t, "b")
		if got, err := store.ParseID(a.AppendBinary(nil)); err != nil || got != a {
			t.Fatalf("%q was read as %q, %v", a, got, err)
		}
		if same := string(a.AppendBinary(nil)) == string(b.AppendBinary(nil)); same != (a == b) {
			t.Fatalf("%q and %q have the same bytes: %t", a, b, same)
		}
	})
}

func TestParseIDRefuses(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]string{
		"nothing":             "",
		"no tag":              "\x01a",
		"a scope cut off":     "\x05a",
		"an endless length":   "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"a length cut off":    "\x80",
		"a short UUID":        "\x01a\x01" + packedUUID[:15],
		"a long UUID":         "\x01a\x01" + packedUUID + "x",
		"a tag of the future": "\x01a\x02k",
	} {
		if id, err := store.ParseID([]byte(b)); err == nil || id != (store.ID{}) {
			t.Errorf("%s: it was read as %q, %v", name, id, err)
		}
	}
}

func TestTheHashOfAnID(t *testing.T) {
	t.Parallel()
	const known = "38402d67e257ad6f791b379c761884b0"
	id := store.ID{Scope: "alice", Key: "order-1234"}
	if got := id.Hash(); got != known {
		t.Errorf("M3: the hash is %q, want %q for good: logs of other versions are searched for it", got, known)
	}
	seen := make(map[string]store.ID)
	for _, id := range distinctIDs {
		hash := id.Hash()
		if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(hash) {
			t.Errorf("M3: the hash %q is not 32 hexadecimal digits", hash)
		}
		if other, taken := seen[hash]; taken {
			t.Errorf("M3: %q and %q have the same hash", id, other)
		}
		seen[hash] = id
		if read, err := store.ParseHash(hash); err != nil || read != id.HashBytes() {
			t.Errorf("the hash %q is read as %x, %v", hash, read, err)
		}
	}
}
