package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

var errCard = errors.New("card declined")

// work is a function that knows how often it ran.
type work struct {
	runs int
	then func(ctx context.Context, op *onceward.Operation) ([]byte, error)
}

func (w *work) do(ctx context.Context) ([]byte, error) {
	w.runs++
	if w.then == nil {
		return fmt.Appendf(nil, "value %d", w.runs), nil
	}
	return w.then(ctx, onceward.FromContext(ctx))
}

func (w *work) wantRuns(t testing.TB, rule string, want int) {
	t.Helper()
	if w.runs != want {
		t.Errorf("%s: the function ran %d times, want %d", rule, w.runs, want)
	}
}

var someCall = onceward.Call{Scope: "queue", Key: "message-1", Operation: "charge", Payload: []byte("10 EUR")}

func stateOfCall(t testing.TB, s store.Store) store.State {
	t.Helper()
	rec, err := s.Get(context.Background(), store.ID{Scope: someCall.Scope, Key: someCall.Key})
	if err != nil {
		t.Fatal(err)
	}
	return rec.State
}

func TestDoRunsOnce(t *testing.T) {
	t.Parallel()
	store, w := memory.New(), new(work)
	guard := newGuard(t, store, func(c *onceward.Config) { c.Scope = nil })
	first, err := guard.Do(t.Context(), someCall, w.do, reserved)
	if err != nil || string(first.Value) != "value 1" || first.Replayed || first.Attempt == 0 {
		t.Errorf("E4: first: %+v, %v", first, err)
	}
	again, err := guard.Do(t.Context(), someCall, w.do, reserved)
	if err != nil || string(again.Value) != "value 1" || !again.Replayed || again.Attempt != 0 {
		t.Errorf("E4: again: %+v, %v", again, err)
	}
	if first.ExpiresAt.IsZero() || !again.ExpiresAt.Equal(first.ExpiresAt) {
		t.Errorf("section 6: it expires at %v, then at %v", first.ExpiresAt, again.ExpiresAt)
	}
	w.wantRuns(t, "E4", 1)
}

// TestDoKeepsItsOwnCopy: a call whose strings are views of memory that is reused, as in some frameworks, does not
// change.
func TestDoKeepsItsOwnCopy(t *testing.T) {
	t.Parallel()
	guard, w := newGuard(t, memory.New(), func(c *onceward.Config) { c.Scope = nil }), new(work)
	memory := []byte("queue message-1 charge")
	view := unsafe.String(&memory[0], len(memory))
	call := onceward.Call{Scope: view[:5], Key: view[6:15], Operation: view[16:], Payload: []byte("10 EUR")}
	for i, next := range []string{"queue message-1 charge", "queue message-2 charge", "stack message-1 refund"} {
		copy(memory, next)
		got, err := guard.Do(t.Context(), call, w.do, reserved)
		if want := fmt.Sprintf("value %d", i+1); err != nil || string(got.Value) != want || got.Replayed {
			t.Errorf("I9: %s: %+v, %v, want %s, executed now", next, got, err, want)
		}
	}
	copy(memory, "something else, later.")
	call = onceward.Call{Scope: "queue", Key: "message-1", Operation: "charge", Payload: call.Payload}
	if got, err := guard.Do(t.Context(), call, w.do, reserved); err != nil || !got.Replayed || string(got.Value) != "value 1" {
		t.Errorf("I3: the first again: %+v, %v", got, err)
	}
}

func TestDoSeesAnotherCall(t *testing.T) {
	t.Parallel()
	guard, w := newGuard(t, memory.New()), new(work)
	if _, err := guard.Do(t.Context(), someCall, w.do, reserved); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*onceward.Call){
		"payload":   func(c *onceward.Call) { c.Payload = []byte("11 EUR") },
		"operation": func(c *onceward.Call) { c.Operation = "refund" },
		"neither":   func(c *onceward.Call) { c.Operation, c.Payload = "charge1", []byte("0 EUR") },
	} {
		call := someCall
		change(&call)
		if _, err := guard.Do(t.Context(), call, w.do, reserved); !errors.Is(err, onceward.ErrMismatch) {
			t.Errorf("F1: another %s: %v, want ErrMismatch", name, err)
		}
	}
	w.wantRuns(t, "I8", 1)
	for name, change := range map[string]func(*onceward.Call){
		"scope": func(c *onceward.Call) { c.Scope = "other" }, "key": func(c *onceward.Call) { c.Key = "message-2" },
	} {
		call := someCall
		change(&call)
		if result, err := guard.Do(t.Context(), call, w.do, reserved); err != nil || result.Replayed {
			t.Errorf("section 1: another %s: %+v, %v; want an execution", name, result, err)
		}
	}
	w.wantRuns(t, "section 1", 3)
}

func TestDoOutcomes(t *testing.T) {
	t.Parallel()
	returns := func(err error) func(context.Context, *onceward.Operation) ([]byte, error) {
		return func(context.Context, *onceward.Operation) ([]byte, error) { return []byte("half"), err }
	}
	says := func(f func(*onceward.Operation), err error) func(context.Context, *onceward.Operation) ([]byte, error) {
		return func(_ context.Context, op *onceward.Operation) ([]byte, error) { f(op); return nil, err }
	}
	overdue := func(ctx context.Context, _ *onceward.Operation) ([]byte, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	const (
		released = store.StateRetryable
		stored   = store.StateCompleted
		unknown  = store.StateUnknown
	)
	for name, test := range map[string]struct {
		then                  func(context.Context, *onceward.Operation) ([]byte, error)
		is                    error // what the error wraps in any case
		retry, store, unknown store.State
	}{
		"an error":                        {returns(errCard), errCard, released, stored, unknown},
		"not executed":                    {returns(onceward.NotExecuted(errCard)), errCard, released, released, released},
		"not executed, wrapped":           {returns(fmt.Errorf("x: %w", onceward.NotExecuted(errCard))), errCard, released, released, released},
		"outcome unknown":                 {returns(onceward.OutcomeUnknown(errCard)), errCard, unknown, unknown, unknown},
		"says not executed":               {says((*onceward.Operation).NotExecuted, nil), nil, released, released, released},
		"says not executed, and an error": {says((*onceward.Operation).NotExecuted, errCard), errCard, released, released, released},
		"says unknown":                    {says((*onceward.Operation).Unknown, nil), store.ErrOutcomeUnknown, unknown, unknown, unknown},
		"says unknown, and an error":      {says((*onceward.Operation).Unknown, errCard), errCard, unknown, unknown, unknown},
		"past its deadline":               {overdue, store.ErrDeadline, released, stored, unknown},
	} {
		for policy, want := range map[onceward.Failure]store.State{
			onceward.FailureRetry: test.retry, onceward.FailureStore: test.store, onceward.FailureUnknown: test.unknown,
		} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s, w := memory.New(), &work{then: test.then}
					guard := newGuard(t, s)
					result, err := guard.Do(t.Context(), someCall, w.do, onceward.Reserved(policy))
					if err == nil || test.is != nil && !errors.Is(err, test.is) {
						t.Errorf("E5: the error is %v, want one that wraps %v", err, test.is)
					}
					if errors.Is(err, store.ErrOutcomeUnknown) != (want == unknown) {
						t.Errorf("E5: the error is %v, the record is to be %s", err, want)
					}
					if result.Value != nil {
						t.Errorf("E5: a value beside an error: %q", result.Value)
					}
					if got := stateOfCall(t, s); got != want {
						t.Errorf("E5: the record is %s, want %s", got, want)
					}
					w.then = nil
					checkRetryOfDo(t, guard, w, policy, want, err)
				})
			})
		}
	}
}

// checkRetryOfDo calls again, with a function that succeeds.
func checkRetryOfDo(t *testing.T, guard *onceward.Guard, w *work, policy onceward.Failure, state store.State,
	first error,
) {
	t.Helper()
	again, err := guard.Do(t.Context(), someCall, w.do, onceward.Reserved(policy))
	switch state {
	case store.StateRetryable:
		if err != nil || string(again.Value) != "value 2" {
			t.Errorf("E5: released, but again: %+v, %v", again, err)
		}
		w.wantRuns(t, "E5", 2)
	case store.StateUnknown:
		if !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("E5: unknown, but again: %v", err)
		}
		w.wantRuns(t, "E5", 1)
	case store.StateCompleted:
		var failure *onceward.StoredFailureError
		if !errors.As(err, &failure) || !errors.Is(err, onceward.ErrStoredFailure) ||
			failure.Message != first.Error() || !again.Replayed {
			t.Errorf("E5: stored, but again: %+v, %v; want the failure %q", again, err, first)
		}
		w.wantRuns(t, "E5", 1)
	}
}

func TestDoAndPanics(t *testing.T) {
	t.Parallel()
	for policy, want := range map[onceward.Failure]store.State{
		onceward.FailureRetry: store.StateRetryable, onceward.FailureStore: store.StateCompleted, onceward.FailureUnknown: store.StateUnknown,
	} {
		store := memory.New()
		w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) { panic("the function's panic") }}
		guard := newGuard(t, store)
		got := panicOf(func() { guard.Do(t.Context(), someCall, w.do, onceward.Reserved(policy)) })
		if got != "the function's panic" {
			t.Errorf("E8: the panic that went on is %v", got)
		}
		if state := stateOfCall(t, store); state != want {
			t.Errorf("E8: after a panic the record is %s, want %s", state, want)
		}
	}
}

func TestDoInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		guard := newGuard(t, memory.New())
		w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) {
			time.Sleep(10 * time.Second)
			return []byte("slow"), nil
		}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := guard.Do(t.Context(), someCall, w.do, reserved); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		var inProgress *onceward.InProgressError
		_, err := guard.Do(t.Context(), someCall, w.do, reserved)
		if !errors.Is(err, onceward.ErrInProgress) || !errors.As(err, &inProgress) || inProgress.Attempt == 0 ||
			inProgress.RetryAfter < time.Second {
			t.Errorf("E4: a duplicate in flight: %v", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errCard) })
		if _, err := guard.Do(ctx, someCall, w.do, reserved, onceward.InFlightWait(time.Minute)); err != errCard {
			t.Errorf("S9: a caller that left while it waited: %v, want the cause", err)
		}
		waited, err := guard.Do(t.Context(), someCall, w.do, reserved, onceward.InFlightWait(time.Minute))
		if err != nil || string(waited.Value) != "slow" || !waited.Replayed {
			t.Errorf("section 6: a duplicate that waited: %+v, %v", waited, err)
		}
		<-done
		w.wantRuns(t, "S1", 1)
	})
}

func TestDoIsNotCancelledByItsCaller(t *testing.T) {
	t.Parallel()
	type callerKey struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), callerKey{}, "value"))
	guard := newGuard(t, memory.New())
	w := &work{then: func(ctx context.Context, _ *onceward.Operation) ([]byte, error) {
		cancel()
		if ctx.Err() != nil || ctx.Value(callerKey{}) != "value" {
			t.Errorf("E6: in the function: %v, value %v", ctx.Err(), ctx.Value(callerKey{}))
		}
		return []byte("done"), nil
	}}
	if result, err := guard.Do(ctx, someCall, w.do, reserved); err != nil || string(result.Value) != "done" {
		t.Errorf("E6: %+v, %v", result, err)
	}
	other := someCall
	other.Key = "message-2"
	if _, err := guard.Do(ctx, other, w.do, reserved); err != context.Canceled {
		t.Errorf("S9: a caller that has left: %v, want context.Canceled", err)
	}
	w.wantRuns(t, "S9", 1)
}

func TestDoWithATooLargeValue(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	large := strings.Repeat("x", 101)
	w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) { return []byte(large), nil }}
	options := []onceward.Option{reserved, onceward.ResponseLimit(100)}
	first, err := guard.Do(t.Context(), someCall, w.do, options...)
	if err != nil || string(first.Value) != large {
		t.Errorf("A4: the caller that executed gets %d bytes, %v", len(first.Value), err)
	}
	if again, err := guard.Do(t.Context(), someCall, w.do, options...); !errors.Is(err, onceward.ErrNotStored) ||
		again.Value != nil {
		t.Errorf("A4: again: %+v, %v; want ErrNotStored", again, err)
	}
	w.wantRuns(t, "A4: never executed again", 1)
}

func TestDoWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	s, w := newFaultyStore(), new(work)
	guard := newGuard(t, s, tryOnce)
	s.reserve = refusingReserve(s)
	if _, err := guard.Do(t.Context(), someCall, w.do, reserved); !errors.Is(err, onceward.ErrRefused) {
		t.Errorf("S9: new keys refused: %v", err)
	}
	s.reserve = func(context.Context, *store.Reservation) (store.Verdict, error) {
		return store.Verdict{}, &store.UnreadableError{Version: 9}
	}
	var unreadable *store.UnreadableError
	if _, err := guard.Do(t.Context(), someCall, w.do, reserved); !errors.Is(err, store.ErrUnreadable) ||
		!errors.As(err, &unreadable) {
		t.Errorf("S8: an unreadable record: %v", err)
	}
	w.wantRuns(t, "L2", 0)
	s.reserve = nil
	s.complete = brokenComplete
	if _, err := guard.Do(t.Context(), someCall, w.do, reserved); !errors.Is(err, store.ErrOutcomeUnknown) ||
		!errors.Is(err, store.ErrUnavailable) {
		t.Errorf("E7: a value that could not be stored: %v", err)
	}
	w.wantRuns(t, "E7", 1)
}

func TestDoWhenTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	s, w := &scriptedTransactor{Store: memory.New(), failure: store.ErrWorkRefused}, new(work)
	_, err := newGuard(t, s).Do(t.Context(), someCall, w.do, onceward.Transactional())
	if !errors.Is(err, store.ErrWorkRefused) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("E1: %v, want ErrWorkRefused alone: it does not help to wait", err)
	}
	w.wantRuns(t, "E1", 1)
}

func TestDoWhenTheStoreIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, w := newFaultyStore(), new(work)
		s.reserve = brokenReserve
		_, err := newGuard(t, s).Do(t.Context(), someCall, w.do, reserved)
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("L2: %v, want ErrUnavailable", err)
		}
		w.wantRuns(t, "L2", 0)
		time.Sleep(time.Minute) // the search for an orphan ends
	})
}

func TestCallsThatAreRefused(t *testing.T) {
	t.Parallel()
	store, w := memory.New(), new(work)
	guard := newGuard(t, store)
	for name, test := range map[string]struct {
		call    onceward.Call
		options []onceward.Option
	}{
		"no key":            {onceward.Call{Operation: "charge"}, []onceward.Option{reserved}},
		"a key too long":    {onceward.Call{Operation: "charge", Key: strings.Repeat("k", 256)}, []onceward.Option{reserved}},
		"no operation":      {onceward.Call{Key: "k"}, []onceward.Option{reserved}},
		"no mode":           {someCall, nil},
		"no transactions":   {someCall, []onceward.Option{onceward.Transactional()}},
		"no word on errors": {someCall, []onceward.Option{onceward.Reserved(0)}},
	} {
		if _, err := guard.Do(t.Context(), test.call, w.do, test.options...); err == nil {
			t.Errorf("E4: a call with %s was made", name)
		}
	}
	w.wantRuns(t, "E4", 0)
	wantNothingStored(t, "E4", store)
}

func TestMarkingNoError(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]func(error) error{
		"NotExecuted": onceward.NotExecuted, "OutcomeUnknown": onceward.OutcomeUnknown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := mark(nil); err != nil {
				t.Errorf("E4: %s(nil) = %v, want nil", name, err)
			}
			s := memory.New()
			w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) { return []byte("done"), mark(nil) }}
			got, err := newGuard(t, s).Do(t.Context(), someCall, w.do, reserved)
			if err != nil || string(got.Value) != "done" {
				t.Errorf("E4: got %q, %v; want the value", got.Value, err)
			}
			if state := stateOfCall(t, s); state != store.StateCompleted {
				t.Errorf("E4: the record is %s, want completed", state)
			}
		})
	}
}

// TestDoSharesNoMemory: neither the function nor a caller can change what is stored.
func TestDoSharesNoMemory(t *testing.T) {
	t.Parallel()
	own := []byte("the value")
	w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) { return own, nil }}
	guard := newGuard(t, memory.New())
	for range 3 {
		got, err := guard.Do(t.Context(), someCall, w.do, reserved)
		if err != nil || string(got.Value) != "the value" {
			t.Errorf("E4: got %q, %v; want what the function returned", got.Value, err)
		}
		copy(own, "changed..")
		copy(got.Value, "spoiled..")
	}
	w.wantRuns(t, "E4", 1)
}

func TestErrorsSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		is   error
		says []string
	}{
		{&store.FencedError{Op: "complete", Attempt: 7, Current: 9, State: store.StateUnknown}, store.ErrFenced, []string{"complete", "7", "9", "unknown"}},
		{&store.FencedError{Op: "extend", Attempt: 7}, store.ErrFenced, []string{"extend", "7", "no record"}},
		{&store.UnreadableError{Version: 3, Reason: "it is cut off"}, store.ErrUnreadable, []string{"3", "cut off"}},
		{&onceward.InProgressError{RetryAfter: time.Second}, onceward.ErrInProgress, []string{"in progress", "1s"}},
		{&onceward.StoredFailureError{Message: "declined"}, onceward.ErrStoredFailure, []string{"declined"}},
	} {
		if !errors.Is(test.err, test.is) || errors.Is(test.err, onceward.ErrMismatch) {
			t.Errorf("%v is not what it is, or is everything", test.err)
		}
		for _, text := range test.says {
			if !strings.Contains(test.err.Error(), text) {
				t.Errorf("%q does not say %q", test.err, text)
			}
		}
	}
}
