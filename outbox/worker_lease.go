package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// heldLease is a worker's lease on one message, as far as the worker knows. Its time counts from
// the moment at which the last successful claim or extension was sent, by this node's clock.
type heldLease struct {
	Lease
	store Store

	mu     sync.Mutex
	until  time.Time
	over   time.Time // when the current delivery will be given up; zero if there is none
	told   bool      // the log has reported that the delivery hangs
	lost   bool
	cancel context.CancelCauseFunc // ends the current delivery; nil if there was none
	run    *run                    // the run in which the message is delivered
}

// joins makes the message a part of a run.
func (l *heldLease) joins(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run = r
}

// joined returns the run of the message, or nil if the message was only just claimed.
func (l *heldLease) joined() *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.run
}

// alive returns why the lease cannot be relied on any more, or nil.
func (l *heldLease) alive() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lost:
		return ErrFenced
	case !time.Now().Before(l.until):
		return fmt.Errorf("%w: it counted until %s", ErrFenced, l.until.Format(time.RFC3339Nano))
	default:
		return nil
	}
}

// extend notes that an extension was successful and the lease now lasts until that time.
func (l *heldLease) extend(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = until
}

// lose notes that another worker has the message, and ends the current delivery.
func (l *heldLease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
	if l.cancel != nil {
		l.cancel(ErrFenced)
	}
}

// begin returns the context of a delivery, which ends when the lease is lost. If the
// delivery has not ended after the longest time, the lease is no longer extended.
func (l *heldLease) begin(ctx context.Context, longest time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel, l.over, l.told = cancel, time.Now().Add(longest), false
	if l.run != nil {
		l.run.turn.Store(l)
	}
	if l.lost {
		cancel(ErrFenced) // the lease was lost just now
	}
	return ctx, func() {
		cancel(context.Canceled)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.over = time.Time{}
	}
}

// hangs reports whether a delivery continues after its time is up, and whether this was not reported before.
func (l *heldLease) hangs() (hangs, news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hangs = !l.over.IsZero() && time.Now().After(l.over)
	news = hangs && !l.told
	l.told = l.told || hangs
	return hangs, news
}

// record stores the receiver's id for the effect.
func (l *heldLease) record(ctx context.Context, providerID string) error {
	return l.store.RecordEffect(ctx, l.Lease, shorten(providerID), nil)
}

// heartbeat extends all leases with one statement, three times per lease.
func (s *workerRun) heartbeat() {
	ticker := time.NewTicker(s.config.Lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.extend()
		case <-s.hard.Done():
			return
		}
	}
}

func (s *workerRun) extend() {
	var stuck []string
	s.mu.Lock()
	leases := make([]Lease, 0, len(s.held))
	held := make(map[string]*heldLease, len(s.held))
	hanging := make(map[*heldLease]bool)
	for id, l := range s.held {
		hangs, news := l.hangs()
		if news {
			stuck = append(stuck, id)
		}
		if hangs {
			hanging[l] = true
			continue
		}
		held[id] = l
	}
	unbegun := s.withdraw()
	for id, l := range held { // other messages go to other workers, now or when their leases end
		if r := l.joined(); r != nil && (hanging[r.turn.Load()] || unbegun[r]) {
			delete(held, id)
			continue
		}
		leases = append(leases, l.Lease)
	}
	s.mu.Unlock()
	for r := range unbegun {
		s.release(r.route, r.messages, StateReady)
	}
	for _, id := range stuck {
		s.config.Logger.Error("outbox: a delivery hangs past its time, and takes a place of its route", "message", id)
	}
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.hard, s.config.Lease/3)
	defer cancel()
	sent := time.Now()
	lost, err := s.store.ExtendMessages(ctx, leases, s.config.Lease)
	if err != nil {
		s.config.Logger.Warn("outbox: leases could not be extended", "messages", len(leases), "error", err)
		for _, l := range held {
			if l.alive() != nil {
				l.lose() // another worker may have the message by now
			}
		}
		return
	}
	for _, l := range lost {
		held[l.ID].lose()
		delete(held, l.ID)
	}
	for _, l := range held {
		l.extend(sent.Add(s.config.Lease))
	}
}

// withdraw takes back the runs that have waited for a slot of their route for as long as a lease: if the
// deliveries take that long, other workers should get the waiting messages. The caller holds the mutex.
func (s *workerRun) withdraw() map[*run]bool {
	unbegun, before := make(map[*run]bool), time.Now().Add(-max(s.config.Lease, 4*horizon))
	for _, l := range s.held {
		if r := l.joined(); r != nil && r.claimed.Before(before) && r.takes() {
			r.route.jammed.Store(true)
			unbegun[r] = true
		}
	}
	return unbegun
}
