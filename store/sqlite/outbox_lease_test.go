package sqlite_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// TestLeaseRunsOut: another worker takes the message, and the first can change nothing any more.
func TestLeaseRunsOut(t *testing.T) {
	t.Parallel()
	var clock testClock
	store := openBusiness(t, newFile(t), sqlite.WithClock(clock.now))
	ids := add(t, store, about("a"))
	lost := wantClaimed(t, store, 1, "O2", ids...)[0]
	clock.advance(time.Minute - time.Microsecond)
	wantClaimed(t, store, 1, "O2: before its end a lease holds")
	clock.advance(time.Microsecond)
	held := wantClaimed(t, store, 1, "O2: a lease that ran out", ids...)[0]
	if held.Attempts != 2 || held.Token == lost.Token {
		t.Errorf("O2: claimed again with try %d and the same token: %t", held.Attempts, held.Token == lost.Token)
	}

	if err := store.RecordEffect(t.Context(), lost.Lease(), "late", nil); !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("O3: the provider's id under a lost lease got %v", err)
	}
	if got, err := store.ExtendMessages(t.Context(), []outbox.Lease{held.Lease(), lost.Lease()}, time.Hour); err != nil || !slices.Equal(got, []outbox.Lease{lost.Lease()}) {
		t.Errorf("O2: extending found %v lost (%v)", got, err)
	}
	if got, err := store.FinishMessages(t.Context(), []outbox.Outcome{to(outbox.StateDone, lost)}); err != nil || !slices.Equal(got, []outbox.Lease{lost.Lease()}) {
		t.Errorf("O2: finishing found %v fenced (%v)", got, err)
	}
	err := store.FinishMessageTx(t.Context(), to(outbox.StateDone, lost), func(context.Context) error {
		t.Error("O2: work ran under a lost lease")
		return nil
	})
	if !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("O2: a transaction under a lost lease got %v", err)
	}
	if e := entry(t, store, ids[0]); e.State != outbox.StateLeased || e.ProviderID != "" || !e.Due.Equal(clock.now().Add(time.Hour)) {
		t.Errorf("O2: a lost lease has changed the message to %+v", e)
	}

	if err := store.RecordEffect(t.Context(), held.Lease(), "ch_1", nil); err != nil {
		t.Error(err)
	}
	done(t, store, held)
	if e := entry(t, store, ids[0]); e.State != outbox.StateDone || e.ProviderID != "ch_1" || !e.Due.Equal(clock.now()) {
		t.Errorf("O3: done is %+v", e)
	}
	if got, err := store.FinishMessages(t.Context(), []outbox.Outcome{to(outbox.StateDead, held)}); err != nil || len(got) != 1 {
		t.Errorf("O2: a lease that was ended found %v fenced (%v)", got, err)
	}
}

// TestLeaseOfRunRunsOut: those that lost their place because the one in front is held again are fenced too.
func TestLeaseOfRunRunsOut(t *testing.T) {
	t.Parallel()
	var clock testClock
	store := openStore(t, newFile(t), sqlite.WithClock(clock.now))
	ids := add(t, store, about("a"), about("a"))
	run := wantClaimed(t, store, 2, "O2", ids...)
	clock.advance(time.Minute)
	if _, err := store.ExtendMessages(t.Context(), []outbox.Lease{run[0].Lease()}, time.Minute); err != nil {
		t.Fatal(err)
	}
	wantClaimed(t, store, 2, "O2: behind a message whose lease was extended")
	if got, err := store.FinishMessages(t.Context(), []outbox.Outcome{to(outbox.StateDone, run[1])}); err != nil || len(got) != 1 {
		t.Errorf("O2: a message that was made to wait was finished: %v are fenced (%v)", got, err)
	}
	done(t, store, run[0])
	wantClaimed(t, store, 2, "O2", ids[1])
}

// TestFinishTx: the message is done together with the work, or neither is.
func TestFinishTx(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	box := newBox(t, store)
	ids := add(t, store, about("a"), about("a"))
	held := wantClaimed(t, store, 1, "O2", ids[0])[0]
	wantClaimed(t, store, 1, "O2: behind it")
	broken := errors.New("broken")
	work := func(end error) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := box.Add(ctx, onceward.Tx(ctx), about("followed"))
			return errors.Join(err, insert(ctx, "settled"), end)
		}
	}
	if err := store.FinishMessageTx(t.Context(), to(outbox.StateDone, held), work(broken)); !errors.Is(err, broken) {
		t.Errorf("the error of the work is lost: %v", err)
	}
	wantRows(t, store, "settled", 0, "O3: work that failed is undone")
	wantStates(t, store, "O3: nothing is done by work that failed", ids, outbox.StateLeased, outbox.StateBehind)
	ending := to(outbox.StateDone, held)
	ending.ProviderID = "ch_1"
	if err := store.FinishMessageTx(t.Context(), ending, work(nil)); err != nil {
		t.Fatal(err)
	}
	wantRows(t, store, "settled", 1, "O3")
	wantStates(t, store, "O3", ids, outbox.StateDone, outbox.StateReady)
	if e := entry(t, store, ids[0]); e.ProviderID != "ch_1" {
		t.Errorf("O3: the provider's id is %q", e.ProviderID)
	}
	if claimed := claim(t, store, 10); len(claimed) != 2 {
		t.Errorf("O1: %d messages are due, want the one behind and the one that the work added", len(claimed))
	}
}

// TestFinishTxDeadline: work that outlives its context loses the transaction, because everybody waits for it.
func TestFinishTxDeadline(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	ids := add(t, store, about(""))
	held := wantClaimed(t, store, 1, "O2", ids...)[0]
	other := make(chan error, 1)
	ended := overdue(t, func(bound time.Duration) (<-chan struct{}, <-chan error) {
		entered, ended := make(chan struct{}), make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		t.Cleanup(cancel)
		work := func(ctx context.Context) error {
			if err := insert(ctx, "late"); err != nil {
				return err
			}
			close(entered)
			other <- store.InTx(context.WithoutCancel(ctx), func(ctx context.Context) error { return insert(ctx, "other") })
			return nil
		}
		go func() { ended <- store.FinishMessageTx(ctx, to(outbox.StateDone, held), work) }()
		return entered, ended
	})
	wantUnavailable(t, await.Value(t, "the end of the delivery", ended), revoked, "E1")
	if err := await.Value(t, "the end of the other transaction", other); err != nil {
		t.Errorf("the others go on, but got %v", err)
	}
	wantRows(t, store, "late", 0, "E1")
	wantRows(t, store, "other", 1, "E1")
	wantStates(t, store, "O3", ids, outbox.StateLeased)
}

// TestWrongEnding: a delivery ends in none of these states.
func TestWrongEnding(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	held := wantClaimed(t, store, 1, "O2", add(t, store, about(""))...)[0]
	for _, state := range []outbox.State{outbox.StateLeased, outbox.StateCaptured, 200} {
		_, err := store.FinishMessages(t.Context(), []outbox.Outcome{to(state, held)})
		txErr := store.FinishMessageTx(t.Context(), to(state, held), func(context.Context) error { return nil })
		for _, err := range []error{err, txErr} {
			if err == nil || !strings.Contains(err.Error(), "cannot end as "+state.String()) {
				t.Errorf("an ending as %s got %v", state, err)
			}
		}
	}
	for name, call := range map[string]func() error{
		"finish nothing": func() error { _, err := store.FinishMessages(t.Context(), nil); return err },
		"extend nothing": func() error { _, err := store.ExtendMessages(t.Context(), nil, time.Minute); return err },
		"claim nothing":  func() error { _, err := store.ClaimMessages(t.Context(), nil, time.Minute); return err },
	} {
		if err := call(); err != nil {
			t.Errorf("%s got %v", name, err)
		}
	}
}
