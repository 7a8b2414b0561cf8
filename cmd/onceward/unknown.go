package main

import (
	"context"
	"io"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// unknownCommand has the commands for operations with an unknown outcome.
type unknownCommand struct {
	List    unknownList    `cmd:"" help:"List operations with an unknown outcome or a lost owner."`
	Resolve unknownResolve `cmd:"" help:"Settle an operation with what you know."`
	Retry   unknownRetry   `cmd:"" help:"Ask the other system again now, with the full number of attempts."`
	Stop    unknownStop    `cmd:"" help:"Take a phased operation with a lost owner from that owner and all resumers, before you decide."`
}

// unknownList lists unknown operations and lost owners.
type unknownList struct {
	storeFlags
	watchFlags
	pageFlags
	Scope     string `help:"Only this scope."`
	Operation string `help:"Only this operation, such as 'POST /payments'."`
	Due       bool   `help:"Only those due for reconciliation, or with a lost owner."`
	Lost      bool   `help:"Only those in progress with a lost owner: they wait for a sweeper or resumer."`
}

// lostOwners chooses the records in progress whose lease has ended.
var lostOwners = store.Filter{State: store.StateInProgress, Due: true}

// Run lists the operations.
func (c *unknownList) Run(ends interrupts, out io.Writer) error {
	lost := part{Chosen: operate.Chosen{Filter: lostOwners}, mark: "lost.", lost: true}
	lost.Scope, lost.Operation = c.Scope, c.Operation
	parts := []part{lost}
	if !c.Lost {
		unknown := store.Filter{Scope: c.Scope, Operation: c.Operation, State: store.StateUnknown, Due: c.Due}
		parts = append(parts, part{Chosen: operate.Chosen{Filter: unknown}})
	}
	return listRecords(ends, &c.storeFlags, &c.watchFlags, &c.pageFlags, out, parts...)
}

// unknownResolve settles an unknown outcome.
type unknownResolve struct {
	resolveFlags
}

// Run settles the operation.
func (c *unknownResolve) Run(ends interrupts, out io.Writer) error {
	return c.resolve(ends, out, false)
}

// unknownRetry lets the poller ask about an operation now.
type unknownRetry struct {
	retryFlags
}

// Run makes the operation due.
func (c *unknownRetry) Run(ends interrupts, out io.Writer) error {
	return c.retry(ends, out, false)
}

// retryFlags are the flags of commands that let the poller ask now.
type retryFlags struct {
	refFlags
	storeFlags
	secretFlags
	actFlags
	attemptFlags
}

// retry makes an unknown operation due.
func (c *retryFlags) retry(ends interrupts, out io.Writer, dead bool) error {
	return c.acting(ends, &c.secretFlags, &c.actFlags, out, func(ctx context.Context, s *operate.Session) ([]act, error) {
		rec, err := s.Record(ctx, c.ref())
		if err == nil {
			err = c.attemptFlags.check(&rec)
		}
		if err == nil {
			err = checkUnknown(&rec, dead)
		}
		if err != nil {
			return nil, err
		}
		return []act{retryNow(s, &rec)}, nil
	})
}

// retryNow returns the act that makes an unknown operation due.
func retryNow(s *operate.Session, rec *store.Record) act {
	a := onRecord(rec, "retry now", "its resolver is asked at once, or its step looks what became of its call, "+
		"with all attempts before it; until then a retry of the client is refused")
	a.do = func(ctx context.Context, by reconcile.By) error {
		return s.Operator.RetryNow(ctx, by, store.Claim{ID: rec.ID, Attempt: rec.Attempt})
	}
	return a
}

// checkUnknown refuses an operation that is neither unknown nor a phased operation in progress. Whether a phased one
// has lost its owner is for the store to decide, by its own clock.
func checkUnknown(rec *store.Record, dead bool) error {
	lost := rec.State == store.StateInProgress && rec.OnLost == store.LostResume
	switch {
	case rec.State != store.StateUnknown && !lost:
		return operate.Refused("nothing was done: its outcome is not unknown, it is %s at attempt %d", rec.State, rec.Attempt)
	case dead && !rec.DeadLetter:
		return operate.Refused("nothing was done: it is no dead letter, the other system is still being asked; " +
			"use unknown instead of dead")
	}
	return nil
}

// unknownStop makes an operation unknown whose owner is lost.
type unknownStop struct {
	retryFlags
}

// Run makes the operation unknown.
func (c *unknownStop) Run(ends interrupts, out io.Writer) error {
	return c.acting(ends, &c.secretFlags, &c.actFlags, out, func(ctx context.Context, s *operate.Session) ([]act, error) {
		rec, err := s.Record(ctx, c.ref())
		if err == nil {
			err = c.attemptFlags.check(&rec)
		}
		if err != nil {
			return nil, err
		}
		if rec.State != store.StateInProgress || rec.OnLost != store.LostResume {
			return nil, operate.Refused("nothing was done: only a phased operation in progress that has lost its owner "+
				"can be stopped; this one is %s", rec.State)
		}
		a := onRecord(&rec, "stop", "its owner and all resumers are refused from now on, and it is unknown at a new attempt",
			"what a stopped process has already sent cannot be called back")
		a.do = func(ctx context.Context, by reconcile.By) error {
			_, err := s.Operator.Stop(ctx, by, store.Claim{ID: rec.ID, Attempt: rec.Attempt})
			return err
		}
		return []act{a}, nil
	})
}
