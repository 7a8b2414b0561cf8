package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// This file walks the table of docs/state-machine.md, row by row. What is refused and the rules around the table are
// in step_rules_test.go.

const (
	testLease     = 30 * time.Second
	testRetention = 24 * time.Hour
)

var (
	epoch        = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stepID       = store.ID{Scope: "tenant", Key: "key"}
	thisRequest  = store.Fingerprint{Secret: 7, Rules: 1, Sum: [32]byte{1}}
	otherRequest = store.Fingerprint{Secret: 7, Rules: 1, Sum: [32]byte{2}}
	paidAnswer   = store.Completion{Response: store.Response{
		Status: 201, Header: []store.HeaderField{{Name: "Location", Value: "/payments/1"}}, Body: []byte(`{"id":1}`),
	}}
	declinedAnswer = store.Completion{Response: store.Response{Status: 402, Body: []byte("no")}}
)

// newReservation is a request that means thisRequest, changed by the given functions.
func newReservation(changes ...func(*store.Reservation)) *store.Reservation {
	r := &store.Reservation{
		ID: stepID, Operation: "POST /payments", Fingerprints: []store.Fingerprint{thisRequest}, Nonce: store.Nonce{1},
		Lease: testLease, Retention: testRetention, TraceID: "trace",
	}
	for _, change := range changes {
		change(r)
	}
	return r
}

func withMeaning(f store.Fingerprint) func(*store.Reservation) {
	return func(r *store.Reservation) { r.Fingerprints = []store.Fingerprint{f} }
}

func withNonce(b byte) func(*store.Reservation) {
	return func(r *store.Reservation) { r.Nonce = store.Nonce{b} }
}

func withResume(r *store.Reservation) { r.OnLost = store.LostResume }

func withoutCreating(r *store.Reservation) { r.NoCreate = true }

func resumeOnly(r *store.Reservation) { r.ResumeOnly = true }

func reserveWith(changes ...func(*store.Reservation)) store.Event {
	return store.Event{Kind: store.EventReserve, Reservation: newReservation(changes...), Token: 1}
}

// byOwner is an owner's write, or a resolution, in the name of attempt 1.
func byOwner(kind store.EventKind) store.Event {
	ev := store.Event{Kind: kind, Attempt: 1, Lease: testLease, Reason: "because"}
	switch kind {
	case store.EventComplete, store.EventResolveCompleted:
		ev.Completion = &paidAnswer
	case store.EventResolveStep:
		ev.Checkpoint = store.Checkpoint{Point: "charged", Data: []byte("learned")}
	}
	return ev
}

// recordAfter is the record that a series of events makes at the start.
func recordAfter(t *testing.T, events ...store.Event) store.Record {
	t.Helper()
	var rec store.Record
	for _, ev := range events {
		var err error
		if rec, _, err = store.Step(rec, ev, epoch); err != nil {
			t.Fatalf("%s: %v", ev.Kind, err)
		}
	}
	return rec
}

// story is one of the records that the tables start from.
type story []store.Event

var (
	storyAbsent     = story{}
	storyInProgress = story{reserveWith()}
	storyResumable  = story{reserveWith(withResume)}
	storyCompleted  = story{reserveWith(), byOwner(store.EventComplete)}
	storyRetryable  = story{reserveWith(), byOwner(store.EventRelease)}
	storyUnknown    = story{reserveWith(), byOwner(store.EventAbandon)}
	storyInDoubt    = story{reserveWith(withResume), byOwner(store.EventAbandon)}
	storyRejected   = story{reserveWith(), byOwner(store.EventReject)}
	storyBusted     = story{reserveWith(), {Kind: store.EventBust, Force: true}}
)

func TestStepFollowsTheTable(t *testing.T) {
	t.Parallel()
	const (
		kept, removed = store.EffectWrite, store.EffectRemove
		execute       = store.DecisionExecute
	)
	tests := []struct {
		name     string
		from     story
		event    store.Event
		later    time.Duration
		effect   store.Effect
		to       store.State
		attempt  int64
		decision store.Decision
		origin   store.Origin
	}{
		{"a new key", storyAbsent, reserveWith(), 0, kept, store.StateInProgress, 1, execute, store.OriginCreated},
		{
			"a retry of what was released", storyRetryable, reserveWith(), 0, kept, store.StateInProgress, 2, execute,
			store.OriginRetried,
		},
		{"a heartbeat", storyInProgress, byOwner(store.EventExtend), 0, kept, store.StateInProgress, 1, 0, 0},
		{
			"a heartbeat that is late", storyInProgress, byOwner(store.EventExtend), testLease, kept,
			store.StateInProgress, 1, 0, 0,
		},
		{"a checkpoint", storyInProgress, byOwner(store.EventCheckpoint), 0, kept, store.StateInProgress, 1, 0, 0},
		{"an answer", storyInProgress, byOwner(store.EventComplete), 0, kept, store.StateCompleted, 1, 0, 0},
		{
			"an answer after the lease", storyInProgress, byOwner(store.EventComplete), testLease, kept,
			store.StateCompleted, 1, 0, 0,
		},
		{"a release", storyInProgress, byOwner(store.EventRelease), 0, kept, store.StateRetryable, 1, 0, 0},
		{"an abandonment", storyInProgress, byOwner(store.EventAbandon), 0, kept, store.StateUnknown, 1, 0, 0},
		{"a reject", storyInProgress, byOwner(store.EventReject), 0, kept, store.StateExpired, 1, 0, 0},
		{"a reject of what was released", storyRetryable, byOwner(store.EventReject), 0, kept, store.StateExpired, 1, 0, 0},
		{
			"the corrected request", storyRejected, reserveWith(withMeaning(otherRequest), withNonce(2)), 0, kept,
			store.StateInProgress, 2, execute, store.OriginRecreated,
		},
		{
			"the corrected request, by a clock that stepped back", storyRejected,
			reserveWith(withMeaning(otherRequest), withNonce(2)), -time.Hour, kept, store.StateInProgress, 2, execute,
			store.OriginRecreated,
		},
		{
			"a soft reap of what was rejected", storyRejected,
			store.Event{Kind: store.EventReap, Soft: true},
			testRetention,
			removed, store.StateExpired, 1, 0, 0,
		},
		{
			"a request after the lease", storyInProgress, reserveWith(withNonce(2)), testLease, kept,
			store.StateUnknown,
			1, store.DecisionUnknown, 0,
		},
		{
			"a sweep after the lease", storyInProgress,
			store.Event{Kind: store.EventSweep},
			testLease, kept,
			store.StateUnknown, 1, 0, 0,
		},
		{
			"a take-over", storyResumable, reserveWith(withResume, withNonce(2)), testLease, kept,
			store.StateInProgress,
			2, execute, store.OriginResumed,
		},
		{"a late answer", storyUnknown, byOwner(store.EventComplete), testLease, kept, store.StateCompleted, 1, 0, 0},
		{
			"a request for what is marked expired", storyBusted, reserveWith(), 0, kept, store.StateInProgress, 2,
			execute, store.OriginRecreated,
		},
		{
			"a request for an answer past its expiry", storyCompleted, reserveWith(withMeaning(otherRequest)),
			testRetention, kept, store.StateInProgress, 2, execute, store.OriginRecreated,
		},
		{
			"a request for a release past its expiry", storyRetryable, reserveWith(withMeaning(otherRequest)),
			testRetention, kept, store.StateInProgress, 2, execute, store.OriginRecreated,
		},
		{
			"another request for what was released", storyRetryable, reserveWith(withMeaning(otherRequest)), 0, 0,
			store.StateRetryable, 1, store.DecisionMismatch, 0,
		},
		{
			"a resolution: completed", storyUnknown, byOwner(store.EventResolveCompleted), 0, kept,
			store.StateCompleted,
			1, 0, 0,
		},
		{
			"a resolution: not executed", storyUnknown, byOwner(store.EventResolveNotExecuted), 0, kept,
			store.StateRetryable, 1, 0, 0,
		},
		{"a failed reconciliation", storyUnknown, byOwner(store.EventPostpone), 0, kept, store.StateUnknown, 1, 0, 0},
		{"a try to reconcile", storyUnknown, byOwner(store.EventBeginReconcile), 0, kept, store.StateUnknown, 1, 0, 0},
		{"a resolved step", storyInDoubt, byOwner(store.EventResolveStep), 0, kept, store.StateInProgress, 2, 0, 0},
		{
			"a resolved step after the lease", storyResumable, byOwner(store.EventResolveStep), testLease, kept,
			store.StateInProgress, 2, 0, 0,
		},
		{
			"a person's answer after the lease", storyResumable, byOwner(store.EventResolveCompleted), testLease, kept,
			store.StateCompleted, 1, 0, 0,
		},
		{
			"not executed, said by a person after the lease", storyResumable, byOwner(store.EventResolveNotExecuted),
			testLease, kept, store.StateRetryable, 1, 0, 0,
		},
		{"a requeue", storyUnknown, byOwner(store.EventRequeue), 0, kept, store.StateUnknown, 1, 0, 0},
		{
			"an answer reaped", storyCompleted,
			store.Event{Kind: store.EventReap},
			testRetention, removed,
			store.StateCompleted, 1, 0, 0,
		},
		{
			"an answer marked expired", storyCompleted,
			store.Event{Kind: store.EventReap, Soft: true},
			testRetention,
			kept, store.StateExpired, 1, 0, 0,
		},
		{
			"a release reaped", storyRetryable,
			store.Event{Kind: store.EventReap},
			testRetention, removed,
			store.StateRetryable, 1, 0, 0,
		},
		{
			"a release marked expired", storyRetryable,
			store.Event{Kind: store.EventReap, Soft: true},
			testRetention,
			kept, store.StateExpired, 1, 0, 0,
		},
		{
			"a mark reaped", storyBusted,
			store.Event{Kind: store.EventReap, Soft: true},
			testRetention, removed,
			store.StateExpired, 1, 0, 0,
		},
		{
			"an answer busted", storyCompleted,
			store.Event{Kind: store.EventBust},
			0, removed, store.StateCompleted, 1,
			0, 0,
		},
		{
			"a release busted", storyRetryable,
			store.Event{Kind: store.EventBust},
			0, removed, store.StateRetryable, 1,
			0, 0,
		},
		{"a mark busted", storyBusted, store.Event{Kind: store.EventBust}, 0, removed, store.StateExpired, 1, 0, 0},
		{
			"what is in progress busted by force", storyInProgress,
			store.Event{Kind: store.EventBust, Force: true},
			0,
			kept, store.StateExpired, 1, 0, 0,
		},
		{
			"what is unknown busted by force", storyUnknown,
			store.Event{Kind: store.EventBust, Force: true},
			0, kept,
			store.StateExpired, 1, 0, 0,
		},

		// These are the answers to a request when nothing changes.
		{
			"a replay", storyCompleted, reserveWith(withNonce(2)), testRetention - 1, 0, store.StateCompleted, 1,
			store.DecisionReplay, 0,
		},
		{
			"a duplicate in flight", storyInProgress, reserveWith(withNonce(2)), testLease - time.Second, 0,
			store.StateInProgress, 1, store.DecisionInProgress, 0,
		},
		{
			"the same reservation again", storyInProgress, reserveWith(), 0, 0, store.StateInProgress, 1, execute,
			store.OriginRepeated,
		},
		{
			"a resumer at what was released", storyRetryable, reserveWith(withResume, resumeOnly), 0, 0,
			store.StateRetryable, 1, store.DecisionRefused, 0,
		},
		{
			"a resumer at no record", storyAbsent, reserveWith(withResume, resumeOnly), 0, 0, store.StateNone, 0,
			store.DecisionRefused, 0,
		},
		{
			"a request for what is unknown", storyUnknown, reserveWith(), testRetention, 0, store.StateUnknown, 1,
			store.DecisionUnknown, 0,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			rec, out, err := store.Step(recordAfter(t, test.from...), test.event, epoch.Add(test.later))
			if err != nil {
				t.Fatal(err)
			}
			want := store.Transition{Effect: test.effect, Decision: test.decision, Origin: test.origin}
			if out != want {
				t.Errorf("outcome %+v, want %+v", out, want)
			}
			if rec.State != test.to || rec.Attempt != test.attempt {
				t.Errorf("%s at attempt %d, want %s at %d", rec.State, rec.Attempt, test.to, test.attempt)
			}
		})
	}
}

func TestStepRefuses(t *testing.T) {
	t.Parallel()
	old := func(kind store.EventKind) store.Event {
		ev := byOwner(kind)
		ev.Attempt = 9
		return ev
	}
	differently := func(kind store.EventKind) store.Event {
		ev := byOwner(kind)
		ev.Completion = &declinedAnswer
		return ev
	}
	atCount := func(kind store.EventKind, count int) store.Event {
		ev := byOwner(kind)
		ev.Count = count
		return ev
	}
	type refusal struct {
		name  string
		from  story
		event store.Event
	}
	tests := []refusal{
		{"a heartbeat does not revive what is unknown", storyUnknown, byOwner(store.EventExtend)},
		{"a checkpoint of what is unknown", storyUnknown, byOwner(store.EventCheckpoint)},
		{"a release of what is unknown", storyUnknown, byOwner(store.EventRelease)},
		{"a reject of what is unknown", storyUnknown, byOwner(store.EventReject)},
		{"a reject of what is completed", storyCompleted, byOwner(store.EventReject)},
		{"a reject of what was busted", storyBusted, byOwner(store.EventReject)},
		{"an answer to what was rejected", storyRejected, byOwner(store.EventComplete)},
		{"a heartbeat of what was rejected", storyRejected, byOwner(store.EventExtend)},
		{"a heartbeat of what is completed", storyCompleted, byOwner(store.EventExtend)},
		{"a release of what is completed", storyCompleted, byOwner(store.EventRelease)},
		{"an abandonment of what is completed", storyCompleted, byOwner(store.EventAbandon)},
		{"another answer", storyCompleted, differently(store.EventComplete)},
		{"an answer to what was released", storyRetryable, byOwner(store.EventComplete)},
		{"an abandonment of what was released", storyRetryable, byOwner(store.EventAbandon)},
		{"an answer to what was busted", storyBusted, byOwner(store.EventComplete)},
		{"a resolution of what is in progress", storyInProgress, byOwner(store.EventResolveCompleted)},
		{"a resolution of what was busted", storyBusted, byOwner(store.EventResolveNotExecuted)},
		{"another resolution of what is completed", storyCompleted, differently(store.EventResolveCompleted)},
		{"not executed, said of what is completed", storyCompleted, byOwner(store.EventResolveNotExecuted)},
		{"completed, said of what was released", storyRetryable, byOwner(store.EventResolveCompleted)},
		{"a failed reconciliation of what is completed", storyCompleted, byOwner(store.EventPostpone)},
		{"a try to reconcile what is in progress", storyInProgress, byOwner(store.EventBeginReconcile)},
		{"a try that another node has made", storyUnknown, atCount(store.EventBeginReconcile, 1)},
		{"the end of a try that has not begun", storyUnknown, atCount(store.EventPostpone, 1)},
		{"a person's answer during the lease", storyResumable, byOwner(store.EventResolveCompleted)},
		{"a resolved step during the lease", storyResumable, byOwner(store.EventResolveStep)},
		{"a resolved step of what is not resumed", storyUnknown, byOwner(store.EventResolveStep)},
		{"a resolved step of what is completed", storyCompleted, byOwner(store.EventResolveStep)},
		{"a requeue of what is in progress", storyInProgress, byOwner(store.EventRequeue)},
		{"a requeue of what is completed", storyCompleted, byOwner(store.EventRequeue)},
		{"a requeue of what was released", storyRetryable, byOwner(store.EventRequeue)},
		{"a requeue of what was busted", storyBusted, byOwner(store.EventRequeue)},
		{"a bust of what is in progress", storyInProgress, store.Event{Kind: store.EventBust}},
		{"a bust of what is unknown", storyUnknown, store.Event{Kind: store.EventBust}},
		{"what is in progress kept for longer", storyInProgress, store.Event{Kind: store.EventRetain, Lease: testRetention}},
		{"what is unknown kept for longer", storyUnknown, store.Event{Kind: store.EventRetain, Lease: testRetention}},
	}
	for kind := store.EventExtend; kind <= store.EventReject; kind++ {
		tests = append(tests, refusal{"nothing there: " + kind.String(), storyAbsent, byOwner(kind)},
			refusal{"another attempt: " + kind.String(), storyInProgress, old(kind)})
	}
	for _, kind := range []store.EventKind{
		store.EventResolveCompleted, store.EventResolveNotExecuted, store.EventResolveStep,
		store.EventBeginReconcile, store.EventPostpone, store.EventRequeue,
	} {
		tests = append(tests, refusal{"nothing there: " + kind.String(), storyAbsent, byOwner(kind)},
			refusal{"another attempt: " + kind.String(), storyUnknown, old(kind)})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before := recordAfter(t, test.from...)
			rec, out, err := store.Step(before, test.event, epoch)
			requireUnchanged(t, before, rec, out)
			var fenced *store.FencedError
			if !errors.As(err, &fenced) || !errors.Is(err, store.ErrFenced) {
				t.Fatalf("error %v, want a FencedError", err)
			}
			if fenced.State != before.State || fenced.Current != before.Attempt ||
				fenced.Attempt != test.event.Attempt {
				t.Errorf("the error says %+v of %s at attempt %d", fenced, before.State, before.Attempt)
			}
			if got, want := fenced.Response != nil, before.State == store.StateCompleted; got != want {
				t.Errorf("the error carries the stored answer: %t, want %t", got, want)
			}
		})
	}
}
