package main

import (
	"context"
	"io"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/store"
)

// auditCommand lists the acts of operators.
type auditCommand struct {
	Ref        string   `arg:"" optional:"" help:"Only this operation: its hash in logs, a key with --scope, a provider's id, or a downstream key."`
	Scope      *string  `group:"Naming the operation" help:"The scope of a key: REF is then a key."`
	By         string   `enum:",hash,key,downstream,provider" default:"" group:"Naming the operation" help:"What REF is, if ambiguous: hash, key, downstream or provider."`
	Steps      []string `name:"step-name" placeholder:"NAME" group:"Naming the operation" help:"A step's name: keys show shows its downstream key. Repeatable."`
	Executions bool     `help:"Show requests of routes with audited executions, instead of acts on records."`
	Since      moment   `placeholder:"TIME" help:"Only since then: a time such as 2026-11-17T08:00:00Z, or an age such as 24h."`
	Until      moment   `placeholder:"TIME" help:"Only before then."`
	Limit      int      `default:"50" help:"The most to list, the newest first."`
	storeFlags
	watchFlags
	secretFlags
}

// moment is a point in time, written as such or as an age.
type moment struct{ time.Time }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *moment) UnmarshalText(text []byte) error {
	if age, err := time.ParseDuration(string(text)); err == nil {
		m.Time = time.Now().Add(-age)
		return nil
	}
	at, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return operate.Usage("'%s' is neither a time such as 2026-11-17T08:00:00Z nor an age such as 24h",
			output.Text(string(text)))
	}
	m.Time = at
	return nil
}

// Run lists the entries.
func (c *auditCommand) Run(ends interrupts, out io.Writer) error {
	if c.Limit < 1 {
		return operate.Usage("--limit must be at least 1")
	}
	if c.Limit > store.MaxPage {
		return operate.Usage("--limit is at most %d: go on with --until, at the time of the last one", store.MaxPage)
	}
	target, err := c.target(c.Store)
	if err != nil {
		return err
	}
	look := func(ctx context.Context, s *operate.Session, out *output.Output) error {
		filter := store.AuditFilter{Since: c.Since.Time, Until: c.Until.Time, Limit: c.Limit}
		if c.Ref != "" {
			ref := operate.Ref{Text: c.Ref, Scope: c.Scope, By: c.By, Steps: c.Steps}
			if filter.ID, err = s.Find(ctx, ref); err != nil {
				return err
			}
		}
		if c.Executions {
			return c.executions(ctx, s, filter, out)
		}
		return c.acts(ctx, s, filter, out)
	}
	return c.draw(ends, &c.storeFlags, target, out, look)
}

func (c *auditCommand) acts(ctx context.Context, s *operate.Session, f store.AuditFilter, out *output.Output) error {
	lister, err := operate.Need[store.AuditLister](s, "list its audit")
	if err != nil {
		return err
	}
	entries, err := lister.ListAudit(ctx, f)
	if err != nil {
		return err
	}
	var last time.Time
	table := output.NewTable("WHEN", "HASH", "ATTEMPT", "WHO", "ACTION", "WHY", "OUTCOME").Whole(2)
	for i := range entries {
		e := view.OfAudit(&entries[i])
		last = e.At
		if out.JSON {
			if err := out.Object(e); err != nil {
				return err
			}
			continue
		}
		outcome := e.Outcome
		if outcome == "" {
			outcome = "(begun)"
		}
		table.Add(output.Instant(e.At), e.Hash, number(e.Attempt), output.Text(e.Actor), output.Text(e.Action),
			output.Text(e.Reason), output.Text(outcome))
	}
	return c.writeEntries(out, table, len(entries), last)
}

func (c *auditCommand) executions(
	ctx context.Context, s *operate.Session, f store.AuditFilter, out *output.Output,
) error {
	auditor, err := operate.Need[store.ExecutionAuditor](s, "keep an audit of executions")
	if err != nil {
		return err
	}
	entries, err := auditor.ListExecutions(ctx, f)
	if err != nil {
		return err
	}
	var last time.Time
	table := output.NewTable("WHEN", "HASH", "ATTEMPT", "WHO", "OPERATION", "DECISION", "ORIGIN").Whole(2)
	for i := range entries {
		e := view.OfExecution(&entries[i])
		last = e.At
		if out.JSON {
			if err := out.Object(e); err != nil {
				return err
			}
			continue
		}
		table.Add(output.Instant(e.At), e.Hash, number(e.Attempt), output.Text(e.Actor), output.Text(e.Operation), e.Decision,
			e.Origin)
	}
	return c.writeEntries(out, table, len(entries), last)
}

// writeEntries writes a table of entries for people.
func (c *auditCommand) writeEntries(out *output.Output, table *output.Table, entries int, last time.Time) error {
	switch {
	case out.JSON:
	case entries == 0:
		out.Line("None.")
	default:
		out.Table(table)
	}
	if !out.JSON && entries == c.Limit {
		out.Line("There may be more: --until %s", last.UTC().Format(time.RFC3339Nano))
	}
	return nil
}
