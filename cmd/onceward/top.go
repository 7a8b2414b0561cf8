package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/cmd/onceward/internal/scrape"
	"github.com/onceward/onceward/store"
)

// topCommand shows live rates.
type topCommand struct {
	storeFlags
	Every   time.Duration `default:"2s" help:"How often to look; less often if counting takes long."`
	Once    bool          `help:"Look twice, show the changes, and end."`
	Metrics []string      `placeholder:"URL" help:"A node's /metrics, for rates by decision. Repeatable."`
}

// reservations is the counter that has the decisions, by its label decision.
const (
	reservations = "onceward_reservations_total"
	decision     = "decision"
)

// sample is the numbers of one moment.
type sample struct {
	*counts
	decisions map[string]float64
	took      time.Duration
}

// change is the JSON of top: numbers, and their rates.
type change struct {
	counts
	RecordsPerSecond   map[string]float64 `json:"records_per_second"`
	DecisionsPerSecond map[string]float64 `json:"decisions_per_second,omitempty"`
	Seconds            float64            `json:"seconds"`
}

// Run draws until the context ends.
func (c *topCommand) Run(ends interrupts, out io.Writer) error {
	if c.Every < 100*time.Millisecond {
		return operate.Usage("--every %s: take 100ms at least", c.Every)
	}
	opening, cancel := c.deadline(ends.first)
	defer cancel()
	s, err := operate.Open(opening, operate.Target{URL: c.Store})
	if err != nil {
		return err
	}
	defer s.Close()
	last, err := c.look(ends.first, s)
	if err != nil {
		return err
	}
	screen := output.New(out, c.JSON)
	if c.Once {
		if !pause(ends.first, c.Every) {
			return nil
		}
		now, err := c.look(ends.first, s)
		if err != nil {
			return err
		}
		return now.since(last).write(screen)
	}
	return screen.Watch(ends.first, c.Every, func(out *output.Output) error {
		// Counting must not become the load that it is to show.
		if !pause(ends.first, min(10*last.took, time.Minute)) {
			return ends.first.Err()
		}
		now, err := c.look(ends.first, s)
		if err != nil {
			return err
		}
		before := last
		last = now
		return now.since(before).write(out)
	})
}

// pause waits, and reports whether the context is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// look takes a sample of the store and, with --metrics, of a service.
func (c *topCommand) look(ctx context.Context, s *operate.Session) (*sample, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	begun := time.Now()
	counted, err := count(ctx, s)
	if err != nil {
		return nil, err
	}
	seen := &sample{counts: counted, took: time.Since(begun)}
	for _, url := range c.Metrics {
		metrics, err := scrape.Read(ctx, url)
		if err != nil {
			return nil, fmt.Errorf("--metrics: %w", err)
		}
		if seen.decisions == nil {
			seen.decisions = make(map[string]float64)
		}
		for name, value := range scrape.Sum(metrics[reservations], decision) {
			seen.decisions[name] += value
		}
	}
	return seen, nil
}

// since returns the change since an earlier sample.
func (s *sample) since(before *sample) *change {
	seconds := max(s.at.Sub(before.at).Seconds(), 0.001)
	c := &change{counts: *s.counts, RecordsPerSecond: make(map[string]float64), Seconds: seconds}
	for state, n := range s.Records {
		c.RecordsPerSecond[state] = float64(n-before.Records[state]) / seconds
	}
	if s.decisions == nil {
		return c
	}
	c.DecisionsPerSecond = make(map[string]float64)
	for name, n := range s.decisions {
		c.DecisionsPerSecond[name] = max(n-before.decisions[name], 0) / seconds // a node that was restarted counts from zero
	}
	return c
}

func (c *change) write(out *output.Output) error {
	if out.JSON {
		return out.Object(c)
	}
	out.Line("%s, over %.1fs", output.Moment(c.at), c.Seconds)
	out.Line("")
	table := output.NewTable("RECORDS", "COUNT", "A SECOND")
	for state := store.StateInProgress; state <= store.StateExpired; state++ {
		name := state.String()
		table.Add(name, strconv.FormatInt(c.Records[name], 10), fmt.Sprintf("%+.1f", c.RecordsPerSecond[name]))
	}
	out.Table(table)
	if c.DecisionsPerSecond != nil {
		out.Line("")
		table := output.NewTable("DECISIONS", "A SECOND")
		for _, name := range slices.Sorted(maps.Keys(c.DecisionsPerSecond)) {
			table.Add(output.Text(name), fmt.Sprintf("%.1f", c.DecisionsPerSecond[name]))
		}
		out.Table(table)
	}
	c.writeOpen(out)
	return nil
}
