package redis

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

var _ store.Waiter = (*Store)(nil)

const (
	// calmLook is the pause between looks at a record that is waited for: for owners that are gone without a word, and
	// for what was published while the subscription was down.
	calmLook = time.Second
	// subscribeTimeout is for how long a subscription is waited for before looking is all there is for the time being.
	subscribeTimeout = time.Second
	deafLook         = 50 * time.Millisecond
)

// watcher watches each record that is waited for once, however many wait for it.
type watcher struct {
	store *Store

	mu      sync.Mutex
	watched map[watchKey]*watch
	ctx     context.Context
	stop    context.CancelFunc
}

// watchKey is what is waited for.
type watchKey struct {
	id      store.ID
	attempt int64
}

// watch is one thing that is waited for.
type watch struct {
	ended   chan struct{} // closed when the attempt may have ended, or cannot be watched
	err     error         // why it cannot be watched
	waiting int
	cancel  context.CancelFunc
}

func newWatcher(s *Store) *watcher {
	w := &watcher{store: s, watched: make(map[watchKey]*watch)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// Wait implements [store.Waiter]. A waiter marks the record, and the call that ends the attempt of a marked
// record publishes that: a record that is not waited for costs nothing.
func (s *Store) Wait(ctx context.Context, id store.ID, attempt int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	key := watchKey{id, attempt}
	one, err := s.watcher.join(key)
	if err != nil {
		return err
	}
	defer s.watcher.leave(key, one)
	select {
	case <-one.ended:
		return one.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join waits together with those who wait for the same.
func (w *watcher) join(key watchKey) (*watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.watched[key]
	if one == nil {
		ctx, cancel := context.WithCancel(w.ctx)
		one = &watch{ended: make(chan struct{}), cancel: cancel}
		if !w.store.sender.start(func() { w.run(ctx, key, one) }) {
			cancel()
			return nil, unavailable(errClosed)
		}
		w.watched[key] = one
	}
	one.waiting++
	return one, nil
}

// leave ends a wait; the last one to leave ends the watch.
func (w *watcher) leave(key watchKey, one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.waiting--
	if one.waiting == 0 {
		one.cancel()
		w.forget(key, one)
	}
}

// forget lets the next one who waits begin a new watch. The caller holds the lock.
func (w *watcher) forget(key watchKey, one *watch) {
	if w.watched[key] == one {
		delete(w.watched, key)
	}
}

// run watches an attempt until it may have ended.
func (w *watcher) run(ctx context.Context, key watchKey, one *watch) {
	at := w.store.names.place(key.id)
	told, heard := make(chan struct{}, 1), make(chan struct{})
	var subscription sync.WaitGroup
	subscription.Go(func() { w.subscribe(ctx, at.key, told, heard) })
	err := w.await(ctx, at, key.attempt, told, heard)
	w.mu.Lock()
	w.forget(key, one)
	w.mu.Unlock()
	one.err = err
	close(one.ended)
	one.cancel()
	subscription.Wait()
}

// subscribe listens to what is published about a record, again and again if the connection is lost. It closes heard
// when it hears for the first time.
func (w *watcher) subscribe(ctx context.Context, key string, told, heard chan struct{}) {
	tell := func() {
		select {
		case told <- struct{}{}:
		default: // it was told and has not looked yet
		}
	}
	first := sync.OnceFunc(func() { close(heard) })
	client := w.store.sender.client
	for ctx.Err() == nil {
		hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
			if s.Kind == "ssubscribe" {
				first()
				tell() // something may have been published before
			}
		})
		hooked = rueidis.WithOnReceiveReturnHook(hooked, unsubscribing(key))
		_ = client.Receive(hooked, client.B().Ssubscribe().Channel(key).Build(),
			func(rueidis.PubSubMessage) { tell() }) // it is tried again until the watch is over
		select {
		case <-ctx.Done():
		case <-time.After(deafLook):
		}
	}
}

// unsubscribing ends a subscription where Receive returns, which by itself only stops to listen: the server would keep
// the channel for as long as the connection lives.
func unsubscribing(key string) func(error, rueidis.CommandClient) error {
	return func(err error, c rueidis.CommandClient) error {
		ctx, cancel := context.WithTimeout(context.Background(), subscribeTimeout)
		defer cancel()
		_ = c.Do(ctx, c.B().Sunsubscribe().Channel(key).Build()).Error() // a connection that is lost has no subscriptions
		return err
	}
}

// await looks at the attempt whenever it is told to, and now and then.
func (w *watcher) await(ctx context.Context, at place, attempt int64, told, heard chan struct{}) error {
	select {
	case <-heard:
	case <-time.After(subscribeTimeout):
	case <-ctx.Done():
	}
	for {
		goesOn, err := w.store.run(ctx, awaitScript, []string{at.key}, stamp(attempt))
		if err != nil {
			return err
		}
		if n, err := goesOn.AsInt64(); err != nil || n == 0 {
			return unavailable(err)
		}
		pause := calmLook
		select {
		case <-heard:
		default:
			pause = deafLook
		}
		select {
		case <-told:
		case <-time.After(pause):
		case <-ctx.Done():
			return unavailable(ctx.Err())
		}
	}
}
