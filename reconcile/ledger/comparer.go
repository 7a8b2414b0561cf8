package ledger

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/onceward/onceward"
)

// Comparer compares one window after the other. The windows end at whole multiples of the interval, so that all nodes mean
// the same ones: any number of nodes may run a comparer of the same name, and each window is compared by one of them.
type Comparer struct{ cfg Config }

// NewComparer returns a comparer.
func NewComparer(cfg Config) (*Comparer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Comparer{cfg: cfg}, nil
}

// RunOnce makes sure of the last windows, oldest first, and returns what the latest came to. The error joins those of all
// windows, each as [Run] returns it.
func (c *Comparer) RunOnce(ctx context.Context) (Summary, error) {
	latest, failed, busy := c.round(ctx)
	return latest, errors.Join(failed, busy)
}

// Run compares each window when it has settled, now and then until the context ends. Failures are logged, and it goes on.
// A window that another node is at is no failure, but is looked at again: that node may be lost.
func (c *Comparer) Run(ctx context.Context) {
	failures := 0
	for {
		_, failed, busy := c.round(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case failed != nil:
			failures++
			c.cfg.Logger.ErrorContext(ctx, "ledger: cannot compare", "comparison", c.cfg.Name, "error", failed, "failures", failures)
		case busy != nil:
			failures++
			c.cfg.Logger.DebugContext(ctx, "ledger: another node is comparing", "comparison", c.cfg.Name, "error", busy)
		default:
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.pause(failures, time.Now())):
		}
	}
}

// round runs the last windows. One that fails does not keep the others from being compared.
func (c *Comparer) round(ctx context.Context) (latest Summary, failed, busy error) {
	last := c.lastEnd(time.Now())
	for i := c.cfg.Windows - 1; i >= 0; i-- {
		if ctx.Err() != nil {
			return latest, errors.Join(failed, context.Cause(ctx)), busy
		}
		var err error
		latest, err = c.cfg.run(ctx, c.window(last.Add(-time.Duration(i)*c.cfg.Interval)))
		if errors.Is(err, onceward.ErrInProgress) {
			busy = errors.Join(busy, err)
		} else {
			failed = errors.Join(failed, err)
		}
	}
	return latest, failed, busy
}

// lastEnd is the end of the latest window that has settled.
func (c *Comparer) lastEnd(now time.Time) time.Time {
	return now.Add(-c.cfg.Settle).Truncate(c.cfg.Interval)
}

// window is the one with that end. It reaches back into the one before by twice the grace: what lay at the end of that one,
// or lies at the beginning of this one, is inside of the other.
func (c *Comparer) window(end time.Time) Window {
	return Window{From: end.Add(-c.cfg.Interval - 2*c.cfg.Grace), To: end}
}

// pause is the time until the next window has settled, and a random bit more, so that the nodes do not all come at once.
// After failures it is a part of the interval that doubles each time, if that is shorter: a provider that was away for an
// hour should not cost a day.
func (c *Comparer) pause(failures int, now time.Time) time.Duration {
	due := c.lastEnd(now).Add(c.cfg.Interval + c.cfg.Settle).Sub(now)
	due += rand.N(c.cfg.Interval/20 + 1)
	if failures == 0 || failures > 4 {
		return due
	}
	again := c.cfg.Interval >> (5 - failures)
	return min(due, again-rand.N(again/5+1))
}
