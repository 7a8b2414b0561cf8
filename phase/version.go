package phase

import (
	"fmt"
	"slices"
	"strings"
)

// ChangedError says that an operation was stored by another version of the program, whose steps or carried data are not those of
// this definition. It is left to the nodes that know it: what its steps or fields stand for here is only a guess.
type ChangedError struct {
	// Operation is the name of the operation.
	Operation string
	// Stored are the steps that the record went through, or all steps of its definition where they differ, and Defined those
	// of this definition.
	Stored, Defined []string
	// StoredVersion is the version of the definition that wrote the record, and Version that of this one.
	StoredVersion, Version int
	// Err says what is wrong with the carried data, if it is that.
	Err error
}

// Error describes the change.
func (e *ChangedError) Error() string {
	var what string
	switch {
	case e.Err != nil:
		what = fmt.Sprintf("the data that a stored operation of %q carries is not that of its definition: %v", e.Operation, e.Err)
	case e.StoredVersion > e.Version:
		what = fmt.Sprintf("a stored operation of %q is of version %d, the definition of version %d", e.Operation, e.StoredVersion, e.Version)
	default:
		what = fmt.Sprintf("the steps of %q have changed under a stored operation: it has [%s], the definition has [%s]",
			e.Operation, strings.Join(e.Stored, ", "), strings.Join(e.Defined, ", "))
	}
	return "phase: " + what + "; it is left to the nodes that know it: if there are none any more, bring them back, or settle it by hand"
}

// Unwrap returns what is wrong with the carried data.
func (e *ChangedError) Unwrap() error { return e.Err }

// read takes up what an earlier attempt left behind, perhaps of an older version of the program: the result is as this one would
// have written it. The error is a [*ChangedError], also where the code of the user panics.
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

// fits makes sure that the definition has the steps that the record went through, and all that its own definition had, unless a
// larger version says that this one knows better.
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
