package postgres_test

import (
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// TestBustThatTheNextRecordHasOvertaken: the reply to its COMMIT is lost, and before the store can ask, the key is used
// again. What was to be removed is gone; the record of the next operation is not for that bust to remove.
func TestBustThatTheNextRecordHasOvertaken(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	s, other := openUnasked(t, proxy.URL()), openUnasked(t, url)
	c := own(t, s, reservation("k"))
	complete(t, s, c, "done")
	defer proxy.HoldReply(isCommit)()
	done := make(chan error, 1)
	go func() { done <- s.Bust(t.Context(), c.ID, false) }()
	awaitCaught(t, proxy, 1)
	next := own(t, other, reservation("k"))
	complete(t, other, next, "done again")
	proxy.DropAll()
	if err := await(t, "the bust", done); err == nil {
		t.Error("S6: the bust was said to be done, which cannot be known")
	}
	wantState(t, other, "k", store.StateCompleted, "B3: the record of the next operation")
}

// TestStepWhoseSettlementTheNextAttemptHasOvertaken: the reply to its COMMIT is lost, and before the store can ask, a
// resumer has gone on. The audit does not call that a failure.
func TestStepWhoseSettlementTheNextAttemptHasOvertaken(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	s, other := openUnasked(t, proxy.URL()), openUnasked(t, url)
	r := reservation("k")
	r.OnLost = store.LostResume
	c := own(t, s, r)
	const state = `{"v":2,"via":"http","steps":["charge","confirm"],"intent":"charge","by":1,"data":{}}`
	must(t, s.Checkpoint(t.Context(), c, store.Checkpoint{Point: "charge (begun)", Data: []byte(state)}))
	must(t, s.Abandon(t.Context(), c, "no answer came"))
	operator, err := reconcile.NewOperator(guardOver(t, s), s)
	must(t, err)
	defer proxy.HoldReply(isCommit)()
	done := make(chan error, 1)
	go func() {
		done <- operator.ResolveStep(t.Context(), zoe, c, phase.StepOutcome{Step: "charge", Result: phase.ResultDone})
	}()
	awaitCaught(t, proxy, 1)
	again := *r
	again.Nonce, again.Lease = store.Nonce{9}, time.Minute
	own(t, other, &again)
	proxy.DropAll()
	_ = await(t, "the act", done)
	entries, err := other.Audit(t.Context(), c.ID)
	must(t, err)
	if len(entries) != 2 || entries[1].Outcome != "done" && entries[1].Outcome[:9] != "not known" {
		t.Errorf("I16: the step was settled, and the audit says %+v", entries)
	}
}
