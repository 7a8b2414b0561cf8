package onceward

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// orphan is a grant that the store may hold although the reply to its reservation was lost.
type orphan struct {
	id    store.ID
	nonce store.Nonce
	until time.Time // when its lease is over: then there is nothing to release
	// recheck is the pause before the next look if the grant is not there: the reservation may still arrive. Zero if it
	// cannot.
	recheck time.Duration
}

// orphans finds and releases the orphans of a guard, so that no key is locked for a lease, and unknown afterwards,
// without need. In an outage every request may leave an orphan: one look at a time serves all, and while the store does
// not answer, the pauses between looks grow. Nothing runs while there is no orphan, or during a pause.
type orphans struct {
	guard *Guard

	mu       sync.Mutex
	waiting  []orphan  // the first is the one being released
	later    int       // orphans that return after a pause
	looking  bool      // a look is planned or in progress
	failures int       // looks in a row that the store did not answer
	next     time.Time // the earliest time of the next look
}

const (
	// maxOrphans is the largest number of orphans. The oldest are kept: the beginning of an outage cuts off replies, later
	// reservations are refused before they reach the store. An orphan that finds no room ends by its lease.
	maxOrphans = 1024
	// These are the pauses while the store does not answer.
	minOrphanBackoff = 100 * time.Millisecond
	maxOrphanBackoff = 2 * time.Second
	// firstRecheck is the first pause before an orphan that is not there is looked up again; it doubles.
	firstRecheck = time.Second
)

// add registers a grant that may have been made. A reservation that timed out may still be granted later, such as in a
// store whose commits wait for a standby.
func (o *orphans) add(r *store.Reservation, err error) {
	one := orphan{id: r.ID, nonce: r.Nonce, until: time.Now().Add(r.Lease)}
	if errors.Is(err, context.DeadlineExceeded) {
		one.recheck = firstRecheck
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put(one)
}

// put registers an orphan. The caller holds the lock.
func (o *orphans) put(one orphan) {
	if len(o.waiting)+o.later >= maxOrphans {
		return
	}
	o.waiting = append(o.waiting, one)
	if !o.looking {
		o.plan()
	}
}

// pending returns how many orphans may still have to be released, including postponed ones.
func (o *orphans) pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting) + o.later
}

// plan schedules the next look at the earliest allowed time. The caller holds the lock.
func (o *orphans) plan() {
	o.looking = true
	time.AfterFunc(time.Until(o.next), o.look)
}

// look processes the orphans for as long as the store answers.
func (o *orphans) look() {
	for {
		first, found := o.first()
		if !found {
			return
		}
		there, err := o.release(first)
		if err != nil && !final(err) {
			o.failed()
			return
		}
		o.answered(there)
	}
}

// first returns the next orphan whose lease is not over, or ends the looking.
func (o *orphans) first() (orphan, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for len(o.waiting) > 0 && !now.Before(o.waiting[0].until) {
		o.waiting = o.waiting[1:]
	}
	if len(o.waiting) == 0 {
		o.waiting, o.looking = nil, false
		return orphan{}, false
	}
	return o.waiting[0], true
}

// answered drops the first orphan if it was released, or postpones it if it is not there yet.
func (o *orphans) answered(there bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.waiting[0]
	o.waiting = o.waiting[1:]
	o.failures, o.next = 0, time.Time{}
	if there || one.recheck == 0 || time.Now().Add(one.recheck).After(one.until) {
		return
	}
	o.later++
	time.AfterFunc(one.recheck, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.later--
		one.recheck *= 2
		o.put(one)
	})
}

// failed plans the next look, for another orphan: the store may have trouble with this one alone.
func (o *orphans) failed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting[1:], o.waiting[0])
	o.failures++
	o.next = time.Now().Add(backoff.Exponential(minOrphanBackoff, maxOrphanBackoff, o.failures))
	o.plan()
}

// release releases a grant that was not taken, and reports whether there is one. It reads the record instead of
// reserving, because another reservation could take the key from a retry.
func (o *orphans) release(lost orphan) (there bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.guard.config.StoreTimeout)
	defer cancel()
	rec, err := o.guard.store.Get(ctx, lost.id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case rec.State != store.StateInProgress || rec.Nonce != lost.nonce:
		return false, nil
	}
	claim := store.Claim{ID: lost.id, Attempt: rec.Attempt}
	return true, o.guard.store.Release(ctx, claim, "the reply to the reservation was lost")
}
