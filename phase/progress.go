package phase

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/strict"
	"github.com/onceward/onceward/store"
)

// ErrNotPhased is returned for a record without a recovery point of a phased operation.
var ErrNotPhased = errors.New("phase: the record has no recovery point of a phased operation")

// Progress is the state of a phased operation in its record. It can be read without the operation's code, so that a
// person can see how far an operation has come even if its code is gone.
type Progress struct {
	// Steps are the steps in order, with their states. A record of the first encoding names only the steps that were
	// reached.
	Steps []StepProgress
	// Step is the name of the current step: the step whose call is in doubt, or the next step. It is empty if all steps
	// are done and only the answer is missing.
	Step string
	// InDoubt means that the call of the current step may have been made, and CalledBy is the attempt that intended to
	// make it.
	InDoubt  bool
	CalledBy int64
	// Attempts is the number of failed attempts at the step, and Lost the number of attempts that took over there and
	// ended without a result.
	Attempts, Lost int
	// Failure is the last error of the current step, and LookUpFailure the last error of the look-up of its call, which
	// proves nothing about the call.
	Failure, LookUpFailure string
	// Via is http, or do for an operation started by [Operation.Do]: its answer is a value with status 200.
	Via string
	// Version is the version of the definition that wrote the record.
	Version int
	// Data is the carried data before the current step.
	Data json.RawMessage

	state envelope
}

// StepProgress is the state of one step.
type StepProgress struct {
	Name  string
	State StepState
	// ProviderID is the id that the provider gave to the effect of the step; empty if it is not known.
	ProviderID string
}

// StepState is how far a step has come.
type StepState uint8

// These are the states of a step.
const (
	// StepPending is a step that was not begun.
	StepPending StepState = iota
	// StepCurrent is the next step; if it was tried, it had no effect that counts.
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

// Inspect reads how far a phased operation has come. The record must be complete, as [store.Store.Get] returns it:
// lists leave out the data. The error is [ErrNotPhased] if the record was not written by this package, and another
// error if this program cannot read the version of the record.
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
		for _, known := range e.Provided {
			if known.Step == name {
				p.Steps[i].ProviderID = known.ID
			}
		}
	}
	return p, nil
}

// stateOf returns the state of the step with this number.
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

// StepResult is the outcome of a step.
type StepResult uint8

// These are the results of a step.
const (
	// ResultDone means that the step took effect: the operation continues after it.
	ResultDone StepResult = iota + 1
	// ResultNotExecuted means that the step did nothing, and that no call of it is on its way: it runs when the operation
	// continues.
	ResultNotExecuted
	// ResultRetry leaves the outcome open, and retries: the definition can now find out about a call in doubt, or the
	// fault that made the step fail is fixed. The count of its attempts starts again.
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

// StepOutcome is the outcome of the current step, as found from outside.
type StepOutcome struct {
	// Step is the name of the step: an operation that is at another step is not changed. It is empty for an operation
	// whose steps are all done.
	Step   string
	Result StepResult
	// Data is the complete carried data with which the operation continues: for a step that is done, the data after the
	// step. With [ResultRetry] it can repair data that no program can read. Nil leaves it unchanged.
	Data json.RawMessage
	// ProviderID is the id that the provider gave to the effect; empty keeps the earlier id.
	ProviderID string

	// typed is set by a definition, which has encoded the data in its own version.
	typed *definedAs
	err   error
}

type definedAs struct {
	version, limit int
	steps          []string
}

// Checkpoint returns the recovery point at which the operation continues after an outcome: pass it to
// [store.Reconciler.ResolveStep], for the attempt whose record this progress was read from.
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

// after returns the state after an outcome.
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
	repairs := o.typed != nil || o.Result == ResultRetry
	if field := strict.Missing(p.Data, data); field != "" && !repairs {
		return next, fmt.Errorf("phase: the data lacks the field %q: give all of it, not only what the step changed", field)
	}
	switch o.Result {
	case ResultDone:
		return next.finished(p.Step, data).naming(p.Step, o.ProviderID), nil
	case ResultNotExecuted:
		return next.withdrawn().fresh(), nil
	case ResultRetry:
		return next.fresh(), nil
	default:
		return next, fmt.Errorf("phase: the outcome of step %q has no Result: set it", o.Step)
	}
}

// ErrNotInDoubt is returned when no call of an operation is in doubt: there is nothing to query.
var ErrNotInDoubt = errors.New("phase: no call of the operation is in doubt")

// Doubt is a call that may or may not have been made. It is for resolvers, which query the other system.
type Doubt[T any] struct {
	// Step is the name of the step.
	Step string
	// Key is the key that the call sent.
	Key string
	// Data is the carried data before the call, to be filled in as the call would have done.
	Data *T

	typed definedAs
}

// InDoubt returns the call of a record that is in doubt, or [ErrNotInDoubt]. For a record that another version of the
// program has stored the error is a [*ChangedError]: that version's resolvers handle it. The guard must be the
// operation's; it derives the key of the call.
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

// Done returns the outcome of a call that was made, with the current Data. The provider's id may be empty.
func (d *Doubt[T]) Done(providerID string) StepOutcome {
	data, err := json.Marshal(d.Data)
	if err != nil {
		err = fmt.Errorf("phase: the data cannot be stored: %w", err)
	}
	return StepOutcome{Step: d.Step, Result: ResultDone, Data: data, ProviderID: providerID, typed: &d.typed, err: err}
}
