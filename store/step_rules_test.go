package store_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// This file holds the rules S1 to S9 of docs/spec.md that a row of the table does not show.

func requireUnchanged(t *testing.T, before, rec store.Record, out store.Transition) {
	t.Helper()
	if !reflect.DeepEqual(before, rec) || out.Effect != store.EffectNone {
		t.Errorf("effect %d, and the record became %+v", out.Effect, rec)
	}
}

// mustStep is Step where no error is expected.
func mustStep(t *testing.T, rec store.Record, ev store.Event, at time.Time) (store.Record, store.Transition) {
	t.Helper()
	rec, out, err := store.Step(rec, ev, at)
	if err != nil {
		t.Fatalf("%s: %v", ev.Kind, err)
	}
	return rec, out
}

// TestTimeRemovesOnlyWhatIsSettled is S2.
func TestTimeRemovesOnlyWhatIsSettled(t *testing.T) {
	t.Parallel()
	muchLater := epoch.Add(100 * testRetention)
	for _, from := range []story{storyAbsent, storyInProgress, storyResumable, storyUnknown} {
		for _, soft := range []bool{false, true} {
			before := recordAfter(t, from...)
			rec, out := mustStep(t, before, store.Event{Kind: store.EventReap, Soft: soft}, muchLater)
			requireUnchanged(t, before, rec, out)
		}
	}
	for _, from := range []story{storyCompleted, storyRetryable, storyBusted} {
		before := recordAfter(t, from...)
		rec, out := mustStep(t, before, store.Event{Kind: store.EventReap}, epoch.Add(testRetention-time.Microsecond))
		requireUnchanged(t, before, rec, out)
	}
}

// TestRetentionCountsFromSettlement is the other half of S2: every step into a settled state sets the expiry again.
func TestRetentionCountsFromSettlement(t *testing.T) {
	t.Parallel()
	later := epoch.Add(time.Hour)
	settle := func(from story, ev store.Event) func(t *testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			rec, _ := mustStep(t, recordAfter(t, from...), ev, later)
			if !rec.SettledAt.Equal(later) || !rec.ExpiresAt.Equal(later.Add(testRetention)) ||
				!rec.LeaseUntil.IsZero() || !rec.ReconcileAt.IsZero() {
				t.Errorf("settled %s, expires %s, lease %s, reconcile %s", rec.SettledAt, rec.ExpiresAt,
					rec.LeaseUntil, rec.ReconcileAt)
			}
			if !rec.CreatedAt.Equal(epoch) {
				t.Errorf("created %s", rec.CreatedAt)
			}
		}
	}
	t.Run("complete", settle(storyInProgress, byOwner(store.EventComplete)))
	t.Run("complete late", settle(storyUnknown, byOwner(store.EventComplete)))
	t.Run("release", settle(storyInProgress, byOwner(store.EventRelease)))
	t.Run("resolve completed", settle(storyUnknown, byOwner(store.EventResolveCompleted)))
	t.Run("resolve not executed", settle(storyUnknown, byOwner(store.EventResolveNotExecuted)))

	t.Run("a longer retention of the answer counts", func(t *testing.T) {
		t.Parallel()
		for retention, want := range map[time.Duration]time.Duration{
			2 * testRetention: 2 * testRetention,
			time.Hour:         testRetention,
		} {
			ev := byOwner(store.EventComplete)
			ev.Completion = &store.Completion{Response: paidAnswer.Response, Retention: retention}
			if rec, _ := mustStep(t, recordAfter(t, storyInProgress...), ev,
				epoch); !rec.ExpiresAt.Equal(epoch.Add(want)) {
				t.Errorf("with a retention of %s it expires at %s", retention, rec.ExpiresAt)
			}
		}
	})
}

// TestMismatchComesFirst is S4, for every state that has not expired: also when the lease is over, when the nonce is
// the same and when nothing may be created.
func TestMismatchComesFirst(t *testing.T) {
	t.Parallel()
	for _, from := range []story{storyInProgress, storyResumable, storyCompleted, storyRetryable, storyUnknown} {
		before := recordAfter(t, from...)
		ev := reserveWith(withMeaning(otherRequest), withResume, withoutCreating)
		rec, out := mustStep(t, before, ev, epoch.Add(testLease))
		requireUnchanged(t, before, rec, out)
		if out.Decision != store.DecisionMismatch {
			t.Errorf("%s: %s", before.State, out.Decision)
		}
	}
}

func TestFingerprintsAreComparedUnderTheirSecret(t *testing.T) {
	t.Parallel()
	rotated := store.Fingerprint{Secret: 8, Rules: 1, Sum: [32]byte{9}}
	otherRules := store.Fingerprint{Secret: 7, Rules: 2, Sum: [32]byte{1}}
	before := recordAfter(t, storyCompleted...)
	tests := []struct {
		name       string
		candidates []store.Fingerprint
		want       store.Decision
	}{
		{"rotated, the old secret still there", []store.Fingerprint{rotated, thisRequest}, store.DecisionReplay},
		{"rotated, another request", []store.Fingerprint{rotated, otherRequest}, store.DecisionMismatch},
		{"the old secret is gone", []store.Fingerprint{rotated}, 0},
		{"the old rules are gone", []store.Fingerprint{otherRules}, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ev := reserveWith(func(r *store.Reservation) { r.Fingerprints = test.candidates })
			rec, out, err := store.Step(before, ev, epoch)
			requireUnchanged(t, before, rec, out)
			if out.Decision != test.want || errors.Is(err, store.ErrUnreadable) != (test.want == 0) {
				t.Errorf("%s, %v; want %s", out.Decision, err, test.want)
			}
		})
	}
}

func TestSessionBindsTheKey(t *testing.T) {
	t.Parallel()
	bound := func(session byte) func(*store.Reservation) {
		f := thisRequest
		f.Session[0] = session
		return withMeaning(f)
	}
	tests := []struct {
		name              string
		stored, presented byte
		want              store.Decision
	}{
		{"the same session", 1, 1, store.DecisionReplay},
		{"another session", 1, 2, store.DecisionMismatch},
		{"no session where one is stored", 1, 0, store.DecisionMismatch},
		{"a session where none was stored", 0, 1, store.DecisionReplay},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			rec := recordAfter(t, reserveWith(bound(test.stored)), byOwner(store.EventComplete))
			if _, out := mustStep(t, rec, reserveWith(bound(test.presented)), epoch); out.Decision != test.want {
				t.Errorf("%s, want %s", out.Decision, test.want)
			}
		})
	}
}

// TestRepeatedSettlementSucceeds is S6: the reply to the first one was lost.
func TestRepeatedSettlementSucceeds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		from story
		kind store.EventKind
	}{
		{storyCompleted, store.EventComplete},
		{storyRetryable, store.EventRelease},
		{storyUnknown, store.EventAbandon},
		{storyRejected, store.EventReject},
		{storyCompleted, store.EventResolveCompleted},
		{storyRetryable, store.EventResolveNotExecuted},
	}
	for _, test := range tests {
		t.Run(test.kind.String(), func(t *testing.T) {
			t.Parallel()
			before := recordAfter(t, test.from...)
			rec, out := mustStep(t, before, byOwner(test.kind), epoch.Add(time.Hour))
			requireUnchanged(t, before, rec, out)
		})
	}
}

// TestLoserLearnsTheStoredAnswer is S6: an owner that loses to a resolution sends what is stored.
func TestLoserLearnsTheStoredAnswer(t *testing.T) {
	t.Parallel()
	ev := byOwner(store.EventComplete)
	ev.Completion = &declinedAnswer
	_, _, err := store.Step(recordAfter(t, append(storyUnknown, byOwner(store.EventResolveCompleted))...), ev, epoch)
	var fenced *store.FencedError
	if !errors.As(err, &fenced) || fenced.Response == nil || !fenced.Response.Equal(&paidAnswer.Response) {
		t.Fatalf("%v", err)
	}
	if !fenced.ExpiresAt.Equal(epoch.Add(testRetention)) {
		t.Errorf("expires %s", fenced.ExpiresAt)
	}
}

// TestTokensOnlyGrow is S7.
func TestTokensOnlyGrow(t *testing.T) {
	t.Parallel()
	reserveAt := func(token int64) store.Event {
		ev := reserveWith(withResume, withNonce(2))
		ev.Token = token
		return ev
	}
	expired := epoch.Add(testRetention)
	for _, from := range []story{storyAbsent, storyRetryable, storyResumable, storyBusted, storyCompleted} {
		before := recordAfter(t, from...)
		for _, token := range []int64{0, 1, 1000} {
			rec, out := mustStep(t, before, reserveAt(token), expired)
			if want := max(before.Attempt+1, token); out.Decision != store.DecisionExecute || rec.Attempt != want {
				t.Errorf("from %s at %d with token %d: %s at %d, want %d", before.State, before.Attempt, token,
					out.Decision, rec.Attempt, want)
			}
		}
	}
}

// TestUnknownVersionIsLeftAlone is S8, for every event there is.
func TestUnknownVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, from := range []story{storyInProgress, storyCompleted, storyRetryable, storyUnknown, storyBusted} {
		for _, version := range []uint8{0, store.RecordVersion + 1, 255} {
			before := recordAfter(t, from...)
			before.Version = version
			for kind := store.EventReserve; kind <= store.EventResolveStep; kind++ {
				ev := byOwner(kind)
				ev.Reservation, ev.Force = newReservation(), true
				rec, out, err := store.Step(before, ev, epoch.Add(100*testRetention))
				requireUnchanged(t, before, rec, out)
				var unreadable *store.UnreadableError
				if !errors.As(err, &unreadable) || unreadable.Version != version || out.Decision != 0 {
					t.Errorf("%s of version %d in %s: %s, %v", kind, version, before.State, out.Decision, err)
				}
			}
		}
	}
}

// TestReserveWithoutCreating is S9: only what would be made again is refused.
func TestReserveWithoutCreating(t *testing.T) {
	t.Parallel()
	tests := []struct {
		from  story
		later time.Duration
		want  store.Decision
	}{
		{storyAbsent, 0, store.DecisionRefused},
		{storyBusted, 0, store.DecisionRefused},
		{storyCompleted, testRetention, store.DecisionRefused},
		{storyCompleted, 0, store.DecisionReplay},
		{storyInProgress, 0, store.DecisionInProgress},
		{storyUnknown, 0, store.DecisionUnknown},
		{storyRetryable, 0, store.DecisionExecute},
	}
	for i, test := range tests {
		t.Run(fmt.Sprint(i, test.want), func(t *testing.T) {
			t.Parallel()
			_, out := mustStep(t, recordAfter(t, test.from...), reserveWith(withoutCreating, withNonce(2)),
				epoch.Add(test.later))
			if out.Decision != test.want {
				t.Errorf("%s, want %s", out.Decision, test.want)
			}
			if test.want == store.DecisionRefused && out.Effect != store.EffectNone {
				t.Errorf("it was refused with effect %d", out.Effect)
			}
		})
	}
}

// TestRepeatedReservation is S9: the same nonce gets the same grant, while it lasts.
func TestRepeatedReservation(t *testing.T) {
	t.Parallel()
	before := recordAfter(t, storyInProgress...)
	rec, out := mustStep(t, before, reserveWith(), epoch.Add(testLease-time.Microsecond))
	requireUnchanged(t, before, rec, out)
	if out.Origin != store.OriginRepeated {
		t.Errorf("origin %s", out.Origin)
	}
	if rec, out = mustStep(t, before, reserveWith(), epoch.Add(testLease)); out.Decision != store.DecisionUnknown ||
		rec.State != store.StateUnknown {
		t.Errorf("after the lease: %s, %s", out.Decision, rec.State)
	}
	if _, out = mustStep(t, recordAfter(t, storyRetryable...), reserveWith(),
		epoch); out.Origin != store.OriginRetried {
		t.Errorf("after a release: origin %s", out.Origin)
	}
}

// TestResumeTakesTwo: a route that resumes does not take over what was made by one that reconciles, nor the reverse.
func TestResumeTakesTwo(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		from story
		ev   store.Event
	}{{storyInProgress, reserveWith(withResume, withNonce(2))}, {storyResumable, reserveWith(withNonce(2))}} {
		if rec, out := mustStep(t, recordAfter(t, test.from...), test.ev,
			epoch.Add(testLease)); out.Decision != store.DecisionUnknown || rec.Attempt != 1 {
			t.Errorf("%s at attempt %d", out.Decision, rec.Attempt)
		}
	}
}

func TestSweepLeavesAlone(t *testing.T) {
	t.Parallel()
	for _, from := range []story{
		storyAbsent, storyCompleted, storyRetryable, storyUnknown, storyBusted,
		storyResumable,
	} {
		before := recordAfter(t, from...)
		rec, out := mustStep(t, before, store.Event{Kind: store.EventSweep}, epoch.Add(testLease))
		requireUnchanged(t, before, rec, out)
	}
	before := recordAfter(t, storyInProgress...)
	rec, out := mustStep(t, before, store.Event{Kind: store.EventSweep}, epoch.Add(testLease-time.Microsecond))
	requireUnchanged(t, before, rec, out)
}
