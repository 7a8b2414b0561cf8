package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// faulty is a store whose next calls fail: before they are made or, if their answers are lost, after.
type faulty struct {
	*sqlite.Store
	claims, finishes, provides atomic.Int32
	answersLost                bool
	calls                      atomic.Int32 // of FinishMessages
}

func (f *faulty) ClaimMessages(
	ctx context.Context, wants []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	if f.claims.Add(-1) >= 0 {
		return nil, errDown
	}
	return f.Store.ClaimMessages(ctx, wants, lease)
}

func (f *faulty) FinishMessages(ctx context.Context, endings []outbox.Outcome) ([]outbox.Lease, error) {
	f.calls.Add(1)
	failing := f.finishes.Add(-1) >= 0
	if failing && !f.answersLost {
		return nil, errDown
	}
	fenced, err := f.Store.FinishMessages(ctx, endings)
	if failing {
		return nil, errDown
	}
	return fenced, err
}

func (f *faulty) RecordEffect(ctx context.Context, l outbox.Lease, id string, answer []byte) error {
	if f.provides.Add(-1) >= 0 {
		return errDown
	}
	return f.Store.RecordEffect(ctx, l, id, answer)
}

// TestFinishingIsRepeated: while the store is down the message is neither delivered again nor lost.
func TestFinishingIsRepeated(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &faulty{Store: b.store}
		store.finishes.Store(10)
		mail, events := new(clerk), new(journal)
		id := b.add(about("", "m"))
		began := time.Now()
		b.run(b.worker(store, outbox.Route{Handler: mail.deliver}, watched(events)), outbox.Report{Delivered: 1})
		mail.want(b, "once", "m")
		events.want(b, "once", "done")
		b.wantStates("in the end", id, outbox.StateDone)
		// 20, 40, …, 1280 ms, and then three times 2 s.
		if took := time.Since(began); took < 8540*time.Millisecond || took > 9*time.Second || store.calls.Load() != 11 {
			b.Errorf("%d tries took %s: the pauses do not grow as they should", store.calls.Load(), took)
		}
	})
}

// TestFinishingIsInDoubt: it was written down, but the reply was lost. It stays as it is.
func TestFinishingIsInDoubt(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &faulty{Store: b.store, answersLost: true}
		store.finishes.Store(1)
		mail := new(clerk)
		id := b.add(about("", "m"))
		b.run(b.worker(store, outbox.Route{Handler: mail.deliver}), outbox.Report{Lost: 1})
		b.run(b.worker(store, outbox.Route{Handler: mail.deliver}), outbox.Report{})
		mail.want(b, "once", "m")
		b.wantStates("done", id, outbox.StateDone)
	})
}

// TestStoreDownWhileStopping: the grace bounds also how long a worker waits for its store. Another one delivers again.
func TestStoreDownWhileStopping(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &faulty{Store: b.store}
		store.finishes.Store(1000)
		mail, events := new(clerk), new(journal)
		id := b.add(about("", "m"))
		stop := b.start(b.worker(store, outbox.Route{Handler: mail.deliver}, watched(events)))
		time.Sleep(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took != 10*time.Second {
			b.Errorf("stopping took %s", took)
		}
		events.want(b, "given up", "lost")
		b.wantStates("not written", id, outbox.StateLeased)
		time.Sleep(30 * time.Second)
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 1})
		mail.want(b, "at least once", "m m")
	})
}

// TestClaimsFail: a worker goes on when its store is back, and asks no more often than an idle one meanwhile.
func TestClaimsFail(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &faulty{Store: b.store}
		store.claims.Store(10)
		mail := new(clerk)
		b.add(about("", "m"))
		began := time.Now()
		b.Cleanup(b.start(b.worker(store, outbox.Route{Handler: mail.deliver})))
		for store.claims.Load() > 0 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took < 4500*time.Millisecond || took > 4600*time.Millisecond {
			b.Errorf("ten failures took %s, want a pause of 500ms behind each", took)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		mail.want(b, "back", "m")
	})
}

// TestRunOnceTellsOfFailures: the caller of one run hears that it could not be made, and of what was done before.
func TestRunOnceTellsOfFailures(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &faulty{Store: b.store}
		store.claims.Store(1)
		w := b.worker(store, outbox.Route{Handler: new(clerk).deliver})
		if _, err := w.RunOnce(b.Context()); !errors.Is(err, errDown) {
			b.Errorf("the run came to %v", err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		if _, err := w.RunOnce(ctx); !errors.Is(err, context.Canceled) {
			b.Errorf("a run that was called off came to %v", err)
		}
	})
}

// TestProviderIDNotRecorded is O3: the message is not done before the receiver's id is on record.
func TestProviderIDNotRecorded(t *testing.T) {
	inTime(t, func(b *bench) {
		b.createBook()
		store := &faulty{Store: b.store}
		store.provides.Store(1)
		id := b.add(about("", "m"))
		w := b.worker(store, outbox.Route{Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{ProviderID: "ch_1", Then: func(ctx context.Context) error { return write(ctx, "paid") }}, nil
		}})
		b.run(w, outbox.Report{Retried: 1})
		b.wantLines("not yet", "")
		time.Sleep(time.Second)
		b.run(w, outbox.Report{Delivered: 1})
		b.wantLines("then", "paid")
		if e := b.entry(id[0]); e.ProviderID != "ch_1" {
			b.Errorf("the receiver's id is %q", e.ProviderID)
		}
	})
}

// lateStore answers that there is nothing to take only after what was under way has ended.
type lateStore struct {
	*sqlite.Store
	letGo chan struct{}
	ended chan struct{}
	once  atomic.Bool
}

func (s *lateStore) ClaimMessages(
	ctx context.Context, wants []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	claimed, err := s.Store.ClaimMessages(ctx, wants, lease)
	if err == nil && len(claimed) == 0 && s.once.CompareAndSwap(false, true) {
		close(s.letGo)
		<-s.ended
	}
	return claimed, err
}

// Observe implements [onceward.Observer].
func (s *lateStore) Observe(context.Context, onceward.ObserverEvent) {
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
}

// TestRunOnceWaitsForWhatFollows: what a delivery adds is delivered in the same run, also if it ends just after a look
// that found nothing.
func TestRunOnceWaitsForWhatFollows(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &lateStore{Store: b.store, letGo: make(chan struct{}), ended: make(chan struct{})}
		mail := &clerk{does: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type == "receipt" {
				return outbox.Result{}, nil
			}
			<-store.letGo
			return outbox.Result{Then: func(ctx context.Context) error {
				_, err := b.box.Add(ctx, onceward.Tx(ctx), about("", "receipt"))
				return err
			}}, nil
		}}
		b.add(about("", "charge"))
		w := b.worker(store, outbox.Route{Handler: mail.deliver}, func(c *outbox.WorkerConfig) { c.Observer = store })
		b.run(w, outbox.Report{Delivered: 2})
		mail.want(b, "followed", "charge receipt")
	})
}
