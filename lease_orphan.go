package onceward

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// orphan is a grant that the store may hold although the reply to its reservation never came.
type orphan struct {
	id    store.ID
	nonce store.Nonce
	until time.Time // when its lease is over: from then on there is nothing to release
	// again is when to look again should it not be there: the reservation may still be on its way. Zero if it is not.
	again time.Duration
}

// orphans looks for the orphans of a guard and releases them, so that no key is locked for a lease, and unknown
// afterwards, for nothing. In an outage every request may leave one behind: one look at a time serves them all, and
// while the store does not answer, the pauses between looks grow. Nothing runs while there is nothing to look for, or
// during a pause.
type orphans struct {
	guard *Guard

	mu       sync.Mutex
	waiting  []orphan  // the first is the one that is looked for
	later    int       // those that come back after a while
	looking  bool      // a look is planned or under way
	failures int       // looks in a row that the store did not answer
	next     time.Time // no look is made before
}

const (
	// maxOrphans is how many are looked for. The oldest stay: it is the beginning of an outage that cuts off replies,
	// later ones are refused before they reach the store. What finds no room ends by its lease.
	maxOrphans = 1024
	// The pauses while the store does not answer.
	minOrphanBackoff = 100 * time.Millisecond
	maxOrphanBackoff = 2 * time.Second
	// orphanOnItsWay is the first time after which one is looked for again that is not there; it doubles.
	orphanOnItsWay = time.Second
)

// add has a grant looked for that may have been made. One that was waited for in vain may be made yet, such as in a
// store whose commits wait for a standby.
func (o *orphans) add(r *store.Reservation, err error) {
	one := orphan{id: r.ID, nonce: r.Nonce, until: time.Now().Add(r.Lease)}
	if errors.Is(err, context.DeadlineExceeded) {
		one.again = orphanOnItsWay
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put(one)
}

// put has an orphan looked for. The caller holds the lock.
func (o *orphans) put(one orphan) {
	if len(o.waiting)+o.later >= maxOrphans {
		return
	}
	o.waiting = append(o.waiting, one)
	if !o.looking {
		o.plan()
	}
}

// pending is how many may still have to be released, also of those that are put off.
func (o *orphans) pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting) + o.later
}

// plan makes a look at the next moment that is allowed. The caller holds the lock.
func (o *orphans) plan() {
	o.looking = true
	time.AfterFunc(time.Until(o.next), o.look)
}

// look goes through the orphans for as long as the store answers.
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

// answered forgets the first orphan, which is released, or puts it off, if it is not there yet.
func (o *orphans) answered(there bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.waiting[0]
	o.waiting = o.waiting[1:]
	o.failures, o.next = 0, time.Time{}
	if there || one.again == 0 || time.Now().Add(one.again).After(one.until) {
		return
	}
	o.later++
	time.AfterFunc(one.again, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.later--
		one.again *= 2
		o.put(one)
	})
}

// failed plans the next look, for another orphan: it may be this one alone that the store has trouble with.
func (o *orphans) failed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting[1:], o.waiting[0])
	o.failures++
	o.next = time.Now().Add(backoff.Exponential(minOrphanBackoff, maxOrphanBackoff, o.failures))
	o.plan()
}

// release releases a grant that was not taken, and reports whether there is one. It reads the record, because another
// reservation could take the key from a retry.
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
