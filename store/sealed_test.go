package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/onceward/onceward/store"
)

// TestIsSealed: a sealed value is known by its beginning, a sealed response by its one header field.
func TestIsSealed(t *testing.T) {
	t.Parallel()
	if !store.IsSealed(store.SealedPrefix) || !store.IsSealed([]byte(store.SealedPrefix+"\x01 and more")) {
		t.Error("a sealed value is not seen")
	}
	for _, plain := range []string{"", "{}", store.SealedPrefix[:3], "x" + store.SealedPrefix} {
		if store.IsSealed(plain) {
			t.Errorf("%q is taken for a sealed value", plain)
		}
	}
	sealed := store.Response{Status: 200, Header: []store.HeaderField{{Name: store.SealedField, Value: "x"}}}
	plain := store.Response{Status: 200, Header: []store.HeaderField{{Name: "Sealed"}}, Body: []byte(store.SealedPrefix)}
	if !sealed.IsSealed() || plain.IsSealed() {
		t.Error("a sealed response is not told from a plain one")
	}
}

// TestVerdictWithSealedContent: a program without the key ring neither replays sealed content nor continues with it.
func TestVerdictWithSealedContent(t *testing.T) {
	t.Parallel()
	r := &store.Reservation{ID: store.ID{Scope: "s", Key: "k"}, Fingerprints: []store.Fingerprint{{Rules: 1}}, Nonce: store.Nonce{1}}
	replay := store.Verdict{Decision: store.DecisionReplay, Record: store.Record{
		ID: r.ID, Version: store.RecordVersion, State: store.StateCompleted, Fingerprint: r.Fingerprints[0], Attempt: 1,
		Response: store.Response{Status: 200},
	}}
	execute := store.Verdict{Decision: store.DecisionExecute, Now: epoch, Record: store.Record{
		ID: r.ID, Version: store.RecordVersion, State: store.StateInProgress, Nonce: r.Nonce, Attempt: 1,
		LeaseUntil: epoch.Add(1000), Data: []byte("plain"),
	}}
	for name, v := range map[string]*store.Verdict{"replay": &replay, "execute": &execute} {
		if err := v.Check(r); err != nil {
			t.Errorf("%s of plain content: %v", name, err)
		}
	}
	replay.Record.Response.Header = []store.HeaderField{{Name: store.SealedField, Value: store.SealedPrefix}}
	execute.Record.Data = []byte(store.SealedPrefix + "…")
	for name, v := range map[string]*store.Verdict{"replay": &replay, "execute": &execute} {
		if err := v.Check(r); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%s of sealed content: %v", name, err)
		}
	}
}

// TestHeaderAlone: header fields that are encoded apart from their record come back, and damage is seen.
func TestHeaderAlone(t *testing.T) {
	t.Parallel()
	header := []store.HeaderField{{Name: "A", Value: "1"}, {Name: "B", Append: true, Value: "\xff"}, {Name: "C", Removed: true}}
	encoded := store.AppendHeader(nil, header)
	got, err := store.DecodeHeader(encoded)
	if err != nil || !slices.Equal(got, header) {
		t.Errorf("%v came back as %v, %v", header, got, err)
	}
	for n := range encoded {
		if _, err := store.DecodeHeader(encoded[:n]); err == nil {
			t.Errorf("header fields that were cut off at %d of %d bytes are read", n, len(encoded))
		}
	}
	if _, err := store.DecodeHeader(append(encoded, 0)); err == nil {
		t.Error("header fields with a byte too many are read")
	}
}
