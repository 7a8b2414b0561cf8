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
	// calmLook is the pause between checks of a record that is waited for: its owner may be lost, and notifications may
	// have been missed while the subscription was down.
	calmLook = time.Second
	// subscribeTimeout is how long to wait for a subscription before polling.
	subscribeTimeout = time.Second
	pollPause        = 50 * time.Millisecond
)

// watcher watches each record that is waited for once, however many callers wait for it.
type watcher struct {
	store *Store

	mu      sync.Mutex
	watched map[watchKey]*watch
	ctx     context.Context
	stop    context.CancelFunc
}

// watchKey identifies an attempt that is waited for.
type watchKey struct {
	id      store.ID
	attempt int64
}

// watch is one attempt that is waited for.
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

// Wait implements [store.Waiter]. A waiter marks the record, and the call that ends the attempt of a marked record
// publishes it: a record that is not waited for costs nothing.
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

// join waits together with callers that wait for the same attempt.
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

// forget makes the next waiter begin a new watch. The caller holds the lock.
func (w *watcher) forget(key watchKey, one *watch) {
	if w.watched[key] == one {
		delete(w.watched, key)
	}
}

// run watches an attempt until it may have ended.
func (w *watcher) run(ctx context.Context, key watchKey, one *watch) {
	at := w.store.names.place(key.id)
	notified, subscribed := make(chan struct{}, 1), make(chan struct{})
	var subscription sync.WaitGroup
	subscription.Go(func() { w.subscribe(ctx, at.key, notified, subscribed) })
	err := w.await(ctx, at, key.attempt, notified, subscribed)
	w.mu.Lock()
	w.forget(key, one)
	w.mu.Unlock()
	one.err = err
	close(one.ended)
	one.cancel()
	subscription.Wait()
}

// subscribe receives what is published about a record, and subscribes again if the connection is lost. It closes
// subscribed when the first subscription is made.
func (w *watcher) subscribe(ctx context.Context, key string, notified, subscribed chan struct{}) {
	notify := func() {
		select {
		case notified <- struct{}{}:
		default: // a notification is already pending
		}
	}
	first := sync.OnceFunc(func() { close(subscribed) })
	client := w.store.sender.client
	for ctx.Err() == nil {
		hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
			if s.Kind == "ssubscribe" {
				first()
				notify() // something may have been published before
			}
		})
		hooked = rueidis.WithOnReceiveReturnHook(hooked, unsubscribing(key))
		_ = client.Receive(hooked, client.B().Ssubscribe().Channel(key).Build(),
			func(rueidis.PubSubMessage) { notify() }) // retried until the watch is over
		select {
		case <-ctx.Done():
		case <-time.After(pollPause):
		}
	}
}

// unsubscribing ends a subscription when Receive returns, which only stops receiving: the server would keep the channel
// for as long as the connection lives.
func unsubscribing(key string) func(error, rueidis.CommandClient) error {
	return func(err error, c rueidis.CommandClient) error {
		ctx, cancel := context.WithTimeout(context.Background(), subscribeTimeout)
		defer cancel()
		_ = c.Do(ctx, c.B().Sunsubscribe().Channel(key).Build()).Error() // a lost connection has no subscriptions
		return err
	}
}

// await checks the attempt at every notification, and from time to time.
func (w *watcher) await(ctx context.Context, at place, attempt int64, notified, subscribed chan struct{}) error {
	select {
	case <-subscribed:
	case <-time.After(subscribeTimeout):
	case <-ctx.Done():
	}
	for {
		inProgress, err := w.store.run(ctx, awaitScript, []string{at.key}, stamp(attempt))
		if err != nil {
			return err
		}
		if n, err := inProgress.AsInt64(); err != nil || n == 0 {
			return unavailable(err)
		}
		pause := calmLook
		select {
		case <-subscribed:
		default:
			pause = pollPause
		}
		select {
		case <-notified:
		case <-time.After(pause):
		case <-ctx.Done():
			return unavailable(ctx.Err())
		}
	}
}
