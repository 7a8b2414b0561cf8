package onceward

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/store"
)

// lease is one attempt's right to execute, kept by heartbeats while it runs.
type lease struct {
	claim store.Claim
	name  string
	ttl   time.Duration
	ctx   *lazyContext // the owner's context, ended when the lease is lost

	// beating is held while a heartbeat is being sent.
	beating sync.Mutex

	mu       sync.Mutex
	start    time.Time // when the lease started to count: see leaseStart; later when the last heartbeat was sent
	until    time.Time // when heartbeats end; zero for never
	lost     bool      // the store refused a heartbeat, or did not answer in time
	finished bool

	// The next two fields belong to the keeper: the time of the next heartbeat, and the index in the heap.
	next  time.Time
	place int
}

// localEnd returns when the owner must treat its lease as over. The lease counts from the sending of the last
// successful heartbeat, because the store cannot have started to count earlier (rule S5). A heartbeat without a reply
// does not count.
func (l *lease) localEnd() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start.Add(l.ttl)
}

// clock reads the monotonic clock, and the wall clock alone.
func clock() (now, wall time.Time) {
	now = time.Now()
	return now, now.Round(0)
}

// held reports whether the owner may still act as the owner, by both readings of [clock], and until when: the monotonic
// clock stands still while a machine is suspended.
func (l *lease) held(now, wall time.Time) (until time.Time, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	until = l.start.Add(l.ttl)
	return until, !l.lost && now.Before(until) && wall.Before(until)
}

// handlerEnded lets heartbeats continue past the handler's deadline while its answer is being stored.
func (l *lease) handlerEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Time{}
}

// heartbeats reports whether the lease still needs heartbeats at a time.
func (l *lease) heartbeats(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.finished && (l.until.IsZero() || now.Before(l.until))
}

// keeper extends all leases of a guard. One timer serves all of them, so that an attempt that ends before its first
// heartbeat, as nearly all do, costs neither a goroutine nor a timer.
type keeper struct {
	guard *Guard

	mu     sync.Mutex
	leases leaseHeap
	timer  *time.Timer
	armed  time.Time // when the timer fires; zero if it does not

	active atomic.Int64 // leases whose attempts have not ended
}

// add starts the heartbeats of a lease.
func (k *keeper) add(l *lease) {
	l.next = l.start.Add(l.ttl / 3)
	k.mu.Lock()
	defer k.mu.Unlock()
	heap.Push(&k.leases, l)
	k.arm()
}

// remove ends the heartbeats of a lease.
func (k *keeper) remove(l *lease) {
	l.mu.Lock()
	l.finished = true
	l.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.place >= 0 && l.place < len(k.leases) && k.leases[l.place] == l {
		heap.Remove(&k.leases, l.place)
	}
}

// quiet ends the heartbeats of a lease, and waits for a heartbeat that is being sent, so that it does not overwrite a
// later write.
func (k *keeper) quiet(l *lease) {
	k.remove(l)
	l.beating.Lock()
	defer l.beating.Unlock()
}

// arm ensures that the timer fires no later than the first lease is due. It may fire for a lease that has ended, which
// costs less than setting it for every request. The caller holds the lock.
func (k *keeper) arm() {
	if len(k.leases) == 0 {
		return
	}
	next := k.leases[0].next
	if !k.armed.IsZero() && !next.Before(k.armed) {
		return
	}
	k.armed = next
	if k.timer == nil {
		k.timer = time.AfterFunc(time.Until(next), k.beat)
	} else {
		k.timer.Reset(time.Until(next))
	}
}

// beatsTogether is the divisor of a lease that gives how early a heartbeat may be sent together with others.
const beatsTogether = 15

// beat extends every lease that is due or will be due soon, so that the heartbeats of many leases are sent together.
// Each heartbeat has its own goroutine, so that a slow heartbeat does not delay the others; a store may batch them.
func (k *keeper) beat() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = time.Time{}
	now := time.Now()
	for len(k.leases) > 0 && !now.Add(k.leases[0].ttl/beatsTogether).Before(k.leases[0].next) {
		l := heap.Pop(&k.leases).(*lease)
		if l.heartbeats(now) {
			go k.extend(l)
		}
	}
	k.arm()
}

// extend sends one heartbeat and schedules the next, or cancels the owner's context if the lease is lost.
func (k *keeper) extend(l *lease) {
	l.beating.Lock()
	defer l.beating.Unlock()
	if !l.heartbeats(time.Now()) {
		return // it has ended in the meantime
	}
	sent := time.Now()
	end := l.localEnd()
	ctx, cancel := context.WithDeadline(context.Background(), minTime(end, sent.Add(k.guard.config.StoreTimeout)))
	err := k.guard.store.Extend(ctx, l.claim, l.ttl)
	cancel()
	if k.guard.config.Observer != nil {
		k.guard.observe(ctx, StoreCalledEvent{
			ID: l.claim.ID, Operation: l.name, Attempt: l.claim.Attempt, Call: "extend", Err: err,
			Delay: max(sent.Sub(l.next), 0), Elapsed: time.Since(sent),
		})
	}
	_, held := l.held(clock())
	switch {
	case err == nil:
		l.mu.Lock()
		l.start = sent
		l.mu.Unlock()
		k.reschedule(l, sent.Add(l.ttl/3))
	case errors.Is(err, store.ErrFenced) || !held:
		k.lose(l, err)
	default:
		k.guard.storeFailed(ctx, l.name, "extend", err)
		k.reschedule(l, minTime(end, time.Now().Add(l.ttl/12)))
	}
}

// reschedule puts a lease back into the heap for its next heartbeat.
func (k *keeper) reschedule(l *lease, next time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.mu.Lock()
	finished := l.finished
	l.mu.Unlock()
	if finished {
		return
	}
	l.next = next
	heap.Push(&k.leases, l)
	k.arm()
}

func (k *keeper) lose(l *lease, err error) {
	if !l.heartbeats(time.Now()) {
		return
	}
	l.mu.Lock()
	l.lost = true
	l.mu.Unlock()
	ctx := context.Background()
	k.guard.observe(ctx, LeaseLostEvent{ID: l.claim.ID, Operation: l.name, Attempt: l.claim.Attempt, Err: err})
	k.guard.noteFenced(ctx, l.claim.ID, l.name, err)
	l.ctx.end(ErrLeaseLost)
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// leaseHeap orders leases by their next heartbeat; it implements [heap.Interface].
type leaseHeap []*lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].next.Before(h[j].next) }

func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements [heap.Interface].
func (h *leaseHeap) Push(x any) {
	l := x.(*lease)
	l.place = len(*h)
	*h = append(*h, l)
}

// Pop implements [heap.Interface].
func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.place = -1
	return l
}
