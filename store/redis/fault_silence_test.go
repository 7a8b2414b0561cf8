package redis_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// TestLargeReply: a reply that takes longer to arrive than a connection may be silent is no silence. It arrives, and so
// does what others have asked for on that connection.
func TestLargeReply(t *testing.T) {
	t.Parallel()
	primary, _ := replicated(t)
	const rate, size = 100_000, 450_000
	for name, options := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := servers.NewRedisProxy(t, primary.URL())
			options := append(options, redis.WithPrefix(name))
			s, around := open(t, proxy.URL(), options...), open(t, primary.URL(), redis.WithPrefix(name))
			_, err := around.Complete(t.Context(), booked(t, around, "large"), paid(strings.Repeat("x", size)))
			must(t, err)
			connections := connectAll(t, s, proxy)
			proxy.Throttle(rate)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var calls sync.WaitGroup
			calls.Go(func() {
				v, err := s.Reserve(ctx, booking("large"))
				if err != nil || v.Decision != store.DecisionReplay || len(v.Record.Response.Body) != size {
					t.Errorf("the replay got %s and %d bytes: %v", v.Decision, len(v.Record.Response.Body), err)
				}
			})
			for i := range 6 {
				time.Sleep(50 * time.Millisecond) // the replay is on its way
				calls.Go(func() {
					if _, err := s.Reserve(ctx, booking(fmt.Sprint("behind", i))); err != nil {
						t.Errorf("a reservation behind the replay: %v", err)
					}
				})
			}
			calls.Wait()
			if n := proxy.Connections() - connections; n > 0 {
				t.Errorf("%d connections were given up", n)
			}
		})
	}
}

// TestIdleConnection: a connection on which nothing is asked for longer than it may be silent is kept.
func TestIdleConnection(t *testing.T) {
	t.Parallel()
	primary, _ := replicated(t)
	for name, options := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := servers.NewRedisProxy(t, primary.URL())
			s := open(t, proxy.URL(), append(options, redis.WithPrefix(name))...)
			connections := connectAll(t, s, proxy)
			time.Sleep(4 * time.Second)
			if n := connectAll(t, s, proxy) - connections; n > 0 {
				t.Errorf("%d connections were given up", n)
			}
		})
	}
}

// connectAll has a store make all connections that it uses, of which a call takes one at random, and returns how many
// were made through the proxy until now.
func connectAll(t *testing.T, s store.Store, proxy *servers.RedisProxy) (connections int) {
	t.Helper()
	for range 30 {
		eventually(t, "the replica follows", func() error {
			_, err := s.Reserve(t.Context(), booking("first"))
			return err
		})
	}
	return proxy.Connections()
}
