package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/onceward/onceward/store"
)

// Front is a cache on Redis for package tiered, which puts it before a durable store. It may lose everything at any
// time, so the server may be set up for speed: no persistence, maxmemory with allkeys-lru, replicas that lag.
//
// A look-up is a GET or a part of an MGET, a fill a SET NX PXAT, and a tombstone an empty value, which a script sets. A
// user of the server needs no more than +@read +@write +@connection +time +eval +evalsha on ~PREFIX:front:*, with +role
// behind Sentinel and +cluster|slots +cluster|shards in a cluster.
type Front struct {
	prefix  string
	config  rueidis.ClientOption
	cluster bool
	clock   serverClock

	// connected is empty until there is a connection.
	connected atomic.Pointer[sender]

	mu         sync.Mutex
	failure    error // the reason for no connection
	connecting bool
	closed     bool
	work       sync.WaitGroup
}

// OpenFront connects to the servers of a URL, in the forms that [Open] accepts. An unavailable server is no error: the
// front answers when it is back, and until then the durable store does. The server's settings do not matter. Only the
// options [WithPrefix] and [WithTLS] have an effect.
func OpenFront(ctx context.Context, url string, opts ...Option) (*Front, error) {
	o := options{prefix: "onceward", patience: usualPatience()}
	for _, option := range opts {
		option(&o)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	where, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	f := &Front{
		prefix: o.prefix + ":front:" + noTag, config: where.config(o.tls, o.patience), cluster: where.mode == modeCluster,
		failure: errConnecting, connecting: true,
	}
	first := make(chan struct{})
	f.work.Go(func() {
		defer close(first)
		f.dial()
	})
	select {
	case <-first:
	case <-ctx.Done(): // connecting continues
	}
	return f, nil
}

// noTag is an empty hash tag. With it the slot of a key depends on the whole key, and no client can put its own tag
// into a key to overload one node.
const noTag = "{}"

var errConnecting = errors.New("there is no connection yet")

// closeTimeout is how long Close waits for a server that does not answer.
const closeTimeout = time.Second

// Close ends the calls in progress with an error, and closes the connections. It takes at most about a second: calls to
// a server that does not answer end later.
func (f *Front) Close() error {
	f.mu.Lock()
	f.failure, f.closed = errClosed, true
	f.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if s := f.connected.Swap(nil); s != nil {
			s.client.Close()
			s.finish()
		}
		f.work.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(closeTimeout):
	}
	return nil
}

// dial makes one attempt to connect.
func (f *Front) dial() {
	s, err := f.connect()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.connecting = false
	switch {
	case f.closed && err == nil:
		s.client.Close()
		s.finish()
	case f.closed:
	case err != nil:
		f.failure = err
	default:
		f.connected.Store(s)
		f.work.Go(func() { f.clock.query(s.client) })
	}
}

// connect makes a client. It refuses a server that refuses tombstones, which would otherwise show at the first bust.
func (f *Front) connect() (*sender, error) {
	client, err := rueidis.NewClient(f.config)
	if err != nil {
		return nil, err
	}
	s := &sender{client: client, cluster: f.cluster, timeout: f.config.ConnWriteTimeout}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	err = s.do(ctx, tombstone(f.prefix, 1))
	var refused *rueidis.RedisError
	if !errors.As(err, &refused) ||
		!strings.HasPrefix(refused.Error(), "NOPERM") && !strings.HasPrefix(refused.Error(), "ERR") {
		return s, nil // the server accepts tombstones, or this cannot be determined now
	}
	client.Close()
	s.finish()
	return nil, fmt.Errorf("a tombstone cannot be set, for which a front needs Redis 7.0 and "+
		"a user with +eval and +evalsha: %w", err)
}

// ready returns the sender of calls. If there is none yet it tries to connect in the background, and the caller retries
// later.
func (f *Front) ready() (*sender, error) {
	if s := f.connected.Load(); s != nil {
		return s, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.connecting && !f.closed {
		f.connecting = true
		f.work.Go(f.dial)
	}
	return nil, fmt.Errorf("%w: redis: %w", store.ErrUnavailable, f.failure)
}

func (f *Front) key(id store.ID) string {
	var buf [400]byte
	return string(id.AppendBinary(append(buf[:0], f.prefix...)))
}

// Get returns the value that was added for the ID and has not ended, or nothing. Look-ups of concurrent callers are
// sent as one command, except in a cluster, where the client gathers them by node.
func (f *Front) Get(ctx context.Context, id store.ID) ([]byte, error) {
	s, err := f.ready()
	if err != nil {
		return nil, err
	}
	var message rueidis.RedisMessage
	if f.cluster {
		message, err = s.ask(ctx, s.client, s.client.B().Get().Key(f.key(id)).Build())[0].ToMessage()
	} else {
		look := call{kind: kindGet, keys: []string{f.key(id)}}
		if err = s.do(ctx, &look); err == nil { // a call that was given up may still be answered
			message = look.reply
		}
	}
	if rueidis.IsRedisNil(err) || err == nil && message.IsNil() {
		return nil, nil
	}
	if err != nil {
		return nil, unavailable(err)
	}
	value, err := message.AsBytes()
	return value, unavailable(err)
}

// Add keeps a value until end, by the server's clock, unless there is a value or a tombstone for the ID.
func (f *Front) Add(ctx context.Context, id store.ID, value []byte, end time.Time) error {
	s, err := f.ready()
	if err != nil {
		return err
	}
	// The server counts milliseconds, from 1 on, and a key still exists in its last one. A value that has ended when it
	// arrives is removed at once.
	at := max(end.UnixMilli()-1, 1)
	err = s.ask(ctx, s.client, s.client.B().Set().Key(f.key(id)).Value(rueidis.BinaryString(value)).Nx().
		PxatMillisecondsTimestamp(at).Build())[0].Error()
	if rueidis.IsRedisNil(err) { // a value or a tombstone exists
		return nil
	}
	return unavailable(err)
}

var tombstoneScript = newScript("tombstone")

// Invalidate drops the value for the ID, and leaves a tombstone for at least that time. An existing tombstone that ends
// later stays.
func (f *Front) Invalidate(ctx context.Context, id store.ID, lasting time.Duration) error {
	s, err := f.ready()
	if err != nil {
		return err
	}
	// One millisecond is added, because the server's current millisecond has already begun.
	return s.do(ctx, tombstone(f.key(id), lasting.Milliseconds()+1))
}

// tombstone returns a call that sets a tombstone for so many milliseconds.
func tombstone(key string, lasting int64) *call {
	return &call{kind: kindRun, script: tombstoneScript, keys: []string{key}, args: []string{number(lasting)}}
}

// Now returns a moment of the server's clock that is not later than the call, or the zero time if none is known.
func (f *Front) Now() time.Time {
	now, due := f.clock.now()
	if due {
		f.mu.Lock()
		if s := f.connected.Load(); s != nil && !f.closed {
			f.work.Go(func() { f.clock.query(s.client) })
		}
		f.mu.Unlock()
	}
	return now
}

// serverClock knows a moment that the clock of the server has passed, without a query each time.
type serverClock struct {
	mu      sync.Mutex
	server  time.Time // the server's answer
	arrived time.Time // when it had arrived, by this process
	queried time.Time // when the last query was sent
}

const (
	// clockInterval is how often the server's clock is queried, while it is needed.
	clockInterval = 5 * time.Second
	// clockTimeout bounds the query on each node.
	clockTimeout = time.Second
	// clockTrust is how long an answer is used.
	clockTrust = time.Minute
	// clockDrift bounds how much slower than this process the server's clock may run: one part in so many.
	clockDrift = 1000
)

// now returns the server's last answer plus the time since. It reports whether a new query is due.
func (c *serverClock) now() (now time.Time, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if due = time.Since(c.queried) > clockInterval; due {
		c.queried = time.Now()
	}
	gone := time.Since(c.arrived)
	if c.arrived.IsZero() || gone > clockTrust {
		return time.Time{}, due
	}
	return c.server.Add(gone - gone/clockDrift), due
}

// query queries every node, and uses the slowest clock, because the node of a key can change at any time.
func (c *serverClock) query(client rueidis.Client) {
	var earliest time.Time
	for _, node := range client.Nodes() {
		at, err := timeOf(node)
		if err == nil && (earliest.IsZero() || at.Before(earliest)) { // a node that does not answer serves no key
			earliest = at
		}
	}
	if earliest.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.arrived = earliest, time.Now()
}

// timeOf returns the clock of a node.
func timeOf(node rueidis.Client) (time.Time, error) {
	ctx, cancel := context.WithTimeout(context.Background(), clockTimeout)
	defer cancel()
	parts, err := node.Do(ctx, node.B().Time().Build()).AsIntSlice()
	if err != nil || len(parts) != 2 {
		return time.Time{}, unexpected(err)
	}
	return time.Unix(parts[0], parts[1]*int64(time.Microsecond)), nil
}
