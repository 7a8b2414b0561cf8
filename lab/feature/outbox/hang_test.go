package outbox_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// refusingStore does not take endings with that id of a receiver, as a database does that cannot store it.
type refusingStore struct {
	outbox.Store
	id      string
	refused atomic.Int64
}

func (s *refusingStore) FinishMessages(ctx context.Context, endings []outbox.Outcome) ([]outbox.Lease, error) {
	for _, e := range endings {
		if e.ProviderID == s.id {
			s.refused.Add(1)
			return nil, errDown
		}
	}
	return s.Store.FinishMessages(ctx, endings)
}

// TestAnEndingThatIsRefused: one message whose end the store will not take does not keep those of others from being
// written.
func TestAnEndingThatIsRefused(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &refusingStore{Store: b.store, id: "bad"}
		together := make(chan struct{})
		var arrived atomic.Int64
		worker := b.worker(store, outbox.Route{Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if arrived.Add(1) == 4 {
				close(together)
			}
			<-together // so that they end at once
			return outbox.Result{ProviderID: d.Type}, nil
		}})
		ids := b.add(about("", "bad"), about("", "b"), about("", "c"), about("", "d"))
		stop := b.start(worker)
		time.Sleep(20 * time.Second)
		b.wantStates("written", ids[1:], outbox.StateDone, outbox.StateDone, outbox.StateDone)
		stop()
		if store.refused.Load() == 0 {
			b.Error("nothing was refused")
		}
	})
}

// TestAnEndingThatIsRefusedAlone: the same if nothing else ends at that time, and others do later.
func TestAnEndingThatIsRefusedAlone(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &refusingStore{Store: b.store, id: "bad"}
		b.add(about("", "bad"))
		stop := b.start(b.worker(store, outbox.Route{Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{ProviderID: d.Type}, nil
		}}))
		time.Sleep(5 * time.Second)
		if store.refused.Load() == 0 {
			b.Error("nothing was refused")
		}
		ids := b.add(about("", "b"), about("", "c"))
		time.Sleep(20 * time.Second)
		b.wantStates("written", ids, outbox.StateDone, outbox.StateDone)
		stop()
	})
}

// TestATextFromOutside: what a receiver calls the effect is made one that every database takes.
func TestATextFromOutside(t *testing.T) {
	inTime(t, func(b *bench) {
		ids := b.add(about("", "m"))
		b.run(b.worker(b.store, outbox.Route{Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{ProviderID: "ch_\x00\xff"}, nil
		}}), outbox.Report{Delivered: 1})
		if e := b.entry(ids[0]); e.ProviderID != "ch_ \uFFFD" {
			b.Errorf("the receiver's id is kept as %q", e.ProviderID)
		}
	})
}

// TestAHandlerThatEndsItsGoroutine is a failure of its message.
func TestAHandlerThatEndsItsGoroutine(t *testing.T) {
	inTime(t, func(b *bench) {
		b.add(about("", "m"))
		b.run(b.worker(b.store, outbox.Route{Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			runtime.Goexit()
			return outbox.Result{}, nil
		}}), outbox.Report{Retried: 1})
	})
}

// TestAHandlerThatHangs: a delivery that ignores the end of its context is given up in the end, which is told of, and
// another worker gets the message.
func TestAHandlerThatHangs(t *testing.T) {
	inTime(t, func(b *bench) {
		ids := b.add(about("", "m"))
		var log bytes.Buffer
		letGo := make(chan struct{})
		stop := b.start(b.worker(b.store, outbox.Route{Timeout: time.Second, Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			<-letGo
			return outbox.Result{ProviderID: "old"}, nil
		}}, func(c *outbox.WorkerConfig) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }))
		time.Sleep(2 * time.Minute)
		b.run(b.worker(b.store, outbox.Route{Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{ProviderID: "new"}, nil
		}}), outbox.Report{Delivered: 1})
		close(letGo)
		stop()
		if e := b.entry(ids[0]); e.State != outbox.StateDone || e.ProviderID != "new" {
			b.Errorf("the message is %s as %q", e.State, e.ProviderID)
		}
		if n := strings.Count(log.String(), "hangs past its time"); n == 0 {
			b.Errorf("nobody was told that it hangs: %s", log.String())
		}
	})
}

// hangsFor returns a worker that delivers quickly at first, and so takes many messages ahead; from then on its
// deliveries go on until they are let go, whatever their contexts say.
func hangsFor(b *bench, letGo <-chan struct{}) (w *outbox.Worker, turns *atomic.Bool) {
	turns = new(atomic.Bool)
	return b.worker(b.store, outbox.Route{
		Concurrency: 2, Timeout: time.Second, MaxAttempts: 3,
		Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			if turns.Load() {
				<-letGo
			}
			return outbox.Result{ProviderID: "hung"}, nil
		},
	}), turns
}

// TestMessagesBehindHangingDeliveries: while all slots hang, those that were leased to wait for one are for other
// workers, untried, and no more are taken. When they are let go, the worker goes on.
func TestMessagesBehindHangingDeliveries(t *testing.T) {
	inTime(t, func(b *bench) {
		letGo := make(chan struct{})
		hanging, turns := hangsFor(b, letGo)
		b.add(slices.Repeat([]outbox.Message{about("", "quick")}, 40)...)
		stop := b.start(hanging)
		time.Sleep(time.Minute)
		turns.Store(true)
		ids := b.add(slices.Repeat([]outbox.Message{about("", "m")}, 30)...)
		time.Sleep(5 * time.Minute)
		b.run(b.worker(b.store, outbox.Route{Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Attempts > 2 {
				b.Errorf("attempt %d of a message that at most one other worker has begun", d.Attempts)
			}
			return outbox.Result{ProviderID: "new"}, nil
		}}), outbox.Report{Delivered: 30})
		for _, id := range ids {
			if e := b.entry(id); e.State != outbox.StateDone || e.ProviderID != "new" {
				b.Errorf("a message is %s as %q", e.State, e.ProviderID)
			}
		}
		turns.Store(false)
		close(letGo)
		ids = b.add(about("", "after"))
		time.Sleep(time.Minute)
		b.wantStates("let go", ids, outbox.StateDone)
		stop()
	})
}

// TestAnAggregateBehindAHangingDelivery: the messages that wait for their turn behind it go with it.
func TestAnAggregateBehindAHangingDelivery(t *testing.T) {
	inTime(t, func(b *bench) {
		letGo := make(chan struct{})
		hanging, turns := hangsFor(b, letGo)
		b.add(slices.Repeat([]outbox.Message{about("", "quick")}, 40)...)
		stop := b.start(hanging)
		time.Sleep(time.Minute)
		turns.Store(true)
		b.add(about("a", "1"), about("a", "2"), about("a", "3"), about("a", "4"), about("a", "5"))
		time.Sleep(5 * time.Minute)
		mail := new(clerk)
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 5})
		mail.want(b, "in their order", "1 2 3 4 5")
		close(letGo)
		stop()
	})
}
