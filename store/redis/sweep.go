package redis

import (
	"context"
	"errors"
	"slices"
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

const (
	// chunk is how many buckets are asked in one round trip.
	chunk = 128
	// page is how many entries of a bucket are asked for at most.
	page = 256
	// workers is how many records are looked after at once.
	workers = 32
)

// Sweep implements [store.Sweeper]. What cannot be read, or is on a node that does not answer, does not keep the rest
// from being swept.
func (s *Store) Sweep(ctx context.Context, limit int) (swept int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, unavailable(err)
	}
	var errs []error
	for among := range slices.Chunk(s.names.holding(indexOpen), chunk) {
		if swept >= limit || ctx.Err() != nil {
			break
		}
		n, err := s.sweepBuckets(ctx, among, limit-swept)
		swept += n
		errs = append(errs, err)
	}
	return swept, errors.Join(append(errs, unavailable(ctx.Err()))...)
}

// sweepBuckets sweeps at most so many records of some buckets. Those with entries that stay, such as records that are
// resumed, are asked again for what is behind these.
func (s *Store) sweepBuckets(ctx context.Context, among []bucket, limit int) (swept int, err error) {
	staying := make(map[*bucket]int)
	var asked []*bucket
	for i := range among {
		asked = append(asked, &among[i])
	}
	var errs []error
	for len(asked) > 0 && swept < limit && ctx.Err() == nil {
		due, err := s.due(ctx, asked, staying, min(limit-swept, page))
		errs = append(errs, err)
		asked = nil
		var entries []entry
		for b, found := range due {
			for _, key := range found[:min(len(found), limit-swept-len(entries))] {
				entries = append(entries, entry{b, key})
			}
			asked = append(asked, b)
		}
		n, stayed, err := s.sweepAll(ctx, entries)
		for b, more := range stayed {
			staying[b] += more
		}
		swept += n
		errs = append(errs, err)
	}
	return swept, errors.Join(errs...)
}

// due returns the keys in the index of what is in progress whose lease is over, by bucket, behind so many in each.
func (s *Store) due(ctx context.Context, among []*bucket, behind map[*bucket]int, limit int) (
	found map[*bucket][]string, err error,
) {
	now, err := s.clock(ctx)
	if err != nil {
		return nil, err
	}
	commands := make([]rueidis.Completed, len(among))
	for i, b := range among {
		commands[i] = s.sender.client.B().Zrangebyscore().Key(b.index[indexOpen]).Min("-inf").
			Max(number(now.UnixMicro())).Limit(int64(behind[b]), int64(limit)).Build()
	}
	found = make(map[*bucket][]string)
	var errs []error
	for i, reply := range s.sender.ask(ctx, s.sender.client, commands...) {
		keys, err := reply.AsStrSlice()
		if err != nil {
			errs = append(errs, unavailable(err))
		} else if len(keys) > 0 {
			found[among[i]] = keys
		}
	}
	return found, errors.Join(errs...)
}

// sweepAll sweeps records, some at the same time. It returns how many became unknown, and how many entries stay in the
// index, by bucket.
func (s *Store) sweepAll(ctx context.Context, entries []entry) (swept int, stayed map[*bucket]int, err error) {
	var mu sync.Mutex
	var errs []error
	stayed = make(map[*bucket]int)
	each(entries, func(e entry) {
		became, err := s.sweepOne(ctx, e.key)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, err)
		}
		switch became {
		case entryStays:
			stayed[e.in]++
		case entrySwept:
			swept++
		}
	})
	return swept, stayed, errors.Join(errs...)
}

// entry is one of an index.
type entry struct {
	in  *bucket
	key string
}

// What became of an entry.
const (
	entrySwept = iota
	entryStays
	entryMended
)

func (s *Store) sweepOne(ctx context.Context, key string) (became int, err error) {
	at, err := s.names.placeOf(key)
	if err != nil {
		return entryStays, err
	}
	out, err := s.apply(ctx, at, store.Event{Kind: store.EventSweep}, nil)
	switch {
	case err != nil:
		return entryStays, err
	case out.Effect != store.EffectNone:
		return entrySwept, nil
	case indexOf(&out.record) == indexOpen:
		return entryStays, nil
	default:
		return entryMended, s.mend(ctx, at, indexOpen)
	}
}

// each does something for all, for some of them at the same time.
func each[T any](all []T, do func(T)) {
	work := make(chan T)
	var running sync.WaitGroup
	for range min(workers, len(all)) {
		running.Go(func() {
			for one := range work {
				do(one)
			}
		})
	}
	for _, one := range all {
		work <- one
	}
	close(work)
	running.Wait()
}

// mend removes the entry of a record from an index if the record does not belong into it. It may have come back since it
// was looked at, so the server looks again.
func (s *Store) mend(ctx context.Context, at place, index int) error {
	state := store.StateInProgress
	if index == indexUnknown {
		state = store.StateUnknown
	}
	_, err := s.run(ctx, mendScript, []string{at.key, at.index[index]}, string([]byte{format, byte(state)}))
	return err
}

// ReapsItself implements [store.SelfReaper]: what is settled has a time to live.
func (s *Store) ReapsItself() bool { return true }

// clock returns the server's clock; in a cluster that of any node that answers.
func (s *Store) clock(ctx context.Context) (now time.Time, err error) {
	nodes := map[string]rueidis.Client{"": s.sender.client}
	if s.sender.cluster {
		nodes = s.sender.client.Nodes()
	}
	for _, node := range nodes {
		var at int64
		if at, err = clock(s.sender.ask(ctx, node, node.B().Time().Build())[0]); err == nil {
			return time.UnixMicro(at).UTC(), nil
		}
	}
	return time.Time{}, err
}
