package onceward_test

import (
	"bytes"
	"context"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func withSecrets(current []byte, old ...[]byte) func(*onceward.Config) {
	return func(c *onceward.Config) { c.Secret, c.OldSecrets = current, old }
}

var (
	oldSecret = []byte("the secret of last year")
	newSecret = []byte("the secret of this year")
)

func TestSecretRotationIsNoMismatch(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	route := func(config func(*onceward.Config)) http.Handler {
		return newGuard(t, store, config).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	}
	before := route(withSecrets(oldSecret))
	after := route(withSecrets(newSecret, oldSecret))

	first := post(before, "k", `{"a":1}`)
	again := post(after, "k", `{"a":1.0}`)
	again.want(t, "F1: rotation", http.StatusCreated, true)
	again.wantSame(t, "F1: rotation", first)
	post(after, "k", `{"a":2}`).wantProblem(t, "F1: a real mismatch is still seen", http.StatusUnprocessableEntity, "mismatch")

	post(after, "new", `{}`).want(t, "F1: rotation", http.StatusCreated, false)
	rec, err := store.Get(context.Background(), aliceID("new"))
	if err != nil {
		t.Fatal(err)
	}
	old, err := store.Get(context.Background(), aliceID("k"))
	if err != nil {
		t.Fatal(err)
	}
	if rec.Fingerprint.Secret == old.Fingerprint.Secret {
		t.Error("F1: a new record was made with the old secret")
	}
	// During a rolling deploy a node with the old configuration meets a record that it cannot judge.
	post(route(withSecrets(oldSecret, newSecret)), "new", `{}`).want(t, "F1: rotation, the other way round", http.StatusCreated, true)
	handler.wantRuns(t, "F1", 2)
}

func TestALostSecretFailsClosed(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	post(newGuard(t, s, withSecrets(oldSecret)).Handler(handler, onceward.Reserved(onceward.FailureUnknown)), "k", `{}`)
	h := newGuard(t, s, withSecrets(newSecret)).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	for _, body := range []string{`{}`, `{"other":true}`} {
		p := post(h, "k", body).wantProblem(t, "section 6, D6", http.StatusInternalServerError, "record-unreadable")
		if p.Retryable {
			t.Error("A1: a record that nobody can read is not better the second time")
		}
	}
	handler.wantRuns(t, "D6", 1)
	wantState(t, "D6", s, "k", store.StateCompleted)
}

func TestFingerprintsAreKeyedByScope(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	post(h, "k", `{}`, as("alice"))
	post(h, "k", `{}`, as("bob")).want(t, "section 1: another scope is another key", http.StatusCreated, false)
	post(h, "k", `{"other":1}`, as("carol")).want(t, "section 1: another scope is another key", http.StatusCreated, false)
	var sums [][]byte
	for _, scope := range []string{"alice", "bob"} {
		rec, err := s.Get(context.Background(), store.ID{Scope: scope, Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, rec.Fingerprint.Sum[:])
	}
	if bytes.Equal(sums[0], sums[1]) {
		t.Error("F1: the same payload has the same fingerprint in two scopes: it can be probed")
	}
	handler.wantRuns(t, "section 1", 3)
}

func TestSecretsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]onceward.Config{
		"none":          {},
		"short":         {Secret: []byte("fifteen bytes..")},
		"short and old": {Secret: newSecret, OldSecrets: [][]byte{[]byte("short")}},
		"twice":         {Secret: newSecret, OldSecrets: [][]byte{newSecret}},
	} {
		if _, err := onceward.New(memory.New(), config); err == nil {
			t.Errorf("F1: secret %s: New accepted it", name)
		}
	}
}

func TestTheSecretIsCopied(t *testing.T) {
	t.Parallel()
	store, handler, secret := memory.New(), new(counted), bytes.Clone(testSecret)
	h := newGuard(t, store, withSecrets(secret)).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	clear(secret)
	post(h, "k", `{}`)
	post(newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown)), "k", `{}`).
		want(t, "F1: the caller cleared its own copy of the secret", http.StatusCreated, true)
	handler.wantRuns(t, "F1", 1)
}

func TestPayloadKnowsWhereAPartEnds(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for name, parts := range map[string][][]byte{
		"none": {}, "one empty": {{}}, "two empty": {{}, {}}, "ab": {[]byte("ab")}, "a, b": {[]byte("a"), []byte("b")},
		"ab and an empty one": {[]byte("ab"), {}}, "b, a": {[]byte("b"), []byte("a")},
	} {
		sum := string(onceward.Payload(parts...))
		if other, dup := seen[sum]; dup {
			t.Errorf("F1: Payload of %s equals that of %s", name, other)
		}
		seen[sum] = name
		if again := onceward.Payload(parts...); string(again) != sum {
			t.Errorf("F1: Payload of %s is not stable", name)
		}
	}
}
