package onceward_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		return newGuard(t, store, config).Handler(handler, reserved)
	}
	before := route(withSecrets(oldSecret))
	after := route(withSecrets(newSecret, oldSecret))

	first := post(before, "k", `{"a":1}`)
	again := post(after, "k", `{"a":1.0}`)
	again.want(t, "F1: rotation", http.StatusCreated, true)
	again.wantSame(t, "F1: rotation", first)
	post(after, "k", `{"a":2}`).
		wantProblem(t, "F1: a real mismatch is still seen", http.StatusUnprocessableEntity, "mismatch")

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
	post(route(withSecrets(oldSecret, newSecret)), "new", `{}`).
		want(t, "F1: rotation, the other way round", http.StatusCreated, true)
	handler.wantRuns(t, "F1", 2)
}

func TestALostSecretFailsClosed(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	post(newGuard(t, s, withSecrets(oldSecret)).Handler(handler, reserved), "k", `{}`)
	h := newGuard(t, s, withSecrets(newSecret)).Handler(handler, reserved)
	for _, body := range []string{`{}`, `{"other":true}`} {
		p := post(h, "k", body).wantProblem(t, "section 6, D6", http.StatusInternalServerError, "record-unreadable")
		if p.Retryable {
			t.Error("A1: a record that cannot be read is not better the second time")
		}
	}
	handler.wantRuns(t, "D6", 1)
	wantState(t, "D6", s, "k", store.StateCompleted)
}

func TestFingerprintsAreKeyedByScope(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	h := newGuard(t, s).Handler(handler, reserved)
	post(h, "k", `{}`, as("alice"))
	post(h, "k", `{}`, as("bob")).want(t, "section 1: another scope is another key", http.StatusCreated, false)
	post(h, "k", `{"other":1}`, as("carol")).
		want(t, "section 1: another scope is another key", http.StatusCreated, false)
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
	h := newGuard(t, store, withSecrets(secret)).Handler(handler, reserved)
	clear(secret)
	post(h, "k", `{}`)
	post(newGuard(t, store).Handler(handler, reserved), "k", `{}`).
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

// downstreamVectors are published: a key sent to a provider once must be derived again at any later time.
type downstreamVectors struct {
	Keys []struct {
		Secret, Namespace, Scope, Key, Step string

		SecretID      uint32 `json:"secret_id"`
		KeyHash       string `json:"key_hash"`
		DownstreamKey string `json:"downstream_key"`
	}
	Following []struct {
		Secret, Namespace, After, Step string

		DownstreamKey string `json:"downstream_key"`
	}
}

func readVectors(t *testing.T) (v downstreamVectors) {
	t.Helper()
	text, err := os.ReadFile("testdata/downstream-keys.json")
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil || len(v.Keys) == 0 || len(v.Following) == 0 {
		t.Fatalf("%d and %d vectors, %v", len(v.Keys), len(v.Following), err)
	}
	return v
}

// derive returns the key of a record that was made with a secret.
func derive(t testing.TB, g *onceward.Guard, id store.ID, secret uint32, step string) string {
	t.Helper()
	key, err := g.DownstreamKey(&store.Record{ID: id, Version: store.RecordVersion, DownstreamSecret: secret}, step)
	if err != nil {
		t.Error(err)
	}
	return key
}

// TestDownstreamKeyVectors is B6: the derivation never changes, whether the secret is one of its own or derived from
// the other.
func TestDownstreamKeyVectors(t *testing.T) {
	t.Parallel()
	vectors := readVectors(t)
	configs := func(secret, namespace string) []func(*onceward.Config) {
		return []func(*onceward.Config){
			func(c *onceward.Config) { c.Secret, c.Namespace = []byte(secret), namespace },
			func(c *onceward.Config) { c.DownstreamSecret, c.Namespace = []byte(secret), namespace },
			func(c *onceward.Config) { c.OldDownstreamSecrets, c.Namespace = [][]byte{[]byte(secret)}, namespace },
			func(c *onceward.Config) { c.OldSecrets, c.Namespace = [][]byte{[]byte(secret)}, namespace },
		}
	}
	for i, v := range vectors.Keys {
		for j, config := range configs(v.Secret, v.Namespace) {
			got := derive(t, newGuard(t, memory.New(), config), store.ID{Scope: v.Scope, Key: v.Key}, v.SecretID,
				v.Step)
			if got != v.DownstreamKey {
				t.Errorf("B6: vector %d, configuration %d: %q, want %q: a retry would charge twice", i, j, got,
					v.DownstreamKey)
			}
			wantOpened(t, newGuard(t, memory.New(), config), v.DownstreamKey, v.SecretID, v.KeyHash, v.Step)
		}
	}
	for i, v := range vectors.Following {
		for j, config := range configs(v.Secret, v.Namespace)[:2] {
			if got := newGuard(t, memory.New(), config).FollowingKey(v.After, v.Step); got != v.DownstreamKey {
				t.Errorf("B6: following vector %d, configuration %d: %q, want %q", i, j, got, v.DownstreamKey)
			}
		}
	}
}

// wantOpened checks that the secret of a downstream key is enough to read which operation it belongs to.
func wantOpened(t testing.TB, g *onceward.Guard, key string, secret uint32, hash, step string) {
	t.Helper()
	opened := g.OpenDownstreamKey(key)
	i := slices.IndexFunc(opened, func(k onceward.OpenedKey) bool { return k.Secret == secret })
	if i < 0 || opened[i].Hash != hash || !opened[i].IsOf(step) || opened[i].IsOf(step+"x") {
		t.Errorf("B6: the key %q of %s is opened as %+v", key, hash, opened)
	}
}

// TestDownstreamKeysAreOpened: only a holder of the secret can read from a key which operation it belongs to.
func TestDownstreamKeysAreOpened(t *testing.T) {
	t.Parallel()
	s := memory.New()
	g := newGuard(t, s)
	keys, secret := keysOf(t, s, g, "k", "charge", "refund")
	for i, step := range []string{"charge", "refund"} {
		wantOpened(t, g, keys[i], secret, aliceID("k").Hash(), step)
	}
	if opened := g.OpenDownstreamKey(keys[0]); opened[0].IsOf("refund") {
		t.Error("B6: the key of a charge is that of a refund")
	}
	rotated := newGuard(t, s, func(c *onceward.Config) { c.OldSecrets = [][]byte{c.Secret}; c.Secret = newSecret })
	wantOpened(t, rotated, keys[0], secret, aliceID("k").Hash(), "charge")
	for name, other := range map[string]*onceward.Guard{
		"another secret":    newGuard(t, s, withSecrets(newSecret)),
		"another namespace": newGuard(t, s, func(c *onceward.Config) { c.Namespace = "refunds" }),
	} {
		for _, k := range other.OpenDownstreamKey(keys[0]) {
			if k.Hash == aliceID("k").Hash() || k.Secret == secret || k.IsOf("charge") {
				t.Errorf("B6: %s opens the key as %+v", name, k)
			}
		}
	}
	for _, text := range []string{"", "k", aliceID("k").Hash(), keys[0][:43], keys[0] + "a", strings.ToUpper(keys[0])} {
		if opened := g.OpenDownstreamKey(text); len(opened) > 0 {
			t.Errorf("B6: %q is opened as %+v", text, opened)
		}
	}
}

// keysOf are the downstream keys and the secret that operations have on a guard.
func keysOf(t testing.TB, store store.Store, g *onceward.Guard, key string, steps ...string) (keys []string,
	secret uint32,
) {
	t.Helper()
	h := g.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, step := range steps {
			keys = append(keys, onceward.FromContext(r.Context()).DownstreamKey(step))
		}
	}, reserved)
	post(h, key, `{}`)
	return keys, recordOf(t, store, key).DownstreamSecret
}

// TestDownstreamKeys is E3: each step of each operation has its own, and those in the handler and those from its record
// are one.
func TestDownstreamKeys(t *testing.T) {
	t.Parallel()
	s := memory.New()
	g := newGuard(t, s)
	keys, secret := keysOf(t, s, g, "k", "charge", "refund", "")
	if !regexp.MustCompile(`^[a-z2-7]{44}$`).MatchString(keys[0]) {
		t.Errorf("E3: the downstream key is %q", keys[0])
	}
	rec := recordOf(t, s, "k")
	if again, err := g.DownstreamKey(&rec, "charge"); err != nil || again != keys[0] || rec.DownstreamSecret == 0 {
		t.Errorf("E3: the record has the key %q by secret %d, %v, want %q", again, rec.DownstreamSecret, err, keys[0])
	}
	seen := map[string]string{keys[0]: "the same", keys[1]: "another step", keys[2]: "no step"}
	for name, key := range map[string]string{
		"another key":   derive(t, g, aliceID("l"), secret, "charge"),
		"another scope": derive(t, g, store.ID{Scope: "bob", Key: "k"}, secret, "charge"),
		"moved border":  derive(t, g, store.ID{Scope: "alicek", Key: ""}, secret, "charge"),
		"moved border2": derive(t, g, store.ID{Scope: "alice", Key: "kcharge"}, secret, ""),
		"what follows":  g.FollowingKey(keys[0], "charge"),
	} {
		if other, dup := seen[key]; dup {
			t.Errorf("E3: %s and %s have the same downstream key", name, other)
		}
		seen[key] = name
	}
}

// TestDownstreamKeysOfOthers is B6: who knows scope, key and step, but not the secret, computes another key; and so
// does another service, with a namespace of its own, that shares the secret, the scopes and the keys.
func TestDownstreamKeysOfOthers(t *testing.T) {
	t.Parallel()
	keyOf := func(configure ...func(*onceward.Config)) string {
		store := memory.New()
		keys, _ := keysOf(t, store, newGuard(t, store, configure...), "k", "charge")
		return keys[0]
	}
	own := keyOf()
	for name, other := range map[string]string{
		"another secret":            keyOf(withSecrets(newSecret)),
		"another downstream secret": keyOf(func(c *onceward.Config) { c.DownstreamSecret = newSecret }),
		"another namespace":         keyOf(func(c *onceward.Config) { c.Namespace = "refunds" }),
	} {
		if other == own {
			t.Errorf("B6: with %s the downstream key is the same", name)
		}
	}
}

// TestDownstreamKeysOverARotation: an operation keeps the keys of its first attempt, whichever node makes the next one,
// and new operations use the new secret. To set a secret of their own is a rotation too.
func TestDownstreamKeysOverARotation(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(*onceward.Config){
		"of the secret":            withSecrets(newSecret, oldSecret),
		"to one of their own":      func(c *onceward.Config) { c.Secret, c.DownstreamSecret = oldSecret, newSecret },
		"to both":                  func(c *onceward.Config) { withSecrets(newSecret, oldSecret)(c); c.DownstreamSecret = testSecret },
		"back from one of its own": func(c *onceward.Config) { withSecrets(oldSecret)(c); c.OldDownstreamSecrets = [][]byte{newSecret} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := withSecrets(oldSecret)
			if strings.HasPrefix(name, "back") {
				before = func(c *onceward.Config) { withSecrets(oldSecret)(c); c.DownstreamSecret = newSecret }
			}
			var derived []string
			handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
				derived = append(derived, onceward.FromContext(r.Context()).DownstreamKey("charge"))
				w.WriteHeader(http.StatusServiceUnavailable)
			}}
			store := memory.New()
			rotated := newGuard(t, store, after)
			for _, g := range []*onceward.Guard{newGuard(t, store, before), newGuard(t, store, before), rotated, rotated} {
				post(g.Handler(handler, onceward.Reserved(onceward.FailureRetry)), "k", `{}`)
			}
			for i, key := range derived {
				if key != derived[0] {
					t.Errorf("E3: attempt %d derives %q, the first one %q", i+1, key, derived[0])
				}
			}
			handler.wantRuns(t, "E3", 4)
			old := recordOf(t, store, "k").DownstreamSecret
			if _, secret := keysOf(t, store, rotated, "new"); secret == old {
				t.Error("B6: a new record was made with the old secret")
			}
		})
	}
}

// TestADownstreamSecretThatIsLost: there is no substitute for a key. Nothing is executed, the record is not changed,
// and the message contains the remedy. A stored answer is replayed anyway.
func TestADownstreamSecretThatIsLost(t *testing.T) {
	t.Parallel()
	before := func(c *onceward.Config) { c.DownstreamSecret = oldSecret }
	for name, lost := range map[string]func(*onceward.Config){
		"a secret":      func(c *onceward.Config) { c.DownstreamSecret = newSecret },
		"the namespace": func(c *onceward.Config) { c.DownstreamSecret, c.Namespace = oldSecret, "renamed" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, handler := memory.New(), new(counted)
			var log strings.Builder
			silently := lost
			lost := func(c *onceward.Config) {
				silently(c)
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			}
			route := func(config func(*onceward.Config), next http.Handler) http.Handler {
				return newGuard(t, s, config).Handler(next, onceward.Reserved(onceward.FailureRetry))
			}
			unavailable := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			post(route(before, unavailable), "k", `{}`)
			for range 2 {
				post(route(lost, handler), "k", `{}`).
					wantProblem(t, "B6", http.StatusInternalServerError, "record-unreadable")
			}
			handler.wantRuns(t, "B6", 0)
			if !strings.Contains(log.String(), "OldDownstreamSecrets") {
				t.Errorf("B6: the operator is told %q", &log)
			}
			rec := recordOf(t, s, "k")
			if rec.State != store.StateRetryable || !strings.Contains(rec.LastError, "OldDownstreamSecrets") {
				t.Errorf("B6: the record is %s, %q", rec.State, rec.LastError)
			}
			if _, err := newGuard(t, s, lost).DownstreamKey(&rec, "charge"); !errors.Is(err, store.ErrUnreadable) {
				t.Errorf("B6: a key that cannot be known: %v", err)
			}
			post(route(before, handler), "k", `{}`).want(t, "B6: the secret is back", http.StatusCreated, false)
			post(route(lost, handler), "k", `{}`).want(t, "B6: a replay needs no key", http.StatusCreated, true)
		})
	}
}

// TestLostDownstreamSecretOfAPhasedOperation: it is left to a node that has the secret, with its recovery point and, by
// a resumer, without so much as a lease.
func TestLostDownstreamSecretOfAPhasedOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		own := newGuard(t, s, func(c *onceward.Config) { c.DownstreamSecret = oldSecret })
		lost := newGuard(t, s, func(c *onceward.Config) { c.DownstreamSecret = newSecret })
		call := onceward.Call{Scope: "alice", Key: "k", Operation: "charge"}
		var keys []string
		_, err := own.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
			op := onceward.FromContext(ctx)
			keys = append(keys, op.DownstreamKey("charge"))
			op.Suspend(0)
			return nil, op.Checkpoint(store.Checkpoint{Point: "calling"})
		}, resumable()...)
		if !errors.Is(err, onceward.ErrInProgress) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		before := recordOf(t, s, "k")
		never := func(context.Context) ([]byte, error) { return nil, errors.New("it was executed") }
		_, err = lost.Resume(t.Context(), &before, never, resumable()...)
		wantUnreadable(t, "a resumer", err)
		wantUnreadable(t, "a resumer of HTTP", lost.ResumeHandler(t.Context(), &before, new(counted), resumable()...))
		if rec := recordOf(t, s, "k"); rec.Attempt != before.Attempt {
			t.Errorf("B6: the resumer took attempt %d", rec.Attempt)
		}
		_, err = lost.Do(t.Context(), call, never, resumable()...)
		wantUnreadable(t, "a retry", err)
		if rec := recordOf(t, s, "k"); rec.State != store.StateInProgress || rec.Point != "calling" {
			t.Errorf("B6: the record is %s at %q", rec.State, rec.Point)
		}
		time.Sleep(time.Millisecond) // a caller who retries repeatedly must not keep it from nodes that can continue
		_, err = own.Resume(t.Context(), &before, func(ctx context.Context) ([]byte, error) {
			keys = append(keys, onceward.FromContext(ctx).DownstreamKey("charge"))
			return nil, nil
		}, resumable()...)
		if err != nil || len(keys) != 2 || keys[0] != keys[1] {
			t.Errorf("B6: the attempts had the keys %q, %v", keys, err)
		}
	})
}

func wantUnreadable(t testing.TB, who string, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrUnreadable) || !strings.Contains(err.Error(), "OldDownstreamSecrets") {
		t.Errorf("B6: %s without the secret came to %v", who, err)
	}
}

func TestDownstreamSecretsThatAreRefused(t *testing.T) {
	t.Parallel()
	short := []byte("fifteen bytes..")
	for name, config := range map[string]onceward.Config{
		"short":            {Secret: newSecret, DownstreamSecret: short},
		"short and old":    {Secret: newSecret, OldDownstreamSecrets: [][]byte{short}},
		"twice":            {Secret: newSecret, DownstreamSecret: oldSecret, OldDownstreamSecrets: [][]byte{oldSecret}},
		"the other":        {Secret: newSecret, DownstreamSecret: newSecret},
		"the other's past": {Secret: newSecret, OldSecrets: [][]byte{oldSecret}, DownstreamSecret: oldSecret},
	} {
		if _, err := onceward.New(memory.New(), config); err == nil {
			t.Errorf("B6: downstream secret %s: New accepted it", name)
		}
	}
}

// forgetful is a store that does not keep its data.
type forgetful struct{ *memory.Store }

func (f forgetful) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	without := *r
	without.DownstreamSecret = 0
	return f.Store.Reserve(ctx, &without)
}

// TestAStoreThatForgetsTheSecret: without it no retry could have the same keys, so there is no first attempt either.
func TestAStoreThatForgetsTheSecret(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	h := newGuard(t, forgetful{s}).Handler(handler, reserved)
	post(h, "k", `{}`).wantProblem(t, "B6", http.StatusInternalServerError, "record-unreadable")
	handler.wantRuns(t, "B6", 0)
	wantState(t, "B6", s, "k", store.StateRetryable)
}
