package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/onceward/onceward/internal/servers"
	"github.com/redis/rueidis"
)

// stage is what the ways of one contest share: a Redis of their own, and a PostgreSQL if one of them needs it.
type stage struct {
	callers int
	redis   *servers.RedisServer
	// places counts the databases of the Redis that are taken.
	places   int
	postgres func(context.Context) (*pgServer, error)
}

// openStage starts the Redis of a contest.
func openStage(
	ctx context.Context, c *storesContest, postgres func(context.Context) (*pgServer, error),
) (*stage, error) {
	// A log that is written again in the background would slow one turn down, and not another.
	settings := append([]string{"auto-aof-rewrite-percentage 0", "databases 64"}, c.redis.settings...)
	redis, err := servers.StartRedis(ctx, settings...)
	if err != nil {
		return nil, err
	}
	return &stage{callers: c.callers, redis: redis, postgres: postgres}, nil
}

func (s *stage) close() error { return s.redis.Close() }

// site takes a schema of the PostgreSQL, with what closes and drops it.
func (s *stage) site(ctx context.Context) (site *pgSite, leave func() error, err error) {
	server, err := s.postgres(ctx)
	if err != nil {
		return nil, nil, err
	}
	if site, err = server.open(ctx, s.callers, durably); err != nil {
		return nil, nil, err
	}
	return site, func() error {
		site.pool.Close()
		return server.drop(context.WithoutCancel(ctx), site)
	}, nil
}

// redisPlace is a database of a Redis for one way, so that it can be counted what the way left in it.
type redisPlace struct {
	url    string
	client rueidis.Client
}

// place takes the next database, and connects to it as the store does: commands of all callers share connections.
func (s *stage) place() (*redisPlace, error) {
	url := fmt.Sprintf("%s/%d", s.redis.URL(), s.places)
	s.places++
	config, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	config.ForceSingleClient, config.DisableCache, config.DisableRetry, config.AlwaysPipelining = true, true, true, true
	config.PipelineMultiplex = 1
	client, err := rueidis.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &redisPlace{url: url, client: client}, nil
}

// set stores a value.
func (p *redisPlace) set(ctx context.Context, key, value string) error {
	return p.client.Do(ctx, p.client.B().Set().Key(key).Value(value).Build()).Error()
}

// expect makes sure that the database holds so many keys at least: a store may keep some of its own.
func (p *redisPlace) expect(ctx context.Context, want int64) error {
	n, err := p.client.Do(ctx, p.client.B().Dbsize().Build()).AsInt64()
	if err == nil && n < want {
		err = fmt.Errorf("the database holds %d keys, want %d", n, want)
	}
	return err
}

// holds is expect for the entries of a front, without the nameless one by which it has tried what it may do.
func (p *redisPlace) holds(ctx context.Context, want int) error {
	keys, err := p.client.Do(ctx, p.client.B().Keys().Pattern("*{}?*").Build()).AsStrSlice()
	if err == nil && len(keys) < want {
		err = fmt.Errorf("the front holds %d keys, want %d", len(keys), want)
	}
	return err
}

// close also closes what the way has opened, if anything.
func (p *redisPlace) close(others ...func() error) func() error {
	return func() (err error) {
		for _, closeOther := range others {
			err = errors.Join(err, closeOther())
		}
		p.client.Close()
		return err
	}
}

// padded is a new key of that many bytes.
func padded(size int) string {
	key := newKey()
	return strings.Repeat("k", max(0, size-len(key))) + key
}

// useDirectory makes private servers keep their data in a directory, if one is given: the servers' own user has to be
// able to reach it.
func useDirectory(dir string) error {
	if dir == "" {
		return nil
	}
	return os.Setenv("TMPDIR", dir)
}
