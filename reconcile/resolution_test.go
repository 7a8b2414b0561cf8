package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestAnswersAboutSteps of operations that have none: package phase tests those that have.
func TestAnswersAboutSteps(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		lose(t, store, "k")
		about := reconcile.Step(phase.StepOutcome{Step: "charge", Result: phase.StepDone})
		poller := newPoller(t, store, reconcile.Rule{Resolver: always(about)}, reconcile.Config{})
		ask(t, poller, "k", reconcile.Report{Postponed: 1})
		if rec := record(t, store, "k"); !strings.Contains(rec.ReconcileError, "an operation that has none at hand") {
			t.Errorf("the record says %q", rec.ReconcileError)
		}
		poller = newPoller(t, store, reconcile.Rule{Resolver: always(reconcile.Finish(paid, "ch_1"))}, reconcile.Config{})
		ask(t, poller, "k", reconcile.Report{Completed: 1})
	})
}

// loseResumed makes an unknown record of an operation that is resumed by code of its own, at a recovery point.
func loseResumed(t *testing.T, s store.Store, data string) store.Claim {
	t.Helper()
	v, err := s.Reserve(t.Context(), &store.Reservation{
		ID: idOf("k"), Operation: transfers, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
		Lease: time.Minute, Retention: 24 * time.Hour, OnLost: store.LostResume,
	})
	must(t, err)
	claim := store.Claim{ID: idOf("k"), Attempt: v.Record.Attempt}
	must(t, s.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "page 7", Data: []byte(data)}))
	must(t, s.Abandon(t.Context(), claim, "no answer came"))
	return claim
}

// TestResumedByOtherCode: an operation with recovery points that package phase has not written is settled as a whole.
func TestResumedByOtherCode(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		claim := loseResumed(t, s, `{"page":7}`)
		must(t, newOperator(t, s).RetryNow(t.Context(), zoe, claim))
		wantState(t, s, "k", store.StateUnknown)
		poller := newPoller(t, s, reconcile.Rule{Resolver: always(reconcile.Completed(paid, ""))}, reconcile.Config{})
		ask(t, poller, "k", reconcile.Report{Completed: 1})
	})
}

// TestPhasedByALaterProgram: what this program cannot read it does not settle, by no answer.
func TestPhasedByALaterProgram(t *testing.T) {
	for name, answer := range map[string]reconcile.Answer{
		"completed":    reconcile.Completed(paid, ""),
		"not executed": reconcile.NotExecuted("no"),
		"finish":       reconcile.Finish(paid, ""),
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				loseResumed(t, s, `{"v":99,"via":"http"}`)
				poller := newPoller(t, s, reconcile.Rule{Resolver: always(answer)}, reconcile.Config{})
				ask(t, poller, "k", reconcile.Report{Postponed: 1})
				wantState(t, s, "k", store.StateUnknown)
			})
		})
	}
}

// TestNoticeAboutAnotherStep: what the other system says about a step that is done, or was tried before, does not
// settle the step whose call is in doubt, however the external event names the operation.
func TestExternalEventAboutAnotherStep(t *testing.T) {
	for name, c := range map[string]struct {
		subject string
		want    reconcile.Report
	}{
		"of the step in doubt":        {downstreamKey("k", "transfer"), reconcile.Report{Steps: 1}},
		"of an earlier step":          {downstreamKey("k", "reserve"), reconcile.Report{Postponed: 1}},
		"of an earlier step's effect": {"hold_1", reconcile.Report{Postponed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				v, err := s.Reserve(t.Context(), &store.Reservation{
					ID: idOf("k"), Operation: transfers, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
					Lease: time.Minute, Retention: 24 * time.Hour, OnLost: store.LostResume, DownstreamSecret: guardSecret,
				})
				must(t, err)
				claim := store.Claim{ID: idOf("k"), Attempt: v.Record.Attempt}
				const state = `{"v":2,"via":"http","steps":["reserve","transfer"],"done":["reserve"],` +
					`"intent":"transfer","by":1,"data":{}}`
				must(t, s.Checkpoint(t.Context(), claim, store.Checkpoint{
					Point: "transfer (begun)", Data: []byte(state), ProviderID: "hold_1",
				}))
				abandon(t, s, claim)
				event := about("k", "e1", 1, "cancelled")
				event.Subject = c.subject
				keep(t, s, event)
				poller := newPoller(t, s, hearing(nil), reconcile.Config{})
				must(t, poller.Apply(t.Context(), event))
				if c.want.Steps == 0 {
					wantUntouched(t, s, "k")
					ask(t, poller, "k", c.want)
					wantState(t, s, "k", store.StateUnknown)
					return
				}
				wantState(t, s, "k", store.StateInProgress)
			})
		})
	}
}

// TestRefusedStepIsInTheAudit as refused: that nothing was done is known.
func TestRefusedStepIsInTheAudit(t *testing.T) {
	const state = `{"v":2,"via":"http","steps":["charge","confirm"],"intent":"charge","by":1,"data":{"price":5}}`
	for name, c := range map[string]struct {
		data    string
		outcome phase.StepOutcome
	}{
		"another step":       {state, phase.StepOutcome{Step: "confirm", Result: phase.StepDone}},
		"no result":          {state, phase.StepOutcome{Step: "charge"}},
		"data without price": {state, phase.StepOutcome{Step: "charge", Result: phase.StepDone, Data: []byte(`{}`)}},
		"no steps":           {`{"page":7}`, phase.StepOutcome{Step: "charge", Result: phase.StepDone}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				claim := loseResumed(t, store, c.data)
				if err := newOperator(t, store).ResolveStep(t.Context(), zoe, claim, c.outcome); err == nil {
					t.Error("the act was said to be done")
				}
				wantUntouched(t, store, "k")
				if got := audit(t, store, "k"); !strings.Contains(got, "[failed: ") {
					t.Errorf("I16: the audit says %s", got)
				}
			})
		})
	}
}
