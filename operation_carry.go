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

// maxCarried is the largest size of a carried value as JSON, as for the data of a phased operation.
const maxCarried = 64 << 10

// These are the uses of a record's data in an attempt. There is only one use at a time: data of one use would be
// misread as data of the other use.
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
	// [Operation.Carry], or the record comes from a list, which leaves the value out.
	ErrNothingCarried = errors.New("onceward: the record carries nothing")
)

// envelope is a carried value in a record. Its first member distinguishes it from the data of recovery points, and is
// the version of this encoding.
type envelope struct {
	Carry int             `json:"onceward-carry"`
	Value json.RawMessage `json:"value"`
}

const (
	envelopeVersion = 1
	envelopePrefix  = `{"onceward-carry":`
)

// Carry stores a value in the record that a resolver needs to build the handler's answer if the outcome becomes
// unknown. A handler calls it before it sends its call to the other system: when Carry returns, the value is in the
// store. A later value replaces an earlier value, and the value is removed when the attempt is released. It is stored
// as JSON of at most 64 KiB, and read by [Carried].
//
// After an error the handler must stop, as after an error of [Operation.Checkpoint]: the value may not be stored, and
// the attempt may no longer be current ([store.ErrFenced]). Carry returns an error on a transactional route, which has
// no unknown outcome, and in an operation that keeps data at recovery points, such as a phased operation. Without
// protection it does nothing, and logs this: see [FromContext].
func (o *Operation) Carry(ctx context.Context, v any) error {
	switch {
	case o.missing():
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

// encodeCarried encodes a value, and checks that it can be decoded.
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

// dropsAll reports whether a value is a struct, or points to a struct, whose fields are all missing in JSON.
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

// Carried returns the value that the handler has carried in a record, for a resolver. It is decoded strictly: a field
// that T does not have is an error, and a field of T that the value does not have is an error unless it has omitempty.
// The record must be complete, as resolvers get it and [store.Store.Get] returns it: lists leave out the carried value.
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

// KeepData reserves the data of the record for the handler's recovery points, as package phase does: from then on
// [Operation.Carry] is refused. It is an error if the attempt that this one resumes has carried a value: its call may
// have been sent without the handler's knowledge.
func (o *Operation) KeepData() error {
	if o != nil && !o.useData(dataOfPoints) {
		return errPointsBesideCarry
	}
	return nil
}

// useData reserves the record's data for one use, and reports whether the attempt may use the data for it.
func (o *Operation) useData(as uint32) bool {
	return o.dataUse.CompareAndSwap(dataUnused, as) || o.dataUse.Load() == as
}

// foundData records how an earlier attempt has used the record's data. Only an attempt that resumes keeps that use.
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
