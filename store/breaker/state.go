package breaker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/onceward/onceward/store"
)

// State is what a breaker does with calls.
type State uint8

// These are the states of a breaker.
const (
	// StateClosed lets all calls through.
	StateClosed State = iota
	// StateHalfOpen lets one call through at a time, to probe the store: if it succeeds the breaker is closed.
	StateHalfOpen
	// StateOpen lets no calls through.
	StateOpen
)

// String returns the name of the state as metrics show it.
func (s State) String() string {
	switch s {
	case StateClosed:
		return "closed"
	case StateHalfOpen:
		return "half_open"
	case StateOpen:
		return "open"
	default:
		return "invalid"
	}
}

func stateOf(s gobreaker.State) State {
	switch s {
	case gobreaker.StateClosed:
		return StateClosed
	case gobreaker.StateHalfOpen:
		return StateHalfOpen
	default:
		return StateOpen
	}
}

// ChangedEvent reports that a breaker has changed its state. Err is the reason why it opened; nil for other changes.
type ChangedEvent struct {
	From, To State
	Err      error
}

// BreakerStates returns the names of both states. Package telemetry recognises the event by this method, so that it
// does not depend on this package.
func (e ChangedEvent) BreakerStates() (from, to string) { return e.From.String(), e.To.String() }

// OpenError is returned for a call that was not made because the breaker is open. It wraps [store.ErrNotSent] and
// [store.ErrUnavailable].
type OpenError struct{ after time.Duration }

// Error describes when the store is called again.
func (e *OpenError) Error() string {
	return fmt.Sprintf("breaker: the store was not asked, because it failed before; the next try is in %s",
		e.after.Round(time.Millisecond))
}

// RetryAfter returns the time until the store may be called again.
func (e *OpenError) RetryAfter() time.Duration { return e.after }

// Unwrap returns [store.ErrNotSent].
func (e *OpenError) Unwrap() error { return store.ErrNotSent }

// probing is the time after which to retry while a probe is in progress.
const probing = time.Second

// open returns the error of a call that is not made.
func (s *Store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := time.Until(s.until)
	if left <= 0 {
		left = probing
	}
	return &OpenError{left}
}

// State returns what the breaker does with calls now.
func (s *Store) State() State {
	state := stateOf(s.circuit.State())
	s.tell()
	return state
}

// BreakerState returns the name of [Store.State]. Package telemetry recognises a breaker by this method.
func (s *Store) BreakerState() string { return s.State().String() }

// succeeded records the failure of a call, or nil. The circuit calls it under its lock, immediately before its state
// may change.
func (s *Store) succeeded(err error) bool {
	s.cause = err
	return err == nil
}

// changed records a change of state. It is reported after the circuit has released its lock, because an observer may
// call [Store.State].
func (s *Store) changed(_ string, from, to gobreaker.State) {
	e := ChangedEvent{From: stateOf(from), To: stateOf(to)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Time{}
	if e.To == StateOpen {
		e.Err = s.cause
		s.until = time.Now().Add(s.config.OpenFor)
	}
	s.changes = append(s.changes, e)
	s.news.Store(true)
}

// tell logs and reports the recorded changes.
func (s *Store) tell() {
	if !s.news.Load() {
		return
	}
	s.mu.Lock()
	changes := s.changes
	s.changes = nil
	s.news.Store(false)
	s.mu.Unlock()
	for _, e := range changes {
		ctx, level := context.Background(), slog.LevelInfo
		if e.To == StateOpen {
			level = slog.LevelError
		}
		s.config.Logger.Log(ctx, level, "onceward: the circuit breaker of the store has changed",
			"from", e.From.String(), "to", e.To.String(), "error", e.Err)
		if s.config.Observer != nil {
			s.config.Observer.Observe(ctx, e)
		}
	}
}

// Health returns a handler for a load balancer or a monitor: 503 while the breaker is open, with the time until the
// next probe, and 200 otherwise. It is also 200 while the breaker is half open, with that state in the body: the store
// is probed by a request, so requests must arrive.
func (s *Store) Health() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		state, code := s.State(), http.StatusOK
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		if state == StateOpen {
			code = http.StatusServiceUnavailable
			left := s.open().(*OpenError).after
			h.Set("Retry-After", strconv.Itoa(int(math.Ceil(left.Seconds()))))
		}
		w.WriteHeader(code)
		// A client that left has no use for the error.
		_ = json.NewEncoder(w).Encode(map[string]string{"breaker": state.String()})
	})
}
