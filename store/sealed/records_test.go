package sealed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestContentThatIsNotNeeded: an answer is replayed, and an outcome is unknown, whatever became of the key of the data.
func TestContentThatIsNotNeeded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settle func(s store.Store, c store.Claim) error
		want   store.Decision
	}{
		"completed": {func(s store.Store, c store.Claim) error {
			_, err := s.Complete(context.Background(), c, &store.Completion{Response: testAnswer})
			return err
		}, store.DecisionReplay},
		"unknown": {func(s store.Store, c store.Claim) error {
			return s.Abandon(context.Background(), c, "timeout")
		}, store.DecisionUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside := memory.New()
			old, s := open(t, inside, ring(1)), open(t, inside, ring(2))
			claim := reserve(t, old)
			must(t, old.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "charged", Data: []byte("carried")}))
			must(t, c.settle(s, claim))
			v, err := s.Reserve(t.Context(), reservation())
			if err != nil || v.Decision != c.want || v.Record.Data != nil {
				t.Errorf("%s with %q, %v; want %s", v.Decision, v.Record.Data, err, c.want)
			}
			if c.want == store.DecisionReplay && !v.Record.Response.Equal(&testAnswer) {
				t.Errorf("the replay is %+v", v.Record.Response)
			}
		})
	}
}

// TestRepeatedGrantWithoutTheKey: a grant that came a second time, because the first reply was lost, is given back, too.
func TestRepeatedGrantWithoutTheKey(t *testing.T) {
	t.Parallel()
	clock := &stopped{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	inside := memory.New(memory.WithClock(clock.read))
	s := open(t, inside, ring(1))
	for _, policy := range []store.LostPolicy{store.LostReconcile, store.LostResume} {
		named := func(r *store.Reservation) { r.Key, r.OnLost = policyNames[policy], policy }
		r := reservation(named)
		v, err := s.Reserve(t.Context(), r)
		must(t, err)
		c := store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
		must(t, s.Checkpoint(t.Context(), c, store.Checkpoint{Point: "charged", Data: []byte("carried")}))
		must(t, s.Release(t.Context(), c, "later"))
		r = reservation(named)
		_, err = inside.Reserve(t.Context(), r) // its reply is lost
		must(t, err)
		if _, err := open(t, inside, ring(2)).Reserve(t.Context(), r); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%s: %v", r.Key, err)
		}
		clock.advance(time.Millisecond)
		v, err = s.Reserve(t.Context(), reservation(named))
		if err != nil || v.Decision != store.DecisionExecute || string(v.Record.Data) != "carried" {
			t.Errorf("%s: the next attempt got %s with %q, %v", r.Key, v.Decision, v.Record.Data, err)
		}
	}
}

var policyNames = map[store.LostPolicy]string{store.LostReconcile: "reconcile", store.LostResume: "resume"}

// transacting is a store whose transactions come to what a test says.
type transacting struct {
	*memory.Store
	step   func(work func(context.Context) (store.Checkpoint, error)) error
	record store.Record // what Transact finds, and returns if it is undone
	left   []byte       // the data that the record carries when the answer is stored
}

func (s *transacting) CheckpointTx(
	_ context.Context, _ store.Claim, _ time.Duration, work func(context.Context) (store.Checkpoint, error),
) error {
	return s.step(work)
}

func (s *transacting) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	fresh := store.Record{ID: r.ID, State: store.StateInProgress, Attempt: s.record.Attempt + 1}
	v := store.Verdict{Decision: store.DecisionExecute, Origin: store.OriginRecreated, Record: fresh}
	settlement := work(ctx, v)
	switch {
	case settlement.Action == store.TxRollback:
		v.Record = s.record
	case s.left != nil:
		v.Record.State, v.Record.Response, v.Record.Data = store.StateCompleted, settlement.Completion.Response, s.left
	}
	return v, nil
}

func (*transacting) LongestWork(lease time.Duration) time.Duration { return lease }
func (*transacting) InFlight(store.ID) bool                        { return false }

// TestUndoneOverAnExpiredRecord: that work was undone is told, whatever lies under its key from before.
func TestUndoneOverAnExpiredRecord(t *testing.T) {
	t.Parallel()
	inside := &transacting{Store: memory.New()}
	completed(t, open(t, inside, ring(1)))
	var err error
	inside.record, err = inside.Get(t.Context(), testID)
	must(t, err)
	for _, end := range []store.TxAction{store.TxRollback, store.TxCommit} {
		v, err := open(t, inside, ring(2)).Transact(t.Context(), reservation(),
			func(context.Context, store.Verdict) store.Settlement {
				return store.Settlement{Action: end, Completion: store.Completion{Response: testAnswer}}
			})
		if err != nil || v.Decision != store.DecisionExecute || len(v.Record.Response.Body) > 0 || v.Record.Data != nil {
			t.Errorf("action %d: %s with %+v, %v", end, v.Decision, v.Record, err)
		}
	}
}

// TestAnswerBesideDataOfAnotherKey: an answer that is committed is told, also if the record carries data by then that this
// node cannot open: between the work and its answer others may have been at the record.
func TestAnswerBesideDataOfAnotherKey(t *testing.T) {
	t.Parallel()
	inside := &transacting{Store: memory.New()}
	other := open(t, inside, ring(2))
	completed(t, other)
	rec, err := inside.Get(t.Context(), testID)
	must(t, err)
	inside.left = rec.Data
	for _, end := range []store.TxAction{store.TxCommit, store.TxCommitAnswer} {
		v, err := open(t, inside, ring(1)).Transact(t.Context(), reservation(),
			func(context.Context, store.Verdict) store.Settlement {
				return store.Settlement{Action: end, Completion: store.Completion{Response: testAnswer}}
			})
		if err != nil || v.Decision != store.DecisionExecute || !v.Record.Response.Equal(&testAnswer) || v.Record.Data != nil {
			t.Errorf("action %d: %s with %+v, %v", end, v.Decision, v.Record, err)
		}
	}
}

// TestFencedAmongOthers: a refusal that is joined with another error is opened, and the other is still there.
func TestFencedAmongOthers(t *testing.T) {
	t.Parallel()
	inside := &transacting{Store: memory.New()}
	s := open(t, inside, ring(1))
	c := completed(t, s)
	_, refusal := inside.Complete(t.Context(), c, &store.Completion{Response: store.Response{Status: 500}})
	step := func(err error) error {
		inside.step = func(work func(context.Context) (store.Checkpoint, error)) error {
			_, own := work(t.Context())
			return errors.Join(err, own)
		}
		return s.CheckpointTx(t.Context(), c, time.Minute, func(context.Context) (p store.Checkpoint, err error) {
			return p, nil
		})
	}
	for name, err := range map[string]error{
		"alone": step(refusal), "unknown": step(errors.Join(store.ErrOutcomeUnknown, refusal)),
	} {
		var fenced *store.FencedError
		if !errors.As(err, &fenced) || fenced.Response == nil || !fenced.Response.Equal(&testAnswer) ||
			!errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrOutcomeUnknown) != (name == "unknown") {
			t.Errorf("%s: %v shows %+v", name, err, fenced)
		}
	}
}

// TestFencedWork: what the work itself says is returned as it is, also if it is the refusal of another operation.
func TestFencedWork(t *testing.T) {
	t.Parallel()
	strict := ring(1)
	strict.RefusePlain = true
	inside := &transacting{Store: memory.New()}
	inside.step = func(work func(context.Context) (store.Checkpoint, error)) error {
		_, err := work(t.Context())
		return err
	}
	other := &store.FencedError{Op: "complete", Attempt: 1, Current: 2, State: store.StateCompleted, Response: &testAnswer}
	own := errors.Join(errors.New("the other operation"), other)
	err := open(t, inside, strict).CheckpointTx(t.Context(), store.Claim{ID: testID, Attempt: 1}, time.Minute,
		func(context.Context) (store.Checkpoint, error) { return store.Checkpoint{}, own })
	if err != own {
		t.Errorf("the step returned %v, and its caller got %v", own, err)
	}
}

// TestEventWithoutABody: it is sealed as well, so that no body can be taken away from one that has one.
func TestEventWithoutABody(t *testing.T) {
	t.Parallel()
	strict := ring(1)
	strict.RefusePlain = true
	inside := memory.New()
	s := open(t, inside, strict)
	event := store.ExternalEvent{Source: "psp", EventID: "evt_1", Scope: "acme", Subject: "ch_1"}
	filter := store.ExternalEventFilter{Source: "psp", Scope: "acme", Subjects: []string{"ch_1"}}
	_, err := s.AddExternalEvent(t.Context(), event)
	must(t, err)
	if got, err := s.ExternalEvents(t.Context(), filter); err != nil || len(got) != 1 || len(got[0].Body) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	event.EventID = "evt_2"
	_, err = inside.AddExternalEvent(t.Context(), event)
	must(t, err)
	if _, err := s.ExternalEvents(t.Context(), filter); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("an event whose body was taken away: %v", err)
	}
}
