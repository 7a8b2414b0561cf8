// Package tiered puts a fast cache, the front, before a durable store: a retry of what is completed is answered by the
// front, most of the time, and the database is left to first executions.
//
//	durable, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
//	front, err := redis.OpenFront(ctx, os.Getenv("FRONT_URL"))
//	s, err := tiered.New(durable, front, tiered.Config{})
//	guard, err := onceward.New(s, onceward.Config{…})
//
// The durable store alone decides. The front grants nothing, locks nothing and refuses nothing: all that it can say is
// what the durable store has said before, which is the final answer of a completed record, for at most [Config].MaxAge.
// On any doubt the durable store is asked. That is why the front may be empty, slow, down, evicting, or restored from
// an old snapshot: the worst that it can cause is a look at the database.
//
// Where next to all requests are first executions, which no front can answer, it is asked for a random sample of them
// only, until that finds retries again. Each node judges that for itself, and for each of 64 parts of the scopes apart.
//
// The well-known alternative, a lock in Redis in front of a table, decides nothing here. A lock that can expire, be
// evicted or be forgotten by a fail-over does not keep a second execution out, so that the table has to do that all the
// same; and once it does, the lock is a round trip that buys nothing.
//
// # How old an answer can be
//
// A completed record changes in two ways only: it expires, and it is busted. An entry of the front ends at an absolute
// moment of the front's own clock: MaxAge after the durable store was read, or when the record expires, whichever comes
// first. An entry that arrives late, because its process was paused on the way, arrives dead. As a second line the
// reader refuses what is older than MaxAge by the clocks of the nodes, in case the front's clock was set back.
//
// [Store.Bust], and what resolves a record from outside, leave a tombstone in the front before they return. It keeps
// every entry out for at least MaxAge, which is as long as one that was read before can live. If the front cannot be
// told, what was asked for is done all the same, and the error is a [*store.StaleError] that says until when an old
// answer can still be seen, by the longest MaxAge that a node can have; the front is told as soon as it is back. A
// front that forgets a tombstone, by a restart or a fail-over, falls back to MaxAge.
//
// # With other wrappers
//
// Package sealed belongs outside, so that what the front holds is sealed too. A circuit breaker belongs inside: the
// front goes on to answer retries while the database is away. The other way round each of them is refused.
package tiered

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// The defaults and limits of [Config].
const (
	DefaultMaxAge       = time.Minute
	DefaultFrontTimeout = 100 * time.Millisecond
	DefaultMaxBytes     = 256 << 10

	MinMaxAge = time.Second
	MaxMaxAge = time.Hour
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// MaxAge is how old an answer of the front can be, from [MinMaxAge] to [MaxMaxAge]. It is the longest that a busted
	// answer can still be seen if the front could not be told. All nodes have the same; while it is being changed, the
	// longest counts. Default: [DefaultMaxAge].
	MaxAge time.Duration
	// FrontTimeout is how long a look-up in the front may take, or up to a quarter more; then the durable store is asked.
	// A front that has failed or was slower is left alone until it answers in time again. Default: [DefaultFrontTimeout].
	FrontTimeout time.Duration
	// MaxBytes is the largest record, encoded, that is put into the front. Default: [DefaultMaxBytes].
	MaxBytes int
	// Logger gets failures of the front, one in ten seconds at most. Default: [slog.Default].
	Logger *slog.Logger
	// Observer is told of look-ups and of failures of the front. Default: none.
	Observer onceward.Observer
	// Clock is the clock of this node. Default: [time.Now].
	Clock func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxAge < MinMaxAge || c.MaxAge > MaxMaxAge {
		return c, fmt.Errorf("tiered: MaxAge is %s: it must be between %s and %s", c.MaxAge, MinMaxAge, MaxMaxAge)
	}
	if c.FrontTimeout < 0 || c.MaxBytes < 0 {
		return c, fmt.Errorf("tiered: FrontTimeout %s and MaxBytes %d must not be negative", c.FrontTimeout, c.MaxBytes)
	}
	if c.FrontTimeout == 0 {
		c.FrontTimeout = DefaultFrontTimeout
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Observer == nil {
		c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {})
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c, nil
}

// LookedUpEvent is a reservation for which the front was asked: it goes to the [onceward.Observer]. Without a hit the
// durable store was asked too. There is none for requests that passed the front by.
type LookedUpEvent struct{ Hit bool }

// FrontFailedEvent is a failure after which the front is left alone for a while: it goes to the [onceward.Observer].
// Call is the method in words, such as "get".
type FrontFailedEvent struct {
	Call string
	Err  error
}

// Store is a durable store behind a front. It has the capabilities of the durable one.
type Store struct {
	*wrap.Store
	front  Front
	config Config

	// fills bounds the fills that are under way.
	fills chan struct{}
	// away is set while the front is left alone.
	away atomic.Bool
	// worths says whether look-ups are worth it.
	worths worths
	// bounds is what bounds the look-ups of the moment.
	bounds atomic.Pointer[bound]

	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
	// untold holds what the front could not be told, and until when that matters.
	untold map[store.ID]time.Time
	logged time.Time
}

// maxFills is how many fills may be under way. What comes on top is not filled: the next retry may be.
const maxFills = 64

// New puts a front before a durable store. Both belong to the store from then on, and are closed with it.
func New(durable store.Store, front Front, config Config) (*Store, error) {
	if durable == nil || front == nil {
		return nil, errors.New("tiered: a durable store and a front are needed")
	}
	if _, sealed := store.Find[outbox.Sealer](durable); sealed {
		return nil, errors.New("tiered: the durable store is sealed, and the front would hold what it opens: " +
			"leave the seal out here, and put it around the tiered store")
	}
	if _, twice := store.Find[*Store](durable); twice {
		return nil, errors.New("tiered: the durable store has a front already: an answer of two could be older than MaxAge")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		Store: wrap.New(durable, nil), front: front, config: config,
		fills: make(chan struct{}, maxFills), untold: make(map[store.ID]time.Time), worths: worths{seed: maphash.MakeSeed()},
	}
	s.worths.assume()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close ends what is under way and closes both the front, if it can be closed, and the durable store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
	var err error
	if closer, ok := s.front.(io.Closer); ok {
		err = closer.Close()
	}
	return errors.Join(err, s.Store.Close())
}

// FrontAway reports whether the front is left alone at the moment, because it has failed or was slow.
func (s *Store) FrontAway() bool { return s.away.Load() }

// background runs a function beside the requests, unless the store is closed.
func (s *Store) background(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(work)
	}
	return !s.closed
}

// Reserve implements [store.Store]: a retry of what is completed may be answered by the front.
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	return s.reserve(ctx, r, func() (store.Verdict, error) { return s.Store.Reserve(ctx, r) })
}

// Transact implements [store.Transactor], as [Store.Reserve] does.
func (s *Store) Transact(
	ctx context.Context, r *store.Reservation, work func(ctx context.Context, v store.Verdict) store.Settlement,
) (store.Verdict, error) {
	return s.reserve(ctx, r, func() (store.Verdict, error) { return s.Store.Transact(ctx, r, work) })
}

// reserve asks the front, and if that has no answer the durable store.
func (s *Store) reserve(
	ctx context.Context, r *store.Reservation, durable func() (store.Verdict, error),
) (store.Verdict, error) {
	if v, hit := s.lookUp(ctx, r); hit {
		return v, nil
	}
	begun := s.begin()
	v, err := durable()
	if err == nil {
		s.fill(begun, &v)
	} else if errors.Is(err, store.ErrUnavailable) {
		s.worths.assume() // what the front has is all there is
	}
	return v, err
}
