package rehearsal

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/onceward/onceward/store"
)

// openWork is what a system has not brought to an end yet of what its clients have asked for. What it does for itself
// is left out: a comparison of the ledgers that has met a fault is tried again later, and is not waited for here.
type openWork struct {
	// InProgress and Unknown count the clients' operations, and Waiting the charges that were ordered.
	InProgress, Unknown, Waiting int
}

func (o openWork) quiet() bool { return o == openWork{} }

// openPath is where a node shows its open work, beside the routes of the system.
const openPath = "/demo/open"

// withOpenWork puts the route of the demo in front of the system.
func (n *node) withOpenWork(system http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != openPath {
			system.ServeHTTP(w, r)
			return
		}
		open, err := n.openWork(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(open) // who asked may be gone
	})
}

// openWork asks the store. What is under way is looked at before what it may leave behind, so that nothing slips
// through between the looks.
func (n *node) openWork(ctx context.Context) (open openWork, err error) {
	if open.InProgress, err = n.count(ctx, store.StateInProgress); err != nil {
		return open, err
	}
	if open.Unknown, err = n.count(ctx, store.StateUnknown); err != nil {
		return open, err
	}
	open.Waiting, err = n.system.Waiting(ctx)
	return open, err
}

// count counts the operations of the clients in a state. A page is more than there are clients at one time.
func (n *node) count(ctx context.Context, state store.State) (sum int, err error) {
	for _, account := range tokens {
		page, err := n.store.List(ctx, store.Filter{Scope: account, State: state})
		if err != nil {
			return 0, err
		}
		sum += len(page)
	}
	return sum, nil
}

const (
	settleLimit = time.Minute
	settleLook  = 50 * time.Millisecond
)

// settle waits until nothing of the clients is under way any more: no order to charge waits, nothing is in progress,
// nothing unknown. The faults go on meanwhile. It returns how it ended, which may be with something left over.
func settle(ctx context.Context, f *fleet) openWork {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	ticker := time.NewTicker(settleLook)
	defer ticker.Stop()
	var last openWork
	for i := 0; ; i++ {
		var open openWork
		err := getJSON(ctx, f.urls()[i%len(f.members)]+openPath, &open)
		if err == nil {
			last = open
		}
		if err == nil && open.quiet() {
			return open
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return last
		}
	}
}
