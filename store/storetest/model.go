package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

// everything is a limit for background work that is never reached.
const everything = 10_000

// reply is what a store said to an event.
type reply struct {
	verdict store.Verdict
	expires time.Time
	err     error
}

// do sends an event to the store through the method that stands for it.
func (e *env) do(id store.ID, ev store.Event) (r reply) {
	c := store.Claim{ID: id, Attempt: ev.Attempt}
	switch ev.Kind {
	case store.EventReserve:
		r.verdict, r.err = e.Store.Reserve(e.ctx, ev.Reservation)
	case store.EventExtend:
		r.err = e.Store.Extend(e.ctx, c, ev.Lease)
	case store.EventCheckpoint:
		r.err = e.Store.Checkpoint(e.ctx, c, ev.Checkpoint)
	case store.EventComplete:
		r.expires, r.err = e.Store.Complete(e.ctx, c, ev.Completion)
	case store.EventRelease:
		r.err = e.Store.Release(e.ctx, c, ev.Reason)
	case store.EventAbandon:
		r.err = e.Store.Abandon(e.ctx, c, ev.Reason)
	case store.EventSweep:
		_, r.err = e.Store.(store.Sweeper).Sweep(e.ctx, everything)
	case store.EventReap:
		_, r.err = e.Store.(store.Reaper).Reap(e.ctx, everything, ev.Soft)
	case store.EventResolveCompleted:
		r.err = e.Store.(store.Reconciler).ResolveCompleted(e.ctx, c, ev.Completion)
	case store.EventResolveNotExecuted:
		r.err = e.Store.(store.Reconciler).ResolveNotExecuted(e.ctx, c, ev.Reason)
	case store.EventResolveStep:
		r.err = e.Store.(store.Reconciler).ResolveStep(e.ctx, c, ev.Checkpoint)
	case store.EventBeginReconcile:
		r.err = e.Store.(store.Reconciler).BeginReconcile(e.ctx, c, ev.Count, ev.Lease)
	case store.EventPostpone:
		r.err = e.Store.(store.Reconciler).Postpone(e.ctx, c, store.Postponement{
			Count: ev.Count, Wait: ev.Lease, MaxAttempts: ev.MaxAttempts, Reason: ev.Reason, Untried: ev.Untried,
		})
	case store.EventRequeue:
		r.err = e.Store.(store.Reconciler).Requeue(e.ctx, c, ev.Reason)
	case store.EventBust:
		r.err = e.Store.(store.Buster).Bust(e.ctx, id, ev.Force)
	default:
		r.err = fmt.Errorf("storetest: no method for %s", ev.Kind)
	}
	return r
}

// step applies an event to a record through the store, which holds the record as it was before. It returns the record as it
// is then, and reports how the result differs from what [store.Step] says.
//
// The store's clock is read before and after. Where it moves in between, the event may have happened at either
// moment, and times may be off by the difference.
func (e *env) step(id store.ID, before store.Record, ev store.Event) (after store.Record, err error) {
	from, err := e.clock()
	if err != nil {
		return after, err
	}
	got := e.do(id, ev)
	to, err := e.clock()
	if err != nil {
		return after, err
	}
	if after, err = e.find(id); err != nil {
		return after, err
	}
	ev.Token = got.verdict.Record.Attempt // the store chooses; the model only says from where on
	if ev.Kind == store.EventResolveStep {
		ev.Token = after.Attempt
	}
	slack := to.Sub(from) + e.resolution() - time.Microsecond
	problem := e.judge(before, ev, from, slack, got, after)
	if problem != nil && to.After(from) && e.judge(before, ev, to, slack, got, after) == nil {
		problem = nil
	}
	if problem != nil {
		return after, fmt.Errorf("%s of a record that was %s (section 4): %w", ev.Kind, describe(before), problem)
	}
	return after, errors.Join(e.checkToken(id, got.verdict), e.checkFence(id, before, after))
}

// judge compares what a store did with what the model does at one moment.
func (e *env) judge(before store.Record, ev store.Event, at time.Time, slack time.Duration, got reply, after store.Record) error {
	want, outcome, wantErr := store.Step(before, ev, at)
	if err := sameError(got.err, wantErr); err != nil {
		return err
	}
	written := slack
	switch outcome.Effect {
	case store.EffectNone:
		want = before
		written = 0 // no time in it may have moved
	case store.EffectRemove:
		want = store.Record{}
	}
	if diff := diffRecords(after, want, written); diff != "" {
		return fmt.Errorf("the record is now %s", diff)
	}
	if wantErr != nil {
		return nil
	}
	if ev.Kind == store.EventComplete && !near(got.expires, want.ExpiresAt, written) {
		return fmt.Errorf("complete returned the expiry %s, want %s", got.expires, want.ExpiresAt)
	}
	if ev.Kind == store.EventReserve {
		return sameVerdict(got.verdict, outcome, want, at, slack)
	}
	return nil
}

func sameVerdict(got store.Verdict, outcome store.Transition, want store.Record, at time.Time, slack time.Duration) error {
	if got.Decision != outcome.Decision || got.Origin != outcome.Origin {
		return fmt.Errorf("reserve answered (%s, %s), want (%s, %s)", got.Decision, got.Origin, outcome.Decision, outcome.Origin)
	}
	if !near(got.Now, at, slack+time.Microsecond) {
		return fmt.Errorf("the verdict's clock says %s, the store's %s", got.Now, at)
	}
	if got.Decision == store.DecisionRefused {
		return nil // there is no record to hand out
	}
	if diff := diffRecords(got.Record, want, slack); diff != "" {
		return fmt.Errorf("the verdict's record is %s", diff)
	}
	return nil
}

// sameError compares errors by class, and refused writes in all that they say.
func sameError(got, want error) error {
	var gotFenced, wantFenced *store.FencedError
	if errors.As(want, &wantFenced) {
		if !errors.As(got, &gotFenced) {
			return fmt.Errorf("got error %v, want a *FencedError: %w", got, want)
		}
		return sameFenced(gotFenced, wantFenced)
	}
	for _, class := range []error{store.ErrNotFound, store.ErrUnreadable, store.ErrInvalidEvent} {
		if errors.Is(want, class) {
			if !errors.Is(got, class) {
				return fmt.Errorf("got error %v, want %w", got, want)
			}
			return nil
		}
	}
	if got != nil {
		return fmt.Errorf("refused with %w, but it is allowed", got)
	}
	return nil
}

func sameFenced(got, want *store.FencedError) error {
	same := got.Op == want.Op && got.Attempt == want.Attempt && got.Current == want.Current && got.State == want.State &&
		got.ExpiresAt.Equal(want.ExpiresAt) && (got.Response == nil) == (want.Response == nil) &&
		(got.Response == nil || got.Response.Equal(want.Response))
	if !same {
		return fmt.Errorf("S6: the refusal says %+v, want %+v", *got, *want)
	}
	return nil
}

// checkToken holds the store to tokens that only grow (S7).
func (e *env) checkToken(id store.ID, v store.Verdict) error {
	if v.Decision != store.DecisionExecute || v.Origin == store.OriginRepeated {
		return nil
	}
	if last := e.tokens[id]; v.Record.Attempt <= last {
		return fmt.Errorf("S7: attempt %d was granted after attempt %d", v.Record.Attempt, last)
	}
	e.tokens[id] = v.Record.Attempt
	return nil
}

// checkFence holds the store to the same where a token changes hands without a grant.
func (e *env) checkFence(id store.ID, before, after store.Record) error {
	if after.State != store.StateInProgress || after.Nonce != (store.Nonce{}) || after.Attempt == before.Attempt {
		return nil
	}
	if last := e.tokens[id]; after.Attempt <= last {
		return fmt.Errorf("S7: attempt %d follows attempt %d", after.Attempt, last)
	}
	e.tokens[id] = after.Attempt
	return nil
}

// diffRecords says in which fields a record differs from what it should be; times may be off by the slack, and an empty
// slice is as good as none.
func diffRecords(got, want store.Record, slack time.Duration) string {
	var diffs []string
	g, w := reflect.ValueOf(normal(got)), reflect.ValueOf(normal(want))
	for i := range g.NumField() {
		a, b := g.Field(i).Interface(), w.Field(i).Interface()
		same := reflect.DeepEqual(a, b)
		if at, ok := a.(time.Time); ok {
			same = near(at, b.(time.Time), slack)
		}
		if !same {
			diffs = append(diffs, fmt.Sprintf("%s %.200v, want %.200v", g.Type().Field(i).Name, a, b))
		}
	}
	return strings.Join(diffs, "; ")
}

func normal(rec store.Record) store.Record {
	if len(rec.Data) == 0 {
		rec.Data = nil
	}
	if len(rec.Response.Body) == 0 {
		rec.Response.Body = nil
	}
	if len(rec.Response.Header) == 0 {
		rec.Response.Header = nil
	}
	return rec
}

// near reports whether two times are equal but for the slack; a time that is not set is near no other.
func near(a, b time.Time, slack time.Duration) bool {
	if a.IsZero() || b.IsZero() {
		return a.IsZero() && b.IsZero()
	}
	return a.Sub(b).Abs() <= slack
}

func describe(rec store.Record) string {
	if rec.State == store.StateNone {
		return "none"
	}
	return fmt.Sprintf("%s at attempt %d", rec.State, rec.Attempt)
}
