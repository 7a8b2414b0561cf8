package fair

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// Tally collects the results of a run: a report of type R, and the failures. Its zero value is empty.
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

// Fail adds a failure, unless it is nil.
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

// Take returns the results since the last call. If there are several failures it returns the first and their number: a
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

// Repeat calls look immediately, and then about once an interval until the context ends. The intervals vary, so that
// nodes that were started together do not stay together. It reports failures to failed, unless the context has ended,
// and continues.
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
