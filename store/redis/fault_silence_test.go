package redis_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// slowLinks is why a test is nightly.
const slowLinks = "it lasts longer than a connection may be silent; TestSilentConnection has one that is given up"

// usual has a store give up servers that do not answer, as those of programs do.
var usual = redis.UsualPatience()

// heartbeatOfClients is how often a client asks on a connection on which nothing is heard.
const heartbeatOfClients = 500 * time.Millisecond

// wantKept tries until no connection is given up. A machine that stood still made connections silent: only what the
// client gave up while the server answered others at once is a fault.
func wantKept(t *testing.T, server *servers.RedisServer, try func() (givenUp int, err error)) {
	t.Helper()
	await.That(t, "no connection is given up", func() bool {
		longest := watchAnswers(t, server)
		n, err := try()
		if still := longest(); still > heartbeatOfClients {
			return n == 0 && err == nil
		}
		if n > 0 || err != nil {
			t.Errorf("%d connections were given up: %v", n, err)
		}
		return true
	})
}

// watchAnswers asks a server all the time. The function that it returns ends that, and returns the longest time without
// an answer.
func watchAnswers(t *testing.T, server *servers.RedisServer) (longest func() time.Duration) {
	t.Helper()
	var most time.Duration
	over := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for last := time.Now(); ; {
			_, err := server.Do(t.Context(), "PING")
			must(t, err)
			most, last = max(most, time.Since(last)), time.Now()
			select {
			case <-over:
				return
			case <-time.After(pause):
			}
		}
	})
	return func() time.Duration {
		close(over)
		asking.Wait()
		return most
	}
}

// TestLargeReply: a reply that takes longer to arrive than a connection may be silent is no silence. It arrives, and so
// does what others have asked for on that connection.
func TestLargeReply(t *testing.T) {
	t.Parallel()
	nightly.Only(t, slowLinks)
	primary, _ := replicated(t)
	const rate, size = 100_000, 450_000
	for name, options := range ways(time.Second) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := servers.NewRedisProxy(t, primary.URL())
			options := append(options, redis.WithPrefix(name), usual)
			s, around := open(t, proxy.URL(), options...), open(t, primary.URL(), redis.WithPrefix(name))
			_, err := around.Complete(t.Context(), booked(t, around, "large"), paid(strings.Repeat("x", size)))
			must(t, err)
			tries := 0
			wantKept(t, primary, func() (int, error) {
				tries++
				connections := connectAll(t, s, proxy)
				proxy.Throttle(rate)
				defer proxy.Throttle(0)
				errs := make([]error, 7)
				var calls sync.WaitGroup
				calls.Go(func() {
					v, err := s.Reserve(t.Context(), booking("large"))
					if err == nil && (v.Decision != store.DecisionReplay || len(v.Record.Response.Body) != size) {
						err = fmt.Errorf("the replay got %s and %d bytes", v.Decision, len(v.Record.Response.Body))
					}
					errs[0] = err
				})
				for i := range 6 {
					time.Sleep(5 * pause) // the replay is under way, or a try proves less
					calls.Go(func() { _, errs[i+1] = s.Reserve(t.Context(), booking(fmt.Sprint("after it", tries, i))) })
				}
				calls.Wait()
				return proxy.Connections() - connections, errors.Join(errs...)
			})
		})
	}
}

// TestLargeRequest: a connection that a slow link is still taking a request from is not silent.
func TestLargeRequest(t *testing.T) {
	t.Parallel()
	nightly.Only(t, slowLinks)
	primary, _ := replicated(t)
	const rate, size = 100_000, 350_000
	for name, options := range ways(time.Second) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := newSlowLink(t, primary.Addr())
			s := open(t, "redis://"+link.Addr().String(), append(options, redis.WithPrefix(name), usual)...)
			around := open(t, primary.URL(), redis.WithPrefix(name))
			await.Success(t, "the replica follows", func() error {
				_, err := s.Reserve(t.Context(), booking("first"))
				return err
			})
			tries := 0
			wantKept(t, primary, func() (int, error) {
				tries++
				claim := booked(t, around, fmt.Sprint("large", tries))
				connections := link.made.Load()
				link.rate.Store(rate)
				defer link.rate.Store(0)
				_, err := s.Complete(t.Context(), claim, paid(strings.Repeat("x", size)))
				return int(link.made.Load() - connections), err
			})
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
	due := time.Now() // when what was carried may have arrived: a pause that lasts too long makes the next ones shorter
	for some := make([]byte, 4096); ; {
		asked := time.Now()
		n, err := client.Read(some)
		if err != nil {
			return
		}
		if time.Since(asked) > heartbeatOfClients/2 { // there was nothing to carry
			due = time.Now()
		}
		if rate := l.rate.Load(); rate > 0 {
			due = due.Add(time.Second * time.Duration(n) / time.Duration(rate))
			time.Sleep(time.Until(due))
		}
		if _, err := server.Write(some[:n]); err != nil {
			return
		}
	}
}

// TestIdleConnection: a connection on which nothing is asked for longer than it may be silent is kept.
func TestIdleConnection(t *testing.T) {
	t.Parallel()
	nightly.Only(t, slowLinks)
	primary, _ := replicated(t)
	for name, options := range ways(time.Second) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := servers.NewRedisProxy(t, primary.URL())
			s := open(t, proxy.URL(), append(options, redis.WithPrefix(name), usual)...)
			wantKept(t, primary, func() (int, error) {
				connections := connectAll(t, s, proxy)
				time.Sleep(4 * time.Second) // at least: longer than a connection may be silent
				return connectAll(t, s, proxy) - connections, nil
			})
		})
	}
}

// connectAll has a store make all connections that it uses, of which a call takes one at random, and returns how many
// were made through the proxy until now.
func connectAll(t *testing.T, s store.Store, proxy *servers.RedisProxy) (connections int) {
	t.Helper()
	for range 30 {
		await.Success(t, "the replica follows", func() error {
			_, err := s.Reserve(t.Context(), booking("first"))
			return err
		})
	}
	return proxy.Connections()
}
