package redis

import (
	"fmt"
	"sync"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestExecutionsBehindOthers: the requests of one key are found after thousands of another one in the same bucket,
// without a reply that contains them all.
func TestExecutionsBehindOthers(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	s, err := Open(t.Context(), server.URL(), WithPrefix(server.Prefix(t)))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	quiet, loud := store.ID{Scope: "quiet", Key: "k"}, store.ID{}
	at := s.names.bucketOf(quiet.AppendBinary(nil))
	for i := 0; loud == (store.ID{}); i++ {
		if id := (store.ID{Scope: "loud", Key: fmt.Sprint(i)}); s.names.bucketOf(id.AppendBinary(nil)) == at {
			loud = id
		}
	}
	add := func(id store.ID, attempt int64) {
		err := s.AddExecution(t.Context(), store.ExecutionEntry{ID: id, Attempt: attempt, Decision: store.DecisionReplay})
		if err != nil {
			t.Error(err)
		}
	}
	add(quiet, 1)
	var all sync.WaitGroup
	for i := range int64(2000) { // together, which a server that writes each to its disk answers together
		all.Go(func() { add(loud, i) })
	}
	all.Wait()
	add(quiet, 2)
	for id, want := range map[store.ID]int{quiet: 2, loud: store.MaxPage} {
		found, err := s.ListExecutions(t.Context(), store.AuditFilter{ID: id})
		if err != nil || len(found) != min(want, 2000) {
			t.Errorf("of %s there are %d entries (%v), want %d", id.Scope, len(found), err, want)
		}
	}
	found, err := s.ListExecutions(t.Context(), store.AuditFilter{ID: quiet})
	if must(t, err); found[0].Attempt != 2 || found[1].Attempt != 1 {
		t.Errorf("the entries are %+v, want the newest first", found)
	}
}
