package phase

import (
	"context"
	"errors"
	"fmt"
)

// Step is one step of an operation that carries data of type T. Make it with [Local] or [External].
type Step[T any] struct {
	name   string
	local  func(ctx context.Context, data *T) error
	call   func(ctx context.Context, key string, data *T) error
	lookUp func(ctx context.Context, key string, data *T) error
	repeat bool
}

// Local returns a step that only works in the database. It takes the transaction from its context, with [onceward.Tx]
// or the store's own function, and may change the data. An error undoes both; the step is then retried later, unless
// the error is made by [Finish]. It may be called several times before it is committed once, so it must have no other
// effects.
func Local[T any](name string, do func(ctx context.Context, data *T) error) Step[T] {
	return Step[T]{name: name, local: do}
}

// External returns a step that makes one call to another system. The key is derived from the operation and the name of
// the step, and is the same in every attempt: send it, so that the other system can recognise a repeated call. Put the
// result of the call into the data, and the id that the other system gave to the effect into the record, by
// [onceward.Operation.SetProviderID]: the record is found by the id of its last step, and shows the ids of all steps.
//
// An error of [Finish] ends the operation with an answer, such as for a card that was declined. An error made by
// [onceward.NotExecuted] means that this call certainly did nothing; it is made again later. If an earlier call is in
// doubt, it stays so. After any other error it is not known whether the call was made, as after a crash: see
// [Step.Repeat] and [Step.LookUp].
func External[T any](name string, call func(ctx context.Context, key string, data *T) error) Step[T] {
	return Step[T]{name: name, call: call}
}

// Repeat declares that the other system recognises the key: a call that may have been made is made again.
func (s Step[T]) Repeat() Step[T] {
	s.repeat = true
	return s
}

// LookUp sets how to find out whether a call was made: look queries the other system by the key and fills in the data
// as the call would have, or returns [ErrNotFound]. A call that is not found may still be on its way: only with
// [Step.Repeat] is it then made again, otherwise the outcome is unknown.
func (s Step[T]) LookUp(look func(ctx context.Context, key string, data *T) error) Step[T] {
	s.lookUp = look
	return s
}

// ErrNotFound is returned by the function of [Step.LookUp] when the other system does not know the key.
var ErrNotFound = errors.New("phase: not found")

func (s *Step[T]) external() bool { return s.call != nil }

// check refuses a step that could not run.
func (s *Step[T]) check() error {
	switch {
	case s.name == "":
		return errors.New("phase: a step needs a name")
	case s.local == nil && s.call == nil:
		return fmt.Errorf("phase: step %q has no function", s.name)
	case s.local != nil && (s.repeat || s.lookUp != nil):
		return fmt.Errorf("phase: step %q is local: Repeat and LookUp are for external steps", s.name)
	default:
		return nil
	}
}
