package reconcile

import (
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// acquaintances are the unknown attempts that this process has met, with the time by a clock that nobody sets. A process that
// was started anew meets them anew.
type acquaintances struct {
	mu   sync.Mutex
	seen map[onceward.Claim]acquaintance
}

type acquaintance struct{ first, last time.Time }

// forgetAfter is how long an attempt is remembered that is not met again: longer than any pause between two tries.
const forgetAfter = 48 * time.Hour

// since says for how long the attempt has been known to be unknown.
func (a *acquaintances) since(c onceward.Claim) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil {
		a.seen = make(map[onceward.Claim]acquaintance)
	}
	now := time.Now()
	met, ok := a.seen[c]
	if !ok {
		met.first = now
	}
	met.last = now
	a.seen[c] = met
	return now.Sub(met.first)
}

// forget drops those that were not met for a long time: they are settled.
func (a *acquaintances) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c, met := range a.seen {
		if time.Since(met.last) > forgetAfter {
			delete(a.seen, c)
		}
	}
}
