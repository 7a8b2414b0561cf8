package payments_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/onceward/onceward/examples/provider"
)

// TestSystemsTogether: two systems on one database share the work. The provider holds all charges until there are more
// under way than one of them would take, so that both must be at it.
func TestSystemsTogether(t *testing.T) {
	t.Parallel()
	const count = 18 // a system makes 16 charges at a time
	onStores(t, func(s *settings) {
		s.faults = []provider.Rule{{Kind: provider.Hold, Name: "all", Match: provider.Match{Path: "/charges"}}}
	}, func(t *testing.T, w *world) {
		other := w.beside(nil)
		for i := range count {
			if i < 4 {
				payTwice(t, w, other, fmt.Sprint(i))
			} else {
				[]*world{w, other}[i%2].post("/payments", fmt.Sprint(i), order(1900, fmt.Sprint(i))).want(http.StatusCreated, "")
			}
		}
		must(t, w.bank.Await(t.Context(), "all", count))
		w.bank.Release("all")
		w.eventually("all to be charged", func() bool {
			return w.number(`SELECT count(*) FROM payment WHERE state = 'charged'`) == count
		})
		if n := len(w.bank.Ledger()); n != count {
			t.Errorf("there are %d charges, want %d", n, count)
		}
		for _, one := range []*world{w, other} {
			one.eventually("both to have charged", func() bool { return one.system.Counters().Counts()["delivered done"] > 0 })
		}
	})
}

// payTwice sends the same payment to both systems at one time. One executes, and the other replays or is told to wait.
func payTwice(t *testing.T, one, other *world, key string) {
	t.Helper()
	var replies [2]reply
	var errs [2]error
	var both sync.WaitGroup
	for i, w := range []*world{one, other} {
		both.Go(func() { replies[i], errs[i] = w.try(http.MethodPost, "/payments", alice, key, order(1900, key)) })
	}
	both.Wait()
	bodies := make(map[string]bool)
	for i, r := range replies {
		if r.status == http.StatusCreated {
			bodies[r.body] = true
		} else if errs[i] != nil || r.status != http.StatusConflict {
			t.Errorf("the answer is %d %s (%v)", r.status, r.body, errs[i])
		}
	}
	if len(bodies) != 1 {
		t.Errorf("payment %s has the answers %v, want one", key, bodies)
	}
}
