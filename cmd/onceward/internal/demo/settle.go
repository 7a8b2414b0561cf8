package demo

import (
	"context"
	"time"
)

const (
	settleLimit = time.Minute
	settleLook  = 50 * time.Millisecond
)

// settle waits until nothing of the clients is under way any more: no order to charge waits, nothing is in progress, nothing
// unknown. The faults go on meanwhile. It returns how it ended, which may be with something left over.
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
