package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
	"github.com/redis/rueidis"
)

// openRedis opens the store in a database of its own.
func openRedis(ctx context.Context, s *stage) (*redis.Store, *redisPlace, error) {
	p, err := s.place()
	if err != nil {
		return nil, nil, err
	}
	// The store warns of a server that can forget, as it should, but here some are meant to.
	st, err := redis.Open(ctx, p.url, redis.WithLogger(slog.New(slog.DiscardHandler)))
	return st, p, err
}

// openRedisReserved is reserve and complete.
func openRedisReserved(ctx context.Context, s *stage) (*arena, error) {
	st, p, err := openRedis(ctx, s)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error { return reserveAndComplete(ctx, st, newKey()) },
		check:   p.expect,
		close:   p.close(st.Close),
	}, nil
}

// openRedisReplay is the replay of keys that are completed, chosen at random.
func openRedisReplay(ctx context.Context, s *stage) (*arena, error) {
	st, p, err := openRedis(ctx, s)
	if err != nil {
		return nil, err
	}
	keys := newKeys(replayedKeys)
	return &arena{
		operate: func(ctx context.Context) error { return replayOnce(ctx, st, reservation(keys[rand.N(len(keys))])) },
		check:   func(ctx context.Context, _ int64) error { return p.expect(ctx, int64(replayedKeys)) },
		close:   p.close(st.Close),
	}, fill(ctx, st, keys)
}

// firstReplayKeys is how many keys are replayed once by each of the stores, which is more than a contest does. Tests
// make it few.
var firstReplayKeys = 1 << 16

// firstReplayStores is how many stores replay them.
const firstReplayStores = 16

// openRedisFirstReplay is the replay of keys that the process which replays them has not seen before, as after a retry
// that came to another node.
func openRedisFirstReplay(ctx context.Context, s *stage) (*arena, error) {
	filled, p, err := openRedis(ctx, s)
	if err != nil {
		return nil, err
	}
	keys := newKeys(firstReplayKeys)
	err = errors.Join(fill(ctx, filled, keys), filled.Close())
	stores := make([]*redis.Store, firstReplayStores)
	closing := make([]func() error, 0, len(stores))
	for i := range stores {
		if err == nil {
			stores[i], err = redis.Open(ctx, p.url)
			closing = append(closing, stores[i].Close)
		}
	}
	var next atomic.Int64
	return &arena{
		operate: func(ctx context.Context) error {
			n := int(next.Add(1) - 1)
			if n >= len(keys)*len(stores) {
				return errors.New("all keys have been replayed by all stores: make the turns shorter")
			}
			return replayOnce(ctx, stores[n/len(keys)], reservation(keys[n%len(keys)]))
		},
		check: func(ctx context.Context, _ int64) error { return p.expect(ctx, int64(firstReplayKeys)) },
		close: p.close(closing...),
	}, err
}

// openRedisHTTP is the handler behind the middleware, with its records in Redis.
func openRedisHTTP(ctx context.Context, s *stage) (*arena, error) {
	st, p, err := openRedis(ctx, s)
	if err != nil {
		return nil, err
	}
	guard, err := onceward.New(st, onceward.Config{
		Scope:  func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil },
		Secret: []byte("a secret of enough random bytes "),
	})
	if err != nil {
		return nil, err
	}
	handler := guard.Handler(payment(noBusiness), onceward.Reserved(onceward.FailureUnknown))
	return serve(handler, s.callers, p.expect, p.close(st.Close))
}

// recordSize is what the store writes for a key: how long its name is, and its value when reserved and when settled.
type recordSize struct{ key, reserved, settled int }

// measureRecord lets the store write a record like all others, and measures it.
func measureRecord(ctx context.Context, s *stage) (size recordSize, err error) {
	st, p, err := openRedis(ctx, s)
	if err != nil {
		return size, err
	}
	defer func() { err = errors.Join(err, p.close(st.Close)()) }()
	r := reservation(newKey())
	v, err := st.Reserve(ctx, r)
	if err := decided(v, err, store.DecisionExecute); err != nil {
		return size, err
	}
	if _, size.reserved, err = p.onlyValue(ctx); err != nil {
		return size, err
	}
	done := completion()
	if _, err := st.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, &done); err != nil {
		return size, err
	}
	size.key, size.settled, err = p.onlyValue(ctx)
	return size, err
}

// onlyValue measures the only string of a database, and its name. What else is there, such as an index, is not counted.
func (p *redisPlace) onlyValue(ctx context.Context) (key, value int, err error) {
	keys, err := p.client.Do(ctx, p.client.B().Keys().Pattern("*").Build()).AsStrSlice()
	if err != nil {
		return 0, 0, err
	}
	for _, name := range keys {
		size, err := p.client.Do(ctx, p.client.B().Strlen().Key(name).Build()).AsInt64()
		if _, refused := rueidis.IsRedisErr(err); refused {
			continue // not a string
		}
		if err == nil && size == 0 {
			continue // a front has tried what it may do
		}
		if err != nil || value != 0 {
			return 0, 0, errors.Join(fmt.Errorf("%q is not the only value in the database", name), err)
		}
		key, value = len(name), int(size)
	}
	if value == 0 {
		return 0, 0, fmt.Errorf("none of %d keys holds a value", len(keys))
	}
	return key, value, nil
}
