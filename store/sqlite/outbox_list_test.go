package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// oneOfEach adds messages and brings each into another state, the one that its type names.
func oneOfEach(t *testing.T, store *sqlite.Store) map[outbox.State]string {
	t.Helper()
	ids := make(map[outbox.State]string)
	for _, state := range []outbox.State{outbox.StateDone, outbox.StateDead, outbox.StateHolding, outbox.StateLeased} {
		ids[state] = add(t, store, about("of "+state.String()))[0]
		claimed := wantClaimed(t, store, 1, state.String(), ids[state])
		if state != outbox.StateLeased {
			finish(t, store, to(state, claimed[0]))
		}
	}
	ids[outbox.StateBehind] = add(t, store, about("of leased"))[0]
	wantClaimed(t, store, 1, "behind")
	captured := about("a")
	captured.Topic = ""
	ids[outbox.StateCaptured] = add(t, store, captured)[0]
	ids[outbox.StateReady] = add(t, store, about("ready"))[0]
	return ids
}

// TestStates: lists by state and topic, counts, purges and acts on dead letters each concern the states that they are
// for.
func TestStates(t *testing.T) {
	t.Parallel()
	var clock testClock
	s := openStore(t, newFile(t), sqlite.WithClock(clock.now))
	if stats, err := s.MessageStats(t.Context()); err != nil || stats != (outbox.Stats{}) {
		t.Errorf("without messages the counts are %+v (%v)", stats, err)
	}
	began := clock.now()
	ids := oneOfEach(t, s)
	clock.advance(time.Second)
	for state, id := range ids {
		wantStates(t, s, "O2", []string{id}, state)
		wantListed(t, s, outbox.Filter{States: []outbox.State{state}}, id)
		wantListed(t, s, outbox.Filter{ID: id, States: []outbox.State{state}}, id)
	}
	wantListed(t, s, outbox.Filter{States: []outbox.State{outbox.StateDead, outbox.StateHolding}}, ids[outbox.StateDead], ids[outbox.StateHolding])
	wantListed(t, s, outbox.Filter{States: []outbox.State{outbox.StateReady, outbox.StateDead, outbox.StateDone}}, ids[outbox.StateDone], ids[outbox.StateDead], ids[outbox.StateReady])
	wantListed(t, s, outbox.Filter{Topic: "other"})
	stats, err := s.MessageStats(t.Context())
	if want := (outbox.Stats{Waiting: 3, DeadLetters: 2, Oldest: began}); err != nil || stats != want {
		t.Errorf("M1: the counts are %+v (%v), want %+v", stats, err, want)
	}

	for state, id := range ids {
		if state == outbox.StateDead || state == outbox.StateHolding {
			continue
		}
		for _, err := range []error{s.ReplayMessage(t.Context(), id, nil), s.DropMessage(t.Context(), id)} {
			if !errors.Is(err, store.ErrNotFound) {
				t.Errorf("O3: an act on a message that is %s got %v", state, err)
			}
		}
	}
	for range 2 {
		if err := s.DropMessage(t.Context(), ids[outbox.StateDead]); err != nil {
			t.Error(err)
		}
		wantStates(t, s, "O3: other dead letters are left alone", []string{ids[outbox.StateDead]}, outbox.StateDead)
	}

	for _, purge := range []struct {
		age         time.Duration
		limit, want int
	}{{time.Hour, 10, 0}, {time.Second, 10, 0}, {0, 0, 0}, {0, 1, 1}, {0, 10, 1}, {0, 10, 0}} {
		if n, err := s.PurgeMessages(t.Context(), purge.age, purge.limit); err != nil || n != purge.want {
			t.Errorf("purge of %s and %d removed %d (%v), want %d", purge.age, purge.limit, n, err, purge.want)
		}
	}
	wantListed(t, s, outbox.Filter{States: []outbox.State{outbox.StateDone, outbox.StateCaptured}})
	if all, err := s.Messages(t.Context(), outbox.Filter{}); err != nil || len(all) != 5 {
		t.Errorf("a purge left %d messages (%v), want all that are not done", len(all), err)
	}
}

func wantListed(t *testing.T, store *sqlite.Store, f outbox.Filter, want ...string) {
	t.Helper()
	found, err := store.Messages(t.Context(), f)
	var got []string
	for _, e := range found {
		got = append(got, e.ID)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v found %v (%v), want %v", f, got, err, want)
	}
}

// TestPages: each message is on one page, in the order of commits.
func TestPages(t *testing.T) {
	t.Parallel()
	s := openStore(t, newFile(t))
	var messages []outbox.Message
	for i := range 205 {
		messages = append(messages, about(fmt.Sprint(i%3)))
	}
	ids := add(t, s, messages...)
	wantListed(t, s, outbox.Filter{}, ids[:100]...)
	for _, limit := range []int{1, 50, 205, 1000} {
		var got []string
		f := outbox.Filter{Limit: limit, States: []outbox.State{outbox.StateReady}}
		for {
			page, err := s.Messages(t.Context(), f)
			if err != nil || len(page) > limit {
				t.Fatalf("a page of at most %d has %d (%v)", limit, len(page), err)
			}
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				got = append(got, e.ID)
			}
			f.After = got[len(got)-1]
		}
		if !slices.Equal(got, ids) {
			t.Errorf("pages of %d have %d messages, want %d in their order", limit, len(got), len(ids))
		}
	}
	if _, err := s.Messages(t.Context(), outbox.Filter{After: "gone"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a page behind a message that is gone got %v, want an error: it would look like the end", err)
	}
}

// TestMessageContent: what is odd but allowed comes out as it went in, and change-data-capture finds its columns.
func TestMessageContent(t *testing.T) {
	t.Parallel()
	s := openStore(t, newFile(t))
	odd := "' \" \\ ; -- ?1 é 東京"
	m := outbox.Message{
		Topic: topic, AggregateType: odd, AggregateID: odd, Type: odd, Payload: []byte{0, 0xff, '\''}, ContentType: odd, Source: odd,
		Subject: odd, Headers: map[string]string{"a": odd, "b": "", "c": "<&>"}, Step: odd,
	}
	id := add(t, s, m, outbox.Message{Topic: topic, Type: "bare"})[0]
	claimed := claim(t, s, 2)
	if got := claimed[0].Message; fmt.Sprintf("%q", got) != fmt.Sprintf("%q", m) {
		t.Errorf("O3: got %q, want %q", got, m)
	}
	if bare := claimed[1]; bare.Payload != nil || bare.Headers != nil || bare.Origin != (store.ID{}) {
		t.Errorf("O3: got %+v, want nothing in what was not given", bare)
	}
	var kind, aggregate, name string
	var payload []byte
	row := s.DB().QueryRow(`SELECT aggregatetype, aggregateid, type, payload FROM onceward_outbox WHERE id = ?`, id)
	if err := row.Scan(&kind, &aggregate, &name, &payload); err != nil || kind != odd || aggregate != odd || name != odd || string(payload) != string(m.Payload) {
		t.Errorf("O4: change-data-capture reads (%q, %q, %q, %q, %v)", kind, aggregate, name, payload, err)
	}
}

// TestUnreadableMessage: one that cannot be read becomes a dead letter that says why, and holds up none but its
// aggregate.
func TestUnreadableMessage(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{2, 10} { // the claim comes to those that can be read at once, or later
		path := newFile(t)
		store := openStore(t, path)
		ids := add(t, store, about(""), about("a"), about("a"), about("b"), about(""))
		raw := openRaw(t, path)
		if err := raw.Exec(`UPDATE onceward_outbox SET headers = '{' WHERE number = 1; UPDATE onceward_outbox SET origin = x'ff' WHERE number = 2`); err != nil {
			t.Fatal(err)
		}
		wantClaimed(t, store, limit, "S8: what can be read", ids[3], ids[4])
		wantStates(t, store, "S8", ids, outbox.StateDead, outbox.StateHolding, outbox.StateBehind, outbox.StateLeased, outbox.StateLeased)
		for _, id := range ids[:2] {
			if e := entry(t, store, id); e.LastError == "" {
				t.Errorf("S8: a dead letter without a reason: %+v", e)
			}
		}
		if err := store.DropMessage(t.Context(), ids[1]); err != nil {
			t.Fatal(err)
		}
		wantClaimed(t, store, 10, "S8: behind what was dropped", ids[2])
	}
}

// TestSameID: an ID is given out once.
func TestSameID(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	err := store.Update(t.Context(), func(tx *sql.Tx) error {
		for range 2 {
			if err := store.AddMessage(t.Context(), tx, &outbox.Entry{ID: "same", Message: about("a")}); err != nil {
				return err
			}
		}
		return nil
	})
	wantUnavailable(t, err, "UNIQUE constraint failed", "O3")
	wantListed(t, store, outbox.Filter{})
}
