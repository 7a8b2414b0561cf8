package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// silent is a store whose machine vanishes without a word: the first call of each kind gets no answer.
type silent struct {
	*sqlite.Store
	claims, frees, purges atomic.Int64
}

// first waits for the end of the context in the first of several calls.
func first(ctx context.Context, calls *atomic.Int64) error {
	if calls.Add(1) > 1 {
		return nil
	}
	<-ctx.Done()
	return errDown
}

func (s *silent) ClaimMessages(
	ctx context.Context, wants []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	if err := first(ctx, &s.claims); err != nil {
		return nil, err
	}
	return s.Store.ClaimMessages(ctx, wants, lease)
}

func (s *silent) FreeMessages(ctx context.Context) (int, error) {
	if err := first(ctx, &s.frees); err != nil {
		return 0, err
	}
	return s.Store.FreeMessages(ctx)
}

func (s *silent) PurgeMessages(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := first(ctx, &s.purges); err != nil {
		return 0, err
	}
	return s.Store.PurgeMessages(ctx, age, limit)
}

// deaf is a store that does not answer what is to be written down.
type deaf struct{ *sqlite.Store }

func (d *deaf) FinishMessages(ctx context.Context, _ []outbox.Outcome) ([]outbox.Lease, error) {
	<-ctx.Done()
	return nil, errDown
}

func (d *deaf) FinishMessageTx(ctx context.Context, _ outbox.Outcome, _ func(context.Context) error) error {
	<-ctx.Done()
	return errDown
}

// TestNoAnswerDoesNotHoldUpTheEnd: a worker whose database has vanished ends soon after its grace.
func TestNoAnswerDoesNotHoldUpTheEnd(t *testing.T) {
	for name, then := range map[string]func(context.Context) error{
		"many": nil,
		"then": func(context.Context) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(b *bench) {
				const grace = 10 * time.Second
				w := b.worker(&deaf{b.store}, outbox.Route{Handler: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
					if d.Type == "slow" {
						<-ctx.Done() // as long as it may
						time.Sleep(time.Second)
					}
					return outbox.Result{Then: then}, nil
				}}, func(c *outbox.WorkerConfig) { c.Grace = grace })
				b.add(about("", "quick"), about("", "quick"), about("", "quick"), about("", "slow"))
				stop := b.start(w)
				time.Sleep(time.Second)
				b.add(about("", "quick"), about("", "quick"), about("", "quick"), about("", "slow"))
				time.Sleep(14 * time.Second)
				began := time.Now()
				stop()
				if took := time.Since(began); took > grace+5*time.Second || took > w.StopTimeout() {
					b.Errorf("stopping took %s, want no more than 5s after the grace of %s", took, grace)
				}
			})
		})
	}
}

// TestAnObserverThatPanics does not end the worker.
func TestAnObserverThatPanics(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := new(clerk)
		ids := b.add(about("", "one"), about("a", "two"), about("a", "three"))
		panics := onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) { panic("a bug") })
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}, func(c *outbox.WorkerConfig) { c.Observer = panics }),
			outbox.Report{Delivered: 3})
		b.wantStates("O2", ids, outbox.StateDone, outbox.StateDone, outbox.StateDone)
	})
}

// TestNoAnswerDoesNotStopAWorker: a worker gives up what the store does not answer, and goes on.
func TestNoAnswerDoesNotStopAWorker(t *testing.T) {
	inTime(t, func(b *bench) {
		store, mail := &silent{Store: b.store}, new(clerk)
		stop := b.start(b.worker(store, outbox.Route{Handler: mail.deliver}))
		ids := b.add(about("", "while it claims"))
		time.Sleep(10 * time.Minute)
		ids = append(ids, b.add(about("", "later"))...)
		time.Sleep(time.Minute)
		b.wantStates("O2", ids, outbox.StateDone, outbox.StateDone)
		for kind, calls := range map[string]*atomic.Int64{
			"claimed": &store.claims, "freed": &store.frees, "purged": &store.purges,
		} {
			if calls.Load() < 2 {
				b.Errorf("nothing was %s after the call that got no answer", kind)
			}
		}
		stop()
	})
}
