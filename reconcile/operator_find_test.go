package reconcile_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// oldKey is a downstream key of the first derivation, from testdata/downstream-keys.json.
const (
	oldKey      = "961d80e94d1dfe244a6e16e9fd89b9988034f6a4"
	oldSecret   = "0123456789abcdef"
	oldSecretID = 611305449
)

// walked is a store that has no index.
type walked struct {
	store.Store
	store.Reconciler
	store.Buster
	store.Auditor
	store.Lister
}

// TestFindByOldKeys: a key that cannot be opened is looked for among all records, by the steps that are named.
func TestFindByOldKeys(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		_, err := s.Reserve(t.Context(), &store.Reservation{
			ID: store.ID{Scope: "alice", Key: "k"}, Operation: transfers, Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1}},
			Nonce: store.Nonce{1}, Lease: time.Minute, Retention: time.Hour, DownstreamSecret: oldSecretID,
		})
		must(t, err)
		old, _ := newGuard(oldSecret)
		for name, inside := range map[string]store.Store{"by index": s, "without": walked{s, s, s, s, s}} {
			operator, err := reconcile.NewOperator(old, inside)
			must(t, err)
			for _, c := range []struct {
				subject string
				steps   []string
				want    []string
			}{
				{oldKey, []string{"refund", "charge"}, []string{"k"}},
				{oldKey, nil, nil},
				{oldKey, []string{"refund"}, nil},
				{store.ID{Scope: "alice", Key: "k"}.Hash(), nil, []string{"k"}},
			} {
				found, err := operator.Find(t.Context(), reconcile.Query{Subject: c.subject, Steps: c.steps})
				if err != nil || !slices.Equal(keysOf(found), c.want) {
					t.Errorf("%s, %s with the steps %s: found %s, %v, want %s", name, c.subject, c.steps, keysOf(found), err, c.want)
				}
			}
		}
		// With a secret that is not configured any more no key is made up, and it is said.
		operator, err := reconcile.NewOperator(guard, s)
		must(t, err)
		found, err := operator.Find(t.Context(), reconcile.Query{Subject: oldKey, Steps: []string{"charge"}})
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
