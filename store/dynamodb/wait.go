package dynamodb

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

var _ store.Waiter = (*Store)(nil)

// These are the pauses between reads of a record that is waited for. Each read is strongly consistent.
const (
	minLook = 100 * time.Millisecond
	maxLook = 2 * time.Second
)

// waitAttributes are the attributes that show whether an attempt is in progress.
var waitAttributes = []string{attrPartition, attrRecord, attrClaim}

// watcher reads each record that is waited for once, however many callers wait for it.
type watcher struct {
	store *Store

	mu      sync.Mutex
	watched map[store.ID]map[int64]*watch // by attempt
	running sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc
}

// watchKey identifies an attempt, or a transaction, that is waited for.
type watchKey struct {
	id      store.ID
	attempt int64
}

// watch is one attempt, or transaction, that is waited for.
type watch struct {
	ended   chan struct{} // closed when the attempt may have ended, or cannot be watched
	err     error         // why it cannot be watched
	told    chan struct{} // signals that this process has changed the record
	waiting int
	cancel  context.CancelFunc
}

func newWatcher(s *Store) *watcher {
	w := &watcher{store: s, watched: make(map[store.ID]map[int64]*watch)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

func (w *watcher) close() {
	w.stop()
	w.running.Wait()
}

// Wait implements [store.Waiter]. The service does not notify of changes, so the record is read repeatedly: first after
// 100 ms and then less often, down to every two seconds. A change by this process is seen immediately.
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

// join waits together with callers that wait for the same key.
func (w *watcher) join(key watchKey) (*watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return nil, unavailable(errClosed)
	}
	one := w.watched[key.id][key.attempt]
	if one == nil {
		ctx, cancel := context.WithCancel(w.ctx)
		one = &watch{ended: make(chan struct{}), told: make(chan struct{}, 1), cancel: cancel}
		if w.watched[key.id] == nil {
			w.watched[key.id] = make(map[int64]*watch)
		}
		w.watched[key.id][key.attempt] = one
		w.running.Go(func() { w.run(ctx, key, one) })
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
	attempts := w.watched[key.id]
	if attempts[key.attempt] == one {
		delete(attempts, key.attempt)
	}
	if len(attempts) == 0 {
		delete(w.watched, key.id)
	}
}

// wake makes the watches of a record that this process has changed read it again.
func (w *watcher) wake(id store.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.watched[id] {
		select {
		case one.told <- struct{}{}:
		default: // a signal is already pending
		}
	}
}

// run watches an attempt until it may have ended.
func (w *watcher) run(ctx context.Context, key watchKey, one *watch) {
	defer one.cancel()
	err := w.await(ctx, key, one.told)
	w.mu.Lock()
	w.forget(key, one)
	w.mu.Unlock()
	one.err = err
	close(one.ended)
}

// await reads an attempt repeatedly until it has ended.
func (w *watcher) await(ctx context.Context, key watchKey, told <-chan struct{}) error {
	for looks := 1; ; looks++ {
		goesOn, err := w.store.underWay(ctx, key)
		if err != nil || !goesOn {
			return err
		}
		timer := time.NewTimer(backoff.Jittered(minLook, maxLook, looks))
		select {
		case <-told:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// underWay reports whether an attempt is in progress, or a transaction if the attempt is zero.
func (s *Store) underWay(ctx context.Context, key watchKey) (bool, error) {
	at := placeOf(key.id)
	found, err := s.get(ctx, at.key(), waitAttributes...)
	if err != nil {
		return false, err
	}
	v, err := decode(&at, found)
	if key.attempt == 0 {
		return err == nil && v.claim.live(s.clock.now().Add(-s.clock.margin())), err
	}
	return err == nil && v.State == store.StateInProgress && v.Attempt == key.attempt, err
}
