package rehearsal

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/onceward/onceward/store"
)

// openWork is the clients' work that a system has not finished. The system's own work is
// left out: a comparison of the ledgers that failed is retried later, and is not waited for.
type openWork struct {
	// InProgress and Unknown are numbers of the clients' operations, and
	// Waiting is the number of ordered charges that are not made yet.
	InProgress, Unknown, Waiting int
}

func (o openWork) quiet() bool { return o == openWork{} }

// openPath is the path at which a node shows its open work, in addition to the routes of the system.
const openPath = "/demo/open"

// withOpenWork adds the route of the demo to the system.
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
		_ = json.NewEncoder(w).Encode(open) // the client may have left
	})
}

// openWork queries the store. It counts operations in progress before what
// they may leave behind, so that nothing is missed between the queries.
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

// count counts the clients' operations in a state. One page holds more than there are clients at one time.
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

// settle waits until no work of the clients is left: no ordered charge waits, nothing is in progress,
// nothing is unknown. The faults continue meanwhile. It returns the work that was left at the end.
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
