package payments_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// shown is what health shows.
type shown struct {
	Records struct {
		ByState       map[string]int64 `json:"by_state"`
		DeadLetters   int64            `json:"dead_letters"`
		OldestUnknown time.Time        `json:"oldest_unknown"`
		LostOwners    int64            `json:"lost_owners"`
		OldestLost    time.Time        `json:"oldest_lost_owner"`
	} `json:"records"`
	Messages struct {
		Waiting     int       `json:"waiting"`
		DeadLetters int       `json:"dead_letters"`
		Oldest      time.Time `json:"oldest"`
	} `json:"messages"`
}

func (w *world) health() shown {
	w.Helper()
	return decode[shown](w.send(http.MethodGet, "/health", "", "", "").want(http.StatusOK, ""))
}

// abandon reserves what no attempt goes on with. Its lease is over at once.
func (w *world) abandon(key, operation string, onLost store.LostPolicy) {
	w.Helper()
	_, err := w.db.Reserve(w.Context(), &store.Reservation{
		ID: store.ID{Scope: "alice", Key: key}, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
		Operation: operation, OnLost: onLost, Lease: time.Microsecond, Retention: retention,
	})
	must(w, err)
}

// TestHealth: states have their names, and times are those of the store, whatever the clock of the process says (S3).
func TestHealth(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			clock := new(storeClock)
			w := newWorld(t, storeOf(t, kind), func(s *settings) {
				s.idle, s.store = true, append(s.store, storeurl.WithClock(clock.now))
			})
			if open := w.health(); !open.Messages.Oldest.IsZero() || !open.Records.OldestUnknown.IsZero() {
				t.Errorf("with nothing in the store health shows %+v", open)
			}
			clock.move(w, retention)
			w.post("/payments", "k", order(1900, "r")).want(http.StatusCreated, "")
			w.abandon("lost", "POST /payments/{id}/refund", store.LostReconcile)
			w.eventually("the lease to end", func() bool {
				swept, err := w.db.Sweep(t.Context(), 1)
				must(t, err)
				return swept == 1
			})
			open := w.health()
			if open.Records.ByState["completed"] != 1 || open.Records.ByState["unknown"] != 1 || open.Messages.Waiting != 1 {
				t.Errorf("health shows %+v, want one completed, one unknown and one waiting", open)
			}
			for name, at := range map[string]time.Time{"message": open.Messages.Oldest, "unknown": open.Records.OldestUnknown} {
				if ahead := time.Until(at); ahead < retention-time.Hour || ahead > retention {
					t.Errorf("S3: the oldest %s is shown as of %s, want the time of a store that is %s ahead", name, at, retention)
				}
			}
		})
	}
}

// TestWorkCleansUp: what its owner left behind becomes unknown, and what has expired is removed.
func TestWorkCleansUp(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			clock := new(storeClock)
			w := newWorld(t, storeOf(t, kind), func(s *settings) {
				s.idle, s.store = true, append(s.store, storeurl.WithClock(clock.now))
			})
			w.post("/payments", "k", order(1900, "r")).want(http.StatusCreated, "")
			clock.move(w, 2*retention)
			w.abandon("lost", "POST /payments/{id}/refund", store.LostReconcile)
			cleaning := w.beside(func(s *settings) { s.idle, s.Timing.Look = true, soon })
			cleaning.work(cleaning.system)
			w.eventually("the lost one to be unknown", func() bool {
				rec, err := w.db.Get(t.Context(), store.ID{Scope: "alice", Key: "lost"})
				return err == nil && rec.State == store.StateUnknown
			})
			w.eventually("the expired one to be gone", func() bool {
				_, err := w.db.Get(t.Context(), store.ID{Scope: "alice", Key: "k"})
				return errors.Is(err, store.ErrNotFound)
			})
		})
	}
}
