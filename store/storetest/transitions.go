package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// action is an event for a record, with its name.
type action struct {
	name   string
	needed func(Instance) bool
	event  func(id store.ID, rec *store.Record) store.Event
	// global means that the event affects all records of the store.
	global bool
}

// testTransitions tests the table of section 4 in both directions: from each state, each event, allowed or refused.
func testTransitions(t *testing.T, h Harness) {
	chosen := actions(h.probe)
	for _, f := range fixtures(h.probe) {
		h.test(t, f.name, func(e *env) { f.meet(e, chosen) })
	}
}

// meet sends each action to a record of the fixture, and compares the store with the model.
func (f *fixture) meet(e *env, chosen []action) {
	records := f.stock(len(chosen))
	for _, a := range chosen {
		e.Run(a.name, func(t *testing.T) {
			e := e.with(t)
			if a.global {
				records.renew(e, 1) // the previous actions have affected all records
			}
			on := records.next(e)
			after, err := e.step(on.ID, on.before, a.event(on.ID, &on.before))
			if err != nil {
				e.Error(err)
			}
			records.met(after)
		})
	}
}

// testInvalid checks that the store refuses events that no state allows, without a trace.
func testInvalid(t *testing.T, h Harness) {
	invalid := invalidActions(h.probe)
	for _, f := range ownerFixtures() {
		if f.name != "none" && f.name != "in progress" && f.name != "unknown" {
			continue
		}
		h.test(t, f.name, func(e *env) { f.meet(e, invalid) })
	}
}

func invalidActions(i Instance) []action {
	current := func(name string, ev store.Event) action {
		return action{name: name, event: func(_ store.ID, rec *store.Record) store.Event {
			ev := ev
			ev.Attempt = rec.Attempt
			return ev
		}}
	}
	all := []action{
		reserving("reserve without a fingerprint", fingerprints()),
		reserving("reserve without a nonce", nonce(store.Nonce{})),
		reserving("reserve without a lease", lease(0)),
		reserving("reserve with a negative lease", lease(-time.Second)),
		reserving("reserve with a lease of a nanosecond", lease(1)),
		reserving("reserve without a retention", retain(0)),
		current("extend by nothing", store.Event{Kind: store.EventExtend}),
		current("extend backwards", store.Event{Kind: store.EventExtend, Lease: -time.Second}),
		current("complete without an answer", store.Event{Kind: store.EventComplete}),
	}
	if has[store.Reconciler](i) {
		all = append(all, current("resolve a step at no point", store.Event{Kind: store.EventResolveStep}))
	}
	for _, status := range []int{-1, 0, 99, 1000} {
		done := &store.Completion{Response: store.Response{Status: status, Body: []byte("x")}}
		all = append(all, current(fmt.Sprint("complete with status ", status),
			store.Event{Kind: store.EventComplete, Completion: done}))
		if has[store.Reconciler](i) {
			all = append(all, current(fmt.Sprint("resolve with status ", status),
				store.Event{Kind: store.EventResolveCompleted, Completion: done}))
		}
	}
	return all
}

// actions returns every event that the store has a method for, in each way that matters.
func actions(i Instance) []action {
	all := slices.Concat(reserveActions(), ownerActions(), reconcilerActions(), busterActions(), rewriterActions(),
		retainerActions(), backgroundActions())
	return slices.DeleteFunc(all, func(a action) bool { return a.needed != nil && !a.needed(i) })
}

// reserving returns a reservation with the options.
func reserving(name string, options ...option) action {
	return action{name: name, event: func(id store.ID, _ *store.Record) store.Event {
		return store.Event{Kind: store.EventReserve, Reservation: request(id, options...)}
	}}
}

func reserveActions() []action {
	older := fingerprint("request")
	older.Secret = 6
	lost := fingerprint("request")
	lost.Secret = 99
	newRules := fingerprint("request")
	newRules.Rules = 2
	return []action{
		reserving("reserve"),
		reserving("reserve, longer retention", retain(3*calm)),
		reserving("reserve, finer than the clock", lease(calm+1), retain(3*calm+999)),
		reserving("reserve, resumable", resume),
		reserving("reserve, other fingerprint", fingerprints(fingerprint("other"))),
		reserving("reserve, other fingerprint, resumable", fingerprints(fingerprint("other")), resume),
		reserving("reserve, newer secret first", fingerprints(older, fingerprint("request"))),
		reserving("reserve, newer rules first", fingerprints(newRules, fingerprint("request"))),
		reserving("reserve, secret lost", fingerprints(lost)),
		reserving("reserve, rules unknown", fingerprints(newRules)),
		reserving("reserve, in a session", session(3)),
		reserving("reserve, in another session", session(4)),
		reserving("reserve, not to create", noCreate),
		reserving("reserve, to resume only", resumeOnly),
		reserving("reserve, to resume only, resumable", resumeOnly, resume),
		reserving("reserve, not to create, other fingerprint", noCreate, fingerprints(fingerprint("other"))),
		{name: "reserve, same nonce", event: func(id store.ID, rec *store.Record) store.Event {
			return store.Event{Kind: store.EventReserve, Reservation: request(id, nonce(rec.Nonce), resume)}
		}},
		{name: "reserve, same nonce, other fingerprint", event: func(id store.ID, rec *store.Record) store.Event {
			r := request(id, nonce(rec.Nonce), fingerprints(fingerprint("other")))
			return store.Event{Kind: store.EventReserve, Reservation: r}
		}},
	}
}

// byEveryAttempt returns an event for the current attempt, and for other attempts, which must be refused.
func byEveryAttempt(name string, needed func(Instance) bool, ev store.Event) []action {
	var aimed []action
	for offset, by := range []string{", older attempt", "", ", later attempt"} {
		aimed = append(aimed, action{
			name: name + by, needed: needed,
			event: func(_ store.ID, rec *store.Record) store.Event {
				ev := ev
				ev.Attempt = rec.Attempt + int64(offset) - 1
				return ev
			},
		})
	}
	return aimed
}

func ownerActions() []action {
	provided := answer("stored")
	provided.ProviderID, provided.Retention = "ch_2", 3*calm
	events := []struct {
		name string
		store.Event
	}{
		{"extend", store.Event{Kind: store.EventExtend, Lease: 2 * calm}},
		{"checkpoint", store.Event{
			Kind:       store.EventCheckpoint,
			Checkpoint: store.Checkpoint{Point: "shipped", Data: []byte("more")},
		}},
		{
			"checkpoint, point only",
			store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{Point: "shipped"}},
		},
		{
			"checkpoint, data only",
			store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{Data: []byte("more")}},
		},
		{
			"checkpoint, empty data",
			store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{Data: []byte{}}},
		},
		{
			"checkpoint, the provider's id",
			store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{ProviderID: "ch_9"}},
		},
		{
			"checkpoint, not replayable",
			store.Event{Kind: store.EventCheckpoint, Checkpoint: store.Checkpoint{NotReplayable: true}},
		},
		{"complete", store.Event{Kind: store.EventComplete, Completion: answer("new")}},
		{"complete as stored", store.Event{Kind: store.EventComplete, Completion: answer("stored")}},
		{"complete with provider and retention", store.Event{Kind: store.EventComplete, Completion: provided}},
		{"complete with everything", store.Event{Kind: store.EventComplete, Completion: rich()}},
		{"release", store.Event{Kind: store.EventRelease, Reason: "card expired"}},
		{"abandon", store.Event{Kind: store.EventAbandon, Reason: "timeout"}},
		{"reject", store.Event{Kind: store.EventReject}},
	}
	var all []action
	for _, ev := range events {
		all = append(all, byEveryAttempt(ev.name, nil, ev.Event)...)
	}
	return all
}

func backgroundActions() []action {
	worker := func(name string, needed func(Instance) bool, ev store.Event) action {
		return action{
			name: name, needed: needed, global: true,
			event: func(store.ID, *store.Record) store.Event { return ev },
		}
	}
	reaps := has[store.Reaper]
	return []action{
		worker("sweep", has[store.Sweeper], store.Event{Kind: store.EventSweep}),
		worker("reap", reaps, store.Event{Kind: store.EventReap}),
		worker("reap softly", reaps, store.Event{Kind: store.EventReap, Soft: true}),
	}
}

func reconcilerActions() []action {
	needed := has[store.Reconciler]
	postpone := store.Event{Kind: store.EventPostpone, Lease: time.Minute, Reason: "not found yet"}
	all := slices.Concat(
		byEveryAttempt("resolve completed", needed, store.Event{Kind: store.EventResolveCompleted, Completion: rich()}),
		byEveryAttempt("resolve completed as stored", needed,
			store.Event{Kind: store.EventResolveCompleted, Completion: answer("stored")}),
		byEveryAttempt("resolve not executed", needed,
			store.Event{Kind: store.EventResolveNotExecuted, Reason: "never arrived"}),
	)
	all = append(all, byEveryAttempt("requeue", needed,
		store.Event{Kind: store.EventRequeue, Reason: "the provider is back"})...)
	for _, p := range []struct {
		name string
		store.Checkpoint
	}{
		{"", store.Checkpoint{Point: "shipped", Data: []byte("more"), ProviderID: "ch_3"}},
		{", point only", store.Checkpoint{Point: "shipped"}},
		{", as stored", store.Checkpoint{Point: "charged", Data: []byte("carried\x00\xff")}},
	} {
		ev := store.Event{Kind: store.EventResolveStep, Checkpoint: p.Checkpoint}
		all = append(all, byEveryAttempt("resolve step"+p.name, needed, ev)...)
	}
	for _, count := range []int{0, 1} {
		begin := store.Event{Kind: store.EventBeginReconcile, Lease: time.Minute, Count: count}
		all = append(all, byEveryAttempt(fmt.Sprintf("begin reconcile at %d", count), needed, begin)...)
		untried := store.Event{Kind: store.EventPostpone, Count: count, Untried: true, MaxAttempts: 1}
		all = append(all, byEveryAttempt(fmt.Sprintf("postpone at %d, untried", count), needed, untried)...)
		for _, limit := range []int{0, 1, 5} {
			postpone.MaxAttempts, postpone.Count = limit, count
			all = append(all, byEveryAttempt(fmt.Sprintf("postpone at %d, limit %d", count, limit), needed,
				postpone)...)
		}
	}
	return all
}

func busterActions() []action {
	busting := func(name string, force bool) action {
		return action{
			name: name, needed: has[store.Buster],
			event: func(store.ID, *store.Record) store.Event {
				return store.Event{Kind: store.EventBust, Force: force}
			},
		}
	}
	return []action{busting("bust", false), busting("bust by force", true)}
}

// everything is a limit for background work that is never reached.
const everything = 10_000

// reply is the store's reply to an event.
type reply struct {
	verdict store.Verdict
	expires time.Time
	err     error
}

// do sends an event to the store through its method.
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
	case store.EventReject:
		r.err = e.Store.Reject(e.ctx, c)
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
	case store.EventRetain:
		r.expires, r.err = e.Store.(store.Retainer).Retain(e.ctx, id, ev.Lease)
	case store.EventRewrite:
		r.err = e.Store.(store.Rewriter).Rewrite(e.ctx, c, ev.From, ev.To)
	default:
		r.err = fmt.Errorf("storetest: no method for %s", ev.Kind)
	}
	return r
}

// step applies an event to a record through the store, which has the record as it was before. It returns the record
// after the event, and reports how the result differs from the result of [store.Step].
//
// The store's clock is read before and after. If it moves in between, the event may have happened at either moment, and
// times may be off by the difference.
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
	return after, e.verify(id, before, ev, got, after, from, to)
}

// verify compares the reply to an event, and the record after it, with the model. The event happened between two
// moments of the store's clock.
func (e *env) verify(
	id store.ID, before store.Record, ev store.Event, got reply, after store.Record, from, to time.Time,
) error {
	ev.Token = got.verdict.Record.Attempt // the store chooses it; the model only sets its lower bound
	if ev.Kind == store.EventResolveStep {
		ev.Token = after.Attempt
	}
	slack := to.Sub(from) + e.resolution() - time.Microsecond
	problem := e.judge(before, ev, from, slack, got, after)
	if problem != nil && to.After(from) && e.judge(before, ev, to, slack, got, after) == nil {
		problem = nil
	}
	if problem != nil {
		return fmt.Errorf("%s of a record that was %s (section 4): %w", ev.Kind, describe(before), problem)
	}
	c := change{
		before: before, after: after, event: ev, got: got,
		from: from.Truncate(store.ClockStep), to: to.Add(e.resolution() - time.Microsecond),
	}
	return errors.Join(c.obeys(), e.checkToken(id, got.verdict), e.checkFence(id, before, after))
}

// judge compares the effect of an event in a store with its effect in the model at one moment.
func (e *env) judge(before store.Record, ev store.Event, at time.Time, slack time.Duration, got reply,
	after store.Record,
) error {
	want, outcome, wantErr := store.Step(before, ev, at)
	if err := sameError(got.err, wantErr); err != nil {
		return err
	}
	written := slack
	switch outcome.Effect {
	case store.EffectNone:
		want = before
		written = 0 // no time in the record may have changed
	case store.EffectRemove:
		want = store.Record{}
	}
	if diff := diffRecords(after, want, written); diff != "" {
		return fmt.Errorf("the record is now %s", diff)
	}
	if wantErr != nil {
		return nil
	}
	if (ev.Kind == store.EventComplete || ev.Kind == store.EventRetain) && !near(got.expires, want.ExpiresAt, written) {
		return fmt.Errorf("%s returned the expiry %s, want %s", ev.Kind, got.expires, want.ExpiresAt)
	}
	if ev.Kind == store.EventReserve {
		return sameVerdict(got.verdict, outcome, want, at, slack)
	}
	return nil
}

func sameVerdict(got store.Verdict, outcome store.Transition, want store.Record, at time.Time,
	slack time.Duration,
) error {
	if got.Decision != outcome.Decision || got.Origin != outcome.Origin {
		return fmt.Errorf("reserve answered (%s, %s), want (%s, %s)", got.Decision, got.Origin, outcome.Decision,
			outcome.Origin)
	}
	if !near(got.Now, at, slack+time.Microsecond) {
		return fmt.Errorf("the verdict's clock says %s, the store's %s", got.Now, at)
	}
	if got.Decision == store.DecisionRefused {
		return nil // there is no record to return
	}
	if diff := diffRecords(got.Record, want, slack); diff != "" {
		return fmt.Errorf("the verdict's record is %s", diff)
	}
	return nil
}

// sameError compares errors by class, and refused writes by all their fields.
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
	same := got.Op == want.Op && got.Attempt == want.Attempt && got.Current == want.Current &&
		got.State == want.State &&
		got.ExpiresAt.Equal(want.ExpiresAt) && (got.Response == nil) == (want.Response == nil) &&
		(got.Response == nil || got.Response.Equal(want.Response))
	if !same {
		return fmt.Errorf("S6: the refusal says %+v, want %+v", *got, *want)
	}
	return nil
}

// checkToken checks that the store's tokens only grow (S7).
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

// checkFence checks the same where a token changes without a grant.
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

// diffRecords returns the fields in which a record differs from the expected one; times may be off by the slack, and an
// empty slice is equal to nil.
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

// near reports whether two times are equal within the slack; the zero time is near no other time.
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
