package postgres_test

import (
	"errors"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 9: the connection is lost during COMMIT. No error of it is believed; the store is asked.

// commitFault is a store behind a proxy of its own, and one payment.
type commitFault struct {
	*site
	proxy *servers.Proxy
	store *postgres.Store
	payer
}

func newCommitFault(t *testing.T, s *site, h handle, value string) *commitFault {
	t.Helper()
	proxy := servers.NewProxy(t, s.url)
	return &commitFault{
		site: s, proxy: proxy, store: s.store(t, h, proxy.URL()), payer: payer{handle: h, value: value},
	}
}

// transact pays. Every try has a nonce of its own, as retries have.
func (f *commitFault) transact(t *testing.T) (store.Verdict, error) {
	return f.store.Transact(t.Context(), booking(f.value), f.work)
}

// ended is what a call that ran beside the test came to.
type ended struct {
	verdict store.Verdict
	err     error
}

// start pays beside the test.
func (f *commitFault) start(t *testing.T) <-chan ended {
	done := make(chan ended, 1)
	go func() {
		v, err := f.transact(t)
		done <- ended{v, err}
	}()
	return done
}

func TestReplyToCommitLost(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newCommitFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			f.proxy.CutReply(isCommit)
			v, err := f.transact(t)
			wantVerdict(t, v, err, store.DecisionExecute, 1, "the commit had landed")
			if n := f.proxy.Sprung(); n != 1 {
				t.Fatalf("%d answers were cut, want 1", n)
			}
			f.wantRows(t, "paid", 1, "I2")
			retry, err := f.transact(t)
			wantVerdict(t, retry, err, store.DecisionReplay, 1, "I3")
			f.wantRuns(t, 1, "I1")
			// What the owner was told is what is stored, also where the server had given it out.
			if v.Record.Attempt != retry.Record.Attempt || !v.Record.ExpiresAt.Equal(retry.Record.ExpiresAt) {
				t.Errorf("I3: the owner was told attempt %d until %s, a retry %d until %s",
					v.Record.Attempt, v.Record.ExpiresAt, retry.Record.Attempt, retry.Record.ExpiresAt)
			}
		})
	}
}

func TestRequestToCommitLost(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newCommitFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			f.proxy.CutRequest(isCommit)
			_, err := f.transact(t)
			wantNotExecuted(t, err, "the commit never arrived")
			if n := f.proxy.Sprung(); n != 1 {
				t.Fatalf("%d requests were cut, want 1", n)
			}
			f.wantRows(t, "paid", 0, "I4")
			wantStateOf(t, f.store, "paid", store.StateNone, "I4")
			v, err := f.transact(t)
			wantVerdict(t, v, err, store.DecisionExecute, 2, "the retry runs afresh")
			v, err = f.transact(t)
			wantVerdict(t, v, err, store.DecisionReplay, 2, "I3")
			f.wantRows(t, "paid", 1, "I1")
		})
	}
}

// TestCommitAnsweredLate has others ask while the owner does not know yet, and then the owner.
func TestCommitAnsweredLate(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		for _, fate := range []string{"the reply comes", "the connection goes"} {
			t.Run(h.name+"/"+fate, func(t *testing.T) {
				s := newSite(t, servers.Postgres(t))
				f := newCommitFault(t, s, h, "paid")
				release := f.proxy.HoldReply(isCommit)
				defer release()
				done := f.start(t)
				awaitCaught(t, f.proxy, 1)
				elsewhere := payer{handle: h, value: "paid"}
				v, err := s.store(t, h, s.url).Transact(t.Context(), booking("paid"), elsewhere.work)
				wantVerdict(t, v, err, store.DecisionReplay, 1, "it is committed, whoever knows")
				elsewhere.wantRuns(t, 0, "I1")
				if fate == "the reply comes" {
					release()
				} else {
					f.proxy.DropAll()
				}
				owner := await(t, "the owner's answer", done)
				wantVerdict(t, owner.verdict, owner.err, store.DecisionExecute, 1, "the owner's own answer")
				f.wantRows(t, "paid", 1, "I1")
			})
		}
	}
}

// TestCommitNobodyAnswers waits until the store gives up by itself, so all of its cases wait together: the owner's
// connection goes silent, which leaves another way to ask; or nobody can be asked at all.
func TestCommitNobodyAnswers(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	var checks []func()
	for _, h := range bothHandles {
		checks = append(checks, silent(t, s, h), unreachable(t, s, h, true), unreachable(t, s, h, false))
		checks = append(checks, unreachableStep(t, s, h, true), unreachableStep(t, s, h, false))
	}
	for _, check := range checks {
		check()
	}
}

// silent is a commit that landed, on a connection on which nothing comes any more.
func silent(t *testing.T, s *site, h handle) (check func()) {
	f := newCommitFault(t, s, h, "silent, "+h.name)
	t.Cleanup(f.proxy.HoldReply(isCommit))
	done := f.start(t)
	awaitCaught(t, f.proxy, 1)
	return func() {
		owner := await(t, "the owner's answer", done)
		wantVerdict(t, owner.verdict, owner.err, store.DecisionExecute, 1, f.value)
		f.wantRows(t, f.value, 1, "I2")
	}
}

// unreachable is a commit that landed or did not, after which the server cannot be reached.
func unreachable(t *testing.T, s *site, h handle, landed bool) (check func()) {
	f := newCommitFault(t, s, h, "unreachable, did not land, "+h.name)
	vanish := func() {
		f.proxy.Refuse(true)
		f.proxy.DropAll()
	}
	retried, runs := store.DecisionExecute, 2
	var done <-chan ended
	if landed {
		f.value = "unreachable, landed, " + h.name
		retried, runs = store.DecisionReplay, 1
		t.Cleanup(f.proxy.HoldReply(isCommit))
		done = f.start(t)
		awaitCaught(t, f.proxy, 1)
		vanish()
	} else {
		f.before = func(run int64) {
			if run == 1 {
				vanish()
			}
		}
		done = f.start(t)
	}
	return func() {
		owner := await(t, "the owner's answer", done)
		if !errors.Is(owner.err, store.ErrOutcomeUnknown) {
			t.Errorf("%s: got %v, want ErrOutcomeUnknown", f.value, owner.err)
		}
		f.proxy.Refuse(false)
		v, err := f.transact(t)
		wantVerdict(t, v, err, retried, runs, f.value+": the one true answer")
		f.wantRows(t, f.value, 1, "I1")
	}
}
