package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// I16: what an operator did is in the audit as it really ended, also if the connection was lost during its COMMIT.

// operatorActs are all that an operator can do to an unknown record, with the state that it leaves.
var operatorActs = map[string]struct {
	act   func(t *testing.T, operator *reconcile.Operator, c store.Claim) error
	state store.State
}{
	"resolve completed": {func(t *testing.T, operator *reconcile.Operator, c store.Claim) error {
		return operator.ResolveCompleted(t.Context(), zoe, c, *answer("learned"))
	}, store.StateCompleted},
	"resolve not executed": {func(t *testing.T, operator *reconcile.Operator, c store.Claim) error {
		return operator.ResolveNotExecuted(t.Context(), zoe, c)
	}, store.StateRetryable},
	"retry now": {func(t *testing.T, operator *reconcile.Operator, c store.Claim) error {
		return operator.RetryNow(t.Context(), zoe, c)
	}, store.StateUnknown},
	"bust by force": {func(t *testing.T, operator *reconcile.Operator, c store.Claim) error {
		return operator.Bust(t.Context(), zoe, c.ID, true)
	}, store.StateExpired},
}

var zoe = reconcile.By{Who: "zoe", Why: "the bank says so"}

func TestOperatorWhoseCommitIsCutOff(t *testing.T) {
	t.Parallel()
	for name, test := range operatorActs {
		for kind, cut := range map[string]func(*servers.Proxy, func(string) bool){
			"the reply is lost": (*servers.Proxy).CutReply, "the request is lost": (*servers.Proxy).CutRequest,
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				if kind == "the request is lost" {
					nightly.Only(t, "TestBustWhoseCommitIsCutOff loses a request on each change")
				}
				store, proxy := openProxied(t)
				operator, err := reconcile.NewOperator(guardOver(t, store), store)
				must(t, err)
				c := own(t, store, reservation("k"))
				must(t, store.Abandon(t.Context(), c, "the connection was lost"))
				cut(proxy, isCommit)
				if err := test.act(t, operator, c); err != nil {
					t.Errorf("S6: %v, want that it was done", err)
				}
				if n := proxy.Sprung(); n != 1 {
					t.Fatalf("%d were cut, want 1", n)
				}
				wantState(t, store, "k", test.state, "I16")
				wantAudit(t, store, c, name)
			})
		}
	}
}

func TestBustWhoseCommitIsCutOff(t *testing.T) {
	t.Parallel()
	for kind, cut := range map[string]func(*servers.Proxy, func(string) bool){
		"the reply is lost": (*servers.Proxy).CutReply, "the request is lost": (*servers.Proxy).CutRequest,
	} {
		t.Run(kind, func(t *testing.T) {
			s, proxy := openProxied(t)
			operator, err := reconcile.NewOperator(guardOver(t, s), s)
			must(t, err)
			c := own(t, s, reservation("k"))
			complete(t, s, c, "done")
			cut(proxy, isCommit)
			if err := operator.Bust(t.Context(), zoe, c.ID, false); err != nil {
				t.Errorf("S6: %v, want that it was done", err)
			}
			wantState(t, s, "k", store.StateNone, "I16")
			wantAudit(t, s, c, "bust")
		})
	}
}

// TestOperatorWhoLeavesDuringCommit: what cannot be learned any more is not called a failure.
func TestOperatorWhoLeavesDuringCommit(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it waits until the store gives up")
	store, proxy := openProxied(t)
	operator, err := reconcile.NewOperator(guardOver(t, store), store)
	must(t, err)
	c := own(t, store, reservation("k"))
	must(t, store.Abandon(t.Context(), c, "the connection was lost"))
	release := proxy.HoldReply(isCommit)
	defer release()
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- operator.ResolveNotExecuted(ctx, zoe, c) }()
	awaitCaught(t, proxy, 1)
	leave()
	if err := await.Value(t, "the end of the act", done); err == nil {
		t.Error("the act was said to be done")
	}
	entries, err := store.Audit(t.Context(), c.ID)
	must(t, err)
	if len(entries) != 2 || !strings.HasPrefix(entries[1].Outcome, "not known") {
		t.Errorf("I16: the audit says %+v", entries)
	}
}

// wantAudit checks that the acts about a record are this one, which was done.
func wantAudit(t *testing.T, store store.Auditor, c store.Claim, action string) {
	t.Helper()
	entries, err := store.Audit(t.Context(), c.ID)
	must(t, err)
	told := ""
	for _, e := range entries {
		told += fmt.Sprintf("%s at %d [%s] ", e.Action, e.Attempt, e.Outcome)
	}
	if want := fmt.Sprintf("%[1]s at %[2]d [] %[1]s at %[2]d [done] ", action, c.Attempt); told != want {
		t.Errorf("I16: the audit says %q, want %q", told, want)
	}
}

// TestBustIsNotRepeatedOnANewRecord: a bust whose reply was lost removed what the operator saw. What a client has done
// under the key since is not the operator's to remove: it would be done once more.
func TestBustIsNotRepeatedOnANewRecord(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	store, other := openUnasked(t, proxy.URL()), openStore(t, url)
	complete(t, store, own(t, store, reservation("k")), "first")
	release := proxy.HoldReply(isCommit)
	defer release()
	done := make(chan error, 1)
	go func() { done <- store.Bust(t.Context(), idOf("k"), false) }()
	awaitCaught(t, proxy, 1)
	complete(t, other, own(t, other, reservation("k")), "second")
	proxy.DropAll()
	if err := await.Value(t, "the end of the bust", done); err == nil {
		t.Error("S6: it was said to be done, though that is not known")
	}
	wantReplay(t, other, "k", "second", "I1")
}

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
	if err := await.Value(t, "the bust", done); err == nil {
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
	_ = await.Value(t, "the act", done)
	entries, err := other.Audit(t.Context(), c.ID)
	must(t, err)
	if len(entries) != 2 || entries[1].Outcome != "done" && entries[1].Outcome[:9] != "not known" {
		t.Errorf("I16: the step was settled, and the audit says %+v", entries)
	}
}

// TestChangeThatANewerProgramHasOvertaken: the reply to its COMMIT is lost, and before the store can look, a newer
// program has written the record, which this one cannot read. The record stays unreadable, so the store looks once.
func TestChangeThatANewerProgramHasOvertaken(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	s, admin := openUnasked(t, proxy.URL()), openAdmin(t, url)
	c := own(t, s, reservation("k"))
	defer proxy.HoldReply(isCommit)()
	done := make(chan error, 1)
	go func() { done <- s.Release(t.Context(), c, "not now") }()
	awaitCaught(t, proxy, 1)
	exec(t, admin, `UPDATE onceward_record SET version = 2 WHERE state > 0`)
	looks := new(atomic.Int64)
	proxy.CutRequest(func(sql string) bool {
		if strings.Contains(sql, "FOR NO KEY UPDATE") {
			looks.Add(1)
		}
		return false
	})
	proxy.DropAll()
	if err := await.Value(t, "the release", done); err == nil {
		t.Error("S6: the release was said to be done, which cannot be known")
	}
	if n := looks.Load(); n != 1 {
		t.Errorf("the store looked %d times at a record that stays unreadable, want once", n)
	}
}
