package reconcile_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// walked is a store that has no index.
type walked struct {
	store.Store
	store.Reconciler
	store.Buster
	store.Auditor
	store.Lister
}

// TestFindByDownstreamKey: a record is found by the downstream key of a step, by the index, and on a store without one
// among all records, by the steps that are named.
func TestFindByDownstreamKey(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		secret := guard.OpenDownstreamKey(strings.Repeat("a", 44))[0].Secret
		id := store.ID{Scope: "alice", Key: "k"}
		v, err := s.Reserve(t.Context(), &store.Reservation{
			ID: id, Operation: transfers, Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1}}, Nonce: store.Nonce{1},
			Lease: time.Minute, Retention: time.Hour, DownstreamSecret: secret,
		})
		must(t, err)
		rec := v.Record
		key, err := guard.DownstreamKey(&rec, "charge")
		must(t, err)
		for name, one := range map[string]struct {
			store   store.Store
			subject string
			steps   []string
			want    []string
		}{
			"by index":                   {s, key, nil, []string{"k"}},
			"without, by its step":       {walked{s, s, s, s, s}, key, []string{"refund", "charge"}, []string{"k"}},
			"without, by no step":        {walked{s, s, s, s, s}, key, nil, nil},
			"without, by another step":   {walked{s, s, s, s, s}, key, []string{"refund"}, nil},
			"by index, by its hash":      {s, id.Hash(), nil, []string{"k"}},
			"without, by its hash":       {walked{s, s, s, s, s}, id.Hash(), nil, []string{"k"}},
			"by index, of another guard": {s, strings.Repeat("a", len(key)), nil, nil},
		} {
			operator, err := reconcile.NewOperator(guard, one.store)
			must(t, err)
			found, err := operator.Find(t.Context(), reconcile.Query{Subject: one.subject, Steps: one.steps})
			if err != nil || !slices.Equal(keysOf(found), one.want) {
				t.Errorf("%s: found %s, %v, want %s", name, keysOf(found), err, one.want)
			}
		}
		// With a secret that is no longer configured there is no substitute for a key, and an error reports it.
		other, _ := newGuard("another secret of 16")
		operator, err := reconcile.NewOperator(other, walked{s, s, s, s, s})
		must(t, err)
		found, err := operator.Find(t.Context(), reconcile.Query{Subject: key, Steps: []string{"charge"}})
		if len(found) > 0 || !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("without the secret: found %s, %v", keysOf(found), err)
		}
	})
}

// TestRetain: an operator keeps a record for longer, in the audit.
func TestRetain(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		operator := newOperator(t, s)
		c := lose(t, s, "k")
		if _, err := operator.Retain(t.Context(), zoe, c.ID, 30*24*time.Hour); !errors.Is(err, store.ErrFenced) {
			t.Errorf("what is unknown is kept: %v", err)
		}
		must(t, operator.ResolveCompleted(t.Context(), zoe, c, store.Completion{Response: paid}))
		expires, err := operator.Retain(t.Context(), zoe, c.ID, 30*24*time.Hour)
		must(t, err)
		rec, err := s.Get(t.Context(), c.ID)
		must(t, err)
		if !rec.ExpiresAt.Equal(expires) || expires.Before(time.Now().Add(30*24*time.Hour)) {
			t.Errorf("it is kept until %s, and expires at %s", expires, rec.ExpiresAt)
		}
		acts, err := s.Audit(t.Context(), c.ID)
		must(t, err)
		if last := acts[len(acts)-1]; last.Action != "retain for 720h0m0s" || last.Outcome != "done" ||
			last.Attempt != c.Attempt {
			t.Errorf("the audit says %+v", last)
		}
		if _, err := operator.Retain(t.Context(), zoe, store.ID{Key: "none"}, time.Hour); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("no record is kept: %v", err)
		}
		if _, err := operator.Retain(t.Context(), reconcile.By{}, c.ID, time.Hour); err == nil {
			t.Error("it is kept in the name of nobody")
		}
		plain, err := reconcile.NewOperator(guard, walked{s, s, s, s, s})
		must(t, err)
		if _, err := plain.Retain(t.Context(), zoe, c.ID, time.Hour); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("on a store that cannot: %v", err)
		}
	})
}
