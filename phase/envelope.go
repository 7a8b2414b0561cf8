package phase

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// envelope is what a record carries from attempt to attempt.
type envelope struct {
	// Version is that of this encoding.
	Version int `json:"v"`
	// Via says how the operation came, and so how its answer is stored.
	Via string `json:"via"`
	// Done are the names of the finished steps, in order: they must be the first of the definition.
	Done []string `json:"done,omitempty"`
	// Intent is the name of the step that was about to make its call.
	Intent string `json:"intent,omitempty"`
	// Tries counts the attempts at the step that did not succeed.
	Tries int `json:"tries,omitempty"`
	// Lost counts the attempts that took over at this step and were not heard of again.
	Lost int `json:"lost,omitempty"`
	// Data is the carried data.
	Data json.RawMessage `json:"data"`
}

const envelopeVersion = 1

// The ways in which an operation comes.
const (
	viaHTTP = "http"
	viaDo   = "do"
)

// parseEnvelope reads what an earlier attempt left behind.
func parseEnvelope(b []byte) (e envelope, err error) {
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("phase: the carried data is damaged: %w", err)
	}
	if e.Version != envelopeVersion || e.Via != viaHTTP && e.Via != viaDo {
		return e, fmt.Errorf("phase: the carried data has version %d (%q), which is not known to this program", e.Version, e.Via)
	}
	return e, nil
}

// ChangedError says that the steps of an operation are not those that a stored record went through: they were renamed,
// reordered or removed while it was under way. It cannot go on, because nobody can know what its steps stand for now.
type ChangedError struct {
	// Operation is the name of the operation.
	Operation string
	// Stored are the steps that the record went through, and Defined those of the definition.
	Stored, Defined []string
}

// Error describes the change.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("phase: the steps of %q have changed under a stored operation: it went through [%s], the definition has [%s]; "+
		"put them back, or settle the operation by hand", e.Operation, strings.Join(e.Stored, ", "), strings.Join(e.Defined, ", "))
}

// fits makes sure that the definition still has the steps that the record went through.
func (o *Operation[T]) fits(e *envelope) error {
	stored := slices.Clone(e.Done)
	if e.Intent != "" {
		stored = append(stored, e.Intent)
	}
	changed := len(stored) > len(o.names) || !slices.Equal(stored, o.names[:len(stored)])
	if !changed && e.Intent != "" && !o.Steps[len(e.Done)].external() {
		stored[len(e.Done)] += " (a call)"
		changed = true
	}
	if changed {
		return &ChangedError{Operation: o.Name, Stored: stored, Defined: o.names}
	}
	return nil
}

// encode makes the value to store, unless the data is too large.
func (e envelope) encode(limit int) ([]byte, error) {
	if len(e.Data) > limit {
		return nil, fmt.Errorf("phase: the carried data takes %d bytes; the limit is %d (Definition.MaxData): carry ids instead of contents", len(e.Data), limit)
	}
	b, err := json.Marshal(&e)
	if err != nil {
		return nil, fmt.Errorf("phase: the data cannot be stored: %w", err)
	}
	return b, nil
}

// point names how far the operation has come, for people who look at the record.
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
