package phase

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/strict"
	"github.com/onceward/onceward/store"
)

// ErrNotPhased is returned when a record is not one of a phased operation that has a recovery point.
var ErrNotPhased = errors.New("phase: the record has no recovery point of a phased operation")

// Progress is what a record says about a phased operation. It takes no code of the operation to read it, so that a
// person can be shown how far one has come whose code is gone.
type Progress struct {
	// Steps are the steps in order, with what is known of each. A record of the first encoding names only those that
	// were reached.
	Steps []StepProgress
	// Step is the name of the current step: the one whose call is in doubt, or which is to be done next. It is empty if
	// all steps are done and only the answer is missing.
	Step string
	// InDoubt says that the call of the current step may have been made, and CalledBy is the attempt that meant to make
	// it.
	InDoubt  bool
	CalledBy int64
	// Attempts counts the attempts at the step that failed, and Lost those that took over there and were not heard of
	// again.
	Attempts, Lost int
	// Failure is what the current step last failed with, and LookUpFailure why the last look-up of its call learned
	// nothing: the latter says nothing of the call.
	Failure, LookUpFailure string
	// Via is http, or do for an operation that came by [Operation.Do]: its answer is a value with status 200.
	Via string
	// Version is that of the definition that wrote the record.
	Version int
	// Data is the carried data, as it is before the current step.
	Data json.RawMessage

	state envelope
}

// StepProgress is what is known of one step.
type StepProgress struct {
	Name  string
	State StepState
}

// StepState is how far a step has come.
type StepState uint8

// The states of a step.
const (
	// StepPending is a step that was not begun.
	StepPending StepState = iota
	// StepCurrent is the step that is next; if it was tried, it did nothing that counts.
	StepCurrent
	// StepInDoubt is the current step if its call may have been made.
	StepInDoubt
	// StepDone is a step that is done.
	StepDone
)

var stepStates = [...]string{"pending", "current", "in doubt", "done"}

// String returns the state in words.
func (s StepState) String() string {
	if int(s) < len(stepStates) {
		return stepStates[s]
	}
	return "invalid"
}

// Inspect reads how far a phased operation has come. The record must be whole, as [store.Store.Get] returns it:
// lists leave out what it carries. The error is [ErrNotPhased] if the record is not one of this package, and another
// one if it was written by a version of it that this program cannot read.
func Inspect(rec *store.Record) (*Progress, error) {
	if rec.OnLost != store.LostResume || rec.Point == "" {
		return nil, ErrNotPhased
	}
	e, err := parseEnvelope(rec.Data)
	if err != nil && (e.Version == 0 || e.Via == "") {
		return nil, fmt.Errorf("%w: %w", ErrNotPhased, err)
	}
	if err != nil {
		return nil, err
	}
	p := &Progress{
		Step: e.current(), InDoubt: e.Intent != "", CalledBy: e.By, Attempts: e.Attempts, Lost: e.Lost,
		Failure: e.Failure, LookUpFailure: e.LookUpFailure, Via: e.Via, Version: e.Defined, Data: e.Data, state: e,
	}
	names := e.Steps
	if len(names) == 0 {
		names = e.reached()
	}
	for i, name := range names {
		p.Steps = append(p.Steps, StepProgress{Name: name, State: e.stateOf(i)})
	}
	return p, nil
}

// stateOf is how far the step of this number has come.
func (e *envelope) stateOf(i int) StepState {
	switch {
	case i < len(e.Done):
		return StepDone
	case i > len(e.Done):
		return StepPending
	case e.Intent != "":
		return StepInDoubt
	default:
		return StepCurrent
	}
}

// StepResult is what became of a step.
type StepResult uint8

// The results of a step.
const (
	// ResultDone says that the step took effect: the operation goes on behind it.
	ResultDone StepResult = iota + 1
	// ResultNotExecuted says that the step did nothing, and that no call of it is on its way: it is done when the
	// operation goes on.
	ResultNotExecuted
	// ResultRetry says nothing about the step, but that it is worth another look: of a call that is in doubt the
	// definition says how to find out, or the fault that kept the step from succeeding is mended. Its attempts count
	// from the beginning.
	ResultRetry
)

var stepResults = [...]string{"none", "done", "not executed", "to be tried again"}

// String returns the result in words.
func (r StepResult) String() string {
	if int(r) < len(stepResults) {
		return stepResults[r]
	}
	return "invalid"
}

// StepOutcome is what was learned, from outside, of the current step.
type StepOutcome struct {
	// Step is the name of the step: an operation that has come to another one is not changed. It is empty for one whose
	// steps are all done.
	Step   string
	Result StepResult
	// Data is the carried data with which the operation goes on, all of it: for a step that is done, as it is behind
	// the step. With [ResultRetry] it mends data that no program can read. Nil leaves it as it is.
	Data json.RawMessage
	// ProviderID is the id that the provider gave to the effect; empty leaves what was known before.
	ProviderID string

	// typed is set by a definition, which has written the data as its version does.
	typed *definedAs
	err   error
}

type definedAs struct {
	version, limit int
	steps          []string
}

// Checkpoint is where the operation goes on after an outcome: hand it to [store.Reconciler.ResolveStep], for the
// attempt whose record this is the progress of.
func (p *Progress) Checkpoint(o StepOutcome) (store.Checkpoint, error) {
	next, err := p.after(&o)
	if err != nil {
		return store.Checkpoint{}, err
	}
	limit := len(p.Data) + defaultMaxData
	next.Version = envelopeVersion
	if o.typed != nil {
		next.Defined, next.Steps, limit = o.typed.version, o.typed.steps, o.typed.limit
	}
	b, err := next.encode(limit)
	return store.Checkpoint{Point: next.point(), Data: b, ProviderID: o.ProviderID}, err
}

// after is the state behind an outcome.
func (p *Progress) after(o *StepOutcome) (envelope, error) {
	data := p.Data
	if o.Data != nil {
		data = o.Data
	}
	next := p.state
	next.Data = data
	switch {
	case o.err != nil:
		return next, o.err
	case o.Step != p.Step:
		return next, fmt.Errorf("phase: the outcome is about step %q, but the current step is %q", o.Step, p.Step)
	case o.Result == ResultDone && p.Step == "":
		return next, errors.New("phase: all steps that the record names are done")
	case !json.Valid(data):
		return next, errors.New("phase: the carried data must be JSON")
	}
	mends := o.typed != nil || o.Result == ResultRetry
	if field := strict.Missing(p.Data, data); field != "" && !mends {
		return next, fmt.Errorf("phase: the data lacks the field %q: give all of it, not only what the step changed", field)
	}
	switch o.Result {
	case ResultDone:
		return next.finished(p.Step, data), nil
	case ResultNotExecuted:
		return next.withdrawn().fresh(), nil
	case ResultRetry:
		return next.fresh(), nil
	default:
		return next, fmt.Errorf("phase: the outcome of step %q says nothing: set its Result", o.Step)
	}
}

// ErrNotInDoubt is returned when no call of an operation is in doubt: nothing is to be asked of the other system.
var ErrNotInDoubt = errors.New("phase: no call of the operation is in doubt")

// Doubt is a call of which it is not known whether it was made: for resolvers, which ask the other system.
type Doubt[T any] struct {
	// Step is the name of the step.
	Step string
	// Key is what the call sent along.
	Key string
	// Data is the carried data as it was before the call, to be filled in as the call would have.
	Data *T

	typed definedAs
}

// InDoubt returns the call of a record that is in doubt, or [ErrNotInDoubt]. A record that another version of the
// program has stored is for its resolvers: the error is a [*ChangedError]. The guard, which is that of the operation,
// knows what key the call sent along.
func (o *Operation[T]) InDoubt(guard *onceward.Guard, rec *store.Record) (*Doubt[T], error) {
	if rec.Operation != o.Name {
		return nil, fmt.Errorf("phase: the record is one of %q, not of %q", rec.Operation, o.Name)
	}
	if _, err := Inspect(rec); errors.Is(err, ErrNotPhased) {
		return nil, err
	}
	e, err := o.read(rec.Data)
	if err != nil {
		return nil, err
	}
	if e.Intent == "" {
		return nil, ErrNotInDoubt
	}
	data, err := decode[T](e.Data, false)
	if err != nil {
		return nil, err
	}
	key, err := guard.DownstreamKey(rec, e.Intent)
	if err != nil {
		return nil, err
	}
	typed := definedAs{version: o.Version, limit: o.MaxData, steps: o.names}
	return &Doubt[T]{Step: e.Intent, Key: key, Data: data, typed: typed}, nil
}

// Done says that the call was made, with Data as it is now. The provider's id may be empty.
func (d *Doubt[T]) Done(providerID string) StepOutcome {
	data, err := json.Marshal(d.Data)
	if err != nil {
		err = fmt.Errorf("phase: the data cannot be stored: %w", err)
	}
	return StepOutcome{Step: d.Step, Result: ResultDone, Data: data, ProviderID: providerID, typed: &d.typed, err: err}
}
