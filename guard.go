package onceward

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/onceward/onceward/store"
)

// Guard is the engine: it reserves, executes, keeps the lease and settles. It holds no state that another node would need;
// the store decides. Make one for each store and share it.
type Guard struct {
	store           store.Store
	transactor      store.Transactor
	waiter          store.Waiter
	lateCompletions store.LateCompletionKeeper
	config          Config
	secrets         []secretKey
	downstream      downstreamRing
	keeper          keeper
	orphans         orphans
	waiting         atomic.Int64
}

// New returns a guard over a store.
func New(s store.Store, config Config) (*Guard, error) {
	if s == nil {
		return nil, errors.New("onceward: the store is nil")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	secrets, err := newSecretKeys(append([][]byte{config.Secret}, config.OldSecrets...))
	if err != nil {
		return nil, err
	}
	downstream, err := newDownstreamRing(&config)
	if err != nil {
		return nil, err
	}
	g := &Guard{store: s, config: config, secrets: secrets, downstream: downstream}
	g.keeper.guard, g.orphans.guard = g, g
	g.transactor, _ = s.(store.Transactor)
	g.waiter, _ = s.(store.Waiter)
	g.lateCompletions, _ = s.(store.LateCompletionKeeper)
	return g, nil
}

// settings builds what a route needs, and refuses what the store cannot do.
func (g *Guard) settings(options []Option) (*settings, error) {
	s, err := newSettings(g.config.Defaults, options)
	if err != nil {
		return nil, err
	}
	if s.mode == modeTransactional {
		if g.transactor == nil {
			return nil, errors.New("onceward: Transactional() needs a store that shares its transactions, such as SQLite: this one does not; use Reserved(…)")
		}
		if longest := g.transactor.LongestWork(s.lease); longest > 0 {
			s.deadline = min(s.deadline, longest)
		}
	}
	return s, nil
}

func (g *Guard) observe(ctx context.Context, e ObserverEvent) {
	if g.config.Observer != nil {
		g.config.Observer.Observe(ctx, e)
	}
}

func (g *Guard) storeFailed(ctx context.Context, operation, call string, err error) {
	g.config.Logger.WarnContext(ctx, "onceward: store failed", "call", call, "operation", operation, "error", err)
	g.observe(ctx, StoreFailedEvent{Operation: operation, Call: call, Err: err})
}

// noteFenced counts a refused write; other errors it leaves to their own path.
func (g *Guard) noteFenced(ctx context.Context, id store.ID, operation string, err error) {
	var fenced *store.FencedError
	if !errors.As(err, &fenced) {
		return
	}
	g.config.Logger.WarnContext(ctx, "onceward: write refused", "operation", operation, "error", err)
	g.observe(ctx, FencedEvent{ID: id, Operation: operation, Err: fenced})
}
