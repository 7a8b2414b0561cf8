package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/outbox"
)

// TestTwoWorkersShare: each message is delivered once, by either, and both of them do.
func TestTwoWorkersShare(t *testing.T) {
	inTime(t, func(b *bench) {
		want := make(map[string]int)
		var messages []outbox.Message
		for i := range 100 {
			aggregate := ""
			if i%2 == 0 {
				aggregate = fmt.Sprint(i % 7)
			}
			messages = append(messages, about(aggregate, fmt.Sprint(i)))
			want[fmt.Sprint(i)] = 1
		}
		b.add(messages...)
		takesTime := func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			time.Sleep(300 * time.Millisecond)
			return outbox.Result{}, nil
		}
		one, other := &clerk{does: takesTime}, &clerk{does: takesTime}
		var stops []func()
		for _, mail := range []*clerk{one, other} {
			stops = append(stops, b.start(b.worker(b.store, outbox.Route{Handler: mail.deliver, Concurrency: 4})))
		}
		time.Sleep(time.Minute)
		for _, stop := range stops {
			stop()
		}
		if len(one.deliveries()) < 20 || len(other.deliveries()) < 20 {
			b.Errorf("the workers delivered %d and %d: they did not share", len(one.deliveries()), len(other.deliveries()))
		}
		both := &clerk{seen: append(one.deliveries(), other.deliveries()...)}
		both.wantEach(b, "each once", want)
	})
}

// TestConcurrency: as many deliveries of a route are under way as it allows, and no more, also while more are in hand.
func TestConcurrency(t *testing.T) {
	inTime(t, func(b *bench) {
		var now, most atomic.Int32
		mail := &clerk{does: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
			}
			time.Sleep(time.Millisecond)
			return outbox.Result{}, nil
		}}
		for i := range 60 {
			b.add(about("", fmt.Sprint(i)))
		}
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver, Concurrency: 3}), outbox.Report{Delivered: 60})
		if got := most.Load(); got != 3 {
			b.Errorf("%d deliveries were under way at one time, want 3", got)
		}
	})
}

// TestToldAtOnce: a worker that waits delivers what is committed in its own process without a moment's delay.
func TestToldAtOnce(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := new(clerk)
		stop := b.start(b.worker(b.store, outbox.Route{Handler: mail.deliver}))
		defer stop()
		time.Sleep(50 * time.Second)
		before := time.Now()
		b.add(about("a", "m"))
		synctest.Wait()
		mail.want(b, "at once", "m")
		if waited := time.Since(before); waited != 0 {
			b.Errorf("it took %s", waited)
		}
	})
}

// TestASlowRouteBesideAQuickOne: a route whose receiver hangs does not slow down the others.
func TestASlowRouteBesideAQuickOne(t *testing.T) {
	inTime(t, func(b *bench) {
		hanging := about("", "hangs")
		hanging.Topic = "hanging"
		b.add(hanging)
		const messages, each = 40, 350 * time.Millisecond
		for i := range messages {
			b.add(about("", fmt.Sprint(i)))
		}
		letGo := make(chan struct{})
		mail := &clerk{does: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			time.Sleep(each)
			return outbox.Result{}, nil
		}}
		w := b.worker(b.store, outbox.Route{}, func(c *outbox.WorkerConfig) {
			c.Routes = map[string]outbox.Route{
				topic: {Handler: mail.deliver, Concurrency: 4},
				"hanging": {Timeout: time.Hour, Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
					<-letGo
					return outbox.Result{}, nil
				}},
			}
		})
		stop := b.start(w)
		defer stop()
		defer close(letGo)
		began := time.Now()
		for len(mail.deliveries()) < messages {
			time.Sleep(10 * time.Millisecond)
		}
		if took, alone := time.Since(began), messages/4*each; took > alone+alone/10 {
			b.Errorf("it took %s, want about %s", took, alone)
		}
	})
}

// TestHangingReceivers is scenario 27 for messages that do not fail, but hang: while there are free slots, others get
// them.
func TestHangingReceivers(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type != "hangs" {
				return outbox.Result{}, nil
			}
			<-ctx.Done()
			return outbox.Result{}, ctx.Err()
		}}
		for range 50 {
			b.add(about("", "hangs"))
		}
		stop := b.start(b.worker(b.store, outbox.Route{Handler: mail.deliver}))
		defer stop()
		time.Sleep(time.Second)
		for range 50 {
			b.add(about("", "good"))
		}
		time.Sleep(time.Second)
		mail.wantEach(b, "14 slots are free", map[string]int{"hangs": 50, "good": 50})
	})
}

// TestPurge: a worker that runs removes what was delivered, after its time.
func TestPurge(t *testing.T) {
	inTime(t, func(b *bench) {
		b.add(about("a", "m"))
		stop := b.start(b.worker(b.store, outbox.Route{Handler: new(clerk).deliver},
			func(c *outbox.WorkerConfig) { c.Retention = 5 * time.Minute }))
		defer stop()
		left := func() int {
			found, err := b.store.Messages(b.Context(), outbox.Filter{})
			b.must(err)
			return len(found)
		}
		time.Sleep(5*time.Minute - time.Second)
		if left() != 1 {
			b.Error("it was removed too early")
		}
		time.Sleep(2 * time.Minute)
		if left() != 0 {
			b.Error("it was not removed")
		}
	})
}
