// Package tiered puts a fast cache, the front, before a durable store: most retries of completed operations are
// answered by the front, and the database mainly serves first executions.
//
//	durable, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
//	front, err := redis.OpenFront(ctx, os.Getenv("FRONT_URL"))
//	s, err := tiered.New(durable, front, tiered.Config{})
//	guard, err := onceward.New(s, onceward.Config{…})
//
// Only the durable store decides. The front grants nothing, locks nothing and refuses nothing: it can only repeat an
// earlier answer of the durable store, which is the final answer of a completed record, for at most [Config].MaxAge. In
// any doubt the durable store is called. So the front may be empty, slow, down, evicting, or restored from an old
// snapshot: at worst it causes a look-up in the database.
//
// If nearly all requests are first executions, which no front can answer, the front is queried for a random sample of
// them only, until the sample finds retries again. Each node decides this on its own, for each of 64 parts of the
// scopes separately.
//
// The well-known alternative, a lock in Redis in front of a table, decides nothing here. A lock that can expire, be
// evicted or be lost in a fail-over does not prevent a second execution, so the table must prevent it anyway, and the
// lock is a round trip without a benefit.
//
// # How old an answer can be
//
// A completed record changes in two ways only: it expires, or it is busted. An entry of the front ends at an absolute
// moment of the front's own clock: MaxAge after the durable store was read, or when the record expires, whichever comes
// first. An entry that arrives late, because its process was paused, has already ended. As a second check the reader
// refuses entries older than MaxAge by the clocks of the nodes, in case the front's clock was set back.
//
// [Store.Bust], and resolving a record from outside, leave a tombstone in the front before they return. No entry is
// added while it exists, which is at least MaxAge: as long as an entry that was read before can exist. If the front
// cannot be reached, the operation is done anyway, and the error is a [*store.StaleError] with the time until which an
// old answer can still be seen, by the longest MaxAge that a node can have; the front is invalidated as soon as it is
// back. If the front loses a tombstone, by a restart or a fail-over, an old answer can be seen for at most MaxAge.
//
// # With other wrappers
//
// Put package sealed outside, so that the front's content is sealed too. Put a circuit breaker inside: the front
// continues to answer retries while the database is away. New refuses the opposite orders.
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

// These are the defaults and limits of [Config].
const (
	DefaultMaxAge       = time.Minute
	DefaultFrontTimeout = 100 * time.Millisecond
	DefaultMaxBytes     = 256 << 10

	MinMaxAge = time.Second
	MaxMaxAge = time.Hour
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// MaxAge is how old an answer of the front can be, from [MinMaxAge] to [MaxMaxAge]. It is the longest time for
	// which a busted answer can still be seen if the front could not be reached. It must be the same on all nodes;
	// while it is being changed, the longest value counts. Default: [DefaultMaxAge].
	MaxAge time.Duration
	// FrontTimeout is how long a look-up in the front may take, or up to a quarter longer; then the durable store is
	// called. A front that has failed, or took longer, is not used until it answers in time again. Default:
	// [DefaultFrontTimeout].
	FrontTimeout time.Duration
	// MaxBytes is the largest encoded record that is put into the front. Default: [DefaultMaxBytes].
	MaxBytes int
	// Logger logs failures of the front, at most one in ten seconds. Default: [slog.Default].
	Logger *slog.Logger
	// Observer receives events about look-ups and failures of the front. Default: none.
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

// LookedUpEvent reports a look-up in the front for a reservation to the [onceward.Observer]. Without a hit the durable
// store was called too. Requests that bypassed the front are not reported.
type LookedUpEvent struct{ Hit bool }

// FrontFailedEvent reports a failure after which the front is not used for a while to the [onceward.Observer]. Call is
// the method in words, such as "get".
type FrontFailedEvent struct {
	Call string
	Err  error
}

// Store is a durable store with a front. It has the capabilities of the durable store.
type Store struct {
	*wrap.Store
	front  Front
	config Config

	// fills bounds the fills in progress.
	fills chan struct{}
	// away means that the front is not used.
	away atomic.Bool
	// worths estimates whether look-ups are worthwhile.
	worths worths
	// bounds is the current context of look-ups.
	bounds atomic.Pointer[bound]

	ctx    context.Context // ends when the store is closed
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
	// pending holds the missed invalidations, with the time until which each invalidation matters.
	pending map[store.ID]time.Time
	logged  time.Time
}

// maxFills is the largest number of fills in progress. Further fills are skipped: the next retry may fill.
const maxFills = 64

// New puts a front before a durable store. The store owns both from then on, and closes them.
func New(durable store.Store, front Front, config Config) (*Store, error) {
	if durable == nil || front == nil {
		return nil, errors.New("tiered: a durable store and a front are needed")
	}
	if _, sealed := store.Find[outbox.Sealer](durable); sealed {
		return nil, errors.New("tiered: the durable store is sealed, and the front would hold what it opens: " +
			"leave the seal out here, and put it around the tiered store")
	}
	if _, twice := store.Find[*Store](durable); twice {
		return nil, errors.New("tiered: the durable store already has a front: an answer of two fronts could be older than MaxAge")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		Store: wrap.New(durable, nil), front: front, config: config,
		fills: make(chan struct{}, maxFills), pending: make(map[store.ID]time.Time), worths: worths{seed: maphash.MakeSeed()},
	}
	s.worths.assume()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close ends the work in progress and closes both the front, if it can be closed, and the durable store.
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

// FrontAway reports whether the front is not used at the moment, because it has failed or was slow.
func (s *Store) FrontAway() bool { return s.away.Load() }

// background runs a function in a goroutine of the store, unless the store is closed.
func (s *Store) background(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(work)
	}
	return !s.closed
}

// Reserve implements [store.Store]: the front may answer a retry of a completed operation.
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	return s.reserve(ctx, r, func() (store.Verdict, error) { return s.Store.Reserve(ctx, r) })
}

// Transact implements [store.Transactor], as [Store.Reserve] does.
func (s *Store) Transact(
	ctx context.Context, r *store.Reservation, work func(ctx context.Context, v store.Verdict) store.Settlement,
) (store.Verdict, error) {
	return s.reserve(ctx, r, func() (store.Verdict, error) { return s.Store.Transact(ctx, r, work) })
}

// reserve queries the front, and calls the durable store if the front has no answer.
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
		s.worths.assume() // the front is then the only source of answers
	}
	return v, err
}
