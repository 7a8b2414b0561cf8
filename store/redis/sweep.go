package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

// The store promises all of these.
var (
	_ store.Store      = (*Store)(nil)
	_ store.Sweeper    = (*Store)(nil)
	_ store.Reconciler = (*Store)(nil)
	_ store.Buster     = (*Store)(nil)
	_ store.SelfReaper = (*Store)(nil)
)

// sweepers is how many records are swept at once.
const sweepers = 32

// Sweep implements [store.Sweeper]. An entry of the index whose record is not in progress any more is removed.
func (s *Store) Sweep(ctx context.Context, limit int) (swept int, err error) {
	if limit <= 0 {
		return 0, ctx.Err()
	}
	now, err := s.now(ctx)
	if err != nil {
		return 0, err
	}
	for first := 0; first < buckets && swept < limit; first += chunk {
		due, err := s.dueIn(ctx, s.names.buckets[first:first+chunk], indexSwept, now, limit-swept)
		if err != nil {
			return swept, err
		}
		n, err := s.sweepAll(ctx, due)
		swept += n
		if err != nil {
			return swept, err
		}
	}
	return swept, nil
}

// chunk is how many buckets are asked in one go.
const chunk = 128

// dueIn returns at most so many keys from an index of some buckets that were due at a moment.
func (s *Store) dueIn(ctx context.Context, in []bucket, index int, now time.Time, limit int) (keys []string, err error) {
	commands := make([]rueidis.Completed, len(in))
	for i := range in {
		commands[i] = s.client.B().Zrangebyscore().Key(in[i].index[index]).Min("-inf").Max(number(now.UnixMicro())).
			Limit(0, int64(limit)).Build()
	}
	for _, result := range s.client.DoMulti(ctx, commands...) {
		found, err := result.AsStrSlice()
		if err != nil {
			return nil, unavailable(err)
		}
		keys = append(keys, found[:min(len(found), limit-len(keys))]...)
	}
	return keys, nil
}

// sweepAll sweeps records, some at the same time, and returns how many became unknown. One that cannot be read does not
// keep the others from being looked after.
func (s *Store) sweepAll(ctx context.Context, keys []string) (swept int, err error) {
	var mu sync.Mutex
	var errs []error
	work := make(chan string)
	var running sync.WaitGroup
	for range min(sweepers, len(keys)) {
		running.Go(func() {
			for key := range work {
				changed, err := s.sweepOne(ctx, key)
				mu.Lock()
				if changed {
					swept++
				}
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, key := range keys {
		work <- key
	}
	close(work)
	running.Wait()
	return swept, errors.Join(errs...)
}

func (s *Store) sweepOne(ctx context.Context, key string) (swept bool, err error) {
	at, err := s.names.placeOf(key)
	if err != nil {
		return false, err
	}
	out, err := s.apply(ctx, at, store.Event{Kind: store.EventSweep}, nil)
	if err == nil && out.Effect == store.EffectNone && indexOf(&out.record) != indexSwept {
		err = s.mend(ctx, at, indexSwept)
	}
	return out.Effect != store.EffectNone, err
}

// now returns the server's clock.
func (s *Store) now(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, unavailable(err)
	}
	parts, err := s.client.Do(ctx, s.client.B().Time().Build()).AsIntSlice()
	if err != nil {
		return time.Time{}, unavailable(err)
	}
	if len(parts) != 2 {
		return time.Time{}, unexpected(nil)
	}
	return time.Unix(parts[0], parts[1]*int64(time.Microsecond)).UTC(), nil
}

// mend removes the entry of a record from an index if the record does not belong into it. It may have come back since it
// was looked at, so the server looks again.
func (s *Store) mend(ctx context.Context, at place, index int) error {
	state, policy := store.StateInProgress, ""
	switch index {
	case indexSwept:
		policy = string(rune(store.LostReconcile))
	case indexResumed:
		policy = string(rune(store.LostResume))
	case indexUnknown:
		state = store.StateUnknown
	}
	_, err := s.run(ctx, mendScript, []string{at.key, at.index[index]}, stamp(state, 0)[:atAttempt], policy)
	return err
}

// ReapsItself implements [store.SelfReaper]: what is settled has a time to live.
func (s *Store) ReapsItself() bool { return true }
