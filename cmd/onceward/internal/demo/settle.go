package demo

import (
	"context"
	"time"

	"github.com/onceward/onceward"
)

// openWork is what a system has not brought to an end yet.
type openWork struct {
	Records  onceward.Stats
	Messages struct {
		Waiting     int `json:"waiting"`
		DeadLetters int `json:"dead_letters"`
	}
}

func (o *openWork) unknown() int { return int(o.Records.Records[onceward.StateUnknown]) }

func (o *openWork) quiet() bool {
	return o.unknown() == 0 && o.Records.Records[onceward.StateInProgress] == 0 && o.Messages.Waiting == 0
}

const (
	settleLimit = time.Minute
	settleLook  = 50 * time.Millisecond
)

// settle waits until nothing is under way any more: no order to charge waits, nothing is in progress, nothing unknown. The
// faults go on meanwhile. It returns how it ended, which may be with something left over.
func settle(ctx context.Context, f *fleet) openWork {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	ticker := time.NewTicker(settleLook)
	defer ticker.Stop()
	var last openWork
	for i := 0; ; i++ {
		var open openWork
		err := getJSON(ctx, f.urls()[i%len(f.members)]+"/health", &open)
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
