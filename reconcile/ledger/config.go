package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
)

// The defaults of [Config].
const (
	DefaultScope     = "ledger"
	DefaultInterval  = 24 * time.Hour
	DefaultSettle    = time.Hour
	DefaultGrace     = 5 * time.Minute
	DefaultWindows   = 3
	DefaultSaveEvery = 10_000
	DefaultPause     = time.Minute
)

// maxName leaves room for the window in the key of a run.
const maxName = 128

// Config says what is compared, and how. Guard, Name, Provider and Local are required.
type Config struct {
	// Guard makes each run happen once, and remembers how far it came.
	Guard *onceward.Guard
	// Name is that of the comparison, such as "acme charges". It is part of the key of each run and of the ID of each
	// finding: with another name all is compared and reported anew.
	Name string
	// Scope is the scope that the runs are kept in. Default: [DefaultScope].
	Scope string
	// Provider and Local list the entries of the two sides.
	Provider Source
	Local    Source
	// Report is told each finding, at least once: what it keeps, it keeps by the finding's ID. If it returns an error the
	// run stops, and reports that finding again when it goes on. Default: findings are counted, and told to the observer.
	Report func(ctx context.Context, f Finding) error
	// Grace is how far the clocks of the two sides may be apart, and how long an effect may take to get from one ledger to
	// the other: what is on one side only and within it of an end of the window is counted but not reported. The windows of
	// a [Comparer] overlap so that the next one reports it. Default: [DefaultGrace].
	Grace time.Duration
	// SaveEvery is how many entries are read between two recovery points. Default: [DefaultSaveEvery].
	SaveEvery int
	// Pause is how long a run that failed is left alone before it can go on. Default: [DefaultPause].
	Pause time.Duration
	// Deadline is how long a run may take before it stops, to go on when it is run again. Default: the interval.
	Deadline time.Duration

	// Interval is the time between the ends of two windows of a [Comparer]. Default: [DefaultInterval].
	Interval time.Duration
	// Settle is how long ago the end of a window must be for a [Comparer] to look at it. Default: [DefaultSettle].
	Settle time.Duration
	// Windows is how many of the last windows a [Comparer] makes sure of in each round, so that the one of a day when nobody
	// could run, or the provider could not be asked, is made up for. The answers are kept for long enough that those which
	// are done cost a look at the store. Default: [DefaultWindows].
	Windows int

	// Logger gets failures and what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
	// Observer is told of every finding, with an [onceward.LedgerFindingEvent]. Default: none.
	Observer onceward.Observer
}

func (c Config) withDefaults() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	if c.Scope == "" {
		c.Scope = DefaultScope
	}
	orDefault(&c.Grace, DefaultGrace)
	orDefault(&c.SaveEvery, DefaultSaveEvery)
	orDefault(&c.Pause, DefaultPause)
	orDefault(&c.Interval, DefaultInterval)
	orDefault(&c.Settle, DefaultSettle)
	orDefault(&c.Windows, DefaultWindows)
	orDefault(&c.Deadline, c.Interval)
	if c.Interval > onceward.MaxRetention/(time.Duration(c.Windows)+1) {
		return c, fmt.Errorf("ledger: %d Windows of %s are more than the longest retention, %s",
			c.Windows, c.Interval, onceward.MaxRetention)
	}
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
	case c.Guard == nil:
		return errors.New("ledger: Config.Guard is missing: it makes a run happen once")
	case c.Name == "" || len(c.Name) > maxName:
		return fmt.Errorf("ledger: Config.Name has %d bytes; the limits are 1 and %d", len(c.Name), maxName)
	case c.Provider == nil || c.Local == nil:
		return errors.New("ledger: Config.Provider and Config.Local are both needed: there is nothing to compare")
	case min(c.Grace, c.Pause, c.Deadline, c.Interval, c.Settle) < 0 || min(c.SaveEvery, c.Windows) < 0:
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

// retention keeps what a run came to for as long as a [Comparer] asks for it, and for one interval more. The engine refuses
// less than an hour.
func (c *Config) retention() time.Duration {
	return max(time.Duration(c.Windows+1)*c.Interval, time.Hour)
}
