package client

import (
	"context"
	"net/http"
	"time"
)

// Observer gets the events of a [Transport]: for metrics, traces and logs. It is called on the path of the
// request, so it must be quick and must not block. Keys are secrets of a kind: an observer that writes them down hashes
// them.
type Observer interface {
	ObserveClient(ctx context.Context, e Event)
}

// ObserverFunc is a function that is an [Observer].
type ObserverFunc func(ctx context.Context, e Event)

// ObserveClient calls f.
func (f ObserverFunc) ObserveClient(ctx context.Context, e Event) { f(ctx, e) }

// Event is an [AttemptEvent], a [WaitEvent] or a [FinishedEvent]. More kinds may come: an observer ignores what it does
// not know.
type Event any

type (
	// AttemptEvent is an attempt that has ended: with a status, or with an error. Attempt counts from 1. Polled says
	// that it was a question for the status of the operation, not the operation itself.
	AttemptEvent struct {
		Request *http.Request
		Key     string
		Attempt int
		Polled  bool
		Status  int
		Err     error
		Elapsed time.Duration
	}

	// WaitEvent is a wait that begins before the operation is sent again, or asked for. Reason is the code of the
	// service's problem, or "status 503" and the like, or "error".
	WaitEvent struct {
		Request *http.Request
		Key     string
		Attempt int
		Reason  string
		Wait    time.Duration
	}

	// FinishedEvent is the end of an operation as the caller sees it, with the time that all of its attempts took.
	FinishedEvent struct {
		Request  *http.Request
		Key      string
		Attempts int
		Outcome  Outcome
		Replayed bool
		Status   int
		Err      error
		Elapsed  time.Duration
	}
)
