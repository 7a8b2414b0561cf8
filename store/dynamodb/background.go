package dynamodb

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/onceward/onceward/store"
)

// Store also implements these interfaces.
var (
	_ store.Sweeper    = (*Store)(nil)
	_ store.SelfReaper = (*Store)(nil)
)

// ReapsItself implements [store.SelfReaper]: settled records have a time to live, and the service removes them within a
// few days after it ends. Until then they count as gone.
func (s *Store) ReapsItself() bool { return true }

// Sweep implements [store.Sweeper]. It finds due records by the index, and decides by the record itself. A record that
// cannot be read does not prevent the others from being swept.
func (s *Store) Sweep(ctx context.Context, limit int) (swept int, err error) {
	if err := s.writable(ctx); err != nil {
		return 0, err
	}
	shards, err := s.allShards(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, shard := range rand.Perm(shards) { // nodes that sweep at the same time begin with different parts
		if swept >= limit {
			break
		}
		until := s.clock.now().Add(-s.clock.margin()).UnixMicro()
		err := s.eachDue(ctx, dueRange{kind: dueInProgress, shard: byte(shard), until: until},
			func(keys []item) (bool, error) {
				n, err := s.sweepSome(ctx, keys, limit-swept)
				swept, errs = swept+n, append(errs, err)
				return swept < limit && ctx.Err() == nil, nil
			})
		errs = append(errs, err)
	}
	return swept, errors.Join(errs...)
}

// sweepSome sweeps at most limit of the records with these keys.
func (s *Store) sweepSome(ctx context.Context, keys []item, limit int) (swept int, err error) {
	var errs []error
	for len(keys) > 0 && swept < limit && ctx.Err() == nil {
		some := keys[:min(len(keys), limit-swept)]
		keys = keys[len(some):]
		outcomes, failures := make([]outcome, len(some)), make([]error, len(some))
		each(len(some), func(i int) {
			at, ok := placeOfKey(some[i])
			if !ok {
				return
			}
			outcomes[i], failures[i] = s.changeAt(ctx, at, store.Event{Kind: store.EventSweep}, sight{})
		})
		for i := range outcomes {
			if outcomes[i].Effect != store.EffectNone {
				swept++
			}
		}
		errs = append(errs, failures...)
	}
	return swept, errors.Join(errs...)
}

// placeOfKey returns the place of the record with a key, if it is the key of a record.
func placeOfKey(key item) (at place, ok bool) {
	b := bytesOf(key[attrPartition])
	if len(b) != 1+len(at.hash) || b[0] != kindRecord {
		return at, false
	}
	at.hash = [16]byte(b[1:])
	return at, true
}
