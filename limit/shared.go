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
	// portionLife is how long a portion may lie unused before it is given back, and for how long a refusal is believed.
	portionLife = time.Second
	// maxPortion is the most that is asked for at once.
	maxPortion = 1024
	// pauseAfterFailure is how long counters are left alone that could not be asked.
	pauseAfterFailure = time.Second
)

// shared hands out portions of what the counters allow. While these cannot be asked, it counts in this process, under
// this node's share of the limits.
type shared struct {
	config *Config
	local  *local
	node   string       // names this process to the counters
	number atomic.Int64 // of the last take

	down  atomic.Bool
	retry atomic.Int64 // when counters that are down may be asked again, in nanoseconds of the local clock

	mu       sync.Mutex
	portions map[portionKey]*portion
}

// portionKey tells portions apart. Keys of different retentions are counted out at different times.
type portionKey struct {
	scope, name string
	retention   time.Duration
}

// portion is what this node holds of a scope's allowance. It lives for little longer than it is used.
type portion struct {
	shared *shared
	key    portionKey

	mu       sync.Mutex
	ask      ask   // the limits that it was taken under
	left     int   // what can be used
	end      int64 // what it is returned under
	until    time.Duration
	unused   int // what is to be returned
	undone   int // of what only the places among the active keys are to be returned
	want     int // how much to ask for next
	borrowed int // taken while the counters were down
	waiting  int
	fetching chan struct{} // closed when the counters have answered
	lost     *Take         // a take whose reply was lost, to be sent again
	lostAt   time.Duration
	failure  error // of the last take
	refused  *onceward.LimitError
	again    time.Duration // until when a refusal is believed
	timer    *time.Timer
	gone     bool
}

func newShared(config *Config, local *local) *shared {
	return &shared{config: config, local: local, node: rand.Text(), portions: make(map[portionKey]*portion)}
}

// portion returns the portion that an ask is for, locked.
func (s *shared) portion(a *ask) *portion {
	key := portionKey{a.scope, a.name, a.retention}
	for {
		s.mu.Lock()
		p := s.portions[key]
		if p == nil {
			p = &portion{shared: s, key: key, ask: *a, want: 1}
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

// take takes one from the portion, and lets the counters refill it: beforehand where it can be foreseen, so that few
// requests wait.
func (s *shared) take(ctx context.Context, a *ask) *onceward.LimitError {
	p := s.portion(a)
	defer p.mu.Unlock()
	for {
		now := s.local.now()
		p.expire(a, now)
		switch {
		case p.left > 0:
			p.left--
			if p.left < p.want/2 && p.fetching == nil && s.mayAsk(now) {
				p.fetch(0, p.want)
			}
			return nil
		case now < p.again:
			return a.refusedBy(p.refused.Name, p.refused.After)
		case p.fetching == nil && !s.mayAsk(now):
			return p.borrow(a)
		case p.fetching == nil:
			p.fetch(p.waiting+1, p.want)
		}
		if !p.await(ctx) {
			return a.refusedBy(a.name, portionLife) // its caller has left
		}
	}
}

// usedUp says that the counters have refused, without asking them, or would this node's share if they are down.
func (s *shared) usedUp(a *ask) *onceward.LimitError {
	s.mu.Lock()
	p := s.portions[portionKey{a.scope, a.name, a.retention}]
	s.mu.Unlock()
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ask == *a && p.left == 0 && s.local.now() < p.again {
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

// borrow takes from this node's share of the limits, because the counters cannot be asked.
func (p *portion) borrow(a *ask) *onceward.LimitError {
	p.arm()
	refused := p.shared.local.take(a.share(p.shared.config.Nodes))
	if refused == nil {
		p.borrowed++
	}
	return refused
}

// giveBack takes back one that was taken, or the place of an active key alone if the key was used.
func (s *shared) giveBack(a *ask, used bool) {
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

// expire takes out of use what has lain for too long, or was taken under other limits.
func (p *portion) expire(a *ask, now time.Duration) {
	changed := p.ask != *a
	if changed {
		p.ask, p.again = *a, 0
	}
	if p.left > 0 && (changed || now >= p.until) {
		p.unused += p.left
		p.left = 0
		p.want = max(1, p.want/2)
	}
}

// fetch asks the counters for the next portion, of which so many are needed now.
func (p *portion) fetch(need, want int) {
	t := p.request(need, max(need, want))
	answered := make(chan struct{})
	p.fetching = answered
	go func() {
		grant, err := p.shared.ask(context.Background(), t)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fetching = nil
		p.got(t, grant, err)
		close(answered)
	}()
}

// request makes what is asked of the counters. What is unused goes along. A take whose reply was lost comes first, for as
// long as the counters remember it.
func (p *portion) request(need, want int) Take {
	if p.forget(p.shared.local.now()); p.lost != nil {
		return *p.lost
	}
	t := Take{
		Scope: p.ask.scope, Name: p.ask.name, Rate: p.ask.rate, Active: p.ask.active, Retention: p.ask.retention,
		Need: need, Want: min(want, max(need, maxPortion)), Unused: p.unused, Undone: p.undone, UnusedEnd: p.end,
		Taker: p.shared.node + " " + p.ask.retention.String(), Number: p.shared.number.Add(1),
	}
	p.unused, p.undone = 0, 0
	return t
}

// ask asks the counters, and notes whether they can be asked.
func (s *shared) ask(ctx context.Context, t Take) (Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.CounterTimeout)
	defer cancel()
	grant, err := s.config.Counters.Take(ctx, t)
	if err != nil {
		s.retry.Store(int64(s.local.now() + pauseAfterFailure))
		if !s.down.Swap(true) {
			s.config.Logger.Error("onceward: the shared counters of limits cannot be asked; "+
				"each node allows its share of the limits", "nodes", s.config.Nodes, "error", err)
		}
		return grant, err
	}
	if s.down.Swap(false) {
		s.config.Logger.Info("onceward: the shared counters of limits can be asked again")
	}
	return grant, nil
}

// mayAsk reports whether the counters can be asked. Those that are down are tried by one request at a time.
func (s *shared) mayAsk(now time.Duration) bool {
	if !s.down.Load() {
		return true
	}
	retry := s.retry.Load()
	return int64(now) >= retry && s.retry.CompareAndSwap(retry, int64(now+pauseAfterFailure+s.config.CounterTimeout))
}

// got puts a grant to use. What was asked under limits that have changed since goes back.
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
	case t.Rate != p.ask.rate || t.Active != p.ask.active:
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
		p.want = 1 // it is too close to the limit to take what is not needed
	default:
		p.refused = p.ask.refusedBy(g.Limit, g.After)
		p.again = now + min(g.After, portionLife)
		if p.key.name == onceward.LimitMismatches {
			p.again = now + g.After // no other node gives some back before, and new keys are refused until then
		}
	}
}

// forget forgets a take whose reply was lost when the counters may have forgotten it: they would do again what it asks.
func (p *portion) forget(now time.Duration) {
	if p.lost != nil && now-p.lostAt >= RepeatWithin {
		p.lost = nil
	}
}

// arm has the portion looked at when it has lain for too long.
func (p *portion) arm() {
	if p.timer == nil {
		p.timer = time.AfterFunc(portionLife, p.tidy)
	}
}

// tidy gives back what was not used, and forgets the portion when there is nothing left of it.
func (p *portion) tidy() {
	p.mu.Lock()
	p.timer = nil
	now := p.shared.local.now()
	p.expire(&p.ask, now)
	p.forget(now)
	idle := p.left == 0 && p.fetching == nil && p.waiting == 0 && now >= p.again
	owes := p.unused+p.undone > 0 || p.lost != nil
	if idle && owes && p.shared.mayAsk(now) {
		p.fetch(0, 0)
	}
	if !idle || owes {
		p.timer = time.AfterFunc(max(p.until-now, p.again-now, portionLife/4), p.tidy)
	} else {
		p.leave()
	}
	p.mu.Unlock()
}

// leave takes the portion out of the map. Its lock is held, and that of the map is taken inside of it here alone.
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

// close gives back all that is not used.
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

// close gives back what the portion holds.
func (p *portion) close(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for asked := false; !p.gone; {
		p.unused, p.left = p.unused+p.left, 0
		switch {
		case p.fetching != nil:
		case p.unused+p.undone == 0 && p.lost == nil, asked && p.failure != nil:
			p.leave()
			return p.failure
		default:
			p.fetch(0, 0)
			asked = true
		}
		if !p.await(ctx) {
			return ctx.Err()
		}
	}
	return nil
}
