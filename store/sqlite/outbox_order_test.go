package sqlite_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// TestOrder: messages of an aggregate are delivered in their order, and hold up no others.
func TestOrder(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	ids := add(t, store, about("a"), about("b"), about("a"), about(""), about("a"))
	first := wantClaimed(t, store, 1, "the oldest", ids[0])
	others := wantClaimed(t, store, 10, "O2: others overtake", ids[1], ids[3])
	wantStates(t, store, "O2: who has to wait is out of the way", ids, outbox.StateLeased, outbox.StateLeased, outbox.StateBehind, outbox.StateLeased, outbox.StateBehind)
	done(t, store, others...)
	wantClaimed(t, store, 10, "O2: while the first is leased")
	done(t, store, first...)
	wantStates(t, store, "O2: what is behind nothing is ready", ids, outbox.StateDone, outbox.StateDone, outbox.StateReady, outbox.StateDone, outbox.StateReady)
	both := wantClaimed(t, store, 10, "O2: one claim takes both", ids[2], ids[4])
	if both[0].Attempts != 1 || both[1].Attempts != 0 || both[0].Token != both[1].Token {
		t.Errorf("O3: of one aggregate the first is begun under the one token, got %+v", both)
	}
}

// TestOrderOfRetries: what was put back stays in front, also where those behind it are due earlier.
func TestOrderOfRetries(t *testing.T) {
	t.Parallel()
	var clock testClock
	store := openStore(t, newFile(t), sqlite.WithClock(clock.now))
	ids := add(t, store, about("a"), about("a"), about("a"))
	clock.advance(time.Second)
	run := wantClaimed(t, store, 3, "O2", ids...)
	retry := to(outbox.StateReady, run[0])
	retry.After, retry.Error = time.Minute, "receiver is down"
	finish(t, store, retry, to(outbox.StateBehind, run[1]), to(outbox.StateBehind, run[2]))
	late := add(t, store, about("a"))
	ids = append(ids, late...)
	wantClaimed(t, store, 10, "O3: not before its time")
	wantStates(t, store, "O2", ids, outbox.StateReady, outbox.StateBehind, outbox.StateBehind, outbox.StateBehind)
	clock.advance(time.Minute)
	again := wantClaimed(t, store, 10, "O3: the next try", ids[0])
	if e := again[0]; e.Attempts != 2 || e.LastError != "receiver is down" {
		t.Errorf("O3: the next try is %d after %q", e.Attempts, e.LastError)
	}
	done(t, store, again...)
	wantClaimed(t, store, 10, "O2: the others follow", ids[1:]...)
}

// TestDelayInFront: a message with a delay holds up those that were added after it, and not those before it.
func TestDelayInFront(t *testing.T) {
	t.Parallel()
	var clock testClock
	store := openStore(t, newFile(t), sqlite.WithClock(clock.now))
	delayed := about("a")
	delayed.Delay = time.Hour
	ids := add(t, store, about("a"), about("a"), delayed, about("a"))
	head := wantClaimed(t, store, 1, "O2", ids[0])
	wantClaimed(t, store, 10, "O2")
	wantStates(t, store, "O2", ids, outbox.StateLeased, outbox.StateBehind, outbox.StateReady, outbox.StateBehind)
	done(t, store, head...)
	wantStates(t, store, "O2: only what is behind nothing is freed", ids, outbox.StateDone, outbox.StateReady, outbox.StateReady, outbox.StateBehind)
	done(t, store, wantClaimed(t, store, 10, "O2: what comes before the one with a delay", ids[1])...)
	wantClaimed(t, store, 10, "O2: behind the one with a delay")
	clock.advance(time.Hour)
	done(t, store, wantClaimed(t, store, 10, "O2: when the delay is over", ids[2])...)
	wantClaimed(t, store, 10, "O2: behind it", ids[3])
}

// TestDueOutOfOrder: within one claim the order is that of commits, also where that of due times is another.
func TestDueOutOfOrder(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{10, 1} {
		var clock testClock
		store := openStore(t, newFile(t), sqlite.WithClock(clock.now))
		delayed := about("a")
		delayed.Delay = time.Second
		ids := add(t, store, delayed, about("a"))
		clock.advance(time.Minute)
		var got []string
		for len(got) < len(ids) {
			claimed := claim(t, store, limit)
			if len(claimed) == 0 {
				t.Fatalf("O2: with a limit of %d only %d messages came", limit, len(got))
			}
			got = append(got, idsOf(claimed)...)
			done(t, store, claimed...)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("O2: with a limit of %d got %v, want %v", limit, got, ids)
		}
	}
}

// TestHolding: a dead letter holds up its aggregate until it is replayed or dropped.
func TestHolding(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	for name, free := range map[string]func(id string) error{
		"replay": func(id string) error { return store.ReplayMessage(t.Context(), id, nil) },
		"drop":   func(id string) error { return store.DropMessage(t.Context(), id) },
	} {
		ids := add(t, store, about(name), about(name))
		run := wantClaimed(t, store, 10, name, ids...)
		finish(t, store, to(outbox.StateHolding, run[0]), to(outbox.StateBehind, run[1]))
		wantClaimed(t, store, 10, "O3: a dead letter holds up its aggregate")
		if freed, err := store.FreeMessages(t.Context()); err != nil || freed != 0 {
			t.Errorf("O3: %d messages behind a dead letter were freed (%v)", freed, err)
		}
		if err := free(ids[0]); err != nil {
			t.Fatal(err)
		}
		if name == "drop" {
			wantStates(t, store, "O3", ids, outbox.StateDead, outbox.StateReady)
			done(t, store, wantClaimed(t, store, 10, "O3: behind what was dropped", ids[1])...)
			continue
		}
		replayed := wantClaimed(t, store, 10, "O3: what was replayed is first", ids[0])
		if replayed[0].Attempts != 1 {
			t.Errorf("O3: a replayed message has %d tries, want all before it", replayed[0].Attempts)
		}
		done(t, store, replayed...)
		done(t, store, wantClaimed(t, store, 10, "O3: and then the next", ids[1])...)
	}
}

// TestParts: aggregates whose names are the same when joined do not wait for each other, nor do topics.
func TestParts(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	names := []struct{ kind, id string }{{"a", "bc"}, {"ab", "c"}, {"", "abc"}, {"1:a", "bc"}, {"a1:", "bc"}}
	var ids []string
	for _, name := range names {
		m := about(name.id)
		m.AggregateType = name.kind
		ids = append(ids, add(t, store, m)...)
		claimed := wantClaimed(t, store, 1, fmt.Sprintf("O2: %q %q waits for nobody", name.kind, name.id), ids[len(ids)-1])
		finish(t, store, to(outbox.StateHolding, claimed[0]))
	}
	other := about("bc")
	other.Topic, other.AggregateType = "other", "a"
	want := add(t, store, other)
	claimed, err := store.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: topic, Limit: 5}, {Topic: "other", Limit: 5}, {Topic: "other", Limit: -1}}, time.Minute)
	if err != nil || !slices.Equal(idsOf(claimed), want) {
		t.Errorf("O2: another topic got %v (%v), want %v", idsOf(claimed), err, want)
	}
}

// TestBehindWithoutAggregate: a message that waits for no other does not wait for ever, whatever the worker says.
func TestBehindWithoutAggregate(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	ids := add(t, store, about(""))
	finish(t, store, to(outbox.StateBehind, wantClaimed(t, store, 1, "O2", ids...)[0]))
	wantClaimed(t, store, 1, "O2", ids...)
}
