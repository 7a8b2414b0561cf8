package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/cmd/onceward/internal/story"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// keysCommand is about records, whatever their state.
type keysCommand struct {
	List   keysList   `cmd:"" help:"List records."`
	Show   keysShow   `cmd:"" help:"Tell the story of one operation, and what can be done about it."`
	Extend keysExtend `cmd:"" help:"Keep a settled record for longer."`
	Bust   keysBust   `cmd:"" help:"Remove a record, so that its key can be used again."`
}

// keysList lists records.
type keysList struct {
	storeFlags
	watchFlags
	pageFlags
	State     string `enum:",in_progress,completed,failed_retryable,unknown,expired" default:"" help:"Only those in this state: in_progress, completed, failed_retryable, unknown or expired. By state, what is open is found by an index."`
	Scope     string `help:"Only those of this scope. All records are looked through for it, or all of the state."`
	Operation string `help:"Only those of this operation, such as 'POST /payments'. All records are looked through for it."`
	Due       bool   `help:"Only those whose lease, next reconciliation or expiry has come."`
}

// Run lists them.
func (c *keysList) Run(ends interrupts, out io.Writer) error {
	filter := store.Filter{Scope: c.Scope, State: stateOf(c.State), Due: c.Due}
	return listRecords(ends, &c.storeFlags, &c.watchFlags, &c.pageFlags, out, filter, ofOperation(c.Operation))
}

// stateOf finds a state by its name; none for none.
func stateOf(name string) store.State {
	for state := store.StateInProgress; state <= store.StateExpired; state++ {
		if state.String() == name {
			return state
		}
	}
	return store.StateNone
}

// ofOperation chooses records by their operation; nil for any.
func ofOperation(name string) func(*store.Record) bool {
	if name == "" {
		return nil
	}
	return func(rec *store.Record) bool { return rec.Operation == name }
}

// listRecords lists the records of a filter that are wanted.
func listRecords(
	ends interrupts, from *storeFlags, watch *watchFlags, page *pageFlags, out io.Writer, filter store.Filter,
	wanted func(*store.Record) bool,
) (err error) {
	if err := page.check(); err != nil {
		return err
	}
	if filter.After, err = operate.ParseCursor(page.After); err != nil {
		return err
	}
	look := func(ctx context.Context, s *operate.Session, out *output.Output) error {
		found, more, err := s.List(ctx, filter, page.Limit, wanted)
		if err != nil {
			return err
		}
		return writeRecords(out, found, more)
	}
	return watch.draw(ends, from, operate.Target{URL: from.Store}, out, look)
}

// writeRecords writes a page of records.
func writeRecords(out *output.Output, found []store.Record, more bool) error {
	if out.JSON {
		for i := range found {
			if err := out.Object(view.OfRecord(&found[i])); err != nil {
				return err
			}
		}
		return nil
	}
	if len(found) == 0 {
		out.Line("None.")
		return nil
	}
	table := output.NewTable("HASH", "STATE", "OPERATION", "SCOPE", "KEY", "AGE", "DUE", "WHY").Whole(1)
	for i := range found {
		rec := &found[i]
		table.Add(rec.Hash(), stateText(rec), output.Text(rec.Operation), output.Text(rec.Scope), output.Text(rec.Key),
			out.Old(rec.CreatedAt), dueText(out, rec), output.Text(whyText(rec)))
	}
	out.Table(table)
	if more {
		out.Line("There are more: --after %s", operate.Cursor(found[len(found)-1].ID))
	}
	return nil
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

// dueText says when background work looks at the record next.
func dueText(out *output.Output, rec *store.Record) string {
	if rec.DeadLetter || rec.Version == 0 {
		return "-"
	}
	return out.Age(rec.Due())
}

// whyText is the error that matters most now.
func whyText(rec *store.Record) string {
	if rec.State == store.StateUnknown && rec.ReconcileError != "" {
		return rec.ReconcileError
	}
	return rec.LastError
}

// keysShow tells the story of one operation.
type keysShow struct {
	refFlags
	storeFlags
	secretFlags
	byFlags
	Reveal  bool     `help:"Show the stored answer, what is carried from step to step, and late answers. That is audited: --why is required."`
	Sources []string `name:"source" placeholder:"NAME" help:"A source of webhooks whose events about the operation are shown; for several, repeat it."`
}

// Run tells it.
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
		told, err := story.Tell(ctx, s, id, question)
		if err == nil && c.Reveal {
			err = reveal(ctx, s, by, told)
		}
		if err != nil {
			return err
		}
		shown := output.New(out, c.JSON)
		if c.JSON {
			return shown.Object(told)
		}
		told.Write(shown)
		return nil
	})
}

// reveal adds the content to a story, and has that audited.
func reveal(ctx context.Context, s *operate.Session, by reconcile.By, told *story.Story) error {
	auditor, err := operate.Need[store.Auditor](s, "keep an audit, without which nothing is revealed")
	if err != nil {
		return err
	}
	return by.Act(ctx, auditor, told.Claim(), "reveal", func() error {
		told.Reveal()
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
	For time.Duration `required:"" help:"How long from now it is kept at least, such as 72h. It never makes one expire sooner."`
}

// Run does it.
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
	Force bool `help:"Also one that is in progress or unknown: its work may then be done twice."`
}

// Run does it.
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
