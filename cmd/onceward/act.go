package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/demo/terminal"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// byFlags are the person who acts and the reason. Both are written to the audit.
type byFlags struct {
	Why string `group:"Audit" help:"The reason. Required."`
	Who string `group:"Audit" help:"Who acts. Default: the operating system's user."`
}

func (f *byFlags) by() (reconcile.By, error) {
	by := reconcile.By{Who: f.Who, Why: f.Why}
	if strings.TrimSpace(by.Why) == "" {
		return by, operate.Usage("--why is missing: say why, for the audit")
	}
	if by.Who == "" {
		if current, err := user.Current(); err == nil {
			by.Who = current.Username
		}
	}
	if strings.TrimSpace(by.Who) == "" {
		return by, operate.Usage("the operating system does not say who you are: give --who")
	}
	return by, nil
}

// actFlags are the flags of every act.
type actFlags struct {
	byFlags
	confirmFlags
}

// confirmFlags are the flags of every command that changes a store.
type confirmFlags struct {
	Yes    bool `short:"y" group:"Acting" help:"Do not ask. Required without a terminal."`
	DryRun bool `group:"Acting" help:"Show what would happen, and change nothing."`
}

// attemptFlags fence an act by the attempt of its record.
type attemptFlags struct {
	Attempt int64 `group:"Acting" help:"The attempt that you saw: if the operation has changed, nothing is done. Default: the one found now."`
}

// check refuses a record that has changed since the person saw it.
func (f *attemptFlags) check(rec *store.Record) error {
	if f.Attempt != 0 && f.Attempt != rec.Attempt {
		return operate.Refused("nothing was done: the operation has moved on to attempt %d and is %s; look at it again",
			rec.Attempt, rec.State)
	}
	return nil
}

// unmoved refuses a record that has changed while the person was asked to confirm.
func unmoved(ctx context.Context, s *operate.Session, shown *store.Record) error {
	now, err := s.Store.Get(ctx, shown.ID)
	switch {
	case err != nil && !errors.Is(err, store.ErrUnreadable):
		return err
	case now.Attempt != shown.Attempt || now.State != shown.State:
		return operate.Refused("nothing was done: the operation has moved on to attempt %d and is %s; look at it again",
			now.Attempt, now.State)
	}
	return nil
}

// act is a change that a person asks for.
type act struct {
	// action is the name of the act in the audit.
	action string
	// about is the object of the act, and effects are its consequences. Both are shown before it.
	about   string
	effects []string
	// id and attempt name the operation; message names a message instead.
	id      store.ID
	attempt int64
	message string
	do      func(ctx context.Context, by reconcile.By) error
}

// onRecord is an act on a record.
func onRecord(rec *store.Record, action string, effects ...string) act {
	about := fmt.Sprintf("%s, key %s of scope %s (%s), %s at attempt %d",
		output.Text(rec.Operation), output.Text(rec.Key), output.Text(rec.Scope), rec.Hash(), rec.State, rec.Attempt)
	return act{action: action, about: about, effects: effects, id: rec.ID, attempt: rec.Attempt}
}

// acted is the JSON of an act.
type acted struct {
	Done    bool     `json:"done"`
	DryRun  bool     `json:"dry_run"`
	Action  string   `json:"action"`
	Target  *view.ID `json:"target,omitempty"`
	Attempt int64    `json:"attempt,omitempty,string"`
	Message string   `json:"message,omitempty"`
	Effects []string `json:"effects"`
	Warning string   `json:"warning,omitempty"`
}

// of returns the JSON of an act.
func (f *actFlags) of(a *act) acted {
	said := acted{DryRun: f.DryRun, Action: a.action, Attempt: a.attempt, Message: a.message, Effects: a.effects}
	if a.id != (store.ID{}) {
		target := view.OfID(a.id)
		said.Target = &target
	}
	return said
}

// run shows the consequences, asks for confirmation, acts, and reports the result. If one of several acts fails, the
// others are still done.
func (f *actFlags) run(
	ctx context.Context, where string, out *output.Output, acts []act,
	deadline func() (context.Context, context.CancelFunc),
) error {
	if len(acts) == 0 && !out.JSON {
		out.Line("None.")
	}
	if len(acts) == 0 {
		return nil
	}
	if !out.JSON {
		for i := range acts {
			out.Line("%s: %s", acts[i].action, acts[i].about)
			for _, effect := range acts[i].effects {
				out.Line("  - %s", effect)
			}
		}
	}
	if f.DryRun {
		return f.dryRun(out, acts)
	}
	by, err := f.by()
	if err != nil {
		return err
	}
	person := terminal.Is(os.Stdin) && !out.JSON // with JSON nothing was shown that could be confirmed
	if err := f.confirm(ctx, os.Stdin, os.Stderr, where, person); err != nil {
		return err
	}
	var errs []error
	for i := range acts {
		ctx, cancel := deadline() // the person has taken their time
		errs = append(errs, f.ended(out, &acts[i], acts[i].do(ctx, by)))
		cancel()
	}
	return errors.Join(errs...)
}

func (f *actFlags) dryRun(out *output.Output, acts []act) error {
	if !out.JSON {
		out.Line("Dry run: nothing was changed.")
		return nil
	}
	for i := range acts {
		if err := out.Object(f.of(&acts[i])); err != nil {
			return err
		}
	}
	return nil
}

// ended reports the result of an act. An act is done even if a cache could not be notified of it.
func (f *actFlags) ended(out *output.Output, a *act, err error) error {
	if err != nil && !errors.Is(err, store.ErrStale) {
		if errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrNotSent) {
			err = fmt.Errorf("%w; unless this says that nothing was done, look again before you repeat it", err)
		}
		return fmt.Errorf("%s: %w", a.about, err)
	}
	if !out.JSON {
		out.Line("Done: %s.", a.about)
		return err
	}
	said := f.of(a)
	said.Done = true
	if err != nil {
		said.Warning = err.Error()
	}
	return errors.Join(out.Object(said), err)
}

// confirm asks the person to confirm, and names the store: the environment may name another one than expected.
// Without a terminal it cannot ask and refuses; an interrupt is a no.
func (f *confirmFlags) confirm(ctx context.Context, in io.Reader, ask io.Writer, where string, person bool) error {
	if f.Yes {
		return nil
	}
	if !person {
		return operate.Refused("nothing was done: there is no terminal to ask at; give --yes if it is meant, " +
			"or --dry-run to see what would happen")
	}
	fmt.Fprintf(ask, "Go on, in %s? [y/N] ", output.Text(where))
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // no answer is a no
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case said := <-answer:
		if (said == "y" || said == "yes") && ctx.Err() == nil {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(ask)
	}
	return operate.Refused("nothing was done")
}

// acting opens the store, prepares acts, and does them.
func (f *storeFlags) acting(
	ends interrupts, secrets *secretFlags, flags *actFlags, out io.Writer,
	prepare func(context.Context, *operate.Session) ([]act, error),
) error {
	target, err := secrets.target(f.Store)
	if err != nil {
		return err
	}
	target.Writes = !flags.DryRun
	ctx, cancel := f.deadline(ends.first)
	defer cancel()
	s, err := operate.Open(ctx, target)
	if err != nil {
		return err
	}
	defer s.Close()
	acts, err := prepare(ctx, s)
	if err != nil {
		return err
	}
	deadline := func() (context.Context, context.CancelFunc) { return f.deadline(ends.first) }
	return flags.run(ends.first, doctor.Redacted(f.Store), output.New(out, f.JSON), acts, deadline)
}
