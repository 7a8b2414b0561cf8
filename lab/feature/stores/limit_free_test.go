package stores_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/limit"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// TestReplaysAreFree: many times more replays than a scope may make keys cost it none of them.
func TestReplaysAreFree(t *testing.T) {
	t.Parallel()
	const most = 10
	limits := limit.Limits{NewKeys: limit.Rate{Limit: most, Window: 1000 * time.Hour}, ActiveKeys: most}
	for name, open := range map[string]func(t *testing.T) (store.Store, limit.Counters){
		"shared, on Redis": func(t *testing.T) (store.Store, limit.Counters) {
			server := servers.Redis(t)
			return limitedRedis(t, server.URL(), server.Prefix(t))
		},
		"in the process, on SQLite": func(t *testing.T) (store.Store, limit.Counters) {
			s, err := sqlite.Open(t.Context(), t.TempDir()+"/onceward.db")
			must(t, err)
			t.Cleanup(func() { must(t, s.Close()) })
			return s, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, counters := open(t)
			l, err := limit.New(limit.Config{Limits: limits, Counters: counters, Logger: quiet, CounterTimeout: await.Limit})
			must(t, err)
			service := newLimitedService(t, s, l, onceward.Reserved(onceward.FailureUnknown))
			if w := service.post("alice", "first"); w.Code != http.StatusCreated {
				t.Fatalf("the first request: %d %s", w.Code, w.Body)
			}
			for range 10 * most {
				if w := service.post("alice", "first"); w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "true" {
					t.Fatalf("A6: a replay: %d %s", w.Code, w.Body)
				}
			}
			for i := range most - 1 {
				if w := service.post("alice", fmt.Sprint("new", i)); w.Code != http.StatusCreated {
					t.Fatalf("A6: after %d replays only %d of %d new keys are left: %d %s", 10*most, i, most-1, w.Code, w.Body)
				}
			}
			if w := service.post("alice", "too-many"); w.Code != http.StatusTooManyRequests {
				t.Errorf("L1: a key past the limit: %d", w.Code)
			}
		})
	}
}
