package phase_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestStrangeOperations are left alone, counted and logged, without their key.
func TestStrangeOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.losing(func(string) {})
		b.loses(o, 2)
		another := phase.Must(phase.New(phase.Definition[order]{
			Name: "POST /refunds", Steps: []phase.Step[order]{b.local("refund", confirm)},
			Answer: func(*order) phase.Answer { return phase.Answer{} },
		}))
		var log lockedBuffer
		r := b.resumer(phase.ResumerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, another)
		if got := b.once(r); got != (phase.Report{Skipped: 2}) {
			t.Errorf("the resumer reports %+v", got)
		}
		if s := log.String(); strings.Count(s, "POST /orders") != 2 || strings.Contains(s, "k0") {
			t.Errorf("the log is %q", s)
		}
		if rec := b.record("k0"); rec.State != store.StateInProgress {
			t.Errorf("the record is %s", rec.State)
		}
	})
}

// TestOthers: an operation that another resumer resumes is left alone, not counted and not logged.
func TestOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.losing(func(string) {})
		b.loses(o, 2)
		another := phase.Must(phase.New(phase.Definition[order]{
			Name: "POST /refunds", Steps: []phase.Step[order]{b.local("refund", confirm)},
			Answer: func(*order) phase.Answer { return phase.Answer{} },
		}))
		var log lockedBuffer
		r := b.resumer(phase.ResumerConfig{Others: []string{o.Name}, Logger: slog.New(slog.NewTextHandler(&log, nil))},
			another)
		if got := b.once(r); got != (phase.Report{}) || log.String() != "" {
			t.Errorf("the resumer reports %+v, and logs %q", got, log.String())
		}
		if got := b.once(b.resumer(phase.ResumerConfig{}, o)); got != (phase.Report{Finished: 2}) {
			t.Errorf("the one whose they are reports %+v", got)
		}
	})
}

// TestManyOperations takes more than one page of a list.
func TestManyOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := b.define(b.local("seat", takeSeat))
		const n = store.MaxPage + 10
		secret := b.downstreamSecret()
		for i := range n {
			_, err := b.store.Reserve(t.Context(), &store.Reservation{
				ID: store.ID{Scope: "shop", Key: fmt.Sprint("k", i)}, Operation: o.Name, Fingerprints: make([]store.Fingerprint, 1),
				OnLost: store.LostResume, Nonce: store.Nonce{1}, Lease: time.Microsecond, Retention: time.Hour,
				DownstreamSecret: secret,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		b.await(time.Now())
		if got := b.once(b.resumer(phase.ResumerConfig{}, o)); got.Finished != n {
			t.Errorf("the resumer reports %+v, want %d finished", got, n)
		}
	})
}

// TestTheResumerLeavesOthersAlone: what is in progress, what is not to be resumed, and what was settled since it was
// listed.
func TestTheResumerLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &listStore{Store: memory.New()}
		b := newBench(t, s)
		o := b.losing(func(string) {})
		b.loses(o, 1)
		stale, err := s.List(t.Context(), store.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		rec := b.record("k0")
		if err := s.Release(t.Context(), store.Claim{ID: rec.ID, Attempt: rec.Attempt}, "asked"); err != nil {
			t.Fatal(err)
		}
		_, err = s.Reserve(t.Context(), &store.Reservation{
			ID: store.ID{Scope: "shop", Key: "reconciled"}, Operation: o.Name, Fingerprints: make([]store.Fingerprint, 1),
			Nonce: store.Nonce{1}, Lease: time.Microsecond, Retention: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		s.list = func(found []store.Record) ([]store.Record, error) { return append(found, stale...), nil }
		b.once(b.resumer(phase.ResumerConfig{}, o))
		b.wantTrace("seat")
		if after := b.record("k0"); after.State != store.StateRetryable || after.LastError != "asked" ||
			after.Attempt != rec.Attempt {
			t.Errorf("the record is %s at attempt %d: %s, want it untouched", after.State, after.Attempt, after.LastError)
		}
		if rec := b.record("reconciled"); rec.State != store.StateInProgress {
			t.Errorf("the one for the sweeper is %s", rec.State)
		}
	})
}

// TestClocksApart: the store's clock decides whether an owner is lost (S3). A node whose own clock is slow does not
// wait, and one whose clock is fast does not take operations that others hold.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"the node is behind": time.Hour, "the node is ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, memory.New(memory.WithClock(func() time.Time { return time.Now().Add(ahead) })))
				o := b.losing(func(string) {})
				b.loses(o, 1)
				_, err := b.store.Reserve(t.Context(), &store.Reservation{
					ID: store.ID{Scope: "shop", Key: "held"}, Operation: o.Name, Fingerprints: make([]store.Fingerprint, 1),
					OnLost: store.LostResume, Nonce: store.Nonce{1}, Lease: time.Minute, Retention: time.Hour,
					DownstreamSecret: b.downstreamSecret(),
				})
				if err != nil {
					t.Fatal(err)
				}
				r := b.resumer(phase.ResumerConfig{}, o)
				if got := b.once(r); got != (phase.Report{Finished: 1}) {
					t.Errorf("S3: with one lost and one held the resumer reports %+v", got)
				}
				b.wantAll(1)
				time.Sleep(time.Minute)
				if got := b.once(r); got != (phase.Report{Finished: 1}) {
					t.Errorf("S3: when the lease is over the resumer reports %+v", got)
				}
			})
		})
	}
}

// TestAResumerThatIsStopped begins nothing, and returns the reason.
func TestAResumerThatIsStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &listStore{Store: memory.New()}
		b := newBench(t, s)
		o := b.losing(func(string) {})
		b.loses(o, 2)
		ctx, stop := context.WithCancel(t.Context())
		s.list = func(found []store.Record) ([]store.Record, error) {
			stop()
			return found, nil
		}
		if _, err := b.resumer(phase.ResumerConfig{}, o).RunOnce(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
		b.wantTrace("seat seat")
	})
}

func TestNewResumer(t *testing.T) {
	t.Parallel()
	b := newBench(t, memory.New())
	o := b.define(b.local("seat", takeSeat))
	own := []phase.Resumable{o}
	for name, c := range map[string]struct {
		guard  *onceward.Guard
		store  store.Store
		config phase.ResumerConfig
	}{
		"no list":                    {b.guard, blindStore{b.store}, phase.ResumerConfig{Operations: own}},
		"no guard":                   {nil, b.store, phase.ResumerConfig{Operations: own}},
		"no operation":               {b.guard, b.store, phase.ResumerConfig{}},
		"one name twice":             {b.guard, b.store, phase.ResumerConfig{Operations: []phase.Resumable{o, o}}},
		"no time":                    {b.guard, b.store, phase.ResumerConfig{Operations: own, Interval: -1}},
		"one's own among the others": {b.guard, b.store, phase.ResumerConfig{Operations: own, Others: []string{o.Name}}},
		"no room":                    {b.guard, b.store, phase.ResumerConfig{Operations: own, Concurrency: -1}},
		"no share":                   {b.guard, b.store, phase.ResumerConfig{Operations: own, PerOperation: -1}},
		"overdue before it begins":   {b.guard, b.store, phase.ResumerConfig{Operations: own, Overdue: -1}},
	} {
		if _, err := phase.NewResumer(c.guard, c.store, c.config); err == nil {
			t.Errorf("%s: the resumer was accepted", name)
		}
	}
}
