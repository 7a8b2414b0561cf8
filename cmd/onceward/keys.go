package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/cmd/onceward/internal/story"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// keysCommand has the commands for records in any state.
type keysCommand struct {
	List   keysList   `cmd:"" help:"List records."`
	Show   keysShow   `cmd:"" help:"Show the story of one operation, and the possible commands."`
	Extend keysExtend `cmd:"" help:"Keep a settled record for longer."`
	Bust   keysBust   `cmd:"" help:"Remove a record, so that its key can be used again."`
}

// keysList lists records.
type keysList struct {
	storeFlags
	watchFlags
	pageFlags
	State     string `enum:",in_progress,completed,failed_retryable,unknown,expired" default:"" help:"Only this state: in_progress, completed, failed_retryable, unknown or expired. An index finds open records."`
	Scope     string `help:"Only this scope. Reads all records, or all of the state."`
	Operation string `help:"Only this operation, such as 'POST /payments'. Reads all records."`
	Due       bool   `help:"Only those whose lease, next reconciliation or expiry is due."`
}

// Run lists records.
func (c *keysList) Run(ends interrupts, out io.Writer) error {
	all := operate.Chosen{Filter: store.Filter{
		Scope: c.Scope, Operation: c.Operation, State: stateOf(c.State), Due: c.Due,
	}}
	return listRecords(ends, &c.storeFlags, &c.watchFlags, &c.pageFlags, out, part{Chosen: all})
}

// stateOf returns the state with a name; nil for an empty name.
func stateOf(name string) store.State {
	for state := store.StateInProgress; state <= store.StateExpired; state++ {
		if state.String() == name {
			return state
		}
	}
	return store.StateNone
}

// part is one part of a list: the chosen records, and a mark that its cursors begin with, because a cursor belongs to
// one part.
type part struct {
	operate.Chosen
	mark string
	// lost marks records whose owner is lost.
	lost bool
}

// listRecords lists the records of all parts, one part after the other. JSON is written page by page, because a list
// may be larger than memory. The time limit holds for each page.
func listRecords(
	ends interrupts, from *storeFlags, watch *watchFlags, page *pageFlags, out io.Writer, parts ...part,
) (err error) {
	if err := page.check(); err != nil {
		return err
	}
	after := page.After
	for after != "" && len(parts) > 1 && !strings.HasPrefix(after, parts[0].mark) {
		parts = parts[1:]
	}
	if parts[0].After, err = operate.ParseCursor(strings.TrimPrefix(after, parts[0].mark)); err != nil {
		return err
	}
	look := func(_ context.Context, s *operate.Session, out *output.Output) error {
		w := &recordWriter{Output: out}
		left, more := page.Limit, false
		for i := range parts {
			w.part = &parts[i]
			visited, rest, err := s.Each(ends.first, w.part.Chosen, left, w.add)
			if err != nil {
				return err
			}
			if left -= visited; rest {
				more = true
				break
			}
		}
		w.end(more)
		return nil
	}
	return watch.draw(ends, from, operate.Target{URL: from.Store, Patience: from.Timeout}, out, look)
}

// recordWriter writes records: as JSON at once, as a table when all are read.
type recordWriter struct {
	*output.Output
	part *part

	table  *output.Table
	cursor string // of the last record
}

func (w *recordWriter) add(rec *store.Record) error {
	w.cursor = w.part.mark + operate.Cursor(rec.ID)
	if w.JSON {
		shown := view.OfRecord(rec)
		shown.LostOwner, shown.Cursor = w.part.lost, w.cursor
		return w.Object(shown)
	}
	if w.table == nil {
		w.table = output.NewTable("HASH", "STATE", "OPERATION", "SCOPE", "KEY", "AGE", "DUE", "WHY", "ASKED").Whole(1)
	}
	state := stateText(rec)
	if w.part.lost {
		state += " (owner lost)"
	}
	w.table.Add(rec.Hash(), state, output.Text(rec.Operation), output.Text(rec.Scope), output.Text(rec.Key),
		w.Old(rec.CreatedAt), dueText(w.Output, rec), output.Text(rec.LastError), output.Text(askedText(rec)))
	return nil
}

// end writes the lines after the last record.
func (w *recordWriter) end(more bool) {
	switch {
	case w.JSON:
	case w.table == nil:
		w.Line("None.")
	default:
		w.Table(w.table)
		if more {
			w.Line("There are more: --after %s", w.cursor)
		}
	}
}

func stateText(rec *store.Record) string {
	switch {
	case rec.Version == 0:
		return rec.State.String() + " (unreadable)"
	case rec.DeadLetter:
		return "unknown (dead letter)"
	case rec.State == store.StateCompleted:
		return fmt.Sprintf("completed %d", rec.Response.Status)
	default:
		return rec.State.String()
	}
}

// dueText returns when background work reads the record next.
func dueText(out *output.Output, rec *store.Record) string {
	if rec.DeadLetter || rec.Version == 0 {
		return "-"
	}
	return out.Age(rec.Due())
}

// askedText returns the result of the last question about an unknown outcome.
func askedText(rec *store.Record) string {
	if rec.State != store.StateUnknown {
		return ""
	}
	return rec.ReconcileError
}

// keysShow shows the story of one operation.
type keysShow struct {
	refFlags
	storeFlags
	secretFlags
	byFlags
	Reveal  bool     `help:"Show the stored answer, carried data and late answers. Audited: --why is required."`
	Sources []string `name:"source" placeholder:"NAME" help:"Show events of this source of webhooks. Repeatable."`
}

// Run writes the story.
func (c *keysShow) Run(ends interrupts, out io.Writer) error {
	target, err := c.secretFlags.target(c.storeFlags.Store)
	if err != nil {
		return err
	}
	var by reconcile.By
	if c.Reveal {
		if by, err = c.by(); err != nil {
			return err
		}
		target.Writes = true
	}
	return c.with(ends, target, func(ctx context.Context, s *operate.Session) error {
		id, err := s.Find(ctx, c.ref())
		if err != nil {
			return err
		}
		question := story.Question{Steps: c.Steps, Sources: c.Sources, Suffix: c.suffix(), Now: time.Now()}
		found, err := story.Collect(ctx, s, id, question)
		if err == nil && c.Reveal {
			err = reveal(ctx, s, by, found)
		}
		if err != nil {
			return err
		}
		shown := output.New(out, c.JSON)
		if c.JSON {
			return shown.Object(found)
		}
		found.Write(shown)
		return nil
	})
}

// reveal adds the content to a story, and records that in the audit.
func reveal(ctx context.Context, s *operate.Session, by reconcile.By, found *story.Story) error {
	auditor, err := operate.Need[store.Auditor](s, "keep an audit, without which nothing is revealed")
	if err != nil {
		return err
	}
	return by.Act(ctx, auditor, found.Claim(), "reveal", func() error {
		found.Reveal()
		return nil
	})
}

// keysExtend keeps a settled record for longer.
type keysExtend struct {
	refFlags
	storeFlags
	secretFlags
	actFlags
	attemptFlags
	For time.Duration `required:"" help:"Keep it for at least this long from now, such as 72h; never shorter than before."`
}

// Run extends the retention.
func (c *keysExtend) Run(ends interrupts, out io.Writer) error {
	if c.For <= 0 {
		return operate.Usage("--for must be positive, such as 72h")
	}
	return c.acting(ends, &c.secretFlags, &c.actFlags, out, func(ctx context.Context, s *operate.Session) ([]act, error) {
		rec, err := s.Record(ctx, c.ref())
		if err == nil {
			err = c.attemptFlags.check(&rec)
		}
		if err != nil {
			return nil, err
		}
		if !rec.State.Settled() {
			return nil, operate.Refused("nothing was done: it is %s, and expires only after it was settled", rec.State)
		}
		a := onRecord(&rec, "retain", fmt.Sprintf("it expires at %s now, and in %s at the earliest then",
			output.Moment(rec.ExpiresAt), output.Span(c.For)))
		a.do = func(ctx context.Context, by reconcile.By) error {
			if err := unmoved(ctx, s, &rec); err != nil {
				return err
			}
			_, err := s.Operator.Retain(ctx, by, rec.ID, c.For)
			return err
		}
		return []act{a}, nil
	})
}

// keysBust removes a record.
type keysBust struct {
	refFlags
	storeFlags
	secretFlags
	actFlags
	attemptFlags
	Force bool `help:"Also a record in progress or unknown: its work may then be done twice."`
}

// Run removes the record.
func (c *keysBust) Run(ends interrupts, out io.Writer) error {
	return c.acting(ends, &c.secretFlags, &c.actFlags, out, func(ctx context.Context, s *operate.Session) ([]act, error) {
		rec, err := s.Record(ctx, c.ref())
		if err != nil && !errors.Is(err, store.ErrUnreadable) {
			return nil, err
		}
		if err := c.attemptFlags.check(&rec); err != nil {
			return nil, err
		}
		open := rec.State == store.StateInProgress || rec.State == store.StateUnknown
		if open && !c.Force {
			return nil, operate.Refused("nothing was done: it is %s, so that its work may still be done, or have been done; "+
				"settle it with unknown resolve, or add --force if doing it twice is harmless", rec.State)
		}
		a := onRecord(&rec, "bust", "the record is removed: the next request with the key executes")
		if open {
			a.effects = append(a.effects,
				"THE WORK MAY BE DONE TWICE: what is under way is not stopped, only refused when it writes")
		}
		a.do = func(ctx context.Context, by reconcile.By) error {
			if err := unmoved(ctx, s, &rec); err != nil {
				return err
			}
			return s.Operator.Bust(ctx, by, rec.ID, c.Force)
		}
		return []act{a}, nil
	})
}
