package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// The defaults of [Config].
const (
	DefaultScope     = "ledger"
	DefaultInterval  = 24 * time.Hour
	DefaultSettle    = time.Hour
	DefaultGrace     = 5 * time.Minute
	DefaultWindows   = 10
	DefaultSaveEvery = 10_000
	DefaultPause     = time.Minute
)

const (
	// maxName keeps the key of the journal within the limits of keys.
	maxName = 128
	// longestPause is the most that failures make a comparer wait, unless Config.MinBackoff is longer, and the longest
	// time between two looks of a node: another one may have been lost.
	longestPause = time.Hour
)

// Config says what is compared, and how. Store, Name, Provider and Local are required.
type Config struct {
	// Store keeps how far the comparison has come, and its clock decides which windows have ended. Any store will do;
	// for [Comparer.GiveUp] it must be a [store.Auditor].
	Store store.Store
	// Name is that of the comparison, such as "acme charges", and its identity: the progress is kept under it, and it
	// is part of the ID of each finding. With another name it is another comparison, which begins at Since.
	Name string
	// Scope is the scope that the progress is kept in. Default: [DefaultScope].
	Scope string
	// Provider and Local list the entries of the two sides.
	Provider Source
	Local    Source
	// Report is told each finding, at least once: what it keeps, it keeps by the finding's ID. If it returns an error
	// the window stays uncompared, and that finding is reported again when it is tried again. Default: findings are
	// counted, and told to the observer.
	Report func(ctx context.Context, f Finding) error

	// Since is where the comparison begins: effects from then on are compared. From the first run on the progress is
	// what counts, and a later Since changes nothing; an earlier one makes the comparison go back to it. Default: the
	// last window that has settled at the first run.
	Since time.Time
	// Interval is the time between the ends of two windows. It may change between deploys: the next window goes on
	// where the last one ended. Default: [DefaultInterval].
	Interval time.Duration
	// Settle is how long after its end, by the store's clock, a window is compared: an effect must be in both ledgers
	// by then to be compared at all. Default: [DefaultSettle].
	Settle time.Duration
	// Grace is how far the clocks of the two sides may be apart, and how long an effect may take to get from one ledger
	// to the other: what is on one side only and within it of an end of the window is counted but not reported. The
	// windows overlap so that the next one reports it. Default: [DefaultGrace].
	Grace time.Duration
	// Windows is how many windows one run works on at most; the others stay due. Default: [DefaultWindows].
	Windows int
	// SaveEvery is how many entries are read between two recovery points. Default: [DefaultSaveEvery].
	SaveEvery int
	// MinBackoff is how long a window that could not be compared is left alone at first. It doubles with each try, up
	// to an hour. Default: [DefaultPause].
	MinBackoff time.Duration
	// Deadline is how long a run may take. A window that it cuts off goes on from its last key when it is tried again.
	// Default: the interval, but an hour at least.
	Deadline time.Duration

	// Logger gets failures and what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
	// Observer is told of every finding, with an [onceward.LedgerFindingEvent], and of what becomes of windows, with an
	// [onceward.LedgerWindowEvent]. Default: none.
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
	orDefault(&c.MinBackoff, DefaultPause)
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
	case c.Store == nil:
		return errors.New("ledger: Config.Store is missing: it keeps how far the comparison has come")
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

// longest is the longest pause after a failure.
func (c *Config) longest() time.Duration { return max(c.MinBackoff, longestPause) }

// backoff is the pause after so many failures.
func (c *Config) backoff(failures int) time.Duration {
	pause := c.MinBackoff
	for range failures - 1 {
		if pause = 2 * pause; pause >= c.longest() {
			return c.longest()
		}
	}
	return pause
}
