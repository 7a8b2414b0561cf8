package client

import (
	"context"
	"net/http"
	"time"
)

// Observer receives the events of a [Transport], for metrics, traces and logs. It
// is called while the request is processed, so it must be quick and must not
// block. Keys are almost secrets: an observer that records them should hash them.
type Observer interface {
	ObserveClient(ctx context.Context, e Event)
}

// ObserverFunc is a function that is an [Observer].
type ObserverFunc func(ctx context.Context, e Event)

// ObserveClient calls f.
func (f ObserverFunc) ObserveClient(ctx context.Context, e Event) { f(ctx, e) }

// Event is an [AttemptEvent], a [WaitEvent] or a [FinishedEvent].
// More kinds may be added: an observer must ignore unknown kinds.
type Event any

type (
	// AttemptEvent is an attempt that has ended, with a status or with an error. Attempt counts from 1.
	// Polled means that the request asked for the status of the operation and was not the operation itself.
	AttemptEvent struct {
		Request *http.Request
		Key     string
		Attempt int
		Polled  bool
		Status  int
		Err     error
		Elapsed time.Duration
	}

	// WaitEvent is a wait that begins before the operation, or the request for its status, is sent
	// again. Reason is the code of the service's problem, or "status 503" and the like, or "error".
	WaitEvent struct {
		Request *http.Request
		Key     string
		Attempt int
		Reason  string
		Wait    time.Duration
	}

	// FinishedEvent is the end of an operation as the caller sees it. Elapsed covers all of its attempts.
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
