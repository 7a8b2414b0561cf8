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

// Local is a step that works in the database alone. It takes the transaction from its context, with [onceward.Tx] or
// the store's own function, and may change the data. An error undoes both; the step is then tried again later, unless
// the error is one of [Finish]. It may be called several times before it is committed once, so it has no other effects.
func Local[T any](name string, do func(ctx context.Context, data *T) error) Step[T] {
	return Step[T]{name: name, local: do}
}

// External is a step that makes one call to another system. The key is derived from the operation and the name of the
// step, and is the same in every attempt: it is sent along, for the other system to recognise a call that it has seen.
// What the call returned goes into the data, and the id that the other system gave to the effect to the record, by
// [onceward.Operation.SetProviderID]: the record is found by the id of its last step, and shows those of all.
//
// An error of [Finish] ends the operation with an answer, such as that of a card that was declined. One that was made
// by [onceward.NotExecuted] says that the call did nothing for certain; it is made again later. It says that of itself
// alone: where an earlier call is in doubt, it stays so. After any other error it is not known whether the call was
// made, as after a crash: see [Step.Repeat] and [Step.LookUp].
func External[T any](name string, call func(ctx context.Context, key string, data *T) error) Step[T] {
	return Step[T]{name: name, call: call}
}

// Repeat says that the other system recognises the key: a call of which it is not known whether it was made is made
// again.
func (s Step[T]) Repeat() Step[T] {
	s.repeat = true
	return s
}

// LookUp says how to find out whether a call was made: look asks the other system by the key and fills in the data as
// the call would have, or returns [ErrNotFound]. What is not found may still be on its way: only with [Step.Repeat] is
// the call then made again, else the outcome is unknown.
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
