package limit

import (
	"hash/maphash"
	"math"
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// local counts in this process. Times are measured by the monotonic clock from its creation: a wall clock that jumps
// changes nothing. They begin at the wall clock of that moment, so that the parts of a retention end as in shared
// counters, and a refusal contains the same time.
type local struct {
	start  time.Time
	began  time.Duration // since 1970
	seed   maphash.Seed
	shards [shardCount]shard
}

const (
	shardCount = 64
	// looks is how many scopes are checked for a new one, to remove idle scopes.
	looks = 4
)

// shard holds some of the scopes under its own lock.
type shard struct {
	mu     sync.Mutex
	most   int
	scopes map[string]*usage
}

// usage is the use of one scope.
type usage struct {
	newKeys, lookups, mismatches meter
	active                       active
	busyUntil                    time.Duration // the time from which its use has no effect
}

func newLocal(maxScopes int) *local {
	now := time.Now()
	l := &local{start: now, began: time.Duration(now.UnixNano()), seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i] = shard{most: max(1, maxScopes/shardCount), scopes: make(map[string]*usage)}
	}
	return l
}

func (l *local) now() time.Duration { return l.began + time.Since(l.start) }

func (l *local) shard(scope string) *shard {
	return &l.shards[maphash.String(l.seed, scope)%shardCount]
}

// take takes one unit, or returns the error of the reached limit.
func (l *local) take(a *demand) *onceward.LimitError {
	s := l.shard(a.scope)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.now()
	u := s.usage(a.scope, now)
	m := u.meter(a.name)
	if wait := m.wait(a.rate, now); wait > 0 {
		return a.refusedBy(a.name, wait)
	}
	if a.active != 0 {
		if wait := u.active.wait(a.active, now); wait > 0 {
			return a.refusedBy(onceward.LimitActiveKeys, wait)
		}
		u.busyUntil = max(u.busyUntil, u.active.add(a.retention, now))
	}
	u.busyUntil = max(u.busyUntil, m.add(a.rate))
	return nil
}

// usedUp returns the error that take would return, without taking.
func (l *local) usedUp(a *demand) *onceward.LimitError {
	s := l.shard(a.scope)
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.scopes[a.scope]; ok {
		if wait := u.meter(a.name).wait(a.rate, l.now()); wait > 0 {
			return a.refusedBy(a.name, wait)
		}
	}
	return nil
}

// giveBack returns what was taken, or only the place of an active key if the key was used.
func (l *local) giveBack(a *demand, used bool) {
	s := l.shard(a.scope)
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.scopes[a.scope]; ok {
		if m := u.meter(a.name); !used {
			m.used = max(0, m.used-1)
		}
		if a.active != 0 {
			u.active.remove()
		}
	}
}

// countOut removes the oldest active key.
func (l *local) countOut(scope string) {
	s := l.shard(scope)
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.scopes[scope]; ok {
		_ = u.active.wait(math.MaxInt, l.now()) // drops expired keys
		u.active.removeOldest()
	}
}

// usage returns the use of a scope, and makes room for a new one.
func (s *shard) usage(scope string, now time.Duration) *usage {
	if u, ok := s.scopes[scope]; ok {
		return u
	}
	s.clean(now)
	u := new(usage)
	s.scopes[scope] = u
	return u
}

// clean removes some idle scopes. If there is no room, it also removes the scope with the lowest use among the scopes
// it checked, because a scope at its limit would get the whole limit again. The check begins at a random scope, so that
// all are checked in time.
func (s *shard) clean(now time.Duration) {
	looked, least, lowest := 0, "", math.Inf(1)
	for scope, u := range s.scopes {
		if looked++; looked > looks {
			break
		}
		if u.busyUntil <= now {
			delete(s.scopes, scope)
		} else if used := u.used(); used < lowest {
			least, lowest = scope, used
		}
	}
	if len(s.scopes) >= s.most {
		delete(s.scopes, least)
	}
}

// used returns the total use of a scope.
func (u *usage) used() float64 {
	used := u.newKeys.used + u.lookups.used + u.mismatches.used
	for _, e := range u.active {
		used += float64(e.keys)
	}
	return used
}

func (u *usage) meter(name string) *meter {
	switch name {
	case onceward.LimitLookups:
		return &u.lookups
	case onceward.LimitMismatches:
		return &u.mismatches
	default:
		return &u.newKeys
	}
}

// meter is the used part of a rate. It holds the use, not the remainder, so that a changed limit applies immediately.
type meter struct {
	used float64
	at   time.Duration
}

// never is the wait for a limit that allows none.
const never = time.Hour

// wait returns how long it takes until one more is allowed.
func (m *meter) wait(r Rate, now time.Duration) time.Duration {
	switch {
	case r.Limit == 0:
		return 0
	case r.Limit < 0:
		return never
	}
	if now > m.at {
		m.used = max(0, m.used-float64(now-m.at)/r.each())
	}
	m.at = now
	const rounding = 1e-6
	if over := m.used + 1 - float64(r.Limit); over > rounding {
		return time.Duration(math.Ceil(over * r.each()))
	}
	return 0
}

// add uses one, and returns when all of it has refilled.
func (m *meter) add(r Rate) (idle time.Duration) {
	if r.Limit <= 0 {
		return 0
	}
	m.used++
	return m.at + time.Duration(m.used*r.each())
}

// each returns the nanoseconds in which one refills.
func (r Rate) each() float64 { return float64(r.Window) / float64(r.Limit) }

// parts is the number of parts of a retention, at whose ends keys are counted out.
const parts = 16

// active counts keys by when they expire, rounded up.
type active []expiring

type expiring struct {
	end  time.Duration
	keys int
}

// wait returns how long it takes until one more is allowed. It drops expired keys.
func (a *active) wait(limit int, now time.Duration) time.Duration {
	if limit < 0 {
		return never
	}
	kept, keys, first := (*a)[:0], 0, time.Duration(math.MaxInt64)
	for _, e := range *a {
		if e.end > now && e.keys > 0 {
			kept = append(kept, e)
			keys += e.keys
			first = min(first, e.end)
		}
	}
	*a = kept
	if keys >= limit {
		return first - now
	}
	return 0
}

// add counts a key, and returns when it is counted out. A new end is appended to the list.
func (a *active) add(retention, now time.Duration) (end time.Duration) {
	width := max(retention/parts, time.Second)
	end = (now + retention + width - 1) / width * width
	for i := range *a {
		if (*a)[i].end == end {
			(*a)[i].keys++
			return end
		}
	}
	*a = append(*a, expiring{end, 1})
	return end
}

// removeOldest removes the key that would expire first.
func (a *active) removeOldest() {
	first := -1
	for i, e := range *a {
		if e.keys > 0 && (first < 0 || e.end < (*a)[first].end) {
			first = i
		}
	}
	if first >= 0 {
		(*a)[first].keys--
	}
}

// remove removes one of the newest keys.
func (a *active) remove() {
	for i := len(*a) - 1; i >= 0; i-- {
		if (*a)[i].keys > 0 {
			(*a)[i].keys--
			return
		}
	}
}
