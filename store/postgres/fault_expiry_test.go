package postgres_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// expiring is a route whose answers are about to expire, and a reaper that does not rest.
type expiring struct {
	*site
	store *postgres.Store
	route http.Handler
	move  func(time.Duration)
	stop  func()
	// reaps counts the rounds of the reaper, reaped what it took.
	reaps, reaped atomic.Int64
}

var bothModes = map[string]onceward.Option{
	"transactional": onceward.Transactional(), "reserved": onceward.Reserved(onceward.FailureUnknown),
}

func newExpiring(t *testing.T, mode string) *expiring {
	t.Helper()
	e := &expiring{site: newSite(t, servers.Postgres(t))}
	e.store = e.site.store(t, pgxHandle, e.url)
	e.move = e.movableClock(t, 0)
	var runs atomic.Int64
	e.route = guardOver(t, e.store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := onceward.FromContext(r.Context()).Key()
		var err error
		if mode == "transactional" {
			err = insertPgx(r.Context(), key)
		} else {
			_, err = e.insert(r.Context(), key)
		}
		if err != nil {
			t.Errorf("the handler failed: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "run ", runs.Add(1))
	}, bothModes[mode], onceward.Retain(time.Hour))
	return e
}

// startReaper lets a hard and a soft reaper run, which take one record at a time.
func (e *expiring) startReaper(t *testing.T) {
	t.Helper()
	over := make(chan struct{})
	var reapers sync.WaitGroup
	for _, soft := range []bool{false, true} {
		reapers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					n, err := e.store.Reap(context.Background(), 1, soft)
					if err != nil {
						t.Errorf("reap: %v", err)
						return
					}
					e.reaps.Add(1)
					e.reaped.Add(int64(n))
				}
			}
		})
	}
	e.stop = sync.OnceFunc(func() {
		close(over)
		reapers.Wait()
	})
	t.Cleanup(e.stop)
}

// leave moves the clock so that a record has only so long to live, and returns when it expires.
func (e *expiring) leave(t *testing.T, key string, d time.Duration) (due time.Time) {
	t.Helper()
	due, _ = e.due(t, e.store.RecordID(accountID(key)))
	e.move(due.Sub(e.storeClock(t)) - d)
	return due
}

// TestReaperAgainstReplays is scenario 23: whatever the reaper does, an answer is replayed until it expires.
func TestReaperAgainstReplays(t *testing.T) {
	t.Parallel()
	for mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			e := newExpiring(t, mode)
			e.feed(t, 100)
			first := post(e.route, "key")
			first.want(t, http.StatusCreated, false, "section 6")
			due := e.leave(t, "key", 700*time.Millisecond)
			e.startReaper(t)
			replays := 0
			for {
				r := post(e.route, "key")
				if !e.storeClock(t).Before(due) {
					break // it may have been asked too late
				}
				replays++
				if r.status != http.StatusCreated || !r.replayed() || r.body != first.body {
					t.Fatalf("scenario 23: before its expiry the answer was %d, replayed %t, %q", r.status, r.replayed(), r.body)
				}
			}
			e.stop()
			if replays < 5 || e.reaped.Load() < 5 {
				t.Errorf("there were %d replays, and the reaper took %d records: they did not compete", replays, e.reaped.Load())
			}
			t.Logf("%d replays beside %d rounds of the reapers, which took %d records", replays, e.reaps.Load(), e.reaped.Load())
		})
	}
}

// feed makes records that expire at once, for the reaper to take.
func (e *expiring) feed(t *testing.T, n int) {
	t.Helper()
	var makers sync.WaitGroup
	for i := range n {
		makers.Go(func() {
			r := booking(fmt.Sprint("expired-", i))
			r.Retention = time.Millisecond
			v, err := e.store.Reserve(t.Context(), r)
			if err == nil {
				_, err = e.store.Complete(t.Context(), store.Claim{ID: r.ID, Attempt: v.Record.Attempt},
					&store.Completion{Response: store.Response{Status: http.StatusOK}})
			}
			if err != nil {
				t.Errorf("feed: %v", err)
			}
		})
	}
	makers.Wait()
}

// TestExpiryDuringARetry is scenario 22: a retry that arrives as the record expires is answered with the old answer or
// executed anew, and the new answer stays.
func TestExpiryDuringARetry(t *testing.T) {
	t.Parallel()
	for mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			e := newExpiring(t, mode)
			keys := []string{"key-1", "key-2", "key-3", "key-4"}
			old := make(map[string]string)
			for _, key := range keys {
				first := post(e.route, key)
				first.want(t, http.StatusCreated, false, "section 6")
				old[key] = first.body
			}
			e.leave(t, keys[0], 200*time.Millisecond)
			e.startReaper(t)
			var clients sync.WaitGroup
			for _, key := range keys {
				clients.Go(func() { e.retryOver(t, key, old[key]) })
			}
			clients.Wait()
			e.stop()
			for _, key := range keys {
				e.wantRows(t, key, 2, "scenario 22: once before the expiry, and once after")
			}
		})
	}
}

// retryOver retries until the answer has changed, and a few times more.
func (e *expiring) retryOver(t *testing.T, key, answer string) {
	changes, after := 0, 0
	for end := time.Now().Add(20 * time.Second); after < 5; {
		r := post(e.route, key)
		switch {
		case r.status != http.StatusCreated:
			t.Errorf("scenario 22: %s was answered %d %q", key, r.status, r.body)
			return
		case r.replayed() && r.body == answer:
		case !r.replayed() && r.body != answer && changes == 0:
			changes, answer = 1, r.body
		default:
			t.Errorf("scenario 22: %s was answered %q, replayed %t, where %q was the answer", key, r.body, r.replayed(), answer)
			return
		}
		after += changes
		if time.Now().After(end) {
			t.Errorf("%s did not expire", key)
			return
		}
	}
}
