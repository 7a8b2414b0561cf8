package store_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// This file looks at what each event leaves in the fields of a record.

func TestCreateFillsTheRecord(t *testing.T) {
	t.Parallel()
	rec, _ := mustStep(t, store.Record{}, reserveWith(), epoch.Add(123*time.Nanosecond))
	want := store.Record{
		ID: stepID, Version: store.RecordVersion, State: store.StateInProgress, Operation: "POST /payments",
		Fingerprint: thisRequest, Attempt: 1, Nonce: store.Nonce{1}, LeaseUntil: epoch.Add(testLease),
		Retention: testRetention, TraceID: "trace", CreatedAt: epoch,
	}
	if !reflect.DeepEqual(rec, want) {
		t.Errorf("%+v\nwant %+v", rec, want)
	}
}

func TestRecreateStartsAfresh(t *testing.T) {
	t.Parallel()
	full := byOwner(store.EventComplete)
	full.Completion = &store.Completion{Response: paidAnswer.Response, ProviderID: "ch_1", Retention: 2 * testRetention}
	point := byOwner(store.EventCheckpoint)
	point.Checkpoint = store.Checkpoint{Point: "charged", Data: []byte("x"), NotReplayable: true}
	expired := epoch.Add(2 * testRetention)
	rec, _ := mustStep(t, recordAfter(t, reserveWith(), point, full), reserveWith(withMeaning(otherRequest)), expired)
	want, _ := mustStep(t, store.Record{}, reserveWith(withMeaning(otherRequest)), expired)
	want.Attempt = 2
	if !reflect.DeepEqual(rec, want) {
		t.Errorf("%+v\nwant %+v", rec, want)
	}
}

// TestRejectKeepsTheTokenAlone: nothing else of a rejected request is needed (E5).
func TestRejectKeepsTheTokenAlone(t *testing.T) {
	t.Parallel()
	sent := byOwner(store.EventCheckpoint)
	sent.Checkpoint = store.Checkpoint{NotReplayable: true}
	later := epoch.Add(time.Hour)
	rec, _ := mustStep(t, recordAfter(t, reserveWith(withResume), sent), byOwner(store.EventReject), later)
	want := store.Record{
		ID: stepID, Version: store.RecordVersion, State: store.StateExpired, Operation: "POST /payments",
		Fingerprint: thisRequest, Attempt: 1, Retention: testRetention, CreatedAt: epoch, SettledAt: later,
		ExpiresAt: later.Add(testRetention), LastError: "rejected",
	}
	if !reflect.DeepEqual(rec, want) {
		t.Errorf("%+v\nwant %+v", rec, want)
	}
}

// TestWhatMayHaveBeenSentIsNotRejected is E5: a record with a recovery point, data, a provider's id, or a past in which
// it was unknown, can be released, and stays what it is for other requests.
func TestWhatMayHaveBeenSentIsNotRejected(t *testing.T) {
	t.Parallel()
	at := func(p store.Checkpoint) store.Event {
		ev := byOwner(store.EventCheckpoint)
		ev.Checkpoint = p
		return ev
	}
	again := byOwner(store.EventRelease)
	again.Attempt = 2
	resolved := story{reserveWith(), byOwner(store.EventAbandon), byOwner(store.EventResolveNotExecuted)}
	for name, from := range map[string]story{
		"at a point":                  {reserveWith(), at(store.Checkpoint{Point: "charged"})},
		"with data":                   {reserveWith(), at(store.Checkpoint{Data: []byte("x")})},
		"with a provider's id":        {reserveWith(), at(store.Checkpoint{ProviderID: "ch_1"})},
		"released at a point":         {reserveWith(), at(store.Checkpoint{Point: "charged"}), byOwner(store.EventRelease)},
		"resolved":                    resolved,
		"resolved and retried":        append(resolved, reserveWith()),
		"released once more":          append(resolved, reserveWith(), again),
		"resolved, and retried twice": append(resolved, reserveWith(), again, reserveWith()),
	} {
		rec := recordAfter(t, from...)
		reject := byOwner(store.EventReject)
		reject.Attempt = rec.Attempt
		after, out, err := store.Step(rec, reject, epoch)
		if !errors.Is(err, store.ErrFenced) {
			t.Errorf("E5: a reject of what is %s got %v", name, err)
		}
		requireUnchanged(t, rec, after, out)
		other := reserveWith(withMeaning(otherRequest), withNonce(9))
		if _, out, err := store.Step(after, other, epoch); err != nil || out.Decision != store.DecisionMismatch {
			t.Errorf("E5: another request for what is %s got %s, %v", name, out.Decision, err)
		}
	}
}

// TestReleaseDropsDataWithoutAPoint: data that an attempt kept for a resolver is not passed to the next one. Data of a
// recovery point is.
func TestReleaseDropsDataWithoutAPoint(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"", "charged"} {
		keep := byOwner(store.EventCheckpoint)
		keep.Checkpoint = store.Checkpoint{Point: point, Data: []byte("x")}
		rec := recordAfter(t, reserveWith(), keep, byOwner(store.EventRelease), reserveWith())
		if kept := len(rec.Data) > 0; kept != (point != "") {
			t.Errorf("B3: a retry at %q finds %q", point, rec.Data)
		}
	}
}

func TestExtendCountsFromNow(t *testing.T) {
	t.Parallel()
	rec, _ := mustStep(t, recordAfter(t, storyInProgress...), byOwner(store.EventExtend), epoch.Add(10*time.Second))
	if want := epoch.Add(10*time.Second + testLease); !rec.LeaseUntil.Equal(want) {
		t.Errorf("lease until %s, want %s", rec.LeaseUntil, want)
	}
}

func TestCheckpointAdvances(t *testing.T) {
	t.Parallel()
	at := func(rec store.Record, p store.Checkpoint) store.Record {
		ev := byOwner(store.EventCheckpoint)
		ev.Checkpoint = p
		rec, _ = mustStep(t, rec, ev, epoch)
		return rec
	}
	rec := at(recordAfter(t, storyResumable...), store.Checkpoint{Point: "charged", Data: []byte("1")})
	rec = at(rec, store.Checkpoint{ProviderID: "ch_1"})
	rec = at(rec, store.Checkpoint{NotReplayable: true})
	rec = at(rec, store.Checkpoint{Data: []byte{}})
	if rec.Point != "charged" || rec.Data == nil || len(rec.Data) != 0 || !rec.NotReplayable ||
		rec.ProviderID != "ch_1" {
		t.Errorf("point %q, data %q, not replayable %t", rec.Point, rec.Data, rec.NotReplayable)
	}
	rec = at(rec, store.Checkpoint{Point: "shipped", Data: []byte("2")})
	resumed, _ := mustStep(t, rec, reserveWith(withResume, withNonce(2)), epoch.Add(testLease))
	if resumed.Point != "shipped" || string(resumed.Data) != "2" || resumed.Attempt != 2 {
		t.Errorf("resumed at %q with %q", resumed.Point, resumed.Data)
	}
}

// TestNotReplayableBelongsToTheAttempt: a fresh attempt has sent nothing yet, a resumed one has.
func TestNotReplayableBelongsToTheAttempt(t *testing.T) {
	t.Parallel()
	mark := byOwner(store.EventCheckpoint)
	mark.Checkpoint.NotReplayable = true
	retried := recordAfter(t, reserveWith(), mark, byOwner(store.EventRelease), reserveWith())
	if retried.NotReplayable {
		t.Error("a retry starts as not replayable")
	}
	resumed, _ := mustStep(t, recordAfter(t, reserveWith(withResume), mark), reserveWith(withResume, withNonce(2)),
		epoch.Add(testLease))
	if !resumed.NotReplayable {
		t.Error("a resumed attempt forgot what was sent")
	}
}

func TestLostOwnerIsDueAtOnce(t *testing.T) {
	t.Parallel()
	later := epoch.Add(testLease)
	for _, ev := range []store.Event{byOwner(store.EventAbandon), {Kind: store.EventSweep}, reserveWith(withNonce(2))} {
		rec, _ := mustStep(t, recordAfter(t, storyInProgress...), ev, later)
		if !rec.SettledAt.Equal(later) || !rec.ReconcileAt.Equal(later) || !rec.Due().Equal(later) ||
			rec.LastError == "" || !rec.LeaseUntil.IsZero() {
			t.Errorf("%s: lost at %s, reconcile at %s, lease until %s, error %q", ev.Kind, rec.SettledAt,
				rec.ReconcileAt, rec.LeaseUntil, rec.LastError)
		}
	}
}

func TestPostponeEndsInADeadLetter(t *testing.T) {
	t.Parallel()
	try := func(rec store.Record) store.Record {
		begin, postpone := byOwner(store.EventBeginReconcile), byOwner(store.EventPostpone)
		begin.Count, begin.Lease = rec.ReconcileCount, time.Hour
		rec, _ = mustStep(t, rec, begin, epoch)
		if !rec.ReconcileAt.Equal(epoch.Add(time.Hour)) {
			t.Errorf("while a node asks, the record is due at %s", rec.ReconcileAt)
		}
		postpone.Count, postpone.Lease, postpone.MaxAttempts, postpone.Reason = rec.ReconcileCount, time.Minute, 2, "silence"
		rec, _ = mustStep(t, rec, postpone, epoch)
		return rec
	}
	rec := try(recordAfter(t, storyUnknown...))
	if rec.ReconcileCount != 1 || rec.DeadLetter || !rec.ReconcileAt.Equal(epoch.Add(time.Minute)) {
		t.Errorf("after one: %+v", rec)
	}
	if rec.ReconcileError != "silence" || rec.LastError != "because" {
		t.Errorf("after one it says %q, and that it was lost because %q", rec.ReconcileError, rec.LastError)
	}
	rec = try(rec)
	if rec.ReconcileCount != 2 || !rec.DeadLetter || rec.State != store.StateUnknown {
		t.Errorf("after two: %+v", rec)
	}
	for kind, want := range map[store.EventKind]string{
		store.EventResolveCompleted: "", store.EventResolveNotExecuted: "an earlier attempt was resolved as not executed",
		store.EventComplete: "",
	} {
		if settled, _ := mustStep(t, rec, byOwner(kind), epoch); settled.DeadLetter || settled.ReconcileError != want ||
			!settled.State.Settled() {
			t.Errorf("%s leaves a dead letter: %t, %s, %q", kind, settled.DeadLetter, settled.State, settled.ReconcileError)
		}
	}
}

// TestRequeueStartsAnew: a dead letter is due at once with all its tries before it, and stays lost since it was lost.
func TestRequeueStartsAnew(t *testing.T) {
	t.Parallel()
	begin, postpone := byOwner(store.EventBeginReconcile), byOwner(store.EventPostpone)
	postpone.MaxAttempts, postpone.Count = 1, 1
	dead := recordAfter(t, slices.Concat(storyUnknown, story{begin, postpone})...)
	later := epoch.Add(time.Hour)
	ev := byOwner(store.EventRequeue)
	ev.Reason = "the provider is back"
	rec, _ := mustStep(t, dead, ev, later)
	want := dead
	want.ReconcileError, want.ReconcileAt, want.ReconcileCount, want.DeadLetter = "the provider is back", later, 0, false
	if !dead.DeadLetter || !dead.SettledAt.Equal(epoch) || !reflect.DeepEqual(rec, want) {
		t.Errorf("%+v\nwant %+v", rec, want)
	}
	postpone.MaxAttempts = 2
	rec, _ = mustStep(t, rec, begin, later)
	if rec, _ = mustStep(t, rec, postpone, later); rec.ReconcileCount != 1 || rec.DeadLetter {
		t.Errorf("one try later: count %d, dead letter %t", rec.ReconcileCount, rec.DeadLetter)
	}
}

// TestRetryWasNeverLost: the moment at which an earlier attempt was lost is not the next attempt's.
func TestRetryWasNeverLost(t *testing.T) {
	t.Parallel()
	for _, from := range []story{
		slices.Concat(storyUnknown, story{byOwner(store.EventResolveNotExecuted), reserveWith()}),
		slices.Concat(storyBusted, story{reserveWith()}),
		slices.Concat(storyUnknown, story{{Kind: store.EventBust, Force: true}, reserveWith()}),
	} {
		if rec := recordAfter(t, from...); rec.State != store.StateInProgress || !rec.SettledAt.IsZero() {
			t.Errorf("%s, settled %s", rec.State, rec.SettledAt)
		}
	}
}

func TestTombstoneKeepsOnlyTheToken(t *testing.T) {
	t.Parallel()
	later := epoch.Add(testRetention)
	rec, _ := mustStep(t, recordAfter(t, storyCompleted...), store.Event{Kind: store.EventReap, Soft: true}, later)
	if rec.Response.Status != 0 || rec.Response.Body != nil || rec.Attempt != 1 ||
		!rec.ExpiresAt.Equal(later.Add(testRetention)) {
		t.Errorf("%+v", rec)
	}
}

func TestInvalidEvents(t *testing.T) {
	t.Parallel()
	without := func(change func(*store.Reservation)) store.Event { return reserveWith(change) }
	noAnswer := func(kind store.EventKind) store.Event { return store.Event{Kind: kind, Attempt: 1} }
	tests := []struct {
		name  string
		from  story
		event store.Event
	}{
		{"no kind", storyInProgress, store.Event{}},
		{"no such kind", storyInProgress, store.Event{Kind: store.EventRetain + 1}},
		{"no reservation", storyAbsent, store.Event{Kind: store.EventReserve}},
		{"no fingerprint", storyAbsent, without(func(r *store.Reservation) { r.Fingerprints = nil })},
		{"no lease", storyAbsent, without(func(r *store.Reservation) { r.Lease = 0 })},
		{"no retention", storyAbsent, without(func(r *store.Reservation) { r.Retention = 0 })},
		{"no answer to complete with", storyInProgress, noAnswer(store.EventComplete)},
		{"no point to go on from", storyInDoubt, noAnswer(store.EventResolveStep)},
		{"no time to keep it for", storyCompleted, store.Event{Kind: store.EventRetain}},
		{"too long a time to keep it for", storyCompleted, store.Event{Kind: store.EventRetain, Lease: 1 << 62}},
		{"no answer to resolve with", storyUnknown, noAnswer(store.EventResolveCompleted)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before := recordAfter(t, test.from...)
			rec, out, err := store.Step(before, test.event, epoch)
			requireUnchanged(t, before, rec, out)
			if !errors.Is(err, store.ErrInvalidEvent) {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, _, err := store.Step(store.Record{}, store.Event{Kind: store.EventBust}, epoch); !errors.Is(err,
		store.ErrNotFound) {
		t.Errorf("a bust of nothing: %v", err)
	}
}

// TestStepRetains: what is settled expires later, never sooner, and its settlement stays when it was.
func TestStepRetains(t *testing.T) {
	t.Parallel()
	const odd = 123 * time.Microsecond
	for _, from := range []story{storyCompleted, storyRetryable} {
		before := recordAfter(t, from...)
		for _, d := range []time.Duration{1, time.Second, testRetention - odd, testRetention, testRetention + odd} {
			now := epoch.Add(odd)
			after, out, err := store.Step(before, store.Event{Kind: store.EventRetain, Lease: d}, now)
			if d < store.ClockStep {
				if !errors.Is(err, store.ErrInvalidEvent) {
					t.Errorf("kept for %s: %v", d, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if grows := now.Add(d).After(before.ExpiresAt); grows != (out.Effect == store.EffectWrite) {
				t.Errorf("kept for %s: the effect is %d", d, out.Effect)
			}
			if after.ExpiresAt.Before(before.ExpiresAt) || after.ExpiresAt.Before(now.Add(d)) ||
				after.ExpiresAt.Sub(now.Add(d)) >= time.Second && !after.ExpiresAt.Equal(before.ExpiresAt) {
				t.Errorf("kept for %s from %s, what expired at %s expires at %s", d, now, before.ExpiresAt, after.ExpiresAt)
			}
			if !after.SettledAt.Equal(before.SettledAt) || !after.ExpiresAt.Equal(after.SettledAt.Add(after.Retention)) {
				t.Errorf("kept for %s, it was settled at %s and is kept for %s", d, after.SettledAt, after.Retention)
			}
		}
	}
	for name, gone := range map[string]story{"nothing": storyAbsent, "what was busted": storyBusted} {
		ev := store.Event{Kind: store.EventRetain, Lease: testRetention}
		if _, _, err := store.Step(recordAfter(t, gone...), ev, epoch); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s is kept: %v", name, err)
		}
	}
	ev := store.Event{Kind: store.EventRetain, Lease: testRetention}
	if _, _, err := store.Step(recordAfter(t, storyCompleted...), ev, epoch.Add(testRetention)); !errors.Is(err,
		store.ErrNotFound) {
		t.Errorf("what has expired is kept: %v", err)
	}
}

// TestStepHasNoHands: the record that Step is given stays as it is.
func TestStepHasNoHands(t *testing.T) {
	t.Parallel()
	before := recordAfter(t, storyInProgress...)
	kept := before
	for kind := store.EventReserve; kind <= store.EventRetain; kind++ {
		ev := byOwner(kind)
		ev.Reservation = newReservation()
		_, _, _ = store.Step(before, ev, epoch.Add(testRetention))
		if !reflect.DeepEqual(before, kept) {
			t.Fatalf("%s changed it to %+v", kind, before)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	const invalid = "invalid"
	for kind := store.EventReserve; kind <= store.EventResolveStep; kind++ {
		if kind.String() == invalid {
			t.Errorf("event %d has no name", kind)
		}
	}
	for state := store.StateNone; state <= store.StateExpired; state++ {
		if state.String() == invalid {
			t.Errorf("state %d has no name", state)
		}
	}
	for _, s := range []string{
		store.EventKind(99).String(), store.State(99).String(), store.Decision(99).String(),
		store.Origin(99).String(),
	} {
		if s != invalid {
			t.Errorf("a value that does not exist is called %q", s)
		}
	}
}

// TestResolvedStepGoesOn is I15: what was learned of a step is where the next attempt starts, and no attempt before it
// writes any more.
func TestResolvedStepGoesOn(t *testing.T) {
	t.Parallel()
	doubt := recordAfter(t, storyInDoubt...)
	begin := byOwner(store.EventBeginReconcile)
	doubt, _ = mustStep(t, doubt, begin, epoch)
	ev := byOwner(store.EventResolveStep)
	ev.Token = 40
	later := epoch.Add(time.Hour)
	rec, _ := mustStep(t, doubt, ev, later)
	if rec.Attempt != 40 || rec.Point != "charged" || string(rec.Data) != "learned" || !rec.Due().Equal(later) {
		t.Errorf("attempt %d at %q with %q, due at %s", rec.Attempt, rec.Point, rec.Data, rec.Due())
	}
	if rec.ReconcileCount != 0 || !rec.ReconcileAt.IsZero() || !rec.SettledAt.IsZero() || rec.LastError != "" {
		t.Errorf("it still tells of the time when it was unknown: %+v", rec)
	}
	again, out, err := store.Step(rec, ev, later.Add(time.Hour))
	if err != nil || out.Effect != store.EffectNone || !reflect.DeepEqual(again, rec) {
		t.Errorf("repeated: %v, effect %d", err, out.Effect)
	}
	next, out := mustStep(t, rec, reserveWith(withResume, withNonce(2)), later)
	if out.Origin != store.OriginResumed || next.Attempt != 41 {
		t.Errorf("the next attempt is %s at %d", out.Origin, next.Attempt)
	}
	if _, _, err := store.Step(next, ev, later); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a resolution that was overtaken: %v", err)
	}
}

// TestFirstError: of several errors the first one stays, through retries, until the record is recreated.
func TestFirstError(t *testing.T) {
	t.Parallel()
	with := func(kind store.EventKind, attempt int64, reason string) store.Event {
		ev := byOwner(kind)
		ev.Attempt, ev.Reason = attempt, reason
		return ev
	}
	rec := store.Record{}
	for i, step := range []struct {
		event       store.Event
		first, last string
	}{
		{reserveWith(), "", ""},
		{with(store.EventRelease, 1, "out of stock"), "", "out of stock"},
		{reserveWith(), "out of stock", ""},
		{with(store.EventAbandon, 2, "no reply"), "out of stock", "no reply"},
		{with(store.EventResolveNotExecuted, 2, "never arrived"), "out of stock", "never arrived"},
		{reserveWith(), "out of stock", ""},
		{func() store.Event {
			ev := with(store.EventComplete, 3, "")
			ev.Completion = &paidAnswer
			return ev
		}(), "out of stock", ""},
	} {
		rec, _ = mustStep(t, rec, step.event, epoch)
		if rec.FirstError != step.first || rec.LastError != step.last {
			t.Errorf("after step %d the errors are %q and %q, want %q and %q", i, rec.FirstError, rec.LastError, step.first, step.last)
		}
	}
	rec, _ = mustStep(t, rec, reserveWith(), rec.ExpiresAt)
	if rec.FirstError != "" || rec.LastError != "" {
		t.Errorf("a record that was made anew says %q and %q", rec.FirstError, rec.LastError)
	}
}
