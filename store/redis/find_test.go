package redis_test

import (
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// TestProvidersIDs: completions that go together, some of them with a provider's id, are found by those alone, for as
// long as their records are kept.
func TestProvidersIDs(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	const n = 64
	claims := make([]store.Claim, n)
	for i := range n {
		claims[i] = booked(t, s, fmt.Sprint("key ", i))
	}
	var calls sync.WaitGroup
	for i, c := range claims {
		calls.Go(func() {
			done := paid(fmt.Sprint("done ", i))
			if i%2 == 0 {
				done.ProviderID = fmt.Sprint("ch_", i)
			}
			expires, err := s.Complete(t.Context(), c, done)
			if rec := look(t, s, c.ID.Key); err != nil || !rec.ExpiresAt.Equal(expires) ||
				string(rec.Response.Body) != fmt.Sprint("done ", i) || rec.ProviderID != done.ProviderID {
				t.Errorf("record %d is %+v: %v", i, rec, err)
			}
		})
	}
	calls.Wait()
	for i, c := range claims {
		found, err := s.FindProviderID(t.Context(), fmt.Sprint("ch_", i))
		must(t, err)
		if i%2 == 0 && (len(found) != 1 || found[0].ID != c.ID) || i%2 != 0 && len(found) != 0 {
			t.Errorf("ch_%d leads to %v", i, found)
		}
	}
	indexes := keysOf(t, server, prefix, "i:")
	if len(indexes) != n/2 {
		t.Errorf("%d indexes of %d ids", len(indexes), n/2)
	}
	for _, key := range indexes {
		left, err := server.Do(t.Context(), "PTTL", key)
		must(t, err)
		longer := time.Duration(left.(int64))*time.Millisecond - booking("").Retention
		if longer <= 0 || longer > 2*time.Minute {
			t.Errorf("an index lasts for %s longer than the retention", longer)
		}
	}
}

// TestProviderIndexRefuses makes the index of a provider's id a key of another kind: no record is without its entry,
// and what goes along with it is done.
func TestProviderIndexRefuses(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	identified := paid("done")
	identified.ProviderID = "ch_1"
	_, err := s.Complete(t.Context(), booked(t, s, "first"), identified)
	must(t, err)
	index := one(t, server, prefix, "i:")
	for _, command := range [][]string{{"DEL", index}, {"SET", index, "something else"}} {
		_, err := server.Do(t.Context(), command...)
		must(t, err)
	}
	refused, plain := booked(t, s, "refused"), booked(t, s, "plain")
	var calls sync.WaitGroup
	for range 8 { // some of them go together
		calls.Go(func() {
			_, err := s.Complete(t.Context(), refused, identified)
			wantUnavailable(t, err, "a completion whose provider's id cannot be noted")
			err = s.Checkpoint(t.Context(), refused, store.Checkpoint{ProviderID: "ch_1"})
			wantUnavailable(t, err, "a checkpoint whose provider's id cannot be noted")
		})
		calls.Go(func() {
			_, err := s.Complete(t.Context(), plain, paid("done"))
			must(t, err)
		})
	}
	calls.Wait()
	if rec := look(t, s, "refused"); rec.State != store.StateInProgress || rec.ProviderID != "" {
		t.Errorf("a record without its entry: %+v", rec)
	}
	if rec := look(t, s, "plain"); rec.State != store.StateCompleted {
		t.Errorf("what went along is %s", rec.State)
	}
}

// TestProviderIndexIsRefusedHalfWay: a server that takes the entry and refuses what follows it, here for a user who may
// not, fails that completion alone. What goes along in the batch is done, and a record that it makes is swept later.
func TestProviderIndexIsRefusedHalfWay(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	_, err := server.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-pexpireat")
	must(t, err)
	u, err := url.Parse(server.URL())
	must(t, err)
	u.User = url.UserPassword("app", "secret")
	s := open(t, u.String())
	identified := paid("done")
	identified.ProviderID = "ch_1"
	refused := booked(t, s, "refused")
	var calls sync.WaitGroup
	for i := range 64 { // some of them go together
		calls.Go(func() {
			_, err := s.Complete(t.Context(), refused, identified)
			wantUnavailable(t, err, "a completion whose provider's id cannot be noted")
		})
		calls.Go(func() {
			if _, err := s.Reserve(t.Context(), booking(fmt.Sprint("along ", i))); err != nil {
				t.Errorf("a reservation that went along: %v", err)
			}
		})
	}
	calls.Wait()
	records := keysOf(t, server, "onceward", "h:")
	open, err := server.Do(t.Context(), "ZCARD", one(t, server, "onceward", "o"))
	must(t, err)
	if open != int64(len(records)) {
		t.Errorf("%d records in progress, and %v in the index", len(records), open)
	}
}
