package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// openTwoSets is what no protection can go below: the bytes of a reservation, then those of the answer, each written
// without a look at what is there.
func openTwoSets(ctx context.Context, s *stage) (*arena, error) {
	size, err := measureRecord(ctx, s)
	if err != nil {
		return nil, err
	}
	p, err := s.place()
	if err != nil {
		return nil, err
	}
	reserved, settled := strings.Repeat("r", size.reserved), strings.Repeat("s", size.settled)
	return &arena{
		operate: func(ctx context.Context) error {
			key := padded(size.key)
			if err := p.set(ctx, key, reserved); err != nil {
				return err
			}
			return p.set(ctx, key, settled)
		},
		check: p.expect,
		close: p.close(),
	}, nil
}

// openOneTrip is both at once, as if an answer could be known before the work is reserved.
func openOneTrip(ctx context.Context, s *stage) (*arena, error) {
	size, err := measureRecord(ctx, s)
	if err != nil {
		return nil, err
	}
	p, err := s.place()
	if err != nil {
		return nil, err
	}
	reserved, settled := strings.Repeat("r", size.reserved), strings.Repeat("s", size.settled)
	return &arena{
		operate: func(ctx context.Context) error {
			key := padded(size.key)
			for _, reply := range p.client.DoMulti(ctx,
				p.client.B().Set().Key(key).Value(reserved).Build(), p.client.B().Set().Key(key).Value(settled).Build()) {
				if err := reply.Error(); err != nil {
					return err
				}
			}
			return nil
		},
		check: p.expect,
		close: p.close(),
	}, nil
}

// openGet reads values as long as a settled record, chosen at random.
func openGet(ctx context.Context, s *stage) (*arena, error) {
	size, err := measureRecord(ctx, s)
	if err != nil {
		return nil, err
	}
	return s.getOf(ctx, size.key, size.settled)
}

// getOf reads values of that size.
func (s *stage) getOf(ctx context.Context, keySize, valueSize int) (*arena, error) {
	p, err := s.place()
	if err != nil {
		return nil, err
	}
	keys, value := make([]string, replayedKeys), strings.Repeat("s", valueSize)
	sets := make(rueidis.Commands, len(keys))
	for i := range keys {
		keys[i] = padded(keySize)
		sets[i] = p.client.B().Set().Key(keys[i]).Value(value).Build()
	}
	for _, reply := range p.client.DoMulti(ctx, sets...) {
		if err := reply.Error(); err != nil {
			return nil, err
		}
	}
	return &arena{
		operate: func(ctx context.Context) error {
			value, err := p.client.Do(ctx, p.client.B().Get().Key(keys[rand.N(len(keys))]).Build()).ToString()
			if err == nil && len(value) != valueSize {
				err = fmt.Errorf("GET gave %d bytes, want %d", len(value), valueSize)
			}
			return err
		},
		check: func(ctx context.Context, _ int64) error { return p.expect(ctx, int64(replayedKeys)) },
		close: p.close(),
	}, nil
}

// The recipe of many articles: a lock that runs out by itself, then the answer over it. An owner that is slower than
// its lock, or dies, is executed again; what was sent is not compared;
// a late owner overwrites the answer of its successor.
const (
	recipeLock = 30 * time.Second
	recipeKeep = 24 * time.Hour
)

// openRecipePipeline is the recipe over connections that all callers share.
func openRecipePipeline(_ context.Context, s *stage) (*arena, error) {
	p, err := s.place()
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error {
			key := "idempotency:alice:" + newKey()
			lock := p.client.B().Set().Key(key).Value("in progress").Nx().Ex(recipeLock).Build()
			if err := p.client.Do(ctx, lock).Error(); err != nil {
				return err
			}
			return p.client.Do(ctx, p.client.B().Set().Key(key).Value(answer).Ex(recipeKeep).Build()).Error()
		},
		check: p.expect,
		close: p.close(),
	}, nil
}

// openRecipePool is the recipe with a connection for each caller, one command after the other.
func openRecipePool(_ context.Context, s *stage) (*arena, error) {
	p, err := s.place()
	if err != nil {
		return nil, err
	}
	config, err := redis.ParseURL(p.url)
	if err != nil {
		return nil, err
	}
	config.PoolSize = s.callers
	client := redis.NewClient(config)
	return &arena{
		operate: func(ctx context.Context) error {
			key := "idempotency:alice:" + newKey()
			if locked, err := client.SetNX(ctx, key, "in progress", recipeLock).Result(); err != nil || !locked {
				return fmt.Errorf("the lock was not given: %w", err)
			}
			return client.Set(ctx, key, answer, recipeKeep).Err()
		},
		check: p.expect,
		close: p.close(client.Close),
	}, nil
}
