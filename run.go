package onceward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// Worker is background work that runs beside the handlers: a janitor, a poller, a resumer, an outbox worker, a consumer
// of a broker, a server ([Guard.Server]).
type Worker interface {
	// Run works until the context ends, and returns nil when its current work has ended. An error that wraps
	// [ErrMisconfigured] means that the worker can never work; after any other error it may be started again.
	Run(ctx context.Context) error
}

// WorkerFunc is a function that is a [Worker].
type WorkerFunc func(ctx context.Context) error

// Run calls the function.
func (f WorkerFunc) Run(ctx context.Context) error { return f(ctx) }

// Run runs workers together until the context ends, then stops them in the reverse of the order given, each completely
// before the next, and returns nil. So put workers that other workers need, such as the janitor, first, and the server
// and the consumers, which bring new work, last:
//
//	err = onceward.Run(ctx, janitor, poller, outboxWorker, guard.Server(server, listener, 30*time.Second))
//
// A worker that returns before it is stopped, or panics, is logged and started again, after a growing pause. If its
// error wraps [ErrMisconfigured], all other workers are stopped and Run returns the error. Run's error also names
// workers that did not stop in time, and contains errors of workers while they stopped. [Runner] has other settings.
func Run(ctx context.Context, workers ...Worker) error { return Runner{}.Run(ctx, workers...) }

// Runner is [Run] with settings. The zero value is ready to use.
type Runner struct {
	// StopTimeout is how long each worker may take to stop. After that the worker is abandoned, and the next worker is
	// stopped. A worker with a method StopTimeout() time.Duration, such as servers and outbox workers, may take that
	// long if it is longer; for other workers StopTimeout should be longer than their own grace. Default: 1 min.
	StopTimeout time.Duration
	// Logger logs workers that end early and are started again. Default: [slog.Default].
	Logger *slog.Logger
}

const (
	defaultStopTimeout = time.Minute
	// These are the pauses before a worker is started again. After a run that was longer than the longest pause, the
	// pause is the shortest one again.
	minRestartBackoff = time.Second
	maxRestartBackoff = time.Minute
)

// Run runs workers as the function [Run] does.
func (r Runner) Run(ctx context.Context, workers ...Worker) error {
	if r.StopTimeout <= 0 {
		r.StopTimeout = defaultStopTimeout
	}
	if r.Logger == nil {
		r.Logger = slog.Default()
	}
	if err := checkWorkers(workers); err != nil {
		return err
	}
	failed := make(chan struct{}, len(workers))
	running := make([]*runningWorker, len(workers))
	for i, worker := range workers {
		running[i] = r.start(ctx, worker, workerName(workers, i), failed)
	}
	select {
	case <-ctx.Done():
	case <-failed:
	}
	var errs []error
	for _, worker := range slices.Backward(running) {
		errs = append(errs, worker.stop())
	}
	return errors.Join(errs...)
}

// checkWorkers returns an error for a worker that is nil, or that is given twice.
func checkWorkers(workers []Worker) error {
	seen := make(map[Worker]bool)
	for i, worker := range workers {
		if isNil(worker) {
			return fmt.Errorf("%w: worker %s is nil: was the error of its constructor dropped?",
				ErrMisconfigured, workerName(workers, i))
		}
		if reflect.ValueOf(worker).Kind() != reflect.Pointer {
			continue // equal values may be different workers
		}
		if seen[worker] {
			return fmt.Errorf("%w: worker %s was given twice", ErrMisconfigured, workerName(workers, i))
		}
		seen[worker] = true
	}
	return nil
}

// isNil reports whether an interface is nil, or contains a nil pointer or a nil function.
func isNil(v any) bool {
	value := reflect.ValueOf(v)
	kind := value.Kind()
	return v == nil || (kind == reflect.Pointer || kind == reflect.Func) && value.IsNil()
}

// workerName returns a worker's name in logs and errors.
func workerName(workers []Worker, i int) string {
	name := fmt.Sprintf("%T", workers[i])
	if s, ok := workers[i].(fmt.Stringer); ok && !reflect.ValueOf(s).IsZero() {
		name = s.String()
	}
	return fmt.Sprintf("%s (%d of %d)", name, i+1, len(workers))
}

// runningWorker is a worker that was started.
type runningWorker struct {
	Runner
	worker Worker
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // the result; valid after done is closed
}

// start starts a worker. Its context lasts until this worker is stopped, however long the workers before it take.
func (r Runner) start(ctx context.Context, worker Worker, name string, failed chan<- struct{}) *runningWorker {
	w := &runningWorker{Runner: r, worker: worker, name: name, done: make(chan struct{})}
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(w.done)
		if w.err = w.keep(ctx); ctx.Err() == nil {
			failed <- struct{}{}
		}
	}()
	return w
}

// stop stops a worker, and waits for it.
func (w *runningWorker) stop() error {
	w.cancel()
	timeout := w.StopTimeout
	if longer, ok := w.worker.(interface{ StopTimeout() time.Duration }); ok {
		timeout = max(timeout, longer.StopTimeout())
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-w.done:
		return w.err
	case <-timer.C:
		return fmt.Errorf("onceward: worker %s has not stopped within %s and was abandoned", w.name, timeout)
	}
}

// keep runs a worker repeatedly, until it is stopped or can never work. It returns the error at the end.
func (w *runningWorker) keep(ctx context.Context) error {
	for failures := 1; ; failures++ {
		began := time.Now()
		err := w.once(ctx)
		switch {
		case errors.Is(err, ErrMisconfigured), ctx.Err() != nil && err != nil && !onlyCanceled(err):
			return fmt.Errorf("onceward: worker %s: %w", w.name, err)
		case ctx.Err() != nil:
			return nil
		case time.Since(began) > maxRestartBackoff:
			failures = 1
		}
		pause := backoff.Jittered(minRestartBackoff, maxRestartBackoff, failures)
		w.Logger.ErrorContext(ctx, "onceward: a worker ended early and is started again",
			"worker", w.name, "error", err, "failures", failures, "pause", pause)
		if !backoff.Sleep(ctx, pause) {
			return nil
		}
	}
}

// once runs a worker until it returns. A panic, and the end of its goroutine, are errors too.
func (w *runningWorker) once(ctx context.Context) (err error) {
	err = errors.New("onceward: it ended its goroutine, see runtime.Goexit")
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("onceward: it panicked: %v\n%s", p, debug.Stack())
			}
		}()
		err = w.worker.Run(ctx)
	}()
	<-returned
	return err
}

// onlyCanceled reports whether an error only means that the context ended, as the error of a stopped worker may. It
// reports false if the error wraps any other error, except [store.ErrUnavailable], which is then a consequence.
func onlyCanceled(err error) bool {
	switch wrapped := err.(type) {
	case interface{ Unwrap() []error }:
		canceled := false
		for _, one := range wrapped.Unwrap() {
			if one == store.ErrUnavailable {
				continue
			}
			if !onlyCanceled(one) {
				return false
			}
			canceled = true
		}
		return canceled
	case interface{ Unwrap() error }:
		return onlyCanceled(wrapped.Unwrap())
	default:
		return errors.Is(err, context.Canceled)
	}
}
