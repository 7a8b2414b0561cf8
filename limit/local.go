package limit

import (
	"hash/maphash"
	"math"
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// local counts in this process. Times count by the monotonic clock from when it was made: a wall clock that jumps changes
// nothing. They begin at the wall clock of that moment, so that the parts of a retention end when they do in shared
// counters, and a refusal has the same time in it.
type local struct {
	start  time.Time
	began  time.Duration // since 1970
	seed   maphash.Seed
	shards [shardCount]shard
}

const (
	shardCount = 64
	// looks is at how many scopes a new one looks, to remove what is idle.
	looks = 4
)

// shard holds some of the scopes under a lock of its own.
type shard struct {
	mu     sync.Mutex
	most   int
	scopes map[string]*usage
}

// usage is what one scope has used.
type usage struct {
	newKeys, lookups, mismatches meter
	active                       active
	busyUntil                    time.Duration // from then on it is as if it had never come
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

// take takes one of what is asked for, or says which limit stands in the way.
func (l *local) take(a *ask) *onceward.LimitError {
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

// usedUp says that take would refuse, without taking.
func (l *local) usedUp(a *ask) *onceward.LimitError {
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

// giveBack takes back what was taken, or the place of an active key alone if the key was used.
func (l *local) giveBack(a *ask, used bool) {
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

// countOut takes out the oldest active key.
func (l *local) countOut(scope string) {
	s := l.shard(scope)
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.scopes[scope]; ok {
		_ = u.active.wait(math.MaxInt, l.now()) // forget what has expired
		u.active.removeOldest()
	}
}

// usage finds what a scope has used, and makes room for one that is new.
func (s *shard) usage(scope string, now time.Duration) *usage {
	if u, ok := s.scopes[scope]; ok {
		return u
	}
	s.clean(now)
	u := new(usage)
	s.scopes[scope] = u
	return u
}

// clean removes some of what is idle, and, where there is no room, of those that it looked at the one that has used the
// least: one that is at its limit would have it all again. Where the look begins is random,
// so that all come by in time.
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

// used is how much a scope has used, of all.
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

// meter is how much of a rate is used. It holds what was used, not what is left, so that another limit counts at once.
type meter struct {
	used float64
	at   time.Duration
}

// never is for a limit that allows none.
const never = time.Hour

// wait is how long it takes until one more is allowed.
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

// add uses one, and returns when all of it has come back.
func (m *meter) add(r Rate) (idle time.Duration) {
	if r.Limit <= 0 {
		return 0
	}
	m.used++
	return m.at + time.Duration(m.used*r.each())
}

// each is how many nanoseconds it takes for one to come back.
func (r Rate) each() float64 { return float64(r.Window) / float64(r.Limit) }

// parts is into how many parts a retention is divided, at whose ends keys are counted out.
const parts = 16

// active counts keys by when they expire, rounded up.
type active []expiring

type expiring struct {
	end  time.Duration
	keys int
}

// wait is how long it takes until one more is allowed. It forgets what has expired.
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

// add counts a key, and returns when it is counted out. The last entry is the last that was added to.
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

// removeOldest takes out the key that would expire first.
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

// remove takes back a key, of the newest.
func (a *active) remove() {
	for i := len(*a) - 1; i >= 0; i-- {
		if (*a)[i].keys > 0 {
			(*a)[i].keys--
			return
		}
	}
}
