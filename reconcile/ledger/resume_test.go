package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// This file is about runs that are interrupted, and what a later attempt makes of them.

// These two sides have every kind of finding, duplicates beside each other and keys that are no text.
const (
	someProvider = "a=1 b=1 b=2 b=2 c=1 d=1 e=1 f=1 f=1 \xff=1 \xff\x01=1 \xff\x02=1"
	someLocal    = "a=1 b=1 c=2 c=2 c=3 e=1 f=1 g=1 \xff=2 \xff\x01=1 \xff\x02=1"
)

// uninterrupted is what the two sides come to if nothing goes wrong.
func uninterrupted(t *testing.T) ([]string, ledger.Summary) {
	t.Helper()
	var got report
	s, err := run(t, config(newStore(), someProvider, someLocal, &got))
	if err != nil || s.Findings() != 9 {
		t.Fatalf("%+v, %v", s, err)
	}
	return got.different(), s
}

// requireSame compares what an interrupted run came to.
func requireSame(t *testing.T, name string, got *report, s ledger.Summary, err error) {
	t.Helper()
	words, want := uninterrupted(t)
	if s != want || err != nil {
		t.Errorf("%s: %+v, %v; want %+v", name, s, err, want)
	}
	if found := got.different(); !slices.Equal(found, words) {
		t.Errorf("%s: found %q, want %q", name, found, words)
	}
}

// TestRunGoesOnAfterAFailure interrupts a run at each entry of each side, by an error and by a panic, on one node, and
// goes on with it on another.
func TestRunGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	for i := range len(list(someProvider)) {
		for _, breaks := range []func(){nil, func() { panic("the test panics") }} {
			for _, side := range []ledger.Side{ledger.Provider, ledger.Local} {
				name := fmt.Sprint(side, " breaks at ", i, ", panic ", breaks != nil)
				synctest.Test(t, func(t *testing.T) {
					var got report
					store := newStore()
					first := config(store, someProvider, someLocal, &got)
					second := config(store, someProvider, someLocal, &got)
					if side == ledger.Provider {
						first.Provider = breaking(list(someProvider), breaks, i)
					} else {
						first.Local = breaking(list(someLocal), breaks, min(i, len(list(someLocal))-1))
					}
					_, err := run(t, first)
					if broken := err != nil && strings.Contains(err.Error(), "the test p"); !broken {
						t.Errorf("%s: %v", name, err)
					}
					time.Sleep(ledger.DefaultPause - 1)
					if compared, err := newComparer(t, second).RunOnce(t.Context()); len(compared) != 0 || err != nil {
						t.Errorf("%s: before the pause is over: %v, %v", name, compared, err)
					}
					time.Sleep(time.Nanosecond)
					s, err := run(t, second)
					requireSame(t, name, &got, s, err)
				})
			}
		}
	}
}

// TestOnlyTheKeyAtHandIsComparedAgain: a failure is no reason to start over, even before the first of the regular
// recovery points.
func TestOnlyTheKeyAtHandIsComparedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got report
		cfg := config(newStore(), someProvider, someLocal, &got)
		var afters []string
		broken := breaking(list(someProvider), nil, 8) // the second f
		cfg.Provider = func(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
			afters = append(afters, after)
			return broken(ctx, w, after)
		}
		s, err := run(t, cfg)
		if s.Provider != 7 || s.Local != 6 || !errors.Is(err, errAway) {
			t.Errorf("%+v, %v; want what it came to before f", s, err)
		}
		want := "duplicate b provider 2, duplicate b provider 2, duplicate c local 2, duplicate c local 3, differs c, missing here d"
		if words := got.take(); words != want {
			t.Errorf("found %q, want %q", words, want)
		}
		time.Sleep(ledger.DefaultPause)
		s, err = run(t, cfg)
		requireSame(t, "the second attempt", &got, s, err)
		if words := got.take(); words != "duplicate f provider 1, missing there g, differs \xff" {
			t.Errorf("the second attempt found %q", words)
		}
		if !slices.Equal(afters, []string{"", "e"}) {
			t.Errorf("the source was asked for what is behind %q", afters)
		}
	})
}

// mortal is the store as a process sees it that dies: from then on nothing arrives.
type mortal struct {
	*memory.Store
	checkpoints atomic.Int64
	diesAfter   int64
}

var errDead = fmt.Errorf("%w: the process is dead", store.ErrUnavailable)

func (m *mortal) dead() bool { return m.checkpoints.Load() >= m.diesAfter }

func (m *mortal) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	if m.dead() {
		return errDead
	}
	m.checkpoints.Add(1)
	return m.Store.Checkpoint(ctx, c, p)
}

func (m *mortal) Release(ctx context.Context, c store.Claim, reason string) error {
	if m.dead() {
		return errDead
	}
	return m.Store.Release(ctx, c, reason)
}

func (m *mortal) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if m.dead() {
		return errDead
	}
	return m.Store.Extend(ctx, c, lease)
}

// TestRunGoesOnAfterADeath lets the owner die at each recovery point: what is behind it is compared and reported again.
func TestRunGoesOnAfterADeath(t *testing.T) {
	t.Parallel()
	for points := int64(1); points < 5; points++ { // the first is that the window is due
		synctest.Test(t, func(t *testing.T) {
			var got report
			store := newStore()
			first := config(&mortal{Store: store, diesAfter: points}, someProvider, someLocal, &got)
			first.SaveEvery = 4
			if _, err := run(t, first); !errors.Is(err, errDead) {
				t.Errorf("the first owner: %v", err)
			}
			time.Sleep(time.Minute)
			s, err := run(t, config(store, someProvider, someLocal, &got))
			name := fmt.Sprint("dead after ", points)
			requireSame(t, name, &got, s, err)
			if n := len(got.words); n <= len(got.different()) {
				t.Errorf("%s: %d reports: the test did not interrupt between a report and a recovery point", name, n)
			}
		})
	}
}
