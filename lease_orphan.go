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
	until time.Time // when its lease ends: after that there is nothing to release
	// recheck is the pause before the next look-up if there is no grant yet, because the reservation may still arrive.
	// It is zero if the reservation cannot arrive any more.
	recheck time.Duration
}

// orphans finds and releases the orphans of a guard, so that no key is locked for the length of a lease, and then
// unknown, without need. In an outage every request may leave an orphan: one goroutine processes all orphans in
// sequence, and while the store does not answer, the pauses between its attempts grow. Nothing runs while there is no
// orphan, or during a pause.
type orphans struct {
	guard *Guard

	mu       sync.Mutex
	waiting  []orphan  // the first orphan is being released
	later    int       // orphans that return after a pause
	looking  bool      // look is scheduled or running
	failures int       // failed attempts in a row
	next     time.Time // the earliest time of the next attempt
}

const (
	// maxOrphans is the largest number of orphans. The oldest orphans are kept: at the beginning of an outage replies
	// are lost, while later reservations are refused before they reach the store. An orphan that is not kept ends with
	// its lease.
	maxOrphans = 1024
	// These are the pauses while the store does not answer.
	minOrphanBackoff = 100 * time.Millisecond
	maxOrphanBackoff = 2 * time.Second
	// firstRecheck is the first pause before a repeated look-up of a grant that is not there; the pause doubles each
	// time.
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

// plan schedules the next call of look at the earliest allowed time. The caller holds the lock.
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

// first returns the next orphan whose lease is not over. It reports false if there is none.
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

// failed schedules the next attempt, for another orphan: the store may only fail for this one.
func (o *orphans) failed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting[1:], o.waiting[0])
	o.failures++
	o.next = time.Now().Add(backoff.Exponential(minOrphanBackoff, maxOrphanBackoff, o.failures))
	o.plan()
}

// release releases a grant that was not taken, and reports whether there was one. It reads the record instead of
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
