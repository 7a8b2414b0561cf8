package fair

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// Tally collects what comes of a run: a report of type R, and the failures. Its zero value is empty.
type Tally[R any] struct {
	mu       sync.Mutex
	report   R
	failures int
	first    error
}

// Count changes the report.
func (t *Tally[R]) Count(change func(report *R)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.report)
}

// Fail adds a failure; nil is none.
func (t *Tally[R]) Fail(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failures++; t.failures == 1 {
		t.first = err
	}
}

// Take returns what was collected since the last time. Of several failures it is the first, and how many there were: a
// store that is down fails for each record in the same way.
func (t *Tally[R]) Take() (report R, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	report, err = t.report, t.first
	if t.failures > 1 {
		err = fmt.Errorf("%d records failed, the first because: %w", t.failures, t.first)
	}
	var none R
	t.report, t.failures, t.first = none, 0, nil
	return report, err
}

// Repeat calls look at once, and then around every interval until the context ends. Nodes that were started together
// drift apart. Failures are told, unless the context has ended, and do not end the loop.
func Repeat(ctx context.Context, interval time.Duration, look func() error, failed func(err error)) {
	for {
		if err := look(); err != nil && ctx.Err() == nil {
			failed(err)
		}
		if !backoff.Sleep(ctx, backoff.Around(interval)) {
			return
		}
	}
}
