package reconcile

import (
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// departures are the attempts whose owners this process has found to be gone, with the time of the first finding by a
// clock that nobody sets. A process that was started anew finds them anew: that is later, so it waits longer, which is
// safe.
type departures struct {
	mu   sync.Mutex
	seen map[store.Claim]departure
}

type departure struct{ first, last time.Time }

// forgetAfter is how long at least an attempt is remembered that is not asked after again.
const forgetAfter = 48 * time.Hour

// since notes that the owner is gone, and says since when that is known.
func (d *departures) since(c store.Claim) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen == nil {
		d.seen = make(map[store.Claim]departure)
	}
	now := time.Now()
	one, ok := d.seen[c]
	if !ok {
		one.first = now
	}
	one.last = now
	d.seen[c] = one
	return one.first
}

// revoke notes that the owner is not known to be gone: what was found before was wrong.
func (d *departures) revoke(c store.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, c)
}

// forget drops those that nobody has asked after for that long: they are settled.
func (d *departures) forget(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c, one := range d.seen {
		if time.Since(one.last) > after {
			delete(d.seen, c)
		}
	}
}
