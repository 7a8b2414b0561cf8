package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// deafStore is what a worker has that is cut off: while it is deaf, no sign of life gets through, and no claim.
type deafStore struct {
	*sqlite.Store
	deaf atomic.Bool
}

func (s *deafStore) ClaimMessages(
	ctx context.Context, wants []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	if s.deaf.Load() {
		return nil, errDown
	}
	return s.Store.ClaimMessages(ctx, wants, lease)
}

func (s *deafStore) ExtendMessages(
	ctx context.Context, leases []outbox.Lease, lease time.Duration,
) ([]outbox.Lease, error) {
	if s.deaf.Load() {
		return nil, errDown
	}
	return s.Store.ExtendMessages(ctx, leases, lease)
}

// TestLongDelivery: while its worker lives, a message belongs to no other, however long it takes.
func TestLongDelivery(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			time.Sleep(2 * time.Minute)
			return outbox.Result{}, d.CheckLease()
		}}
		b.add(about("a", "first"), about("a", "second"))
		route := outbox.Route{Handler: mail.deliver, Timeout: time.Hour}
		stop := b.start(b.worker(b.store, route))
		other := b.start(b.worker(b.store, route))
		time.Sleep(5 * time.Minute)
		stop()
		other()
		mail.want(b, "once", "first second")
	})
}

// stray is a worker that lost its message while it delivers it, and what its handler saw.
type stray struct {
	*bench
	store  *deafStore
	ids    []string
	events journal
	old    clerk
	cause  error
	alive  error
	taken  chan struct{} // closed when another worker has delivered its messages
	stop   func()
}

// startStray starts a worker whose handler waits for the end of its context, and takes its messages away.
func startStray(b *bench, then outbox.Handler) *stray {
	s := &stray{bench: b, store: &deafStore{Store: b.store}, taken: make(chan struct{})}
	s.ids = b.add(about("a", "first"), about("a", "second"))
	s.old.does = func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
		<-ctx.Done()
		s.cause, s.alive = context.Cause(ctx), d.CheckLease()
		<-s.taken
		return then(ctx, d)
	}
	s.stop = b.start(b.worker(s.store, outbox.Route{Handler: s.old.deliver, Timeout: time.Hour}, watched(&s.events)))
	synctest.Wait()
	s.old.want(b, "begun", "first")
	s.store.deaf.Store(true)
	time.Sleep(30*time.Second + time.Microsecond)
	return s
}

// takeOver lets another worker deliver what the stray one has lost, which hears of it afterwards.
func (s *stray) takeOver(handler outbox.Handler) {
	s.Helper()
	next := &clerk{does: handler}
	s.run(s.worker(s.bench.store, outbox.Route{Handler: next.deliver}), outbox.Report{Delivered: 2})
	next.want(s, "taken over", "first second")
	close(s.taken)
	s.store.deaf.Store(false)
	time.Sleep(10 * time.Second) // the next sign of life
	synctest.Wait()
	s.stop()
}

// TestLostLease: the handler is told, nothing of what it says counts, and another worker has delivered the message.
func TestLostLease(t *testing.T) {
	for name, then := range map[string]outbox.Handler{
		"success": func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{ProviderID: "old"}, nil
		},
		"failure": fails(errDown, "first"),
		"dead":    fails(outbox.Permanent(errDown), "first"),
		"then": func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{ProviderID: "old", Then: func(ctx context.Context) error { return write(ctx, "old") }}, nil
		},
		"record": func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if err := d.RecordProviderID(context.Background(), "old"); !errors.Is(err, outbox.ErrFenced) {
				return outbox.Result{}, outbox.Permanent(errors.New("it could be recorded"))
			}
			return outbox.Result{}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(b *bench) {
				b.createBook()
				s := startStray(b, then)
				s.takeOver(func(context.Context, *outbox.Delivery) (outbox.Result, error) {
					return outbox.Result{ProviderID: "new"}, nil
				})
				if !errors.Is(s.cause, outbox.ErrFenced) || !errors.Is(s.alive, outbox.ErrFenced) {
					b.Errorf("the handler's context ended with %v, and it is alive: %v", s.cause, s.alive)
				}
				for _, id := range s.ids {
					if e := b.entry(id); e.State != outbox.StateDone || e.ProviderID != "new" || e.LastError != "" {
						b.Errorf("%s is %s as %q: %q", e.Type, e.State, e.ProviderID, e.LastError)
					}
				}
				b.wantLines("nothing of the old one", "")
				s.old.want(b, "not begun", "first")
				s.events.want(b, "lost, and what was not begun is lost too", "lost, lost")
			})
		})
	}
}

// TestAliveByTheClock: also without a word from the store the worker knows that its lease is over.
func TestAliveByTheClock(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &deafStore{Store: b.store}
		b.add(about("", "m"))
		w := b.worker(store, outbox.Route{Timeout: time.Hour, Handler: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
			store.deaf.Store(true)
			defer store.deaf.Store(false)
			if err := d.CheckLease(); err != nil {
				b.Errorf("at the beginning: %v", err)
			}
			time.Sleep(30*time.Second - time.Nanosecond)
			if err := d.CheckLease(); err != nil {
				b.Errorf("before the end: %v", err)
			}
			time.Sleep(time.Nanosecond)
			if err := d.CheckLease(); !errors.Is(err, outbox.ErrFenced) {
				b.Errorf("at the end: %v", err)
			}
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, outbox.ErrFenced) {
				b.Errorf("at the end the context of the delivery is over by %v", cause)
			}
			return outbox.Result{}, nil
		}})
		stop := b.start(w)
		time.Sleep(time.Minute)
		stop()
	})
}

// TestLeaseOverBeforeTheDelivery: what waited in hand for too long is another worker's, and is not begun.
func TestLeaseOverBeforeTheDelivery(t *testing.T) {
	inTime(t, func(b *bench) {
		store := &deafStore{Store: b.store}
		letGo := make(chan struct{})
		old := &clerk{
			does: func(context.Context, *outbox.Delivery) (outbox.Result, error) { <-letGo; return outbox.Result{}, nil },
		}
		ids := b.add(about("a", "first"), about("a", "second"))
		stop := b.start(b.worker(store, outbox.Route{Handler: old.deliver, Timeout: time.Hour}))
		synctest.Wait()
		b.wantStates("in hand", ids, outbox.StateLeased, outbox.StateLeased)
		store.deaf.Store(true)
		time.Sleep(30 * time.Second)
		next := new(clerk)
		b.run(b.worker(b.store, outbox.Route{Handler: next.deliver}), outbox.Report{Delivered: 2})
		close(letGo)
		synctest.Wait()
		stop()
		old.want(b, "the old one begins nothing", "first")
		next.want(b, "the new one does", "first second")
		b.wantStates("done", ids, outbox.StateDone, outbox.StateDone)
	})
}
