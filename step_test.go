package onceward_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward"
)

// This file walks the table of docs/spec.md, section 4, row by row. What is refused and the rules around the table are in
// step_rules_test.go.

const (
	testLease     = 30 * time.Second
	testRetention = 24 * time.Hour
)

var (
	epoch        = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stepID       = onceward.ID{Scope: "tenant", Key: "key"}
	thisRequest  = onceward.Fingerprint{Secret: 7, Rules: 1, Sum: [32]byte{1}}
	otherRequest = onceward.Fingerprint{Secret: 7, Rules: 1, Sum: [32]byte{2}}
	paidAnswer   = onceward.Completion{Response: onceward.Response{
		Status: 201, Header: []onceward.HeaderField{{Name: "Location", Value: "/payments/1"}}, Body: []byte(`{"id":1}`),
	}}
	declinedAnswer = onceward.Completion{Response: onceward.Response{Status: 402, Body: []byte("no")}}
)

// newReservation is a request that means thisRequest, changed by the given functions.
func newReservation(changes ...func(*onceward.Reservation)) *onceward.Reservation {
	r := &onceward.Reservation{
		ID: stepID, Operation: "POST /payments", Fingerprints: []onceward.Fingerprint{thisRequest}, Nonce: onceward.Nonce{1},
		Lease: testLease, Retention: testRetention, TraceID: "trace",
	}
	for _, change := range changes {
		change(r)
	}
	return r
}

func withMeaning(f onceward.Fingerprint) func(*onceward.Reservation) {
	return func(r *onceward.Reservation) { r.Fingerprints = []onceward.Fingerprint{f} }
}

func withNonce(b byte) func(*onceward.Reservation) {
	return func(r *onceward.Reservation) { r.Nonce = onceward.Nonce{b} }
}

func withResume(r *onceward.Reservation) { r.OnLost = onceward.Resume }

func withoutCreating(r *onceward.Reservation) { r.NoCreate = true }

func reserveWith(changes ...func(*onceward.Reservation)) onceward.Event {
	return onceward.Event{Kind: onceward.EventReserve, Reservation: newReservation(changes...), Token: 1}
}

// byOwner is an owner's write, or a resolution, in the name of attempt 1.
func byOwner(kind onceward.EventKind) onceward.Event {
	ev := onceward.Event{Kind: kind, Attempt: 1, Lease: testLease, Reason: "because"}
	switch kind {
	case onceward.EventComplete, onceward.EventResolveCompleted:
		ev.Completion = &paidAnswer
	case onceward.EventResolveStep:
		ev.Checkpoint = onceward.Checkpoint{Point: "charged", Data: []byte("learned")}
	}
	return ev
}

// recordAfter is the record that a series of events makes at the start.
func recordAfter(t *testing.T, events ...onceward.Event) onceward.Record {
	t.Helper()
	var rec onceward.Record
	for _, ev := range events {
		var err error
		if rec, _, err = onceward.Step(rec, ev, epoch); err != nil {
			t.Fatalf("%s: %v", ev.Kind, err)
		}
	}
	return rec
}

// story is one of the records that the tables start from.
type story []onceward.Event

var (
	storyAbsent     = story{}
	storyInProgress = story{reserveWith()}
	storyResumable  = story{reserveWith(withResume)}
	storyCompleted  = story{reserveWith(), byOwner(onceward.EventComplete)}
	storyRetryable  = story{reserveWith(), byOwner(onceward.EventRelease)}
	storyUnknown    = story{reserveWith(), byOwner(onceward.EventAbandon)}
	storyInDoubt    = story{reserveWith(withResume), byOwner(onceward.EventAbandon)}
	storyBusted     = story{reserveWith(), {Kind: onceward.EventBust, Force: true}}
)

func TestStepFollowsTheTable(t *testing.T) {
	t.Parallel()
	const (
		kept, removed = onceward.EffectWrite, onceward.EffectRemove
		execute       = onceward.DecisionExecute
	)
	tests := []struct {
		name     string
		from     story
		event    onceward.Event
		later    time.Duration
		effect   onceward.Effect
		to       onceward.State
		attempt  int64
		decision onceward.Decision
		origin   onceward.Origin
	}{
		{"a new key", storyAbsent, reserveWith(), 0, kept, onceward.StateInProgress, 1, execute, onceward.OriginCreated},
		{"a retry of what was released", storyRetryable, reserveWith(), 0, kept, onceward.StateInProgress, 2, execute, onceward.OriginRetried},
		{"a heartbeat", storyInProgress, byOwner(onceward.EventExtend), 0, kept, onceward.StateInProgress, 1, 0, 0},
		{"a heartbeat that is late", storyInProgress, byOwner(onceward.EventExtend), testLease, kept, onceward.StateInProgress, 1, 0, 0},
		{"a checkpoint", storyInProgress, byOwner(onceward.EventCheckpoint), 0, kept, onceward.StateInProgress, 1, 0, 0},
		{"an answer", storyInProgress, byOwner(onceward.EventComplete), 0, kept, onceward.StateCompleted, 1, 0, 0},
		{"an answer after the lease", storyInProgress, byOwner(onceward.EventComplete), testLease, kept, onceward.StateCompleted, 1, 0, 0},
		{"a release", storyInProgress, byOwner(onceward.EventRelease), 0, kept, onceward.StateRetryable, 1, 0, 0},
		{"an abandonment", storyInProgress, byOwner(onceward.EventAbandon), 0, kept, onceward.StateUnknown, 1, 0, 0},
		{"a request after the lease", storyInProgress, reserveWith(withNonce(2)), testLease, kept, onceward.StateUnknown, 1, onceward.DecisionUnknown, 0},
		{"a sweep after the lease", storyInProgress, onceward.Event{Kind: onceward.EventSweep}, testLease, kept, onceward.StateUnknown, 1, 0, 0},
		{"a take-over", storyResumable, reserveWith(withResume, withNonce(2)), testLease, kept, onceward.StateInProgress, 2, execute, onceward.OriginResumed},
		{"a late answer", storyUnknown, byOwner(onceward.EventComplete), testLease, kept, onceward.StateCompleted, 1, 0, 0},
		{"a request for what is marked expired", storyBusted, reserveWith(), 0, kept, onceward.StateInProgress, 2, execute, onceward.OriginRecreated},
		{"a request for an answer past its expiry", storyCompleted, reserveWith(withMeaning(otherRequest)), testRetention, kept, onceward.StateInProgress, 2, execute, onceward.OriginRecreated},
		{"a request for a release past its expiry", storyRetryable, reserveWith(withMeaning(otherRequest)), testRetention, kept, onceward.StateInProgress, 2, execute, onceward.OriginRecreated},
		{"another request for what was released", storyRetryable, reserveWith(withMeaning(otherRequest)), 0, 0, onceward.StateRetryable, 1, onceward.DecisionMismatch, 0},
		{"a resolution: completed", storyUnknown, byOwner(onceward.EventResolveCompleted), 0, kept, onceward.StateCompleted, 1, 0, 0},
		{"a resolution: not executed", storyUnknown, byOwner(onceward.EventResolveNotExecuted), 0, kept, onceward.StateRetryable, 1, 0, 0},
		{"a failed reconciliation", storyUnknown, byOwner(onceward.EventPostpone), 0, kept, onceward.StateUnknown, 1, 0, 0},
		{"a try to reconcile", storyUnknown, byOwner(onceward.EventBeginReconcile), 0, kept, onceward.StateUnknown, 1, 0, 0},
		{"a resolved step", storyInDoubt, byOwner(onceward.EventResolveStep), 0, kept, onceward.StateInProgress, 2, 0, 0},
		{"a resolved step after the lease", storyResumable, byOwner(onceward.EventResolveStep), testLease, kept, onceward.StateInProgress, 2, 0, 0},
		{"a person's answer after the lease", storyResumable, byOwner(onceward.EventResolveCompleted), testLease, kept, onceward.StateCompleted, 1, 0, 0},
		{"not executed, said by a person after the lease", storyResumable, byOwner(onceward.EventResolveNotExecuted), testLease, kept, onceward.StateRetryable, 1, 0, 0},
		{"a reconciliation anew", storyUnknown, byOwner(onceward.EventRequeue), 0, kept, onceward.StateUnknown, 1, 0, 0},
		{"an answer reaped", storyCompleted, onceward.Event{Kind: onceward.EventReap}, testRetention, removed, onceward.StateCompleted, 1, 0, 0},
		{"an answer marked expired", storyCompleted, onceward.Event{Kind: onceward.EventReap, Soft: true}, testRetention, kept, onceward.StateExpired, 1, 0, 0},
		{"a release reaped", storyRetryable, onceward.Event{Kind: onceward.EventReap}, testRetention, removed, onceward.StateRetryable, 1, 0, 0},
		{"a release marked expired", storyRetryable, onceward.Event{Kind: onceward.EventReap, Soft: true}, testRetention, kept, onceward.StateExpired, 1, 0, 0},
		{"a mark reaped", storyBusted, onceward.Event{Kind: onceward.EventReap, Soft: true}, testRetention, removed, onceward.StateExpired, 1, 0, 0},
		{"an answer busted", storyCompleted, onceward.Event{Kind: onceward.EventBust}, 0, removed, onceward.StateCompleted, 1, 0, 0},
		{"a release busted", storyRetryable, onceward.Event{Kind: onceward.EventBust}, 0, removed, onceward.StateRetryable, 1, 0, 0},
		{"a mark busted", storyBusted, onceward.Event{Kind: onceward.EventBust}, 0, removed, onceward.StateExpired, 1, 0, 0},
		{"what is in progress busted by force", storyInProgress, onceward.Event{Kind: onceward.EventBust, Force: true}, 0, kept, onceward.StateExpired, 1, 0, 0},
		{"what is unknown busted by force", storyUnknown, onceward.Event{Kind: onceward.EventBust, Force: true}, 0, kept, onceward.StateExpired, 1, 0, 0},

		// What a request is told when nothing changes.
		{"a replay", storyCompleted, reserveWith(withNonce(2)), testRetention - 1, 0, onceward.StateCompleted, 1, onceward.DecisionReplay, 0},
		{"a duplicate in flight", storyInProgress, reserveWith(withNonce(2)), testLease - time.Second, 0, onceward.StateInProgress, 1, onceward.DecisionInProgress, 0},
		{"the same reservation again", storyInProgress, reserveWith(), 0, 0, onceward.StateInProgress, 1, execute, onceward.OriginRepeated},
		{"a request for what is unknown", storyUnknown, reserveWith(), testRetention, 0, onceward.StateUnknown, 1, onceward.DecisionUnknown, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			rec, out, err := onceward.Step(recordAfter(t, test.from...), test.event, epoch.Add(test.later))
			if err != nil {
				t.Fatal(err)
			}
			want := onceward.Outcome{Effect: test.effect, Decision: test.decision, Origin: test.origin}
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
	old := func(kind onceward.EventKind) onceward.Event {
		ev := byOwner(kind)
		ev.Attempt = 9
		return ev
	}
	differently := func(kind onceward.EventKind) onceward.Event {
		ev := byOwner(kind)
		ev.Completion = &declinedAnswer
		return ev
	}
	atCount := func(kind onceward.EventKind, count int) onceward.Event {
		ev := byOwner(kind)
		ev.Count = count
		return ev
	}
	type refusal struct {
		name  string
		from  story
		event onceward.Event
	}
	tests := []refusal{
		{"a heartbeat does not revive what is unknown", storyUnknown, byOwner(onceward.EventExtend)},
		{"a checkpoint of what is unknown", storyUnknown, byOwner(onceward.EventCheckpoint)},
		{"a release of what is unknown", storyUnknown, byOwner(onceward.EventRelease)},
		{"a heartbeat of what is completed", storyCompleted, byOwner(onceward.EventExtend)},
		{"a release of what is completed", storyCompleted, byOwner(onceward.EventRelease)},
		{"an abandonment of what is completed", storyCompleted, byOwner(onceward.EventAbandon)},
		{"another answer", storyCompleted, differently(onceward.EventComplete)},
		{"an answer to what was released", storyRetryable, byOwner(onceward.EventComplete)},
		{"an abandonment of what was released", storyRetryable, byOwner(onceward.EventAbandon)},
		{"an answer to what was busted", storyBusted, byOwner(onceward.EventComplete)},
		{"a resolution of what is in progress", storyInProgress, byOwner(onceward.EventResolveCompleted)},
		{"a resolution of what was busted", storyBusted, byOwner(onceward.EventResolveNotExecuted)},
		{"another resolution of what is completed", storyCompleted, differently(onceward.EventResolveCompleted)},
		{"not executed, said of what is completed", storyCompleted, byOwner(onceward.EventResolveNotExecuted)},
		{"completed, said of what was released", storyRetryable, byOwner(onceward.EventResolveCompleted)},
		{"a failed reconciliation of what is completed", storyCompleted, byOwner(onceward.EventPostpone)},
		{"a try to reconcile what is in progress", storyInProgress, byOwner(onceward.EventBeginReconcile)},
		{"a try that another node has made", storyUnknown, atCount(onceward.EventBeginReconcile, 1)},
		{"the end of a try that has not begun", storyUnknown, atCount(onceward.EventPostpone, 1)},
		{"a person's answer during the lease", storyResumable, byOwner(onceward.EventResolveCompleted)},
		{"a resolved step during the lease", storyResumable, byOwner(onceward.EventResolveStep)},
		{"a resolved step of what is not resumed", storyUnknown, byOwner(onceward.EventResolveStep)},
		{"a resolved step of what is completed", storyCompleted, byOwner(onceward.EventResolveStep)},
		{"a reconciliation anew of what is in progress", storyInProgress, byOwner(onceward.EventRequeue)},
		{"a reconciliation anew of what is completed", storyCompleted, byOwner(onceward.EventRequeue)},
		{"a reconciliation anew of what was released", storyRetryable, byOwner(onceward.EventRequeue)},
		{"a reconciliation anew of what was busted", storyBusted, byOwner(onceward.EventRequeue)},
		{"a bust of what is in progress", storyInProgress, onceward.Event{Kind: onceward.EventBust}},
		{"a bust of what is unknown", storyUnknown, onceward.Event{Kind: onceward.EventBust}},
	}
	for kind := onceward.EventExtend; kind <= onceward.EventAbandon; kind++ {
		tests = append(tests, refusal{"nothing there: " + kind.String(), storyAbsent, byOwner(kind)},
			refusal{"another attempt: " + kind.String(), storyInProgress, old(kind)})
	}
	for _, kind := range []onceward.EventKind{
		onceward.EventResolveCompleted, onceward.EventResolveNotExecuted, onceward.EventResolveStep,
		onceward.EventBeginReconcile, onceward.EventPostpone, onceward.EventRequeue,
	} {
		tests = append(tests, refusal{"nothing there: " + kind.String(), storyAbsent, byOwner(kind)},
			refusal{"another attempt: " + kind.String(), storyUnknown, old(kind)})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before := recordAfter(t, test.from...)
			rec, out, err := onceward.Step(before, test.event, epoch)
			requireUnchanged(t, before, rec, out)
			var fenced *onceward.FencedError
			if !errors.As(err, &fenced) || !errors.Is(err, onceward.ErrFenced) {
				t.Fatalf("error %v, want a FencedError", err)
			}
			if fenced.State != before.State || fenced.Current != before.Attempt || fenced.Attempt != test.event.Attempt {
				t.Errorf("the error says %+v of %s at attempt %d", fenced, before.State, before.Attempt)
			}
			if got, want := fenced.Response != nil, before.State == onceward.StateCompleted; got != want {
				t.Errorf("the error carries the stored answer: %t, want %t", got, want)
			}
		})
	}
}
