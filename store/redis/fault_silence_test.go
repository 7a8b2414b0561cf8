package redis_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
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

// TestLargeRequest: a connection that a slow link is still taking a request from is not silent.
func TestLargeRequest(t *testing.T) {
	t.Parallel()
	primary, _ := replicated(t)
	const rate, size = 100_000, 350_000
	for name, options := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := newSlowLink(t, primary.Addr())
			s := open(t, "redis://"+link.Addr().String(), append(options, redis.WithPrefix(name))...)
			eventually(t, "the replica follows", func() error {
				_, err := s.Reserve(t.Context(), booking("first"))
				return err
			})
			claim := booked(t, s, "large")
			connections := link.made.Load()
			link.rate.Store(rate)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if _, err := s.Complete(ctx, claim, paid(strings.Repeat("x", size))); err != nil {
				t.Errorf("an answer of %d bytes at %d a second: %v", size, rate, err)
			}
			if n := link.made.Load() - connections; n > 0 {
				t.Errorf("%d connections were given up", n)
			}
		})
	}
}

// slowLink carries bytes to a server at so many a second, and back at once. It has little room for what it has not carried.
type slowLink struct {
	net.Listener
	to   string
	rate atomic.Int64 // zero: all
	made atomic.Int64
}

func newSlowLink(t *testing.T, to string) *slowLink {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l := &slowLink{Listener: listener, to: to}
	var carried sync.WaitGroup
	carried.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			l.made.Add(1)
			must(t, client.(*net.TCPConn).SetReadBuffer(16<<10))
			carried.Go(func() { l.carry(client) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		carried.Wait()
	})
	return l
}

func (l *slowLink) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	var back sync.WaitGroup
	defer back.Wait()
	defer server.Close()
	back.Go(func() {
		_, _ = io.Copy(client, server) // until one of them has closed
		client.Close()
	})
	for some := make([]byte, 4096); ; {
		n, err := client.Read(some)
		if err != nil {
			return
		}
		if rate := l.rate.Load(); rate > 0 {
			time.Sleep(time.Second * time.Duration(n) / time.Duration(rate))
		}
		if _, err := server.Write(some[:n]); err != nil {
			return
		}
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
