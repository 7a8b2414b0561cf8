package main

import (
	"context"
	"errors"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/store"
)

// The exit codes, which docs/commands.md lists.
const (
	exitOK          = 0
	exitFailed      = 1 // anything else, and what a check has found
	exitUsage       = 2 // nothing was done: the command line cannot be meant, or this store cannot do it
	exitNotFound    = 3 // nothing was done: there is no such record or message
	exitRefused     = 4 // nothing was done: it is not as it was shown, or it was not confirmed
	exitUnavailable = 5 // the store cannot answer; an act may have been done all the same
	exitStale       = 6 // done, but a cache in front of the store may show the old answer for a while
	exitFindings    = 7 // the doctor has findings
	exitUnchecked   = 8 // the doctor has none, and could not check everything: what cannot be checked is not healthy
)

// exitCode returns the exit code for the class of an error.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errFindings):
		return exitFindings
	case errors.Is(err, errUnchecked):
		return exitUnchecked
	case errors.Is(err, operate.ErrUsage), errors.Is(err, doctor.ErrUsage), errors.Is(err, errors.ErrUnsupported):
		return exitUsage
	case errors.Is(err, store.ErrStale):
		return exitStale
	case errors.Is(err, store.ErrNotFound):
		return exitNotFound
	case errors.Is(err, operate.ErrRefused), errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrInvalidEvent):
		return exitRefused
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable
	default:
		return exitFailed
	}
}
