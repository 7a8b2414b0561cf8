// Package consuming holds what the consumers of all brokers have in common.
package consuming

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store"
)

// Grace returns the context for applying a message. It lasts for the grace after ctx has ended.
func Grace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	applying, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(applying, func() { timer.Stop() })
	})
	return applying, func() {
		stop()
		cancel()
	}
}

// EventID returns the ID of a message's event, and refuses an ID that the inbox would not accept.
func EventID[M any](of func(M) (string, error), message M) (string, error) {
	id, err := of(message)
	if err != nil {
		return "", err
	}
	if id == "" || len(id) > inbox.MaxName {
		return "", fmt.Errorf("an event ID of %d bytes, and 1 to %d are allowed", len(id), inbox.MaxName)
	}
	return id, nil
}

// Guard calls a handler. A panic becomes an error, so that one bad message does not end the process at each delivery.
func Guard(handle func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", cause, debug.Stack())
		}
	}()
	return handle()
}

// Counts reports whether an error counts as a failure of the message. An unavailable store does not.
func Counts(err error) bool { return !errors.Is(err, store.ErrUnavailable) }

// maxFailing is how many messages have their failures counted. A message that fails here and is applied elsewhere would
// otherwise be kept permanently; when there are too many, counting starts again.
const maxFailing = 10_000

// Failures counts how often messages have failed in this process. It is safe for concurrent use.
type Failures[K comparable] struct {
	mu sync.Mutex
	of map[K]failure
}

// failure is how often a message has failed for a reason of its own, and how often for any reason.
type failure struct{ attempts, all int }

// Add records a failure, and whether it counts as an attempt. It returns the number of attempts including this one, and
// of failures of any kind.
func (f *Failures[K]) Add(key K, counts bool) (attempts, failures int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.of[key]; f.of == nil || !known && len(f.of) >= maxFailing {
		f.of = make(map[K]failure)
	}
	failed := f.of[key]
	failed.all++
	if counts {
		failed.attempts++
	}
	f.of[key] = failed
	return failed.attempts, failed.all
}

// Forget drops the count of a message that will not be delivered again.
func (f *Failures[K]) Forget(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, key)
}
