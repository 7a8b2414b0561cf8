package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// Comparer compares one window after the other. The windows end at whole multiples of the interval, and have ended when
// the store's clock says so: any number of nodes may run a comparer of the same name, whatever their own clocks say,
// and each window is compared by one of them. Which windows are due is kept in the store, and a window stays due until
// it has been compared or a person has given it up.
type Comparer struct {
	cfg    Config
	engine *onceward.Guard
}

// NewComparer returns a comparer.
func NewComparer(cfg Config) (*Comparer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	engine, err := onceward.New(cfg.Store, onceward.Config{Secret: []byte(engineSecret), Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	return &Comparer{cfg: cfg, engine: engine}, nil
}

// RunOnce compares the windows that are due, Config.Windows at most, and returns what each came to. One that fails does
// not keep the others from being compared: it is left to be tried again later, from the last key that both sides were
// done with, or from its beginning if a source is out of order. The error joins those of all windows. While another
// node is comparing it wraps [onceward.ErrInProgress].
func (c *Comparer) RunOnce(ctx context.Context) ([]Summary, error) {
	r, err := c.round(ctx)
	return r.compared, err
}

// Run compares each window when it has settled, until the context ends. Failures are logged, and it goes on. A window
// that another node is at is no failure, but is looked at again: that node may be lost.
func (c *Comparer) Run(ctx context.Context) {
	failures := 0
	for {
		r, err := c.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if failures++; r.finished {
			failures = 0
		}
		switch {
		case r.finished: // what failed was logged for each window
		case errors.Is(err, onceward.ErrInProgress):
			c.cfg.Logger.DebugContext(ctx, "ledger: another node is comparing", "comparison", c.cfg.Name)
		default:
			c.cfg.Logger.ErrorContext(ctx, "ledger: cannot compare",
				"comparison", c.cfg.Name, "error", err, "failures", failures)
		}
		if !backoff.Sleep(ctx, c.pause(&r, failures)) {
			return
		}
	}
}

// pause is the time until the next look, and a random bit more, so that the nodes do not all come at once.
func (c *Comparer) pause(r *round, failures int) time.Duration {
	pause := min(r.wait, longestPause)
	if !r.finished {
		pause = c.cfg.backoff(failures)
	}
	return pause + rand.N(pause/20+1)
}

// round is what a run did.
type round struct {
	compared []Summary
	// finished says that the run came to its end, and wait is then the time until there is something to do.
	finished bool
	wait     time.Duration
}

func (c *Comparer) round(ctx context.Context) (r round, err error) {
	err = c.take(ctx, func(ctx context.Context, t *turn) (failed error) {
		for range c.cfg.Windows {
			p := t.journal.due(t.now())
			if p == nil {
				break
			}
			err := t.compare(ctx, p)
			if err == nil {
				r.compared = append(r.compared, p.Counts)
			}
			if failed = errors.Join(failed, err); t.lost || ctx.Err() != nil {
				return failed
			}
		}
		r.finished, r.wait = true, c.cfg.wait(&t.journal, t.now())
		if failed != nil {
			r.wait = max(r.wait, c.cfg.MinBackoff) // the others may fail for the same reason
		}
		return failed
	})
	return r, err
}

// Status says how far the comparison has come, and which windows could not be compared. It asks the store alone, and
// also tells of windows that no node has looked at yet.
func (c *Comparer) Status(ctx context.Context) (Status, error) {
	now, err := c.clock(ctx)
	if err != nil {
		return Status{}, err
	}
	rec, err := c.cfg.Store.Get(ctx, c.id())
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Status{}, fmt.Errorf("ledger: comparison %q: %w", c.cfg.Name, err)
	}
	j, err := c.current(ctx, rec.Point, rec.Data, now)
	if err != nil {
		return Status{}, err
	}
	s := Status{Until: j.Next}
	for _, p := range j.Open {
		s.Uncompared = append(s.Uncompared, p.Uncompared)
	}
	slices.SortFunc(s.Uncompared, func(a, b Uncompared) int { return a.Window.To.Compare(b.Window.To) })
	return s, nil
}

// giveUpWait is how long giving up waits for a node that is comparing.
const giveUpWait = time.Minute

// GiveUp ends a window that will never be compared, such as one that the provider has lost: it is no longer due, and
// effects in it may be missing on either side without a finding. Who gives it up and why is written to the audit of the
// store first: if that fails it is not done. The window is one of [Status.Uncompared], or else the error wraps
// [store.ErrNotFound]; it wraps [onceward.ErrInProgress] if a node does not stop comparing for a minute, and
// [errors.ErrUnsupported] if the store keeps no audit.
func (c *Comparer) GiveUp(ctx context.Context, by reconcile.By, w Window) error {
	auditor, ok := c.cfg.Store.(store.Auditor)
	if !ok {
		return fmt.Errorf("ledger: giving up needs an audit, and the store keeps none: %w", errors.ErrUnsupported)
	}
	return c.take(ctx, func(ctx context.Context, t *turn) error {
		open := t.journal.Open
		i := slices.IndexFunc(open, func(p *pending) bool { return p.Window.String() == w.String() })
		if i < 0 {
			return fmt.Errorf("ledger: comparison %q has no uncompared window %s: %w", c.cfg.Name, w, store.ErrNotFound)
		}
		p := open[i]
		claim := store.Claim{ID: c.id(), Attempt: t.op.Attempt()}
		err := by.Act(ctx, auditor, claim, "give up window "+w.String(), func() error {
			t.close(p)
			return t.save()
		})
		if err == nil {
			t.cfg.Logger.WarnContext(ctx, "ledger: a window was given up",
				"run", p.Counts.Run, "by", by.Who, "why", by.Why)
			t.tell(ctx, p, "given up", nil)
		}
		return err
	}, onceward.InFlightWait(giveUpWait))
}
