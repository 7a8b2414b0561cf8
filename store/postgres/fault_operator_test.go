package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/servers"
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
	if err := await(t, "the end of the act", done); err == nil {
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

// TestBustIsNotRepeatedOnANewRecord: a bust whose reply was lost removed what the operator saw. What a client has done under the
// key since is not the operator's to remove: it would be done once more.
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
	if err := await(t, "the end of the bust", done); err == nil {
		t.Error("S6: it was said to be done, though nobody can tell")
	}
	wantReplay(t, other, "k", "second", "I1")
}
