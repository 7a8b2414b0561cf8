package phase

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/internal/strict"
)

// envelope is the state that a record passes from attempt to attempt.
type envelope struct {
	// Version is the version of this encoding.
	Version int `json:"v"`
	// Via is how the operation was started, and so how its answer is stored.
	Via string `json:"via"`
	// Defined is the version of the definition that wrote this, and Steps are the names of all its steps: a node with
	// another version detects by them that it must not continue. The first encoding had neither.
	Defined int      `json:"defined,omitempty"`
	Steps   []string `json:"steps,omitempty"`
	// Done are the names of the finished steps, in order: they must be the first of the definition.
	Done []string `json:"done,omitempty"`
	// Intent is the name of the step that was about to make its call, and By the token of its attempt.
	Intent string `json:"intent,omitempty"`
	By     int64  `json:"by,omitempty"`
	// Attempts is the number of attempts at the step that did not succeed.
	Attempts int `json:"attempts,omitempty"`
	// Lost is the number of attempts that took over at this step and ended without a result.
	Lost int `json:"lost,omitempty"`
	// Failure is the last error of the step, and LookUpFailure the last error of the look-up of its call.
	Failure       string `json:"failure,omitempty"`
	LookUpFailure string `json:"look_up_failure,omitempty"`
	// Provided are the ids that providers gave to the effects of steps, in order.
	Provided []provided `json:"provided,omitempty"`
	// Data is the carried data.
	Data json.RawMessage `json:"data"`
}

// provided is the id that a provider gave to the effect of a step.
type provided struct {
	Step string `json:"step"`
	ID   string `json:"id"`
}

// naming returns the state with the provider's id for the effect of a step, unless the id is empty, or equal to the
// last one.
func (e envelope) naming(step, id string) envelope {
	if last := len(e.Provided) - 1; id != "" && (last < 0 || e.Provided[last].ID != id) {
		e.Provided = append(slices.Clone(e.Provided), provided{step, id})
	}
	return e
}

// envelopeVersion is raised with every change of the encoding: a node that does not know it leaves the operation alone.
const envelopeVersion = 2

// These are the ways in which an operation is started.
const (
	viaHTTP = "http"
	viaDo   = "do"
)

// parseEnvelope decodes the state of an earlier attempt.
func parseEnvelope(b []byte) (e envelope, err error) {
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("phase: the carried data is damaged: %w", err)
	}
	if e.Version < 1 || e.Version > envelopeVersion || e.Via != viaHTTP && e.Via != viaDo {
		return e, fmt.Errorf("phase: the carried data has version %d (%q), which is not known to this program",
			e.Version, e.Via)
	}
	return e, nil
}

// decode decodes carried data.
func decode[T any](raw json.RawMessage, strictly bool) (*T, error) {
	data := new(T)
	if err := strict.Decode(raw, data, strictly); err != nil {
		return nil, fmt.Errorf("phase: %w", err)
	}
	return data, nil
}

// encode encodes the state, unless the data is too large.
func (e envelope) encode(limit int) ([]byte, error) {
	if len(e.Data) > limit {
		return nil, fmt.Errorf("phase: the carried data takes %d bytes; the limit is %d (Definition.MaxData): "+
			"carry ids instead of contents", len(e.Data), limit)
	}
	b, err := json.Marshal(&e)
	if err != nil {
		return nil, fmt.Errorf("phase: the data cannot be stored: %w", err)
	}
	return b, nil
}

// finished returns the state after the current step.
func (e envelope) finished(step string, data json.RawMessage) envelope {
	e.Done = append(slices.Clone(e.Done), step)
	e.Data = data
	e.Failure, e.LookUpFailure = "", ""
	return e.withdrawn().fresh()
}

// withdrawn returns the state without the intent.
func (e envelope) withdrawn() envelope {
	e.Intent, e.By = "", 0
	return e
}

// fresh returns the state with the attempts reset.
func (e envelope) fresh() envelope {
	e.Attempts, e.Lost = 0, 0
	return e
}

// failed returns the state after an unsuccessful attempt at the current step. A failed look-up keeps the step's own
// error.
func (e envelope) failed(cause error) envelope {
	e.Attempts, e.Lost = e.Attempts+1, 0
	if question := (*lookUpError)(nil); errors.As(cause, &question) {
		e.LookUpFailure = short(question.cause.Error())
	} else {
		e.Failure, e.LookUpFailure = short(cause.Error()), ""
	}
	return e
}

// short cuts a text from another system to a readable length.
func short(text string) string {
	const longest = 300
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

// reached returns the names of the steps that were done or begun.
func (e *envelope) reached() []string {
	if e.Intent == "" {
		return e.Done
	}
	return append(slices.Clone(e.Done), e.Intent)
}

// current returns the name of the next step, or the step in doubt; empty if there is none, or it is not known.
func (e *envelope) current() string {
	switch {
	case e.Intent != "":
		return e.Intent
	case len(e.Done) < len(e.Steps):
		return e.Steps[len(e.Done)]
	default:
		return ""
	}
}

// point describes how far the operation has come, for people who read the record.
func (e *envelope) point() string {
	switch {
	case e.Intent != "":
		return e.Intent + " (begun)"
	case len(e.Done) > 0:
		return e.Done[len(e.Done)-1]
	default:
		return "start"
	}
}

// ChangedError reports that an operation was stored by another version of the program, whose steps or carried data
// differ from this definition. It is left to the nodes that know it: here the meaning of its steps or fields would be a
// guess.
type ChangedError struct {
	// Operation is the name of the operation.
	Operation string
	// Stored are the steps that the record went through, or all steps of its definition if they differ, and Defined the
	// steps of this definition.
	Stored, Defined []string
	// StoredVersion is the version of the definition that wrote the record, and Version the version of this one.
	StoredVersion, Version int
	// Err is the error in the carried data, if any.
	Err error
}

// Error describes the change.
func (e *ChangedError) Error() string {
	const advice = "; it is left to the nodes that know it: if there are none any more, bring them back, " +
		"or settle it by hand"
	switch {
	case e.Err != nil:
		return fmt.Sprintf("phase: a stored operation of %q carries data that does not fit its definition: %v%s",
			e.Operation, e.Err, advice)
	case e.StoredVersion > e.Version:
		return fmt.Sprintf("phase: a stored operation of %q is of version %d, the definition of version %d%s",
			e.Operation, e.StoredVersion, e.Version, advice)
	default:
		return fmt.Sprintf("phase: the steps of %q have changed under a stored operation: "+
			"it has [%s], the definition has [%s]%s",
			e.Operation, strings.Join(e.Stored, ", "), strings.Join(e.Defined, ", "), advice)
	}
}

// Unwrap returns the error in the carried data.
func (e *ChangedError) Unwrap() error { return e.Err }

// read decodes the state of an earlier attempt, perhaps of an older version of the program, and converts it to this
// version. The error is a [*ChangedError], even if the user's code panics.
func (o *Operation[T]) read(stored []byte) (e envelope, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = o.changed(&e, fmt.Errorf("panic: %v", p))
		}
	}()
	if e, err = parseEnvelope(stored); err != nil {
		return e, o.changed(&e, err)
	}
	if err := o.fits(&e); err != nil {
		return e, err
	}
	if e.Defined < o.Version && o.Migrate != nil {
		if e.Data, err = o.Migrate(e.Defined, e.Data); err != nil {
			return e, o.changed(&e, err)
		}
	}
	if _, err := decode[T](e.Data, !o.LenientData); err != nil {
		return e, o.changed(&e, err)
	}
	e.Version, e.Defined, e.Steps = envelopeVersion, o.Version, o.names
	return e, nil
}

// fits checks that the definition has the steps that the record went through, and all steps of the record's definition,
// unless a larger version means that this definition replaces it.
func (o *Operation[T]) fits(e *envelope) error {
	reached := e.reached()
	switch {
	case e.Defined > o.Version:
		return o.changed(e, nil)
	case !startsWith(o.names, reached):
		return o.changed(e, nil, reached...)
	case e.Intent != "" && !o.Steps[len(e.Done)].external():
		reached[len(e.Done)] += " (a call)"
		return o.changed(e, nil, reached...)
	case e.Defined == o.Version && !startsWith(o.names, e.Steps):
		return o.changed(e, nil, e.Steps...)
	default:
		return nil
	}
}

func startsWith(names, first []string) bool {
	return len(first) <= len(names) && slices.Equal(first, names[:len(first)])
}

func (o *Operation[T]) changed(e *envelope, err error, stored ...string) error {
	return &ChangedError{
		Operation: o.Name, Stored: stored, Defined: o.names, StoredVersion: e.Defined, Version: o.Version, Err: err,
	}
}
