package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/store"
)

// deadCommand has the commands for unknown operations that wait for a person.
type deadCommand struct {
	List    deadList    `cmd:"" help:"List operations that reconciliation gave up: they wait for a person."`
	Retry   deadRetry   `cmd:"" help:"Ask the other system again now, with the full number of attempts."`
	Resolve deadResolve `cmd:"" help:"Settle an operation with what you know."`
}

// deadList lists dead letters.
type deadList struct {
	storeFlags
	watchFlags
	pageFlags
	Scope     string `help:"Only this scope."`
	Operation string `help:"Only this operation, such as 'POST /payments'."`
}

// Run lists dead letters.
func (c *deadList) Run(ends interrupts, out io.Writer) error {
	return listRecords(ends, &c.storeFlags, &c.watchFlags, &c.pageFlags, out, part{Chosen: deadLetters(c.Scope, c.Operation)})
}

// deadLetters chooses dead letters, of one scope and of one operation if they are named.
func deadLetters(scope, operation string) operate.Chosen {
	return operate.Chosen{
		Filter: store.Filter{Scope: scope, Operation: operation, State: store.StateUnknown},
		Wanted: func(rec *store.Record) bool { return rec.DeadLetter },
	}
}

// deadRetry lets the poller ask about one dead letter, or about all of them.
type deadRetry struct {
	Ref   string   `arg:"" optional:"" help:"The operation: its hash in logs, a key with --scope, a provider's id, or a downstream key."`
	Scope *string  `help:"The scope of a key: REF is then a key. With --all, only this scope."`
	By    string   `enum:",hash,key,downstream,provider" default:"" group:"Naming the operation" help:"What REF is, if ambiguous: hash, key, downstream or provider."`
	Steps []string `name:"step-name" placeholder:"NAME" group:"Naming the operation" help:"A step's name: keys show shows its downstream key. Repeatable."`

	All       bool    `help:"All dead letters, at most --limit."`
	Operation *string `help:"With --all, only this operation."`
	Limit     int     `default:"1000" help:"With --all, the most to retry."`
	storeFlags
	secretFlags
	actFlags
	attemptFlags
}

// Run acts on the dead letters.
func (c *deadRetry) Run(ends interrupts, out io.Writer) error {
	if c.All != (c.Ref == "") {
		return operate.Usage("name one operation, or give --all")
	}
	if !c.All {
		named := refFlags{Ref: c.Ref, Scope: c.Scope, By: c.By, Steps: c.Steps}
		one := retryFlags{named, c.storeFlags, c.secretFlags, c.actFlags, c.attemptFlags}
		return one.retry(ends, out, true)
	}
	if err := checkAll(c.Limit, chosen{"--scope", c.Scope}, chosen{"--operation", c.Operation}); err != nil {
		return err
	}
	more := false
	err := c.acting(ends, &c.secretFlags, &c.actFlags, out, func(ctx context.Context, s *operate.Session) ([]act, error) {
		scope, operation := "", ""
		if c.Scope != nil {
			scope = *c.Scope
		}
		if c.Operation != nil {
			operation = *c.Operation
		}
		var acts []act
		var err error
		_, more, err = s.Each(ctx, deadLetters(scope, operation), c.Limit, func(rec *store.Record) error {
			acts = append(acts, retryNow(s, rec))
			return nil
		})
		return acts, err
	})
	return leftOver(err, more)
}

// leftOver reports that there were more dead letters than the limit.
func leftOver(err error, more bool) error {
	if err == nil && more {
		fmt.Fprintln(os.Stderr, "There are more than --limit: run it again for the others.")
	}
	return err
}

// chosen is a flag that filters --all; it is empty if it was not given.
type chosen struct {
	flag  string
	value *string
}

// checkAll refuses an empty filter: a script that leaves its variable empty would otherwise act on everything.
func checkAll(limit int, flags ...chosen) error {
	for _, c := range flags {
		if c.value != nil && *c.value == "" {
			return operate.Usage("%s is empty: leave it out if all are meant", c.flag)
		}
	}
	if limit < 1 {
		return operate.Usage("--limit must be at least 1")
	}
	return nil
}

// deadResolve settles a dead letter.
type deadResolve struct {
	resolveFlags
}

// Run settles the dead letter.
func (c *deadResolve) Run(ends interrupts, out io.Writer) error {
	return c.resolve(ends, out, true)
}
