package onceward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/onceward/onceward/internal/strict"
	"github.com/onceward/onceward/store"
)

// maxCarried is the most that a carried value may take as JSON, as for the data of a phased operation.
const maxCarried = 64 << 10

// What the data of a record is used for in an attempt. It holds one thing: a record that was read for the other would
// be misread.
const (
	dataUnused uint32 = iota
	dataOfPoints
	dataCarried
)

var (
	errCarryInTx = errors.New("onceward: Carry is for reserved routes: nothing leaves a transactional handler " +
		"before its answer is stored, so that there is no outcome to resolve")
	errCarryBesidePoints = errors.New("onceward: the operation keeps data of its own at its recovery points, " +
		"as a phased one does (package phase): put the value into that data instead of carrying it")
	errPointsBesideCarry = errors.New("onceward: the operation carries a value (Operation.Carry), " +
		"perhaps of an earlier version of the program, and can keep no other data at its recovery points: use one of the two")
	// ErrNothingCarried is returned by [Carried] when the record carries no value: the attempt was lost before
	// [Operation.Carry], or the record was listed and not read as a whole.
	ErrNothingCarried = errors.New("onceward: the record carries nothing")
)

// envelope is a carried value as the record holds it. The first member tells it from the data of recovery points, and
// is the version of this encoding.
type envelope struct {
	Carry int             `json:"onceward-carry"`
	Value json.RawMessage `json:"value"`
}

const (
	envelopeVersion = 1
	envelopePrefix  = `{"onceward-carry":`
)

// Carry keeps a value in the record: what a resolver needs to build the answer that the handler would have given, if
// its outcome becomes unknown. A handler calls it before its call to the other system goes out, because the value is in
// the store when Carry returns; a later one replaces it, and it goes when the attempt is released. It is stored as JSON
// of 64 KiB at most, and read by [Carried].
//
// After an error the handler must not go on, as after one of [Operation.Checkpoint]: nothing is known to be stored, and
// the attempt may no longer be current ([store.ErrFenced]). It is an error on a transactional route, which has no
// unknown outcome, and in an operation that keeps data at recovery points, such as a phased one. Without protection it
// does nothing.
func (o *Operation) Carry(ctx context.Context, v any) error {
	switch {
	case o == nil:
		return nil
	case o.execution == nil:
		return errCarryInTx
	}
	data, err := encodeCarried(v)
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !o.useData(dataCarried) {
		return errCarryBesidePoints
	}
	return o.checkpoint(store.Checkpoint{Data: data})
}

// encodeCarried makes the data of a value, if it could be read again.
func encodeCarried(v any) ([]byte, error) {
	if v == nil {
		return nil, errors.New("onceward: Carry needs a value")
	}
	value, err := json.Marshal(v)
	if err == nil && string(value) == "{}" && dropsAll(v) {
		err = errors.New("JSON has none of its fields: export them")
	}
	if err == nil {
		err = strict.Decode(value, reflect.New(reflect.TypeOf(v)).Interface(), true)
	}
	if err != nil {
		return nil, fmt.Errorf("onceward: a %T cannot be carried: %w", v, err)
	}
	if len(value) > maxCarried {
		return nil, fmt.Errorf("onceward: the carried value takes %d bytes; the limit is %d: carry ids instead of contents",
			len(value), maxCarried)
	}
	return json.Marshal(envelope{Carry: envelopeVersion, Value: value})
}

// dropsAll reports whether a value is a struct, or points to one, that has fields of which JSON has none.
func dropsAll(v any) bool {
	t := reflect.TypeOf(v)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if _, encodes := v.(json.Marshaler); encodes || t.Kind() != reflect.Struct || t.NumField() == 0 {
		return false
	}
	return !slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
		return f.IsExported() && f.Tag.Get("json") != "-"
	})
}

// Carried returns the value that the handler has carried in a record, for a resolver. It is read strictly: a field that
// T does not have is an error, and so is one that T has and the value lacks, unless T leaves it out when it is empty.
// The record must be whole, as resolvers get it and [store.Store.Get] returns it: lists leave out what it carries.
func Carried[T any](rec *store.Record) (T, error) {
	var value T
	if store.IsSealed(rec.Data) {
		return value, store.ErrSealed
	}
	if !carries(rec.Data) {
		return value, ErrNothingCarried
	}
	var e envelope
	if err := strict.Decode(rec.Data, &e, true); err != nil {
		return value, fmt.Errorf("onceward: the record is damaged: %w", err)
	}
	if e.Carry != envelopeVersion {
		return value, fmt.Errorf("onceward: the carried value has version %d, which is not known to this program", e.Carry)
	}
	if err := strict.Decode(e.Value, &value, true); err != nil {
		return value, fmt.Errorf("onceward: %w", err)
	}
	return value, nil
}

// carries reports whether the data of a record is a carried value.
func carries(data []byte) bool { return bytes.HasPrefix(data, []byte(envelopePrefix)) }

// KeepData says that the handler keeps data of its own at its recovery points, as package phase does: from then on
// [Operation.Carry] is refused. It is an error if the attempt that this one resumes has carried a value: its call may
// be out, of which the handler knows nothing.
func (o *Operation) KeepData() error {
	if o != nil && !o.useData(dataOfPoints) {
		return errPointsBesideCarry
	}
	return nil
}

// useData reports whether the attempt may use the data of the record so: it may not if it uses it otherwise.
func (o *Operation) useData(as uint32) bool {
	return o.dataUse.CompareAndSwap(dataUnused, as) || o.dataUse.Load() == as
}

// foundData notes what an earlier attempt has used the data of the record for. Only one that resumes goes on with it.
func (o *Operation) foundData() {
	switch {
	case !o.resumed || len(o.data) == 0:
		o.dataUse.Store(dataUnused)
	case carries(o.data):
		o.dataUse.Store(dataCarried)
	default:
		o.dataUse.Store(dataOfPoints)
	}
}
