package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/store"
)

// healthCommand reports whether a person should look.
type healthCommand struct {
	storeFlags
	MaxLostAge    time.Duration `default:"2m" help:"How long an operation may have no owner. A sweeper or resumer takes it up within a minute."`
	MaxUnknownAge time.Duration `default:"15m" help:"How long an outcome may be unknown, dead letters apart."`
	MaxDead       int64         `default:"0" help:"How many dead letters may exist."`
	MaxOutboxAge  time.Duration `default:"5m" help:"How old the oldest waiting message may be."`
	MaxOutboxDead int           `default:"0" help:"How many dead letters the outbox may have."`
}

// healthCheck is one of the checks.
type healthCheck struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	// Do is what to do if the check failed.
	Do string `json:"do,omitempty"`
}

// healthReport is the JSON of the command.
type healthReport struct {
	OK     bool          `json:"ok"`
	Checks []healthCheck `json:"checks"`
}

// errUnwell is returned when a check has failed.
var errUnwell = errors.New("not all is well")

// Run makes all checks.
func (c *healthCommand) Run(ends interrupts, out io.Writer) error {
	found := &healthReport{OK: true}
	err := c.with(ends, operate.Target{URL: c.Store}, func(ctx context.Context, s *operate.Session) error {
		if err := c.checkLost(ctx, s, found); err != nil {
			return err
		}
		if err := c.checkUnknown(ctx, s, found); err != nil {
			return err
		}
		return c.checkOutbox(ctx, s, found)
	})
	report := &healthReport{OK: found.OK}
	switch {
	case errors.Is(err, operate.ErrUsage):
		return err
	case err != nil:
		report.add("store", false, err.Error(), "see whether it runs and can be reached, and run onceward migrate check")
	default:
		report.add("store", true, "it answers, and its tables are right", "")
	}
	report.Checks = append(report.Checks, found.Checks...)
	if err := report.write(output.New(out, c.JSON)); err != nil {
		return err
	}
	if !report.OK {
		return errUnwell
	}
	return nil
}

func (r *healthReport) add(name string, ok bool, found, do string) {
	if ok {
		do = ""
	}
	r.OK = r.OK && ok
	r.Checks = append(r.Checks, healthCheck{name, ok, found, do})
}

// maxOpen is the most lost owners, and the most unknown operations, that are counted. An index finds them. Counting all
// records would take longer with each record, and a probe comes every few seconds.
const maxOpen = 100_000

// checkLost checks the operations in progress whose lease has ended.
func (c *healthCommand) checkLost(ctx context.Context, s *operate.Session, r *healthReport) error {
	var oldest time.Time
	lost, more, err := s.Each(ctx, operate.Chosen{Filter: lostOwners}, maxOpen, func(rec *store.Record) error {
		if at := rec.LeaseUntil; !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
		return nil
	})
	if err != nil {
		return err
	}
	age := time.Duration(0)
	text := "none"
	if lost > 0 {
		age = time.Since(oldest)
		text = fmt.Sprintf("%d, the oldest for %s", lost, output.Span(age))
	}
	r.add("lost owners", age <= c.MaxLostAge && !more, text,
		"see whether a janitor runs, and a resumer for phased operations: onceward unknown list --lost")
	return nil
}

// checkUnknown checks the unknown operations.
func (c *healthCommand) checkUnknown(ctx context.Context, s *operate.Session, r *healthReport) error {
	var oldest time.Time
	var dead int64
	unknown := operate.Chosen{Filter: store.Filter{State: store.StateUnknown}}
	found, more, err := s.Each(ctx, unknown, maxOpen, func(rec *store.Record) error {
		switch at := rec.SettledAt; {
		case rec.DeadLetter:
			dead++
		case !at.IsZero() && (oldest.IsZero() || at.Before(oldest)):
			oldest = at
		}
		return nil
	})
	if err != nil {
		return err
	}
	age := time.Duration(0)
	text := "none"
	if waiting := int64(found) - dead; waiting > 0 {
		age = time.Since(oldest)
		text = fmt.Sprintf("%d, the oldest for %s", waiting, output.Span(age))
	}
	r.add("unknown", age <= c.MaxUnknownAge && !more, text,
		"see whether the poller runs and the provider answers: onceward unknown list")
	r.add("dead letters", dead <= c.MaxDead, fmt.Sprint(dead), "settle them: onceward dead list")
	return nil
}

func (c *healthCommand) checkOutbox(ctx context.Context, s *operate.Session, r *healthReport) error {
	counted, err := countMessages(ctx, s)
	if err != nil || counted == nil {
		return err
	}
	age := time.Duration(0)
	text := "nothing waits"
	if counted.Waiting > 0 {
		age = time.Since(counted.Oldest)
		text = fmt.Sprintf("%d wait, the oldest for %s", counted.Waiting, output.Span(age))
	}
	r.add("outbox", age <= c.MaxOutboxAge, text, "see whether workers run and receivers answer: onceward outbox list")
	r.add("outbox dead letters", counted.DeadLetters <= c.MaxOutboxDead, fmt.Sprint(counted.DeadLetters),
		"retry or discard them: onceward outbox list --state dead --state holding")
	return nil
}

func (r *healthReport) write(out *output.Output) error {
	if out.JSON {
		return out.Object(r)
	}
	table := output.NewTable("CHECK", "", "FOUND", "DO")
	for _, check := range r.Checks {
		verdict := "ok"
		if !check.OK {
			verdict = "NOT OK"
		}
		table.Add(check.Name, verdict, output.Text(check.Found), check.Do)
	}
	out.Table(table)
	return nil
}
