package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// E3: the connection is lost while a step is committed with its recovery point. As with answers no error is believed.

// stepFault is a store behind a proxy of its own, and one operation that goes in steps.
type stepFault struct {
	*site
	handle handle
	proxy  *servers.Proxy
	store  *postgres.Store
	claim  store.Claim
	runs   atomic.Int64
	// during is called in each run, if it is there, when the row is written.
	during func(ctx context.Context, run int64) error
}

func newStepFault(t testing.TB, s *site, h handle, key string) *stepFault {
	t.Helper()
	proxy := servers.NewProxy(t, s.url)
	f := &stepFault{site: s, handle: h, proxy: proxy, store: s.store(t, h, proxy.URL())}
	f.claim = takeOver(t, f.store, key, time.Minute)
	return f
}

// takeOver reserves a key that can be resumed, as soon as the lease of the owner before is over.
func takeOver(t testing.TB, s store.Store, key string, lease time.Duration) (c store.Claim) {
	t.Helper()
	await.That(t, "the key can be had", func() bool {
		r := booking(key)
		r.Lease, r.OnLost = lease, store.LostResume
		v, err := s.Reserve(t.Context(), r)
		must(t, err)
		c = store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
		return v.Decision == store.DecisionExecute
	})
	return c
}

// reach does a step that adds a row named like its key and leads to the point.
func (f *stepFault) reach(p store.Checkpoint) error {
	return f.store.CheckpointTx(context.Background(), f.claim, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
		run := f.runs.Add(1)
		if err := f.handle.insert(ctx, f.claim.Key); err != nil {
			return p, err
		}
		if f.during != nil {
			if err := f.during(ctx, run); err != nil {
				return p, err
			}
		}
		return p, nil
	})
}

// start does the step beside the test.
func (f *stepFault) start(p store.Checkpoint) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f.reach(p) }()
	return done
}

// wantReached checks how often the step took effect, and how far the record has come.
func (f *stepFault) wantReached(t testing.TB, rows int, want store.Checkpoint, rule string) {
	t.Helper()
	f.wantRows(t, f.claim.Key, rows, rule)
	rec, err := f.store.Get(t.Context(), f.claim.ID)
	if err != nil || rec.Point != want.Point || string(rec.Data) != string(want.Data) {
		t.Errorf("%s: the record is at %q with %q (%v), want %q with %q",
			rule, rec.Point, rec.Data, err, want.Point, want.Data)
	}
}

func (f *stepFault) wantRuns(t testing.TB, want int64, rule string) {
	t.Helper()
	if got := f.runs.Load(); got != want {
		t.Errorf("%s: the step ran %d times, want %d", rule, got, want)
	}
}

// wantSprung checks that the fault that the test is about has happened.
func (f *stepFault) wantSprung(t testing.TB, want int) {
	t.Helper()
	if got := f.proxy.Sprung(); got != want {
		t.Fatalf("%d messages were cut, want %d", got, want)
	}
}

func wantUnknown(t testing.TB, err error, rule string) {
	t.Helper()
	if !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("%s: got %v, want ErrOutcomeUnknown", rule, err)
	}
}

var charged = store.Checkpoint{Point: "charged", Data: []byte("ch_1")}

func TestReplyToCommitOfAStepLost(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newStepFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			f.proxy.CutReply(isCommit)
			must(t, f.reach(charged))
			f.wantSprung(t, 1)
			f.wantReached(t, 1, charged, "the commit had landed")
			f.wantRuns(t, 1, "E3")
		})
	}
}

func TestRequestToCommitOfAStepLost(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newStepFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			f.proxy.CutRequest(isCommit)
			wantNotExecuted(t, f.reach(charged), "the commit never arrived")
			f.wantSprung(t, 1)
			f.wantReached(t, 0, store.Checkpoint{}, "the commit never arrived")
			must(t, f.reach(charged))
			f.wantReached(t, 1, charged, "the second try")
			f.wantRuns(t, 2, "E3")
		})
	}
}

// TestConnectionOfAStepLost ends the connection while the step runs: the server undoes what it has.
func TestConnectionOfAStepLost(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newStepFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			f.during = func(ctx context.Context, run int64) error {
				if run == 1 {
					f.proxy.DropAll()
					return f.handle.insert(ctx, "after it was lost")
				}
				return nil
			}
			wantNotExecuted(t, f.reach(charged), "the connection was lost")
			f.wantReached(t, 0, store.Checkpoint{}, "the connection was lost")
			f.insists(t, charged)
			f.wantReached(t, 1, charged, "the second try")
			f.wantRows(t, "after it was lost", 0, "E3")
		})
	}
}

// insists does the step as soon as the server has noticed that the last one lost its connection.
func (f *stepFault) insists(t testing.TB, p store.Checkpoint) {
	t.Helper()
	await.That(t, "the lock is free", func() bool {
		err := f.reach(p)
		if err != nil {
			wantNotExecuted(t, err, "the lock is held")
		}
		return err == nil
	})
}

// unreachableStep is a step whose commit landed or did not, after which the server cannot be reached. The wait for that
// is long: see TestCommitNobodyAnswers.
func unreachableStep(t *testing.T, s *site, h handle, landed bool) (check func()) {
	want, rows, key := store.Checkpoint{}, 0, "step, did not land, "+h.name
	if landed {
		want, rows, key = charged, 1, "step, landed, "+h.name
	}
	f := newStepFault(t, s, h, key)
	if landed {
		t.Cleanup(f.proxy.HoldReply(isCommit))
	} else {
		f.proxy.CutRequest(func(sql string) bool {
			if isCommit(sql) {
				f.proxy.Refuse(true) // before the store can ask
			}
			return isCommit(sql)
		})
	}
	done := f.start(charged)
	awaitCaught(t, f.proxy, 1)
	f.proxy.Refuse(true)
	f.proxy.DropAll()
	return func() {
		wantUnknown(t, await.Value(t, "the end of the step", done), key)
		f.proxy.Refuse(false)
		f.wantReached(t, rows, want, key)
		f.wantRuns(t, 1, key)
	}
}

// What became of a commit is read off the recovery point, so these are the points that do not say it plainly.

// partial are checkpoints that keep something of the one before, with what the record then holds.
var partial = map[string]struct{ p, kept store.Checkpoint }{
	"point only": {store.Checkpoint{Point: "shipped"}, store.Checkpoint{Point: "shipped", Data: charged.Data}},
	"data only":  {store.Checkpoint{Data: []byte("ch_2")}, store.Checkpoint{Point: charged.Point, Data: []byte("ch_2")}},
	"empty data": {store.Checkpoint{Data: []byte{}}, store.Checkpoint{Point: charged.Point}},
}

// TestCommitOfAPartialPointLost: a point that leaves some of the record as it was is recognised all the same.
func TestCommitOfAPartialPointLost(t *testing.T) {
	t.Parallel()
	for name, c := range partial {
		t.Run(name, func(t *testing.T) {
			f := newStepFault(t, newSite(t, servers.Postgres(t)), pgxHandle, "paid")
			must(t, f.reach(charged))
			f.proxy.CutReply(isCommit)
			if err := f.reach(c.p); err != nil {
				t.Errorf("the commit had landed, and the step got %v", err)
			}
			f.wantSprung(t, 1)
			f.wantReached(t, 2, c.kept, "the commit had landed")
			f.proxy.CutRequest(isCommit)
			wantNotExecuted(t, f.reach(store.Checkpoint{Point: "another"}), "the commit never arrived")
			f.wantReached(t, 2, c.kept, "the commit never arrived")
		})
	}
}

// TestCommitOfTheSamePointLost: a step that leaves the record as it was cannot be recognised by the record, nor by a mark,
// which the same attempt can have stored beside it. The server is asked for the transaction.
func TestCommitOfTheSamePointLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	for name, p := range map[string]store.Checkpoint{"the same": charged, "nothing": {}, "a mark": {NotReplayable: true}} {
		for fate, rows := range map[string]int{"reply": 2, "request": 1} {
			t.Run(name+"/"+fate, func(t *testing.T) {
				f := newStepFault(t, s, pgxHandle, t.Name())
				must(t, f.reach(charged))
				if fate == "reply" {
					f.proxy.CutReply(isCommit)
				} else {
					f.proxy.CutRequest(isCommit)
				}
				if err := f.reach(p); fate == "reply" {
					must(t, err)
				} else {
					wantNotExecuted(t, err, "the commit never arrived")
				}
				f.wantSprung(t, 1)
				f.wantReached(t, rows, charged, "E3")
				f.wantRuns(t, 2, "it is not run again")
			})
		}
	}
}

// TestCommitOfTheSamePointRefused: what the server itself refuses was not committed, whatever the record says.
func TestCommitOfTheSamePointRefused(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]struct {
		code string
		want func(testing.TB, error, string)
	}{"check": {"23514", wantWorkRefused}, "serialisation": {"40001", wantNotExecuted}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			f := newStepFault(t, s, pgxHandle, "paid")
			must(t, f.reach(charged))
			s.failAtCommit(t, refusal.code, always)
			refusal.want(t, f.reach(charged), "the commit was refused")
			f.wantReached(t, 1, charged, "the commit was refused")
		})
	}
}

// TestCommittedStepIsTakenOver has the reply to COMMIT come so late, or never, that another attempt owns the record by
// then. The step is there, so its owner is not told that nothing was changed.
func TestCommittedStepIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		name := map[bool]string{false: "and goes on", true: "and has the same point"}[again]
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			other := s.store(t, pgxHandle, s.url)
			f := newStepFault(t, s, pgxHandle, "warm")
			must(t, f.reach(charged)) // the connection is known to be good, and has the statements
			f.claim = takeOver(t, f.store, "paid", 200*time.Millisecond)
			t.Cleanup(f.proxy.HoldReply(isCommit))
			done := f.start(charged)
			awaitCaught(t, f.proxy, 1)
			next := takeOver(t, other, "paid", time.Minute)
			if !again {
				must(t, other.Checkpoint(t.Context(), next, store.Checkpoint{Point: "shipped"}))
			}
			f.proxy.DropAll()
			err := await.Value(t, "the end of the step", done)
			wantUnknown(t, err, "it was committed, and is another's now")
			if !errors.Is(err, store.ErrFenced) {
				t.Errorf("S6: %v does not say that the attempt is no longer current", err)
			}
			f.wantRows(t, "paid", 1, "E3")
		})
	}
}

// TestCommittedStepIsRewritten has the data of a committed step rewritten, as under another key, before its owner
// learns what became of the commit. An owner that finds other bytes than its own does not say that nothing was
// committed.
func TestCommittedStepIsRewritten(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	other := s.store(t, pgxHandle, s.url)
	under := func(key string) []byte { return []byte(store.SealedPrefix + key) }
	otherBytes := []byte("other bytes")
	for name, c := range map[string]struct {
		first, then store.Checkpoint
		data        []byte
		landed      bool
		want        error
	}{
		"data that is not sealed":  {then: charged, data: otherBytes, landed: true},
		"data that is sealed then": {then: charged, data: under("2"), landed: true},
		"sealed data": {
			then: store.Checkpoint{Point: "charged", Data: under("1")}, data: under("2"), landed: true,
		},
		"not landed": {
			first: charged, then: store.Checkpoint{Point: "shipped", Data: under("1")}, data: under("2"),
			want: store.ErrUnavailable,
		},
		"not landed, the same point": {
			first: charged, then: store.Checkpoint{Data: under("2")}, data: under("2"), want: store.ErrUnavailable,
		},
		"not landed, data that is not sealed": {
			first: charged, then: store.Checkpoint{Point: "shipped"}, data: otherBytes, want: store.ErrUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newStepFault(t, s, pgxHandle, name)
			if c.first.Point != "" {
				must(t, f.reach(c.first))
			}
			ran := f.runs.Load()
			rewrite := func() {
				rec, err := other.Get(t.Context(), f.claim.ID)
				must(t, err)
				must(t, other.Rewrite(t.Context(), f.claim, rec.Content(), store.Content{Data: c.data}))
			}
			var done <-chan error
			if c.landed {
				t.Cleanup(f.proxy.HoldReply(isCommit))
				done = f.start(c.then)
				awaitCaught(t, f.proxy, 1)
				rewrite()
				f.proxy.DropAll()
			} else {
				f.proxy.CutRequest(func(sql string) bool {
					if isCommit(sql) {
						rewrite()
					}
					return isCommit(sql)
				})
				done = f.start(c.then)
			}
			if err := await.Value(t, "the end of the step", done); !errors.Is(err, c.want) ||
				errors.Is(err, store.ErrOutcomeUnknown) != errors.Is(c.want, store.ErrOutcomeUnknown) {
				t.Errorf("E3: the step got %v, want %v", err, c.want)
			}
			f.wantRuns(t, ran+1, "E3")
		})
	}
}

// TestStepOfANewerRecord: a step does not write a record that a newer version of the program has changed meanwhile.
func TestStepOfANewerRecord(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	claim := own(t, s.store, reservation("key"))
	err := s.store.CheckpointTx(t.Context(), claim, time.Minute, func(context.Context) (store.Checkpoint, error) {
		exec(t, s.admin, `UPDATE onceward_record SET version = 2`)
		return store.Checkpoint{Point: "paid"}, nil
	})
	if n := number(t, s.admin, `SELECT count(*) FROM onceward_record WHERE point IS NOT NULL`); n != 0 || err == nil {
		t.Errorf("E5: the step got %v, and %d recovery points were written", err, n)
	}
}
