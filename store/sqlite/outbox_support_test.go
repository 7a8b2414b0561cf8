package sqlite_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// topic is that of most messages of the tests.
const topic = "charges"

// about is a message about an aggregate; without one it waits for no other.
func about(aggregate string) outbox.Message {
	return outbox.Message{Topic: topic, AggregateType: "payment", AggregateID: aggregate, Type: "payment.created", Payload: []byte(`{}`)}
}

func newBox(t testing.TB, store *sqlite.Store) *outbox.Outbox {
	t.Helper()
	box, err := outbox.New(store, outbox.Config{Source: "https://shop.example"})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// add commits messages, and returns their IDs.
func add(t testing.TB, store *sqlite.Store, messages ...outbox.Message) (ids []string) {
	t.Helper()
	box := newBox(t, store)
	err := store.Update(t.Context(), func(tx *sql.Tx) error {
		ids = nil
		for _, m := range messages {
			id, err := box.Add(t.Context(), tx, m)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// claim claims at most so many messages of the topic for a minute.
func claim(t testing.TB, store *sqlite.Store, limit int) []outbox.Claimed {
	t.Helper()
	claimed, err := store.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: topic, Limit: limit}}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

// wantClaimed claims, and checks what was claimed, in its order.
func wantClaimed(t testing.TB, store *sqlite.Store, limit int, rule string, want ...string) []outbox.Claimed {
	t.Helper()
	claimed := claim(t, store, limit)
	if got := idsOf(claimed); !slices.Equal(got, want) {
		t.Fatalf("%s: claimed %v, want %v", rule, got, want)
	}
	return claimed
}

func idsOf(claimed []outbox.Claimed) (ids []string) {
	for _, c := range claimed {
		ids = append(ids, c.ID)
	}
	return ids
}

// to ends a lease in a state.
func to(state outbox.State, c outbox.Claimed) outbox.Outcome {
	return outbox.Outcome{Lease: c.Lease(), State: state, Attempts: c.Attempts}
}

// finish ends leases that are held.
func finish(t testing.TB, store *sqlite.Store, endings ...outbox.Outcome) {
	t.Helper()
	if fenced, err := store.FinishMessages(t.Context(), endings); err != nil || len(fenced) > 0 {
		t.Fatalf("finish: %v are fenced (%v)", fenced, err)
	}
}

func done(t testing.TB, store *sqlite.Store, claimed ...outbox.Claimed) {
	t.Helper()
	for _, c := range claimed {
		finish(t, store, to(outbox.StateDone, c))
	}
}

// wantStates checks where messages stand.
func wantStates(t testing.TB, store *sqlite.Store, rule string, ids []string, want ...outbox.State) {
	t.Helper()
	var got []outbox.State
	for _, id := range ids {
		got = append(got, entry(t, store, id).State)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: messages are %v, want %v", rule, got, want)
	}
}

func entry(t testing.TB, store *sqlite.Store, id string) outbox.Entry {
	t.Helper()
	found, err := store.Messages(t.Context(), outbox.Filter{ID: id})
	if err != nil || len(found) != 1 {
		t.Fatalf("message %s: found %d (%v)", id, len(found), err)
	}
	return found[0]
}

// inTx runs work in a transaction that is to be committed.
func inTx(t testing.TB, store *sqlite.Store, work func(ctx context.Context) error) {
	t.Helper()
	if err := store.InTx(t.Context(), work); err != nil {
		t.Fatal(err)
	}
}
