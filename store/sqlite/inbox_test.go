package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

// TestInbox applies each event once for each consumer, and again if its transaction was undone.
func TestInbox(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	box := inbox.New(store)
	broken := errors.New("broken")
	for i, step := range []struct {
		consumer, event string
		failure         error
		applied         bool
	}{
		{"mailer", "event", broken, false},
		{"mailer", "event", nil, true},
		{"mailer", "event", nil, false},
		{"ledger", "event", nil, true},
		{"mailer", "event\x00\xff", nil, true},
		{"mailer\x00", "event", nil, true},
		{"mailer", "event\x00\xff", nil, false},
	} {
		value := fmt.Sprint("step-", i)
		applied, err := box.Handle(t.Context(), step.consumer, step.event, func(ctx context.Context) error {
			return errors.Join(insert(ctx, value), step.failure)
		})
		if applied != step.applied || !errors.Is(err, step.failure) {
			t.Errorf("O5: step %d: applied %t (%v), want %t (%v)", i, applied, err, step.applied, step.failure)
		}
		rows := 0
		if step.applied {
			rows = 1
		}
		wantRows(t, store, value, rows, "O5")
	}
	consumed, err := store.ConsumedEvents(t.Context(), "event")
	var names []string
	for _, c := range consumed {
		names = append(names, c.Consumer)
		if c.EventID != "event" || time.Since(c.At) > time.Hour {
			t.Errorf("O5: consumed is %+v", c)
		}
	}
	if want := []string{"ledger", "mailer", "mailer\x00"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("O5: the event was consumed by %q (%v), want %q", names, err, want)
	}
}

// TestInboxInHandler: two events in one transaction, and one of them twice.
func TestInboxInHandler(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	inTx(t, store, func(ctx context.Context) error {
		for _, step := range []struct {
			event string
			first bool
		}{{"a", true}, {"b", true}, {"a", false}} {
			first, err := store.RememberEvent(ctx, onceward.Tx(ctx), "mailer", step.event)
			if err != nil || first != step.first {
				t.Errorf("O5: %s is the first: %t (%v)", step.event, first, err)
			}
		}
		return nil
	})
}

// TestInboxCrowd: of many deliveries at once one is applied.
func TestInboxCrowd(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	stores := []*sqlite.Store{openBusiness(t, path), openStore(t, path)}
	var applied atomic.Int64
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			ok, err := inbox.New(stores[i%2]).Handle(t.Context(), "mailer", "event",
				func(ctx context.Context) error { return insert(ctx, "sent") })
			if err != nil {
				t.Error(err)
			}
			if ok {
				applied.Add(1)
			}
		})
	}
	group.Wait()
	if n := applied.Load(); n != 1 {
		t.Errorf("O5: applied %d times", n)
	}
	wantRows(t, stores[0], "sent", 1, "O5")
}

// TestPurgeEvents forgets what is older than that, the oldest first.
func TestPurgeEvents(t *testing.T) {
	t.Parallel()
	var clock testClock
	store := openBusiness(t, newFile(t), sqlite.WithClock(clock.now))
	for i := range 5 {
		inTx(t, store, func(ctx context.Context) error {
			_, err := store.RememberEvent(ctx, onceward.Tx(ctx), "mailer", fmt.Sprint("event-", i))
			return err
		})
		clock.advance(time.Hour)
	}
	for _, purge := range []struct {
		age         time.Duration
		limit, want int
	}{{5 * time.Hour, 10, 0}, {0, -1, 0}, {3 * time.Hour, 1, 1}, {3 * time.Hour, 10, 1}, {0, 10, 3}} {
		if n, err := store.PurgeEvents(t.Context(), purge.age, purge.limit); err != nil || n != purge.want {
			t.Errorf("O5: a purge of %s and %d forgot %d (%v), want %d", purge.age, purge.limit, n, err, purge.want)
		}
	}
}
