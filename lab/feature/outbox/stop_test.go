package outbox_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// TestStopWaits: what is under way is finished, what is not begun is given back as if it had not been taken, and
// nothing new is taken.
func TestStopWaits(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: func(ctx context.Context, _ *outbox.Delivery) (outbox.Result, error) {
			time.Sleep(5 * time.Second)
			return outbox.Result{}, ctx.Err()
		}}
		ids := b.add(about("a", "first"), about("a", "second"), about("a", "third"))
		stop := b.start(b.worker(b.store, outbox.Route{Handler: mail.deliver}))
		time.Sleep(time.Second)
		b.wantStates("in hand", ids, outbox.StateLeased, outbox.StateLeased, outbox.StateLeased)
		began := time.Now()
		stop()
		if took := time.Since(began); took != 4*time.Second {
			b.Errorf("stopping took %s, want what the delivery still needed", took)
		}
		mail.want(b, "no more", "first")
		b.wantStates("given back", ids, outbox.StateDone, outbox.StateReady, outbox.StateReady)
		if e := b.entry(ids[1]); e.Attempts != 0 || e.LastError != "" || e.Due.After(time.Now()) {
			b.Errorf("what was not begun has %d tries, %q, due %s", e.Attempts, e.LastError, e.Due)
		}
		next := new(clerk)
		b.run(b.worker(b.store, outbox.Route{Handler: next.deliver}), outbox.Report{Delivered: 2})
		next.want(b, "at once", "second third")
	})
}

// TestStopGivesBackTheFirst: one that waits for its turn among others has been counted by the store, and is not any
// more.
func TestStopGivesBackTheFirst(t *testing.T) {
	inTime(t, func(b *bench) {
		fast := new(clerk)
		w := b.worker(b.store, outbox.Route{Concurrency: 1, Handler: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type == "slow" {
				time.Sleep(5 * time.Second)
			}
			return fast.deliver(ctx, d)
		}})
		stop := b.start(w)
		b.add(about("", "quick")) // so that it takes more than one at a time
		synctest.Wait()
		ids := b.add(about("", "slow"), about("", "slow"), about("", "slow"))
		synctest.Wait()
		b.wantStates("in hand", ids, outbox.StateLeased, outbox.StateLeased, outbox.StateLeased)
		stop()
		done := 0
		for _, id := range ids {
			switch e := b.entry(id); {
			case e.State == outbox.StateDone:
				done++
			case e.State != outbox.StateReady || e.Attempts != 0:
				b.Errorf("what was not begun is %s after %d tries", e.State, e.Attempts)
			}
		}
		if done != 1 {
			b.Errorf("%d are done, want the one that was begun", done)
		}
	})
}

// TestStopCutsOff: the grace is over, and so is the delivery. It is tried again by the next worker.
func TestStopCutsOff(t *testing.T) {
	inTime(t, func(b *bench) {
		events := new(journal)
		w := b.worker(b.store, outbox.Route{Timeout: time.Hour, Handler: func(ctx context.Context, _ *outbox.Delivery) (outbox.Result, error) {
			<-ctx.Done()
			return outbox.Result{}, ctx.Err()
		}}, watched(events), func(c *outbox.WorkerConfig) { c.Grace = 3 * time.Second })
		id := b.add(about("a", "m"))[0]
		stop := b.start(w)
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took != 3*time.Second {
			b.Errorf("stopping took %s, want the grace", took)
		}
		events.want(b, "recorded", "retry")
		if e := b.entry(id); e.State != outbox.StateReady || e.Attempts != 1 || e.LastError != context.Canceled.Error() {
			b.Errorf("it is %s after %d tries: %q", e.State, e.Attempts, e.LastError)
		}
	})
}

// TestStopWhileIdle: there is nothing to wait for.
func TestStopWhileIdle(t *testing.T) {
	inTime(t, func(b *bench) {
		stop := b.start(b.worker(b.store, outbox.Route{Handler: new(clerk).deliver}))
		time.Sleep(time.Minute)
		began := time.Now()
		stop()
		if took := time.Since(began); took != 0 {
			b.Errorf("stopping took %s", took)
		}
	})
}

// slowStore takes its time to answer a claim. A caller who does not wait for that does not learn what was taken.
type slowStore struct {
	*sqlite.Store
	taken chan struct{}
}

func (s *slowStore) ClaimMessages(
	ctx context.Context, wants []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	claimed, err := s.Store.ClaimMessages(ctx, wants, lease)
	if err != nil || len(claimed) == 0 {
		return claimed, err
	}
	close(s.taken)
	select {
	case <-time.After(time.Second):
		return claimed, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestStopWhileClaiming: what the store gives out while the worker is told to stop is given back, and not left to a
// lease that no worker knows of.
func TestStopWhileClaiming(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &slowStore{Store: b.store, taken: make(chan struct{})}
		mail := new(clerk)
		id := b.add(about("", "m"))
		stop := b.start(b.worker(store, outbox.Route{Handler: mail.deliver}))
		<-store.taken
		stop()
		mail.want(b, "no more", "")
		b.wantStates("given back", id, outbox.StateReady)
		if e := b.entry(id[0]); e.Attempts != 0 {
			b.Errorf("it counts as tried %d times", e.Attempts)
		}
	})
}
