package stores_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// openRedis opens a store on a server of the test's own.
func openRedis(t *testing.T) (*redis.Store, *servers.RedisServer) {
	t.Helper()
	server := servers.NewRedis(t)
	s, err := redis.Open(t.Context(), server.URL(), redis.WithLogger(quiet))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, server
}

// TestFlippedBitsOnRedis: a bit that is flipped on the server, in any byte of a sealed value, is an error, and nothing
// is executed for it. What the test flips are the bytes that the server holds, wherever the store keeps them.
func TestFlippedBitsOnRedis(t *testing.T) {
	t.Parallel()
	inside, server := openRedis(t)
	s := seal(t, inside, ring(1))
	evidence(t, s, &notes{}, "secret")
	id := store.ID{Scope: "acme", Key: "phased"}
	rec, err := inside.Get(t.Context(), id)
	must(t, err)
	late, err := inside.LateCompletions(t.Context(), id)
	must(t, err)
	filter := store.ExternalEventFilter{Source: "provider", Scope: "acme", Subjects: []string{"ch_1"}}
	events, err := inside.ExternalEvents(t.Context(), filter)
	must(t, err)
	if len(late) != 1 || len(events) != 1 {
		t.Fatalf("there are %d late completions and %d events", len(late), len(events))
	}
	record := func() error {
		v, err := s.Reserve(t.Context(), &store.Reservation{
			ID: id, Fingerprints: []store.Fingerprint{rec.Fingerprint}, Nonce: store.Nonce{2},
			Lease: rec.Retention, Retention: rec.Retention,
		})
		if v.Decision == store.DecisionExecute {
			t.Error("it is executed")
		}
		return err
	}
	lateness := func() error {
		all, err := s.LateCompletions(t.Context(), id)
		if err == nil && len(all) == 1 && all[0].Response.NotStored && all[0].Response.Body == nil {
			return store.ErrUnreadable // that is how it is shown
		}
		return err
	}
	event := func() error {
		_, err := s.ExternalEvents(t.Context(), filter)
		return err
	}
	for name, part := range map[string]struct {
		value string
		read  func() error
	}{
		"the header of the answer": {rec.Response.Header[0].Value, record},
		"the body of the answer":   {string(rec.Response.Body), record},
		"the recovery data":        {string(rec.Data), func() error { _, err := s.Get(t.Context(), id); return err }},
		"the header of a late one": {late[0].Response.Header[0].Value, lateness},
		"the body of a late one":   {string(late[0].Response.Body), lateness},
		"the body of a webhook":    {string(events[0].Body), event},
	} {
		if !store.IsSealed(part.value) {
			t.Fatalf("%s is not sealed: %q", name, part.value)
		}
		must(t, part.read())
		place := find(t, server, part.value)
		for i := range len(part.value) {
			place.flip(t, i)
			if err := part.read(); !errors.Is(err, store.ErrUnreadable) {
				t.Errorf("byte %d of %d of %s is flipped, and read: %v", i, len(part.value), name, err)
			}
			place.flip(t, i)
		}
		must(t, part.read())
	}
}

// stored is where a server holds a value: at an offset of a string, or of the first item of a list.
type stored struct {
	server *servers.RedisServer
	key    string
	list   bool
	text   []byte
	offset int
}

// find looks through all that a server holds.
func find(t *testing.T, server *servers.RedisServer, value string) *stored {
	t.Helper()
	do := func(command ...string) any {
		t.Helper()
		reply, err := server.Do(t.Context(), command...)
		must(t, err)
		return reply
	}
	for _, key := range do("KEYS", "*").([]any) {
		at := &stored{server: server, key: key.(string)}
		var text any
		switch kind := do("TYPE", at.key); kind {
		case "string":
			text = do("GET", at.key)
		case "list":
			at.list, text = true, do("LINDEX", at.key, "0")
		default:
			continue // indexes hold names
		}
		at.text = []byte(text.(string))
		if at.offset = strings.Index(string(at.text), value); at.offset >= 0 {
			return at
		}
	}
	t.Fatalf("the server does not hold %q", value)
	return nil
}

// flip flips a bit of a byte of the value; a second time it is as before.
func (s *stored) flip(t *testing.T, i int) {
	t.Helper()
	at := s.offset + i
	s.text[at] ^= 1 << (i % 8)
	command := []string{"SETRANGE", s.key, fmt.Sprint(at), string(s.text[at : at+1])}
	if s.list {
		command = []string{"LSET", s.key, "0", string(s.text)}
	}
	_, err := s.server.Do(t.Context(), command...)
	must(t, err)
}
