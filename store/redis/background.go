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

// Store implements all of these interfaces.
var (
	_ store.Store      = (*Store)(nil)
	_ store.Sweeper    = (*Store)(nil)
	_ store.Reconciler = (*Store)(nil)
	_ store.Buster     = (*Store)(nil)
	_ store.SelfReaper = (*Store)(nil)
	_ store.Rewriter   = (*Store)(nil)
)

// workers is how many records are processed at once.
const workers = 32

// Sweep implements [store.Sweeper]. A record that cannot be read, or is on a node that does not answer, does not
// prevent the others from being swept. From time to time it reads the settings of the servers, which change with a
// fail-over.
func (s *Store) Sweep(ctx context.Context, limit int) (swept int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, unavailable(err)
	}
	s.inspectAgain(ctx)
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

// sweepBuckets sweeps at most limit records of some buckets. It skips entries that stay, such as entries of records
// that are resumed.
func (s *Store) sweepBuckets(ctx context.Context, among []bucket, limit int) (swept int, err error) {
	now, err := s.clock(ctx)
	if err != nil {
		return 0, err
	}
	w := newWalk(among, indexOpen, number(now.UnixMicro()))
	var errs []error
	for len(w.left) > 0 && swept < limit && ctx.Err() == nil {
		due, err := s.next(ctx, w, min(limit-swept, page))
		errs = append(errs, err)
		for len(due) > 0 && swept < limit && ctx.Err() == nil {
			some := due[:min(len(due), limit-swept)]
			n, stayed, err := s.sweepAll(ctx, some)
			for _, e := range stayed {
				w.pass(e)
			}
			due, swept, errs = due[len(some):], swept+n, append(errs, err)
		}
	}
	return swept, errors.Join(errs...)
}

// sweepAll sweeps records, some at the same time. It returns how many became unknown, and the entries that stay in the
// index.
func (s *Store) sweepAll(ctx context.Context, entries []entry) (swept int, stayed []entry, err error) {
	became, errs := make([]int, len(entries)), make([]error, len(entries))
	each(len(entries), func(i int) { became[i], errs[i] = s.sweepOne(ctx, entries[i].key) })
	for i, e := range entries {
		switch became[i] {
		case entryStays:
			stayed = append(stayed, e)
		case entrySwept:
			swept++
		}
	}
	return swept, stayed, errors.Join(errs...)
}

// These are the results of sweeping an entry.
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
	out, err := s.changeAt(ctx, at, store.Event{Kind: store.EventSweep}, nil)
	switch {
	case err != nil:
		return entryStays, err
	case out.Effect != store.EffectNone:
		return entrySwept, nil
	case indexOf(&out.Record) == indexOpen:
		return entryStays, nil
	}
	if err := s.mend(ctx, at, indexOpen); err != nil {
		return entryStays, err
	}
	return entryMended, nil
}

// each calls do with the numbers below n, some of them at the same time.
func each(n int, do func(i int)) {
	work := make(chan int)
	var running sync.WaitGroup
	for range min(workers, n) {
		running.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	running.Wait()
}

// mend removes the entry of a record from an index if the record does not belong in it. The server checks the record
// again, because it may have changed since it was read.
func (s *Store) mend(ctx context.Context, at place, index int) error {
	state := store.StateInProgress
	if index == indexUnknown {
		state = store.StateUnknown
	}
	_, err := s.run(ctx, mendScript, []string{at.key, at.index[index]}, string([]byte{format, byte(state)}))
	return err
}

// ReapsItself implements [store.SelfReaper]: settled records have a time to live.
func (s *Store) ReapsItself() bool { return true }

// clock returns the server's clock; in a cluster the clock of any node that answers.
func (s *Store) clock(ctx context.Context) (time.Time, error) {
	build := func(b rueidis.Builder) rueidis.Completed { return b.Time().Build() }
	var reply rueidis.RedisResult
	if s.sender.cluster {
		_, reply = s.sender.askAny(ctx, build)
	} else {
		reply = s.sender.ask(ctx, s.sender.client, build(s.sender.client.B()))[0]
	}
	at, err := clock(reply)
	return time.UnixMicro(at + s.sender.ahead.Load()).UTC(), err
}
