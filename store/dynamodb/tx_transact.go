package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// Store also implements these interfaces.
var (
	_ store.Transactor     = (*Store)(nil)
	_ store.TxCheckpointer = (*Store)(nil)
)

// A transaction is a claim, the work, and a commit. The claim is an attribute of the record's item, whose record stays
// unchanged, or of an item without a record: other callers see that a transaction is in progress, and nothing else. The
// work collects its writes. The commit is one request that stores the finished record, on condition that the claim is
// still there, and all collected writes with it. So a transaction whose claim was replaced can no longer commit, and a
// node that stops in the middle of the work leaves only a claim, which ends automatically.

const (
	// revokeGrace is how long a handler has after its deadline before its claim is given back.
	revokeGrace = 250 * time.Millisecond
	// claimTimeout bounds the request that makes a claim for a caller without a deadline.
	claimTimeout = 10 * time.Second
	// settleTimeout bounds a commit with its retries, and unclaimTimeout the giving back of a claim.
	settleTimeout, unclaimTimeout = 10 * time.Second, 2 * time.Second
	// maxRuns is how often one call runs its work, if another write removes its claim in the meantime.
	maxRuns = 3
)

// errRevoked is the error of a handler that took too long.
var errRevoked = fmt.Errorf("%w: the claim was given back, because the handler took longer than three quarters of its "+
	"lease", store.ErrDeadline)

// LongestWork implements [store.Transactor]: the claim is made once, and the commit must be made before it ends.
func (s *Store) LongestWork(lease time.Duration) time.Duration { return lease - lease/4 }

// flights are the transactions of this process.
type flights struct {
	mu    sync.Mutex
	count map[store.ID]int
}

// InFlight implements [store.Transactor].
func (s *Store) InFlight(id store.ID) bool {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	return s.flights.count[id] > 0
}

func (f *flights) enter(id store.ID) (over func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[id]++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.count[id]--; f.count[id] == 0 {
			delete(f.count, id)
		}
	})
}

// transaction is one claim with its work.
type transaction struct {
	store *Store
	at    place
	// before is the value that the claim found, and claimed the value that it stored.
	before, claimed *value
	granted         store.Verdict
	writes          *Collector
	over            func()

	mu    sync.Mutex
	ended bool // the work has returned, or the claim was given back
}

// Transact implements [store.Transactor]. The work passes its writes to [Writes].
func (s *Store) Transact(ctx context.Context, r *store.Reservation,
	work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	for range maxRuns {
		t, v, err := s.claim(ctx, r)
		if t == nil || err != nil {
			return v, err
		}
		v, again, err := t.run(ctx, s.LongestWork(r.Lease), work)
		if !again {
			return v, err
		}
	}
	return store.Verdict{}, unavailable(errContention)
}

// claim decides like a reservation. If the decision is to execute, it returns a transaction that has a claim.
func (s *Store) claim(ctx context.Context, r *store.Reservation) (*transaction, store.Verdict, error) {
	if err := s.writable(ctx); err != nil {
		return nil, store.Verdict{}, err
	}
	at, seen := placeOf(r.ID), sight{value: &nothing, guessed: true}
	if s.recent.has(r.ID) {
		seen = sight{}
	}
	event := store.Event{Kind: store.EventReserve, Reservation: r}
	for range maxTurns {
		if seen.value == nil {
			found, err := s.look(ctx, at)
			if err != nil {
				return nil, store.Verdict{Now: s.clock.now()}, err
			}
			seen = sight{value: found}
		}
		now := s.clock.now()
		out, err := s.decide(event, seen.value, now)
		v := out.Verdict()
		executes := out.Decision == store.DecisionExecute && out.Effect == store.EffectWrite
		switch {
		case seen.guessed && !executes:
			seen = sight{}
			continue
		case err != nil:
			return nil, v, err
		case executes:
			t := &transaction{store: s, at: at, before: seen.value, granted: v}
			instead, err := t.take(ctx, r.Lease, now)
			if err != nil {
				return nil, store.Verdict{Now: now}, err
			}
			if instead == nil {
				return t, v, nil
			}
			seen = sight{value: instead}
		case out.Effect == store.EffectNone:
			return nil, s.notExecuted(v), nil
		default: // the owner of the record was lost
			out, err := s.changeAt(ctx, at, event, seen)
			return nil, store.Verdict{Decision: out.Decision, Record: out.Record, Now: out.Now}, err
		}
	}
	return nil, store.Verdict{}, unavailable(errContention)
}

// notExecuted returns the verdict of a transaction that does not run its work. A repeated grant of reserved mode is not
// a grant for a transaction.
func (s *Store) notExecuted(v store.Verdict) store.Verdict {
	if v.Decision == store.DecisionExecute {
		v.Decision, v.Origin = store.DecisionInProgress, 0
	}
	if v.Record.State.Settled() {
		s.recent.add(v.Record.ID)
	}
	return v
}

// take makes the claim, or returns the current value. A caller that leaves in the meantime does not cancel it: the sent
// request could make the claim anyway.
func (t *transaction) take(ctx context.Context, lease time.Duration, now time.Time) (instead *value, err error) {
	detached, cancel := detach(ctx, claimTimeout)
	defer cancel()
	claimed := *t.before
	claimed.claim = claim{token: t.granted.Record.Attempt, until: now.Add(lease)}
	instead, err = t.store.replace(detached, &t.at, &claimed, t.before.write, now)
	t.claimed = &claimed
	if err == nil && instead == nil && ctx.Err() != nil {
		err = unavailable(ctx.Err())
	}
	if err != nil {
		_, _ = t.giveBack(ctx) // if this fails, the claim ends automatically
		return nil, err
	}
	return instead, nil
}

// detach returns a context that ends with the deadline of ctx, or after a time, but not when the caller leaves.
func detach(ctx context.Context, longest time.Duration) (context.Context, context.CancelFunc) {
	until := time.Now().Add(longest)
	if deadline, bounded := ctx.Deadline(); bounded && deadline.Before(until) {
		until = deadline
	}
	return context.WithDeadline(context.WithoutCancel(ctx), until)
}

// giveBack restores the item as it was before the claim. If the item no longer has the claim, it returns the current
// value.
func (t *transaction) giveBack(ctx context.Context) (instead *value, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unclaimTimeout)
	defer cancel()
	s := t.store
	if t.before.State != store.StateNone || t.before.floor != 0 {
		restored := *t.before
		restored.claim = claim{}
		instead, err = s.replace(ctx, &t.at, &restored, t.claimed.write, s.clock.now())
	} else {
		instead, err = t.removeClaim(ctx)
	}
	if err == nil && instead == nil {
		s.watcher.wake(t.at.id)
	}
	return instead, err
}

// removeClaim removes an item that contains only the claim.
func (t *transaction) removeClaim(ctx context.Context) (instead *value, err error) {
	found, err := t.store.deleteOver(ctx, t.at.key(), t.claimed.write)
	if err != nil || len(found) == 0 { // the item is gone, perhaps by an earlier try of this request
		return nil, err
	}
	return decode(&t.at, found)
}

// run runs the work and settles. It returns again if the claim was removed in the meantime: then nothing was committed.
func (t *transaction) run(ctx context.Context, longest time.Duration,
	work func(context.Context, store.Verdict) store.Settlement,
) (v store.Verdict, again bool, err error) {
	t.writes = &Collector{table: t.store.table}
	t.over = t.store.flights.enter(t.at.id)
	defer t.over()
	timer := time.AfterFunc(longest+revokeGrace, func() { t.revoke(ctx) })
	defer timer.Stop()
	returned := false
	defer func() {
		if !returned && t.end() { // it panicked, or ended its goroutine
			t.undo(ctx)
		}
	}()
	settlement := work(ContextWithWrites(ctx, t.writes), t.granted)
	returned = true
	if !t.end() {
		return store.Verdict{}, false, unavailable(errRevoked)
	}
	return t.settle(ctx, settlement)
}

// end ends the work. It reports false if the work had already ended, or the claim was given back.
func (t *transaction) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.ended = true
	return true
}

// revoke gives back the claim of work that does not return: its key is free, and its writes are dropped.
func (t *transaction) revoke(ctx context.Context) {
	if t.end() {
		_, _ = t.writes.close(errRevoked)
		_, _ = t.giveBack(ctx) // if this fails, the claim ends automatically
		t.over()
	}
}

// undo drops the collected writes. Without the claim nothing can be committed, whether or not the claim could be given
// back.
func (t *transaction) undo(ctx context.Context) {
	_, _ = t.writes.close(ErrTransactionOver)
	_, _ = t.giveBack(ctx)
}

// settle ends the transaction as the work has decided.
func (t *transaction) settle(ctx context.Context, settlement store.Settlement) (store.Verdict, bool, error) {
	undone := t.granted
	undone.Record = t.before.Record
	items, refused := t.writes.close(ErrTransactionOver)
	switch {
	case settlement.Action == store.TxRollback:
		t.undo(ctx)
		return undone, false, nil
	case settlement.Action == store.TxCommitAnswer:
		items, refused = nil, nil
	}
	next, err := t.finished(&settlement.Completion)
	if err := errors.Join(refused, err); err != nil {
		t.undo(ctx)
		return undone, false, err
	}
	return t.commit(ctx, next, items)
}

// finished returns the record with its answer. An answer that does not fit into an item is refused: without it no
// caller would know what was done.
func (t *transaction) finished(done *store.Completion) (*value, error) {
	rec := t.granted.Record
	if fitting(done, &rec) != done {
		return nil, fmt.Errorf("%w: %w: the answer is too large to be stored", store.ErrWorkRefused, ErrTooLarge)
	}
	event := store.Event{Kind: store.EventComplete, Attempt: rec.Attempt, Completion: done}
	after, _, err := store.Step(rec, event, t.store.clock.now())
	if err != nil {
		return nil, unavailable(fmt.Errorf("settle: %w", err))
	}
	return &value{Record: after}, nil
}
