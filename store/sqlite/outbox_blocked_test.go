package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
)

// insertMany adds messages for one aggregate in a state, as if they had been added one after the other.
func insertMany(t *testing.T, s *Store, aggregate string, n int, state outbox.State) {
	t.Helper()
	lane := laneOf(&outbox.Entry{Message: outbox.Message{Topic: "charges", AggregateType: "payment", AggregateID: aggregate}})
	inWriter(t, s, func(w *writer) error {
		return w.raw.Exec(fmt.Sprintf(`WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < %d)
			INSERT INTO onceward_outbox (id, topic, lane, state, due, created_at, aggregatetype, aggregateid, type, step,
			content_type, source, subject, origin_attempt, downstream_key, headers, payload)
			SELECT '%s-' || i, 'charges', '%s', %d, 1, 1, 'payment', '%[2]s', 't', '', '', '', '', 0, '', '{}', x'' FROM n`,
			n, aggregate, lane, state))
	})
}

func addInside(t *testing.T, s *Store, aggregate string) (id string) {
	t.Helper()
	box, err := outbox.New(s, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = s.InTx(t.Context(), func(ctx context.Context) error {
		id, err = box.Add(ctx, onceward.Tx(ctx), outbox.Message{Topic: "charges", AggregateType: "payment", AggregateID: aggregate, Type: "t"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func claimInside(t *testing.T, s *Store, limit int) []outbox.Claimed {
	t.Helper()
	claimed, err := s.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "charges", Limit: limit}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

func finishInside(t *testing.T, s *Store, claimed []outbox.Claimed, state outbox.State) {
	t.Helper()
	var endings []outbox.Outcome
	for _, c := range claimed {
		endings = append(endings, outbox.Outcome{Lease: c.Lease(), State: state, Attempts: c.Attempts, After: time.Hour})
	}
	if fenced, err := s.FinishMessages(t.Context(), endings); err != nil || len(fenced) > 0 {
		t.Fatalf("%d are fenced (%v)", len(fenced), err)
	}
}

// delivering counts the steps that SQLite takes in the writer to claim and finish a message of another aggregate.
// Unlike its time they are the same on a busy machine.
func delivering(t *testing.T, s *Store) (steps int) {
	t.Helper()
	id := addInside(t, s, "other")
	writerSteps(t, s)
	claimed := claimInside(t, s, 10)
	if len(claimed) != 1 || claimed[0].ID != id {
		t.Fatalf("O2: claimed %d messages, want the one of another aggregate", len(claimed))
	}
	finishInside(t, s, claimed, outbox.StateDone)
	return writerSteps(t, s)
}

// writerSteps returns how many steps the statements of the outbox have taken since it was last asked.
func writerSteps(t *testing.T, s *Store) (steps int) {
	t.Helper()
	inWriter(t, s, func(w *writer) error {
		for _, stmt := range w.kept {
			steps += stmt.Status(sqlite3.STMTSTATUS_VM_STEP, true)
		}
		return nil
	})
	return steps
}

// many is how many messages could be in the way. Who looks at each of them takes that many steps and more, where a
// delivery takes a few hundred: it shows with these as it would with millions.
const many = 20_000

// TestManyBehind: thousands of messages behind one that cannot be delivered slow down no other.
func TestManyBehind(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	alone := delivering(t, s)
	head := addInside(t, s, "blocked")
	blocked := claimInside(t, s, 1)
	insertMany(t, s, "blocked", many, outbox.StateBehind)
	for _, state := range []outbox.State{outbox.StateLeased, outbox.StateReady, outbox.StateHolding} {
		switch state {
		case outbox.StateReady:
			finishInside(t, s, blocked, state)
		case outbox.StateHolding:
			inWriter(t, s, func(w *writer) error { return w.raw.Exec(`UPDATE onceward_outbox SET state = 3 WHERE state = 0`) })
		}
		if beside := delivering(t, s); alone == 0 || beside > 2*alone {
			t.Errorf("O2: beside an aggregate whose first message is %s a delivery takes %d steps, and alone %d", state, beside, alone)
		}
		addInside(t, s, "blocked")
		writerSteps(t, s)
		if claimed := claimInside(t, s, 10); len(claimed) > 0 {
			t.Errorf("O2: %d messages overtook one that is %s", len(claimed), state)
		}
		if parking := writerSteps(t, s); parking > 2*alone {
			t.Errorf("O2: to put one more behind a message that is %s takes %d steps, and a delivery alone %d", state, parking, alone)
		}
	}
	stats, err := s.MessageStats(t.Context())
	if err != nil || stats.Waiting != many+3 || stats.DeadLetters != 1 || !stats.Oldest.Equal(time.UnixMicro(1)) {
		t.Errorf("M1: the counts are %+v (%v)", stats, err)
	}
	if err := s.DropMessage(t.Context(), head); err != nil {
		t.Fatal(err)
	}
	got := claimInside(t, s, many)
	if len(got) != maxFreed || got[0].ID != "blocked-1" || got[maxFreed-1].ID != fmt.Sprint("blocked-", maxFreed) {
		t.Errorf("O2: %d messages were freed at once, want the first %d", len(got), maxFreed)
	}
}

// TestManyDone: what was delivered slows down no other.
func TestManyDone(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	alone := delivering(t, s)
	insertMany(t, s, "other", many/2, outbox.StateDone)
	if beside := delivering(t, s); alone == 0 || beside > 2*alone {
		t.Errorf("O2: beside messages that are done a delivery takes %d steps, and alone %d", beside, alone)
	}
}

// TestManyReady: where a burst stands behind a message that waits, a claim puts all of it out of the way, if need be in
// several turns of the writer, and takes the message of another aggregate behind the burst.
func TestManyReady(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	addInside(t, s, "blocked")
	finishInside(t, s, claimInside(t, s, 1), outbox.StateReady)
	const burst = 2*maxParked + 10
	insertMany(t, s, "blocked", burst, outbox.StateReady)
	other := addInside(t, s, "other")
	if claimed := claimInside(t, s, 50); len(claimed) != 1 || claimed[0].ID != other {
		t.Errorf("O2: a claim got %d messages, want that of another aggregate", len(claimed))
	}
	stats, err := s.MessageStats(t.Context())
	if err != nil || stats.Waiting != burst+2 {
		t.Errorf("M1: %d messages wait (%v), want %d", stats.Waiting, err, burst+2)
	}
}

// TestFreeMessages frees what is behind nothing because a person has been at the table, lane by lane.
func TestFreeMessages(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	for _, aggregate := range []string{"a", "b", "dead", "leased", "c"} {
		insertMany(t, s, aggregate, 2, outbox.StateBehind)
	}
	inWriter(t, s, func(w *writer) error {
		return w.raw.Exec(`UPDATE onceward_outbox SET state = 3 WHERE id = 'dead-1';
			UPDATE onceward_outbox SET state = 1, due = 9000000000000000 WHERE id = 'leased-1'`)
	})
	hints, stop := s.WatchMessages()
	defer stop()
	for _, want := range []int{6, 0} {
		if freed, err := s.FreeMessages(t.Context()); err != nil || freed != want {
			t.Errorf("O2: %d messages were freed (%v), want %d", freed, err, want)
		}
	}
	if len(hints) != 1 {
		t.Error("O2: nobody was told of messages that were freed")
	}
	var got []string
	for _, c := range claimInside(t, s, 10) {
		got = append(got, c.ID)
	}
	if want := []string{"a-1", "a-2", "b-1", "b-2", "c-1", "c-2"}; !slices.Equal(got, want) {
		t.Errorf("O2: claimed %v, want %v", got, want)
	}
}

// TestLaneFreesItself: a claim that finds a message behind others that wait for nothing frees them.
func TestLaneFreesItself(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	insertMany(t, s, "a", 2, outbox.StateBehind)
	addInside(t, s, "a")
	if claimed := claimInside(t, s, 10); len(claimed) != 0 {
		t.Errorf("O2: %d messages overtook", len(claimed))
	}
	if claimed := claimInside(t, s, 10); len(claimed) != 3 || claimed[0].ID != "a-1" {
		t.Errorf("O2: claimed %d messages, want all in their order", len(claimed))
	}
}

// TestTrustedStatements: the gate lets the store's own statements through, and nothing that is only like them.
func TestTrustedStatements(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	err := s.Update(t.Context(), func(tx *sql.Tx) error {
		for _, text := range []string{insertEvent + " ", "-- \n" + insertEvent, insertEvent + "; DELETE FROM onceward_record"} {
			if _, err := tx.Exec(text, []byte("event"), []byte("consumer"), 1); err == nil {
				t.Errorf("E1: a handler could run %q", text)
			}
		}
		if _, err := s.RememberEvent(t.Context(), tx, "consumer", "event"); err != nil {
			return err
		}
		if _, err := tx.Exec(`DELETE FROM onceward_inbox`); err == nil {
			t.Error("E1: the rules are still suspended after a statement of the store")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
