package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// TestToldByAnotherProcess: whoever waits for what another process does is told when it is over, however it ends.
func TestToldByAnotherProcess(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	for what, end := range map[string]func(store.Claim) error{
		"completed": func(o store.Claim) error { _, err := c.owner.Complete(t.Context(), o, answer("done")); return err },
		"released":  func(o store.Claim) error { return c.owner.Release(t.Context(), o, "no stock") },
		"abandoned": func(o store.Claim) error { return c.owner.Abandon(t.Context(), o, "lost") },
		"busted":    func(o store.Claim) error { return c.owner.Bust(t.Context(), o.ID, true) },
		"swept": func(o store.Claim) error {
			if err := c.owner.Extend(t.Context(), o, time.Microsecond); err != nil {
				return err
			}
			_, err := c.owner.Sweep(t.Context(), 10)
			return err
		},
	} {
		c.wantTold(what, c.owned(end))
	}
	for what, ending := range map[string]store.TxAction{
		"committed": store.TxCommit, "rolled back": store.TxRollback, "answered": store.TxCommitAnswer,
	} {
		c.wantTold(what, c.inFlight(ending))
	}
}

// TestConnectionDies: the end of a transaction whose connection is gone is noticed, although nobody tells.
func TestConnectionDies(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	// Here it is the other way round: the one behind the proxy owns, because its connections can be cut.
	r := reservation("key")
	working, finish, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := c.waiter.Transact(context.Background(), r, func(context.Context, store.Verdict) store.Settlement {
			close(working)
			<-finish
			return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
		})
		over <- err
	}()
	await(t, "the transaction", working)
	ended := make(chan error, 1)
	crowd(t.Context(), 1, func(ctx context.Context, _ int) { ended <- c.owner.Wait(ctx, r.ID, 0) })
	c.proxy.DropAll()
	if err := await(t, "the end of the wait, while the handler still runs", ended); err != nil {
		t.Errorf("the wait ended with %v", err)
	}
	transacted(t, c.owner, "key", nothing)
	close(finish)
	if err := await(t, "the end of the transaction", over); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("I1: the transaction whose connection was cut got %v, want ErrUnavailable", err)
	}
	wantReplay(t, c.owner, "key", "key", "I3")
}

// TestWaitingIsQuiet: those who wait do not ask all the time, and many who wait for one key ask as often as one.
func TestWaitingIsQuiet(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	claim := own(t, c.owner, reservation("key"))
	c.channel() // it listens
	first, enough := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer enough()
	_ = c.waiter.Wait(first, claim.ID, claim.Attempt) // connections are opened and statements prepared for it
	ctx, cancel := context.WithTimeout(t.Context(), 3*calm/2)
	defer cancel()
	before := c.proxy.RoundTrips()
	const waiters = 200
	crowd(ctx, waiters, func(ctx context.Context, _ int) {
		if err := c.waiter.Wait(ctx, claim.ID, claim.Attempt); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for what goes on got %v", err)
		}
	})()
	// One statement says that somebody waits, a few look.
	if trips := c.proxy.RoundTrips() - before; trips > 10 {
		t.Errorf("%d waits for one key of %s took %d round trips", waiters, 3*calm/2, trips)
	}
}

// TestAllWaitersAreTold: one word wakes everybody.
func TestAllWaitersAreTold(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	claim := own(t, c.owner, reservation("key"))
	ended := crowd(t.Context(), 200, func(ctx context.Context, _ int) {
		if err := c.waiter.Wait(ctx, claim.ID, claim.Attempt); err != nil {
			t.Errorf("a wait ended with %v", err)
		}
	})
	complete(t, c.owner, claim, "done")
	ended()
}

// TestNobodyWaitsNobodyTells: without anybody who waits there is no notification, because each makes commits wait for each
// other.
func TestNobodyWaitsNobodyTells(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	ears := c.overhear()
	for _, key := range keys("key", 5) {
		complete(t, c.owner, own(t, c.owner, reservation(key)), "done")
		transacted(t, c.owner, key+" in a transaction", nothing)
		must(t, c.owner.Release(t.Context(), own(t, c.owner, reservation(key+" released")), ""))
		_, _, end := c.inFlight(store.TxRollback)()
		end()
	}
	channel := c.channel()
	must(t, c.owner.Close()) // which waits for what it has begun to say
	exec(t, c.admin, `SELECT pg_notify($1, 'the end')`, channel)
	var heard []string
	for {
		said, err := ears.WaitForNotification(t.Context())
		must(t, err)
		if said.Payload == "the end" {
			break
		}
		if !strings.HasPrefix(said.Payload, "h") { // a listener that has just begun talks to itself
			heard = append(heard, said.Payload)
		}
	}
	if len(heard) > 0 {
		t.Errorf("nobody waits, and there were %d notifications: %q", len(heard), heard)
	}
}
