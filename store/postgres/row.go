package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// row is a record as its columns hold it. Its encoding is kept compatible for ever, like that of the root package.
type row struct {
	id        [16]byte
	attempt   int64
	due       int64
	retention int32
	answer    []byte
	state     int16
	request   []byte
	extra     []byte
}

// codesPerState is how far apart the codes of the column state are: ten times the state, plus one for a record that
// another than the usual background worker looks after.
const codesPerState = 10

// stateCode is what the column state holds of a record.
func stateCode(rec *store.Record) int16 {
	code := int16(rec.State) * codesPerState
	if rec.State == store.StateInProgress && rec.OnLost == store.LostResume || rec.DeadLetter {
		code++
	}
	return code
}

const (
	// codeDeadLetter is unknown, and left to an operator.
	codeDeadLetter = int16(store.StateUnknown)*codesPerState + 1
	// codeResumable is in progress, and resumed when its lease has run out.
	codeResumable = int16(store.StateInProgress)*codesPerState + 1
)

// micros is how the columns hold a time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// packRetention holds whole seconds, or microseconds as a negative number. What fits neither is kept a little longer.
func packRetention(d time.Duration) int32 {
	if d%time.Second != 0 && d.Microseconds() <= math.MaxInt32 {
		return -int32(d.Microseconds())
	}
	seconds := d / time.Second
	if d%time.Second != 0 {
		seconds++
	}
	return int32(min(seconds, math.MaxInt32))
}

func unpackRetention(v int32) time.Duration {
	if v < 0 {
		return -time.Duration(v) * time.Microsecond
	}
	return time.Duration(v) * time.Second
}

// The first byte of a request is the version of the row in its lower half and these flags.
const (
	versionMask     = 0x0f
	flagUUID        = 0x10
	flagSession     = 0x20
	operationByName = 0
)

// appendRequest encodes what was asked: the fingerprint, the operation, by its number if it has one, and the ID.
func appendRequest(
	dst []byte, version uint8, fp *store.Fingerprint, number int32, operation string, id store.ID,
) []byte {
	head := len(dst)
	dst = append(dst, version&versionMask)
	dst = binary.AppendUvarint(dst, uint64(fp.Secret))
	dst = append(dst, fp.Rules)
	dst = append(dst, fp.Sum[:]...)
	if fp.Session != [16]byte{} {
		dst[head] |= flagSession
		dst = append(dst, fp.Session[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(number))
	if number == operationByName {
		dst = appendText(dst, operation)
	}
	// The key is encoded as everywhere else, but for its tag, which is a flag here.
	tag := len(dst) + sizeOfText(id.Scope)
	dst = id.AppendBinary(dst)
	if dst[tag] != 0 {
		dst[head] |= flagUUID
	}
	return slices.Delete(dst, tag, tag+1)
}

// sizeOfText is how many bytes appendText takes.
func sizeOfText(s string) int {
	var length [binary.MaxVarintLen64]byte
	return binary.PutUvarint(length[:], uint64(len(s))) + len(s)
}

// request is what parseRequest finds.
type request struct {
	version     uint8
	fingerprint store.Fingerprint
	number      int32
	operation   string
	id          store.ID
}

var errDamaged = errors.New("a column of it is damaged")

// parseRequest is the inverse of appendRequest.
func parseRequest(b []byte) (r request, err error) {
	if len(b) == 0 {
		return r, errDamaged
	}
	flags := b[0]
	r.version = flags & versionMask
	if r.version == 0 || r.version > store.RecordVersion {
		return r, &store.UnreadableError{Version: r.version, Reason: "the version is not known to this program"}
	}
	d := reader{rest: b[1:]}
	r.fingerprint.Secret = uint32(d.uint(math.MaxUint32))
	r.fingerprint.Rules = d.byte()
	d.copy(r.fingerprint.Sum[:])
	if flags&flagSession != 0 {
		d.copy(r.fingerprint.Session[:])
	}
	r.number = int32(d.uint(math.MaxInt32))
	if r.number == operationByName {
		r.operation = string(d.text())
	}
	scope := d.text()
	if d.failed {
		return r, errDamaged
	}
	encoded := appendText(nil, string(scope))
	tag := byte(0)
	if flags&flagUUID != 0 {
		tag = 1
	}
	encoded = append(append(encoded, tag), d.rest...)
	r.id, err = store.ParseID(encoded)
	return r, err
}

// record decodes a row. The name of the operation is looked up by its number.
func (r *row) record(id store.ID, operation func(number int32) (string, error)) (store.Record, error) {
	rec, err := r.decode(operation)
	if err == nil && rec.ID != id {
		err = fmt.Errorf("its place is taken by another key, whose hash is the same")
	}
	if err != nil {
		return store.Record{}, unreadable(err)
	}
	return rec, nil
}

// unreadable makes sure that the caller learns that a record is there which cannot be read.
func unreadable(err error) error {
	if errors.Is(err, store.ErrUnreadable) || errors.Is(err, store.ErrUnavailable) {
		return err
	}
	return &store.UnreadableError{Version: store.RecordVersion, Reason: err.Error()}
}

func (r *row) decode(operation func(number int32) (string, error)) (rec store.Record, err error) {
	asked, err := parseRequest(r.request)
	if err != nil {
		return rec, err
	}
	rec = store.Record{
		ID: asked.id, Version: asked.version, State: store.State(r.state / codesPerState), Operation: asked.operation,
		Fingerprint: asked.fingerprint, Attempt: r.attempt, Retention: unpackRetention(r.retention),
	}
	if asked.number != operationByName {
		if rec.Operation, err = operation(asked.number); err != nil {
			return rec, err
		}
	}
	if err := r.decodeState(&rec); err != nil {
		return rec, err
	}
	if err := parseExtra(r.extra, &rec); err != nil {
		return rec, err
	}
	if rec.CreatedAt.IsZero() {
		// A transaction makes its record at its end.
		rec.CreatedAt = rec.SettledAt
	}
	return rec, nil
}

// decodeState reads the columns whose meaning depends on the state.
func (r *row) decodeState(rec *store.Record) (err error) {
	due := fromMicros(r.due)
	switch rec.State {
	case store.StateInProgress:
		rec.LeaseUntil = due
		if r.state == codeResumable {
			rec.OnLost = store.LostResume
		}
		if copy(rec.Nonce[:], r.answer) != len(rec.Nonce) {
			return errDamaged
		}
	case store.StateCompleted:
		rec.ExpiresAt, rec.SettledAt = due, due.Add(-rec.Retention)
		rec.Response, err = parseAnswer(r.answer)
	case store.StateRetryable:
		rec.ExpiresAt, rec.SettledAt = due, due.Add(-rec.Retention)
	case store.StateUnknown:
		rec.ReconcileAt = due
		rec.DeadLetter = r.state == codeDeadLetter
	case store.StateExpired:
		rec.ExpiresAt = due
	default:
		return errors.New("its state is not known")
	}
	return err
}

// read copies the columns of a record, from the given one on.
func (r *row) read(v *values, from int) {
	r.attempt, r.due, r.retention, r.answer = v.int64(from), v.int64(from+1), v.int32(from+2), v.bytes(from+3)
	r.state, r.request, r.extra = v.int16(from+4), v.bytes(from+5), v.bytes(from+6)
}

// encode is the inverse of decode, .
func (r *row) encode(rec *store.Record, id [16]byte, number int32) {
	*r = row{
		id: id, attempt: rec.Attempt, due: micros(rec.Due()), retention: packRetention(rec.Retention),
		answer: []byte{}, state: stateCode(rec),
		request: appendRequest(make([]byte, 0, usualRequest), rec.Version, &rec.Fingerprint, number, rec.Operation, rec.ID),
		extra:   appendExtra([]byte{}, rec),
	}
	switch rec.State {
	case store.StateInProgress:
		r.answer = rec.Nonce[:]
	case store.StateCompleted:
		r.answer = appendAnswer(make([]byte, 0, usualHeader+len(rec.Response.Body)), &rec.Response)
	}
}

// What most requests, and the headers of most answers, take.
const (
	usualRequest = 128
	usualHeader  = 96
)
