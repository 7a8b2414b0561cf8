package onceward_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
)

// TestHeartbeatsGoTogether starts handlers within two seconds: their heartbeats come at the same moments, so that a store can
// write them with one statement.
func TestHeartbeatsGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newHeartbeatStore()
		slow := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(25 * time.Second)
			w.WriteHeader(http.StatusCreated)
		}}
		h := newGuard(t, store).Handler(slow, onceward.Reserved(onceward.FailureUnknown), onceward.Deadline(time.Minute))
		const handlers = 5
		var running sync.WaitGroup
		for i := range handlers {
			running.Go(func() { post(h, fmt.Sprint("key-", i), `{}`) })
			time.Sleep(400 * time.Millisecond)
		}
		running.Wait()
		moments := store.seen()
		if len(moments) != 2*handlers {
			t.Errorf("S5: %d heartbeats of %d leases in 25 s, want two of each", len(moments), handlers)
		}
		if moments = slices.Compact(moments); len(moments) != 2 {
			t.Errorf("S5: the heartbeats came at %d moments, %s, want two", len(moments), moments)
		}
	})
}
