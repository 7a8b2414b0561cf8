package limit

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
)

const (
	// portionLife is how long a portion may stay unused before it is returned, and for how long a refusal is reused.
	portionLife = time.Second
	// maxPortion is the largest portion that is requested at once.
	maxPortion = 1024
	// pauseAfterFailure is the pause before unavailable counters are queried again.
	pauseAfterFailure = time.Second
)

// shared distributes portions of the shared counters. While these are unavailable, it counts in this process, with this
// node's share of the limits.
type shared struct {
	config *Config
	local  *local
	node   string       // the name of this process in the counters
	number atomic.Int64 // the number of the last take

	down  atomic.Bool
	retry atomic.Int64 // when unavailable counters may be queried again, in nanoseconds of the local clock

	mu       sync.Mutex
	portions map[portionKey]*portion
}

// portionKey identifies a portion. Keys of different retentions are counted out at different times.
type portionKey struct {
	scope, name string
	retention   time.Duration
}

// portion is this node's part of a scope's allowance. It exists for little longer than it is used.
type portion struct {
	shared *shared
	key    portionKey

	mu           sync.Mutex
	demand       demand // the limits under which it was taken
	left         int    // what can be used
	end          int64  // the End with which it is returned
	until        time.Duration
	unused       int // to be returned
	undone       int // only their places among the active keys are to be returned
	want         int // the size of the next portion
	borrowed     int // taken while the counters were down
	waiting      int
	fetching     chan struct{} // closed when the counters have answered
	lost         *Take         // a take whose reply was lost, to be sent again
	lostAt       time.Duration
	failure      error // of the last take
	refused      *onceward.LimitError
	refusedUntil time.Duration // until when a refusal is reused
	timer        *time.Timer
	gone         bool
}

func newShared(config *Config, local *local) *shared {
	return &shared{config: config, local: local, node: rand.Text(), portions: make(map[portionKey]*portion)}
}

// portion returns the portion for a demand, locked.
func (s *shared) portion(a *demand) *portion {
	key := portionKey{a.scope, a.name, a.retention}
	for {
		s.mu.Lock()
		p := s.portions[key]
		if p == nil {
			p = &portion{shared: s, key: key, demand: *a, want: 1}
			s.portions[key] = p
		}
		s.mu.Unlock()
		p.mu.Lock()
		if !p.gone {
			return p
		}
		p.mu.Unlock()
	}
}

// take takes one from the portion, and lets the counters refill it: in advance if possible, so that few requests wait.
func (s *shared) take(ctx context.Context, a *demand) *onceward.LimitError {
	p := s.portion(a)
	defer p.mu.Unlock()
	for {
		now := s.local.now()
		p.expire(a, now)
		switch {
		case p.left > 0:
			p.left--
			if p.left < p.want/2 && p.fetching == nil && s.mayQuery(now) {
				p.fetch(0, p.want)
			}
			return nil
		case now < p.refusedUntil:
			return a.refusedBy(p.refused.Name, p.refused.After)
		case p.fetching == nil && !s.mayQuery(now):
			return p.borrow(a)
		case p.fetching == nil:
			p.fetch(p.waiting+1, p.want)
		}
		if !p.await(ctx) {
			return a.refusedBy(a.name, portionLife) // the caller has left
		}
	}
}

// usedUp returns the last refusal of the counters, without a query, or the refusal by this node's share if they are
// unavailable.
func (s *shared) usedUp(a *demand) *onceward.LimitError {
	s.mu.Lock()
	p := s.portions[portionKey{a.scope, a.name, a.retention}]
	s.mu.Unlock()
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.demand == *a && p.left == 0 && s.local.now() < p.refusedUntil {
			return a.refusedBy(p.refused.Name, p.refused.After)
		}
	}
	if s.down.Load() {
		return s.local.usedUp(a.share(s.config.Nodes))
	}
	return nil
}

// await waits until the counters have answered, and reports whether they have.
func (p *portion) await(ctx context.Context) bool {
	answered := p.fetching
	p.waiting++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.waiting--
	}()
	select {
	case <-answered:
		return true
	case <-ctx.Done():
		return false
	}
}

// borrow takes from this node's share of the limits, because the counters are unavailable.
func (p *portion) borrow(a *demand) *onceward.LimitError {
	p.arm()
	refused := p.shared.local.take(a.share(p.shared.config.Nodes))
	if refused == nil {
		p.borrowed++
	}
	return refused
}

// giveBack returns one unit, or only the place of an active key if the key was used.
func (s *shared) giveBack(a *demand, used bool) {
	p := s.portion(a)
	defer p.mu.Unlock()
	p.arm()
	switch {
	case p.borrowed > 0:
		p.borrowed--
		s.local.giveBack(a.share(s.config.Nodes), used)
	case used && a.active != 0:
		p.undone++
	case used: // a rate has no places
	case s.local.now() < p.until:
		p.left++
	default:
		p.unused++
	}
}

// expire marks what is too old, or was taken under other limits, as unused.
func (p *portion) expire(a *demand, now time.Duration) {
	changed := p.demand != *a
	if changed {
		p.demand, p.refusedUntil = *a, 0
	}
	if p.left > 0 && (changed || now >= p.until) {
		p.unused += p.left
		p.left = 0
		p.want = max(1, p.want/2)
	}
}

// fetch requests the next portion from the counters, of which need are needed now.
func (p *portion) fetch(need, want int) {
	t := p.request(need, max(need, want))
	answered := make(chan struct{})
	p.fetching = answered
	go func() {
		grant, err := p.shared.query(context.Background(), t)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fetching = nil
		p.got(t, grant, err)
		close(answered)
	}()
}

// request returns the next request to the counters. It returns what is unused. A take whose reply was lost comes first,
// for as long as the counters remember it.
func (p *portion) request(need, want int) Take {
	if p.forget(p.shared.local.now()); p.lost != nil {
		return *p.lost
	}
	t := Take{
		Scope: p.demand.scope, Name: p.demand.name, Rate: p.demand.rate, Active: p.demand.active, Retention: p.demand.retention,
		Need: need, Want: min(want, max(need, maxPortion)), Unused: p.unused, Undone: p.undone, UnusedEnd: p.end,
		Taker: p.shared.node + " " + p.demand.retention.String(), Number: p.shared.number.Add(1),
	}
	p.unused, p.undone = 0, 0
	return t
}

// query sends a request to the counters, and records whether they are available.
func (s *shared) query(ctx context.Context, t Take) (Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.CounterTimeout)
	defer cancel()
	grant, err := s.config.Counters.Take(ctx, t)
	if err != nil {
		s.retry.Store(int64(s.local.now() + pauseAfterFailure))
		if !s.down.Swap(true) {
			s.config.Logger.Error("onceward: the shared counters of limits are unavailable; "+
				"each node allows its share of the limits", "nodes", s.config.Nodes, "error", err)
		}
		return grant, err
	}
	if s.down.Swap(false) {
		s.config.Logger.Info("onceward: the shared counters of limits are available again")
	}
	return grant, nil
}

// mayQuery reports whether the counters may be queried. Unavailable counters are tried by one request at a time.
func (s *shared) mayQuery(now time.Duration) bool {
	if !s.down.Load() {
		return true
	}
	retry := s.retry.Load()
	return int64(now) >= retry && s.retry.CompareAndSwap(retry, int64(now+pauseAfterFailure+s.config.CounterTimeout))
}

// got applies a grant. A grant under limits that have changed since is returned.
func (p *portion) got(t Take, g Grant, err error) {
	now := p.shared.local.now()
	p.arm()
	if p.failure = err; err != nil {
		if p.lost == nil { // what it granted would otherwise count as used until the retention ends
			p.lost, p.lostAt = &t, now
		}
		return
	}
	p.lost = nil
	switch {
	case t.Rate != p.demand.rate || t.Active != p.demand.active:
		p.unused, p.end = p.unused+g.Granted, g.End
	case g.Granted > 0:
		p.left += g.Granted
		p.end, p.until, p.borrowed = g.End, now+portionLife, 0
		if g.Granted == t.Want {
			p.want = min(max(p.want, t.Want)*2, maxPortion)
		} else {
			p.want = g.Granted
		}
	case t.Need == 0:
		p.want = 1 // too close to the limit to take more than needed
	default:
		p.refused = p.demand.refusedBy(g.Limit, g.After)
		p.refusedUntil = now + min(g.After, portionLife)
		if p.key.name == onceward.LimitMismatches {
			p.refusedUntil = now + g.After // no other node gives some back before, and new keys are refused until then
		}
	}
}

// forget drops a take whose reply was lost when the counters may have forgotten it: they would apply it a second time.
func (p *portion) forget(now time.Duration) {
	if p.lost != nil && now-p.lostAt >= RepeatWithin {
		p.lost = nil
	}
}

// arm schedules a check of the portion after its life.
func (p *portion) arm() {
	if p.timer == nil {
		p.timer = time.AfterFunc(portionLife, p.tidy)
	}
}

// tidy returns what was not used, and removes the portion when nothing is left of it.
func (p *portion) tidy() {
	p.mu.Lock()
	p.timer = nil
	now := p.shared.local.now()
	p.expire(&p.demand, now)
	p.forget(now)
	idle := p.left == 0 && p.fetching == nil && p.waiting == 0 && now >= p.refusedUntil
	owes := p.unused+p.undone > 0 || p.lost != nil
	if idle && owes && p.shared.mayQuery(now) {
		p.fetch(0, 0)
	}
	if !idle || owes {
		p.timer = time.AfterFunc(max(p.until-now, p.refusedUntil-now, portionLife/4), p.tidy)
	} else {
		p.leave()
	}
	p.mu.Unlock()
}

// leave removes the portion from the map. The caller holds its lock. Only here the lock of the map is taken inside it.
func (p *portion) leave() {
	p.gone = true
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.shared.mu.Lock()
	if p.shared.portions[p.key] == p {
		delete(p.shared.portions, p.key)
	}
	p.shared.mu.Unlock()
}

// close returns everything unused.
func (s *shared) close(ctx context.Context) error {
	s.mu.Lock()
	portions := make([]*portion, 0, len(s.portions))
	for _, p := range s.portions {
		portions = append(portions, p)
	}
	s.mu.Unlock()
	var all error
	for _, p := range portions {
		all = errors.Join(all, p.close(ctx))
	}
	return all
}

// close returns what the portion holds.
func (p *portion) close(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for queried := false; !p.gone; {
		p.unused, p.left = p.unused+p.left, 0
		switch {
		case p.fetching != nil:
		case p.unused+p.undone == 0 && p.lost == nil, queried && p.failure != nil:
			p.leave()
			return p.failure
		default:
			p.fetch(0, 0)
			queried = true
		}
		if !p.await(ctx) {
			return ctx.Err()
		}
	}
	return nil
}
