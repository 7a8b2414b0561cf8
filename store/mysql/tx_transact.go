package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

var _ store.Transactor = (*Store)(nil)

// The statements of a transaction with a record. The claim is the record itself: its row is inserted first, in
// progress, and nobody but the transaction sees it; whoever inserts the same waits for it. The first statement finds a
// row that is there, or one that another transaction is about to commit: it does not wait for that.
const (
	claimFound = `SELECT @now, ` + allColumns + ` FROM @record r WHERE r.hash = ? FOR UPDATE NOWAIT`
	// claimNew inserts nothing on a server that is to be read-only: its administrators could still write there.
	claimNew = `INSERT INTO @record (hash, attempt, revision, state, due, created_at, settled_at, id, provider_id, record)
		SELECT ?, GREATEST(@now, value + 1), 0, ?, @now + ?, @now, 0, ?, NULL, ? FROM @meta
		WHERE name = 'max_removed_attempt' AND NOT @read_only`
	readClaim = `SELECT r.attempt, r.created_at FROM @record r WHERE r.hash = ?`
	// writeAnswer writes over the row that was claimed, at the attempt and the revision that it had then.
	writeAnswer = `UPDATE @record SET attempt = ?, revision = revision + 1, state = ?, due = LAST_INSERT_ID(@now + ?),
		created_at = ?, settled_at = @now, provider_id = ?, record = ?, body = ?, data = ?
		WHERE hash = ? AND attempt = ? AND revision = ?`
)

// allColumns are those that row.read takes.
const allColumns = columns + `, r.body, r.data`

// LongestWork implements [store.Transactor]: a handler gets the lease.
func (s *Store) LongestWork(lease time.Duration) time.Duration { return lease }

// InFlight implements [store.Transactor].
func (s *Store) InFlight(id store.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flights[id] != nil
}

// running is a transaction of this process.
type running struct{}

// enter notes a transaction in flight, so that duplicates within the process are seen without asking the server. It
// returns nil if there is one already.
func (s *Store) enter(id store.ID) *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flights[id] != nil {
		return nil
	}
	if s.flights == nil {
		s.flights = make(map[store.ID]*running)
	}
	f := &running{}
	s.flights[id] = f
	return f
}

// leave notes that the transaction is over. One that was taken back from its work is over before that returns, and
// the next one may be in flight by then.
func (s *Store) leave(id store.ID, f *running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flights[id] == f {
		delete(s.flights, id)
	}
}

// A record is also locked for the moment in which it is changed, or removed by a reaper. So it is asked for a few times
// before a transaction of another process is taken to have it.
const (
	heldTries = 5
	heldTime  = 100 * time.Millisecond
)

// Transact implements [store.Transactor]. The work is run again if the server undid the transaction because of its
// neighbours, and decided again if another one was faster. On a cluster that certifies at commit, a duplicate on another
// node may run the work too: of the two one is committed, and the other one, undone, gets its answer.
func (s *Store) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (v store.Verdict, err error) {
	event := store.Event{Kind: store.EventReserve, Reservation: r, Token: 1}
	fresh, outcome, err := store.Step(store.Record{}, event, time.Now())
	if err := errors.Join(err, s.writable()); err != nil {
		return v, err
	}
	if err := left(ctx); err != nil {
		return v, err
	}
	f := s.enter(r.ID)
	if f == nil {
		return s.inFlight(ctx, event, nil)
	}
	defer s.waits.wake(r.ID)
	defer s.leave(r.ID, f)
	tries, began := 0, time.Now()
	err = retry(ctx, func() error {
		tries++
		x := &handlerPlan{
			transaction: transaction{
				store: s, keyed: true, id: r.ID, lease: r.Lease, answers: true, limit: s.LongestWork(r.Lease), flight: f,
			},
			event: event, run: work, fresh: fresh, creates: outcome.Effect == store.EffectWrite,
			patient: tries <= heldTries && time.Since(began) < heldTime,
		}
		x.plan = x
		err := x.try(ctx)
		v = x.result()
		return err
	})
	return v, err
}

// handlerPlan is the plan of [Store.Transact]: the work of a handler and its answer.
type handlerPlan struct {
	transaction
	event store.Event
	run   func(context.Context, store.Verdict) store.Settlement
	// fresh is the record that is made if there is none, which creates says.
	fresh   store.Record
	creates bool

	// found is the row that was there, if exists says so, and now the clock; before is its record.
	found    row
	exists   bool
	inserted bool
	now      time.Time
	before   store.Record
	// granted is the record with the right to execute, and held the row that has it, to be written over.
	granted store.Record
	held    row
	// patient says that a record which is locked is asked for again, and elsewhere that it stayed locked.
	patient, elsewhere bool

	executed   bool
	verdict    store.Verdict
	settlement store.Settlement
	settled    store.Record
}

// result is the verdict.
func (x *handlerPlan) result() store.Verdict {
	switch {
	case !x.executed || x.verdict.Decision != store.DecisionExecute: // not run, or another one was faster
	case x.settlement.Action == store.TxRollback:
		x.verdict.Record = x.before
	default:
		x.verdict.Record = x.settled
	}
	return x.verdict
}

func (x *handlerPlan) claim() []statement {
	hash := x.id.HashBytes()
	all := []statement{stmt(x.store.render(claimFound), hash[:])}
	if !x.creates {
		return all
	}
	lease := x.event.Reservation.Lease.Truncate(store.ClockStep)
	return append(all,
		stmt(x.store.render(claimNew), hash[:], stateCode(&x.fresh), lease.Microseconds(), x.id.AppendBinary(nil),
			encodeRest(&x.fresh)),
		stmt(x.store.render(readClaim), hash[:]))
}

// read takes the row that was found, or the token and the time of the one that was made.
func (x *handlerPlan) read(raw []sqldriver.Value) error {
	if len(raw) == claimColumns {
		attempt, err := int64Of(raw[0])
		if err != nil {
			return err
		}
		at, err := int64Of(raw[1])
		x.inserted, x.now = true, fromMicros(at)
		x.granted = x.fresh
		x.granted.Attempt, x.granted.CreatedAt = attempt, x.now
		x.granted.LeaseUntil = x.now.Add(x.event.Reservation.Lease.Truncate(store.ClockStep))
		return err
	}
	now, err := int64Of(raw[0])
	if err != nil {
		return err
	}
	x.exists, x.now = true, fromMicros(now)
	x.found = row{hash: x.id.HashBytes()}
	return x.found.read(raw[1:])
}

// claimColumns is how many columns readClaim has: fewer than those of a row.
const claimColumns = 2

// decide says what the request may do. Where another transaction has the record it may not execute; what is there it may
// have.
func (x *handlerPlan) decide(cause error) (run bool, err error) {
	switch {
	case locked(cause) && x.patient:
		return false, &undoneError{cause}
	case locked(cause):
		x.elsewhere = true
		return false, nil
	case x.exists:
		return x.decideFound(cause)
	case duplicate(cause):
		return false, &undoneError{cause} // it came in between
	case cause != nil:
		return false, cause
	case !x.creates:
		return false, x.step()
	case !x.inserted:
		return false, ErrReadOnlyNode
	}
	x.verdict = store.Verdict{
		Decision: store.DecisionExecute, Origin: x.origin(store.OriginCreated), Record: x.granted, Now: x.now,
	}
	x.held = row{hash: x.id.HashBytes(), attempt: x.granted.Attempt}
	return true, nil
}

// decideFound decides by the row that is there, which is locked. That the insert found it too is no error.
func (x *handlerPlan) decideFound(cause error) (run bool, err error) {
	if cause != nil && !duplicate(cause) {
		return false, cause
	}
	if x.before, err = x.found.recordOf(x.id); err != nil {
		return false, err
	}
	if err := x.step(); err != nil || x.verdict.Decision != store.DecisionExecute || x.verdict.Origin == store.OriginRepeated {
		return false, err
	}
	x.held = x.found
	return true, x.link.query(time.Now().Add(settleTimeout), x.readSession, setSavepoint, selectSession)
}

// step applies the reservation to what was found.
func (x *handlerPlan) step() error {
	event := x.event
	event.Token = max(micros(x.now), 1)
	if x.now.IsZero() {
		x.now = time.Now() // there is no row, and none is made
	}
	after, outcome, err := store.Step(x.before, event, x.now)
	if err != nil {
		return err
	}
	x.granted = after
	x.verdict = store.Verdict{Decision: outcome.Decision, Origin: x.origin(outcome.Origin), Record: after, Now: x.now}
	return nil
}

// origin is that of the work which has run already, if it has.
func (x *handlerPlan) origin(found store.Origin) store.Origin {
	if x.executed {
		return x.verdict.Origin
	}
	return found
}

// declined looks at what is committed where another transaction has the record, and writes down a lease that was found
// to have run out.
func (x *handlerPlan) declined() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	switch {
	case x.elsewhere:
		x.verdict, err = x.store.inFlight(ctx, x.event, nil)
	case x.verdict.Decision == store.DecisionUnknown && x.before.State == store.StateInProgress:
		x.verdict, err = x.lose(ctx)
	case x.verdict.Decision == store.DecisionRefused && !x.exists:
		var now time.Time
		if _, now, err = x.store.get(ctx, x.id); errors.Is(err, store.ErrNotFound) {
			err = nil
		}
		x.verdict.Now = now
	}
	return err
}

// lose writes down that the owner of the record has lost its lease, unless it was settled in the meantime.
func (x *handlerPlan) lose(ctx context.Context) (store.Verdict, error) {
	existing := *x.event.Reservation
	existing.NoCreate = true
	c, err := x.store.change(ctx, existing.ID, store.Event{Kind: store.EventReserve, Reservation: &existing})
	switch {
	case err != nil:
		return store.Verdict{}, err
	case c.outcome.Decision == store.DecisionExecute, c.outcome.Decision == store.DecisionRefused:
		// It was released or removed just now: what was granted here is not taken, and the caller asks again.
		_, err = x.store.change(ctx, existing.ID, store.Event{
			Kind: store.EventRelease, Attempt: c.after.Attempt, Reason: "the grant was not taken",
		})
		if errors.Is(err, store.ErrFenced) {
			err = nil
		}
		return store.Verdict{Decision: store.DecisionInProgress, Now: c.now}, err
	default:
		return c.verdict(), nil
	}
}

// work runs the handler. That the caller leaves does not end it.
func (x *handlerPlan) work(ctx context.Context) (store.TxAction, error) {
	x.executed = true
	x.settlement = x.run(ctx, x.verdict)
	return x.settlement.Action, nil
}

func (x *handlerPlan) prepare() (err error) {
	complete := store.Event{Kind: store.EventComplete, Attempt: x.granted.Attempt, Completion: &x.settlement.Completion}
	if x.settled, _, err = store.Step(x.granted, complete, x.now); err != nil {
		return unavailable(fmt.Errorf("settle: %w", err))
	}
	return nil
}

// write stores the answer.
func (x *handlerPlan) write() []statement {
	rec := &x.settled
	return []statement{
		stmt(x.store.render(writeAnswer), rec.Attempt, stateCode(rec), rec.Retention.Microseconds(), micros(rec.CreatedAt),
			nullable([]byte(rec.ProviderID)), encodeRest(rec), nullable(rec.Response.Body), nullable(rec.Data), x.held.hash[:], x.held.attempt, x.held.revision),
		exactlyOne,
	}
}

// wrote fills in the server's clock.
func (x *handlerPlan) wrote(ids []int64) {
	x.settled.ExpiresAt = fromMicros(ids[0])
	x.settled.SettledAt = x.settled.ExpiresAt.Add(-x.settled.Retention)
}

// learned answers by what is stored. If there is no answer of the same request that is new, the commit did not land,
// and nothing was executed.
func (x *handlerPlan) learned(ctx context.Context, cause error) error {
	now := row{hash: x.id.HashBytes()}
	found, err := x.store.lookLocked(ctx, &now)
	if err == nil && !found {
		err = x.store.fenceAbsent(ctx, now.hash)
	} else if err == nil && now.equal(&x.found) {
		err = x.store.fenceRow(ctx, &now)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNotLearned, err)
	}
	if !found {
		return notCommitted(cause)
	}
	rec, err := now.recordOf(x.id)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: commit: %w", store.ErrOutcomeUnknown, cause), err)
	}
	if rec.State != store.StateCompleted || rec.Fingerprint != x.settled.Fingerprint || rec.Attempt == x.before.Attempt {
		return notCommitted(cause)
	}
	// An answer that says the same was either made by this transaction or makes no difference. One that does not is
	// another's, or the own in the bytes of another key: it is replayed.
	if rec.Response.Equal(&x.settled.Response) {
		x.settled = rec
	} else {
		x.verdict = store.Verdict{Decision: store.DecisionReplay, Record: rec, Now: x.now}
	}
	return nil
}

// spoiled records, in a transaction of its own, that it is not known what became of the work. If the work has committed
// the claim with what it wrote, it is found by its nonce.
func (x *handlerPlan) spoiled(reason, _ error) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	claimed, err := x.store.change(ctx, x.id, x.event)
	if err == nil && claimed.outcome.Decision == store.DecisionExecute {
		_, err = x.store.change(ctx, x.id, store.Event{
			Kind: store.EventAbandon, Attempt: claimed.after.Attempt, Reason: reason.Error(),
		})
	}
	return errors.Join(fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, reason), err)
}

// read takes a row of allColumns. The driver's bytes are its own.
func (r *row) read(raw []sqldriver.Value) (err error) {
	for i, to := range []*int64{&r.attempt, &r.revision, nil, &r.due, &r.createdAt, &r.settledAt} {
		value, err := int64Of(raw[i])
		if err != nil {
			return err
		}
		if to == nil {
			r.state = int(value)
		} else {
			*to = value
		}
	}
	for i, to := range []*[]byte{&r.id, &r.record, &r.body, &r.data} {
		*to = []byte(text(raw[6+i]))
	}
	return nil
}
