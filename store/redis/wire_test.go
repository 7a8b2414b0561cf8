package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// TestRoundTrips counts what the hot calls cost: one command each.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	other := open(t, g.proxy.URL(), redis.WithPrefix(g.prefix))
	wantOne := func(what string, call func() error) {
		t.Helper()
		before, trips := g.proxy.Commands(), g.proxy.RoundTrips()
		must(t, call())
		if n, trips := g.proxy.Commands()-before, g.proxy.RoundTrips()-trips; n != 1 || trips != 1 {
			t.Errorf("%s took %d commands in %d round trips, want one", what, n, trips)
		}
	}
	decided := func(s store.Store, r *store.Reservation, want store.Decision) func() error {
		return func() error {
			v, err := s.Reserve(t.Context(), r)
			if err == nil && v.Decision != want {
				err = fmt.Errorf("got %s, want %s", v.Decision, want)
			}
			return err
		}
	}
	for round := range 3 {
		key := fmt.Sprint("key ", round)
		first, changed := booking(key), booking(key)
		changed.Fingerprints = []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{2}}}
		wantOne("a reservation", decided(g.through, first, store.DecisionExecute))
		wantOne("its repetition", decided(g.through, first, store.DecisionExecute))
		wantOne("a reservation while it runs", decided(other, booking(key), store.DecisionInProgress))
		c := store.Claim{ID: first.ID, Attempt: look(t, g.around, key).Attempt}
		wantOne("a heartbeat", func() error { return g.through.Extend(t.Context(), c, time.Minute) })
		for range 2 {
			wantOne("a completion, and its repetition", func() error {
				_, err := g.through.Complete(t.Context(), c, paid("done"))
				return err
			})
		}
		wantOne("a replay by the same process", decided(g.through, booking(key), store.DecisionReplay))
		wantOne("a replay by another one", decided(other, booking(key), store.DecisionReplay))
		wantOne("a second replay by another one", decided(other, booking(key), store.DecisionReplay))
		wantOne("a mismatch", decided(other, changed, store.DecisionMismatch))
		wantOne("a release", func() error {
			released := booked(t, g.around, key+" released")
			return g.through.Release(t.Context(), released, "no stock")
		})
		identified := paid("done")
		identified.ProviderID = "ch_" + key
		c = booked(t, g.around, key+" identified")
		for range 2 {
			wantOne("a completion with a provider's id, and its repetition", func() error {
				_, err := g.through.Complete(t.Context(), c, identified)
				return err
			})
		}
		wantOne("a look", func() error { _, err := g.through.Get(t.Context(), first.ID); return err })
	}
}

// keysOf returns the keys that a store has on a server, by what follows the hash tag.
func keysOf(t *testing.T, server *servers.RedisServer, prefix, kind string) (keys []string) {
	t.Helper()
	reply, err := server.Do(t.Context(), "KEYS", prefix+":{???}:"+kind+"*")
	must(t, err)
	for _, key := range reply.([]any) {
		keys = append(keys, key.(string))
	}
	return keys
}

// one returns the only one of its kind, or nothing.
func one(t *testing.T, server *servers.RedisServer, prefix, kind string) string {
	t.Helper()
	keys := keysOf(t, server, prefix, kind)
	if len(keys) > 1 {
		t.Fatalf("there are %d keys of kind %s, want one", len(keys), kind)
	}
	return strings.Join(keys, "")
}

// TestTimeToLive follows a record through its states (S2): only what is settled has a time to live, and it is in the index
// of its state and in no other.
func TestTimeToLive(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	r := booking("key")
	var c store.Claim
	reserve := func() error {
		r.Nonce[0]++
		v, err := s.Reserve(t.Context(), r)
		c = store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
		return err
	}
	complete := func() error { _, err := s.Complete(t.Context(), c, paid("done")); return err }
	abandon := func() error { return s.Abandon(t.Context(), c, "not known") }
	for _, step := range []struct {
		name         string
		do           func() error
		lives, index string
	}{
		{"reserve", reserve, "for ever", "o"},
		{"extend", func() error { return s.Extend(t.Context(), c, time.Hour) }, "for ever", "o"},
		{"checkpoint", func() error { return s.Checkpoint(t.Context(), c, store.Checkpoint{ProviderID: "x"}) }, "for ever", "o"},
		{"release", func() error { return s.Release(t.Context(), c, "no stock") }, "a retention", ""},
		{"retry", reserve, "for ever", "o"},
		{"abandon", abandon, "for ever", "u"},
		{"resolve not executed", func() error { return s.ResolveNotExecuted(t.Context(), c, "never came") }, "a retention", ""},
		{"retry again", reserve, "for ever", "o"},
		{"abandon again", abandon, "for ever", "u"},
		{"complete late", complete, "a retention", ""},
		{"bust", func() error { return s.Bust(t.Context(), r.ID, false) }, "a retention", ""},
		{"reserve anew", reserve, "for ever", "o"},
		{"complete", complete, "a retention", ""},
		{"bust the answer", func() error { return s.Bust(t.Context(), r.ID, true) }, "a retention", ""},
		{"reserve once more", reserve, "for ever", "o"},
		{"reject", func() error { return s.Reject(t.Context(), c) }, "a retention", ""},
	} {
		must(t, step.do())
		rec, err := s.Get(t.Context(), r.ID)
		carries := err == nil && rec.ProviderID != ""
		if provider := one(t, server, prefix, "i:"); carries != (provider != "") {
			t.Errorf("after %s the record carries a provider's id: %t, and the index is %q", step.name, carries, provider)
		}
		for _, kind := range []string{"h:", "i:"} {
			key := one(t, server, prefix, kind)
			if key == "" {
				continue
			}
			reply, err := server.Do(t.Context(), "PTTL", key)
			must(t, err)
			left := time.Duration(reply.(int64)) * time.Millisecond
			if step.lives == "for ever" && reply.(int64) != -1 ||
				step.lives == "a retention" && (left <= r.Retention || left > r.Retention+2*time.Minute) {
				t.Errorf("S2: after %s the record, or its provider's id, lives for %s, want %s", step.name, left, step.lives)
			}
		}
		for _, kind := range []string{"o", "u"} {
			if in := one(t, server, prefix, kind) != ""; in != (kind == step.index) {
				t.Errorf("after %s the record is in the index %s: %t", step.name, kind, in)
			}
		}
	}
}

// TestIndexIsMended removes records by hand, as no store does: their entries are met and removed, and others are not.
func TestIndexIsMended(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	lost := booking("lost")
	lost.Lease = time.Millisecond
	_, err := s.Reserve(t.Context(), lost)
	must(t, err)
	must(t, s.Abandon(t.Context(), booked(t, s, "unknown"), "not known"))
	for _, key := range keysOf(t, server, prefix, "h:") {
		_, err := server.Do(t.Context(), "DEL", key)
		must(t, err)
	}
	for one(t, server, prefix, "o") != "" {
		n, err := s.Sweep(t.Context(), 10)
		if n != 0 || err != nil {
			t.Fatalf("a sweep of what is gone: %d, %v", n, err)
		}
	}
	found, err := s.List(t.Context(), store.Filter{State: store.StateUnknown})
	if len(found) != 0 || err != nil || one(t, server, prefix, "u") != "" {
		t.Errorf("a list of what is gone: %v, %v", found, err)
	}
}

// TestForeignKeys meets keys that hold something else, and records of a newer program: nothing is executed, and neighbours
// in the same batch are served.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	c := booked(t, s, "list")
	key := one(t, server, prefix, "h:")
	_, err := server.Do(t.Context(), "DEL", key)
	must(t, err)
	_, err = server.Do(t.Context(), "RPUSH", key, "something else")
	must(t, err)
	var calls sync.WaitGroup
	for i := range 32 {
		calls.Go(func() {
			if _, err := s.Reserve(t.Context(), booking(fmt.Sprint("neighbour ", i))); err != nil {
				t.Errorf("a neighbour: %v", err)
			}
		})
		calls.Go(func() {
			_, err := s.Reserve(t.Context(), booking("list"))
			if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "prefix") {
				t.Errorf("a reservation of a key that holds a list: %v", err)
			}
			_, err = s.Complete(t.Context(), c, paid("done"))
			wantUnavailable(t, err, "a completion of a key that holds a list")
		})
	}
	calls.Wait()

	booked(t, s, "newer")
	hash := booking("newer").ID.HashBytes()
	for _, key := range keysOf(t, server, prefix, "h:") {
		if strings.HasSuffix(key, string(hash[:])) {
			_, err := server.Do(t.Context(), "SETRANGE", key, "0", "\x03")
			must(t, err)
		}
	}
	if _, err := s.Reserve(t.Context(), booking("newer")); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("a reservation of a record of a newer program: %v, want ErrUnreadable", err)
	}
}

// TestIndexRefusesRecord makes the index a key of another kind: no record is left without its entry.
func TestIndexRefusesRecord(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	booked(t, s, "first")
	index := one(t, server, prefix, "o")
	for _, command := range [][]string{{"DEL", index, one(t, server, prefix, "h:")}, {"SET", index, "something else"}} {
		_, err := server.Do(t.Context(), command...)
		must(t, err)
	}
	var calls sync.WaitGroup
	for i := range 8 { // some of them go together
		calls.Go(func() {
			_, err := s.Reserve(t.Context(), booking(fmt.Sprint("key ", i)))
			wantUnavailable(t, err, "a reservation without an index")
		})
	}
	calls.Wait()
	if left := keysOf(t, server, prefix, "h:"); len(left) > 0 {
		t.Errorf("records without an entry: %q", left)
	}
}

// TestTokensGrow makes a record again in the same microsecond as far as the program can, and after its removal (S7).
func TestTokensGrow(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	last := int64(0)
	for range 50 {
		c := booked(t, s, "key")
		if c.Attempt <= last {
			t.Fatalf("S7: attempt %d was granted after %d", c.Attempt, last)
		}
		last = c.Attempt
		_, err := s.Complete(t.Context(), c, paid("done"))
		must(t, err)
		must(t, s.Bust(t.Context(), c.ID, false))
	}
}
