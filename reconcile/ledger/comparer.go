package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// Comparer compares one window after the other. The windows end at whole multiples of the interval, by the store's
// clock: any number of nodes may run a comparer of the same name, whatever their own clocks, and each window is
// compared by one of them. The store keeps which windows are due, and a window stays due until it has been compared or
// a person has given it up.
type Comparer struct {
	config Config
	store  store.Store
	engine *onceward.Guard
}

// NewComparer returns a comparer. The store keeps the progress of the comparison, and its clock decides which windows
// have ended. Any store will do; for [Comparer.GiveUp] it must be a [store.Auditor].
func NewComparer(s store.Store, config Config) (*Comparer, error) {
	if s == nil {
		return nil, errors.New("ledger: a comparer needs a store: it keeps how far the comparison has come")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	engine, err := onceward.New(s, onceward.Config{Secret: []byte(engineSecret), Logger: config.Logger})
	if err != nil {
		return nil, err
	}
	return &Comparer{config: config, store: s, engine: engine}, nil
}

// RunOnce compares the windows that are due, at most Config.Windows, and returns a summary of each. A window that fails
// does not prevent the others from being compared: it is retried later, from the last key that both sides have passed,
// or from its beginning if a source is out of order. The error joins the errors of all windows. While another node is
// comparing it wraps [onceward.ErrInProgress].
func (c *Comparer) RunOnce(ctx context.Context) ([]Summary, error) {
	r, err := c.round(ctx)
	return r.compared, err
}

// Run compares each window when it has settled, until the context ends, and then returns nil. Failures are logged, and
// it continues. A window that another node is comparing is no failure, but is checked again, because that node may be
// lost.
func (c *Comparer) Run(ctx context.Context) error {
	failures := 0
	for {
		r, err := c.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if failures++; r.finished {
			failures = 0
		}
		switch {
		case r.finished: // each failed window was logged
		case errors.Is(err, onceward.ErrInProgress):
			c.config.Logger.DebugContext(ctx, "ledger: another node is comparing", "comparison", c.config.Name)
		default:
			c.config.Logger.ErrorContext(ctx, "ledger: cannot compare",
				"comparison", c.config.Name, "error", err, "failures", failures)
		}
		if !backoff.Sleep(ctx, c.pause(&r, failures)) {
			return nil
		}
	}
}

// pause returns the time until the next look, with a random addition, so that the nodes do not all look at once.
func (c *Comparer) pause(r *round, failures int) time.Duration {
	pause := min(r.wait, maxBackoff)
	if !r.finished {
		pause = c.config.backoff(failures)
	}
	return pause + rand.N(pause/20+1)
}

// round is the result of a run.
type round struct {
	compared []Summary
	// finished is set if the run came to its end, and wait is then the time until there is something to do.
	finished bool
	wait     time.Duration
}

func (c *Comparer) round(ctx context.Context) (r round, err error) {
	err = c.take(ctx, func(ctx context.Context, t *turn) (failed error) {
		for range c.config.Windows {
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
		r.finished, r.wait = true, c.config.wait(&t.journal, t.now())
		if failed != nil {
			r.wait = max(r.wait, c.config.MinBackoff) // the others may fail for the same reason
		}
		return failed
	})
	return r, err
}

// Status returns the progress of the comparison, and the windows that could not be compared. It only reads the store,
// and includes windows that no node has started yet.
func (c *Comparer) Status(ctx context.Context) (Status, error) {
	now, err := c.clock(ctx)
	if err != nil {
		return Status{}, err
	}
	rec, err := c.store.Get(ctx, c.id())
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Status{}, fmt.Errorf("ledger: comparison %q: %w", c.config.Name, err)
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

// giveUpWait is how long GiveUp waits for a node that is comparing.
const giveUpWait = time.Minute

// GiveUp ends a window that will never be compared, such as a window that the provider has lost: it is no longer due,
// and effects in it may be missing on either side without a finding. The actor and the reason are written to the audit
// of the store first; if this fails the window is not given up. The window must be one of [Status.Uncompared],
// otherwise the error wraps [store.ErrNotFound]. The error wraps [onceward.ErrInProgress] if a node does not stop
// comparing for a minute, and [errors.ErrUnsupported] if the store keeps no audit.
func (c *Comparer) GiveUp(ctx context.Context, by reconcile.By, w Window) error {
	auditor, ok := store.As[store.Auditor](c.store)
	if !ok {
		return fmt.Errorf("ledger: giving up needs an audit, and the store keeps none: %w", errors.ErrUnsupported)
	}
	return c.take(ctx, func(ctx context.Context, t *turn) error {
		open := t.journal.Open
		i := slices.IndexFunc(open, func(p *pending) bool { return p.Window.String() == w.String() })
		if i < 0 {
			return fmt.Errorf("ledger: comparison %q has no uncompared window %s: %w", c.config.Name, w, store.ErrNotFound)
		}
		p := open[i]
		claim := store.Claim{ID: c.id(), Attempt: t.op.Attempt()}
		err := by.Act(ctx, auditor, claim, "give up window "+w.String(), func() error {
			t.close(p)
			return t.save()
		})
		if err == nil {
			t.config.Logger.WarnContext(ctx, "ledger: a window was given up",
				"run", p.Counts.Run, "by", by.Who, "why", by.Why)
			t.observe(ctx, p, "given up", nil)
		}
		return err
	}, onceward.InFlightWait(giveUpWait))
}

// These are the defaults of [Config].
const (
	DefaultScope      = "ledger"
	DefaultInterval   = 24 * time.Hour
	DefaultSettle     = time.Hour
	DefaultGrace      = 5 * time.Minute
	DefaultWindows    = 10
	DefaultSaveEvery  = 10_000
	DefaultMinBackoff = time.Minute
)

const (
	// maxName keeps the key of the journal within the limits of keys.
	maxName = 128
	// maxBackoff is the longest pause after failures, unless Config.MinBackoff is longer, and the longest time between two
	// looks of a node, because another node may have been lost.
	maxBackoff = time.Hour
)

// Config configures a [Comparer]: what is compared, and how.
type Config struct {
	// Name is the name of the comparison, such as "acme charges", and its identity: the progress is kept under it, and it
	// is part of the ID of each finding. A comparison with another name is another one, which begins at Since. Required.
	Name string
	// Scope is the scope that the progress is kept in. Default: [DefaultScope].
	Scope string
	// Provider and Local list the entries of the two sides. Required.
	Provider Source
	Local    Source
	// Report is called with each finding, at least once: store findings by their ID. If it returns an error the window
	// stays uncompared, and the finding is reported again when the window is retried. Default: findings are only counted,
	// and sent to the observer.
	Report func(ctx context.Context, f Finding) error

	// Guard is the guard whose operations have the effects. If the provider lists effects that are not in the local
	// ledger, another service may share the account, and a guard without a namespace logs a warning, once: see
	// [onceward.Guard.WarnSharedProvider]. Default: none, and no warning.
	Guard *onceward.Guard

	// Since is where the comparison begins: later effects are compared. After the first run the stored progress counts,
	// and a later Since changes nothing; an earlier one makes the comparison go back to it. Default: the last window that
	// has settled at the first run.
	Since time.Time
	// Interval is the time between the ends of two windows. It may change between deploys: the next window continues where
	// the last one ended. Default: [DefaultInterval].
	Interval time.Duration
	// Settle is how long after its end, by the store's clock, a window is compared: an effect must be in both ledgers by
	// then. Default: [DefaultSettle].
	Settle time.Duration
	// Grace is how far the clocks of the two sides may differ, and how long an effect may take to get from one ledger to
	// the other: an entry on one side only that is within the grace of an end of the window is counted but not reported.
	// The windows overlap so that the next one reports it. Default: [DefaultGrace].
	Grace time.Duration
	// Windows is the largest number of windows in one run; the others stay due. Default: [DefaultWindows].
	Windows int
	// SaveEvery is how many entries are read between two recovery points. Default: [DefaultSaveEvery].
	SaveEvery int
	// MinBackoff is the first pause before a window that could not be compared is retried. It doubles with each attempt,
	// up to an hour. Default: [DefaultMinBackoff].
	MinBackoff time.Duration
	// Deadline is how long a run may take. A window that it interrupts continues from its last key when it is retried.
	// Default: the interval, but at least an hour.
	Deadline time.Duration

	// Logger logs failures and what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
	// Observer receives a [FindingEvent] for every finding, and a [WindowEvent] for every window that was compared, failed
	// or was given up. Default: none.
	Observer onceward.Observer
}

func (c Config) withDefaults() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	if c.Scope == "" {
		c.Scope = DefaultScope
	}
	orDefault(&c.Interval, DefaultInterval)
	orDefault(&c.Settle, DefaultSettle)
	orDefault(&c.Grace, DefaultGrace)
	orDefault(&c.Windows, DefaultWindows)
	orDefault(&c.SaveEvery, DefaultSaveEvery)
	orDefault(&c.MinBackoff, DefaultMinBackoff)
	orDefault(&c.Deadline, max(c.Interval, time.Hour))
	if c.Report == nil {
		c.Report = func(context.Context, Finding) error { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Observer == nil {
		c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {})
	}
	return c, nil
}

func (c *Config) check() error {
	switch {
	case c.Name == "" || len(c.Name) > maxName:
		return fmt.Errorf("ledger: Config.Name has %d bytes; the limits are 1 and %d", len(c.Name), maxName)
	case c.Provider == nil || c.Local == nil:
		return errors.New("ledger: Config.Provider and Config.Local are both needed: there is nothing to compare")
	case min(c.Grace, c.MinBackoff, c.Deadline, c.Interval, c.Settle) < 0 || min(c.SaveEvery, c.Windows) < 0:
		return errors.New("ledger: no duration and no count of Config may be negative")
	default:
		return nil
	}
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// longest returns the longest pause after a failure.
func (c *Config) longest() time.Duration { return max(c.MinBackoff, maxBackoff) }

// backoff returns the pause after so many failures.
func (c *Config) backoff(failures int) time.Duration {
	return backoff.Exponential(c.MinBackoff, c.longest(), failures)
}
