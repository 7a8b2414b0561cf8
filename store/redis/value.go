package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/onceward/onceward/store"
)

// This file defines the layout of a stored record. It starts with a head of fixed size, which scripts compare and
// rewrite, followed by the part that a settlement keeps, and the part that a settlement adds:
//
//	at  size
//	0   1   the format, 2
//	1   1   the state; 0 for a removed record, of which only the head is left, for its token
//	2   8   the attempt                     10  8   when it was settled
//	18  8   when it expires                 26  8   the end of the lease
//	34  8   when it was made                42  16  the nonce
//	58  8   the retention
//	66  1   flags                           67  1   the policy on a lost owner
//	68  4   the revision, which grows with each write that changes more than the head
//	72      the ID
//	…   1   the version of the record
//	…       the fingerprint, reconciliation, names, recovery point and data
//	…       the tail, absent if there is nothing in it: provider's id, errors, the response
//
// Times and the retention are microseconds; numbers of fixed size are big-endian, others and the lengths of texts are
// varints. Two values of one record with the same head are equal, so a compare-and-set only compares the head. The
// fields of a new record that only the server knows come first, and a settlement only changes fields before the lease:
// a script then joins two or three strings. So a settled record may still contain a lease and a nonce, which are not
// read.
const (
	format = 2

	atAttempt, atSettled, atNonce = 2, 10, 42
	headSize                      = 72
)

// These are the flags of a stored record.
const (
	flagNotReplayable byte = 1 << iota
	flagDeadLetter
	flagSession
	flagTail    // there was a tail before the record was settled: settling it takes more than adding one
	flagData    // there is data
	flagAwaited // a process waits for the record: the call that ends the attempt publishes it
	flagsKnown  = 1<<iota - 1
)

// value is a record in its stored form.
type value struct {
	store.Record
	revision uint32
	awaited  bool
	// floor is the token of a removed record: a recreated one must not have it (rule S7).
	floor int64
}

// appendTo appends the stored form.
func (v *value) appendTo(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, format, byte(v.State))
	dst = binary.BigEndian.AppendUint64(dst, uint64(v.Attempt))
	for _, t := range [...]time.Time{v.SettledAt, v.ExpiresAt, v.LeaseUntil, v.CreatedAt} {
		dst = appendTime(dst, t)
	}
	dst = append(dst, v.Nonce[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(v.Retention/store.ClockStep))
	dst = append(dst, v.flags(), byte(v.OnLost))
	dst = binary.BigEndian.AppendUint32(dst, v.revision)
	if v.State == store.StateNone {
		binary.BigEndian.PutUint64(dst[start+atAttempt:], uint64(v.floor))
		return dst
	}
	dst = appendText(dst, v.ID.AppendBinary(make([]byte, 0, usualID)))
	dst = append(dst, v.Version)
	dst = binary.AppendUvarint(dst, uint64(v.Fingerprint.Secret))
	dst = append(dst, v.Fingerprint.Rules)
	dst = append(dst, v.Fingerprint.Sum[:]...)
	if v.Fingerprint.Session != [16]byte{} {
		dst = append(dst, v.Fingerprint.Session[:]...)
	}
	dst = binary.AppendVarint(dst, microseconds(v.ReconcileAt))
	dst = binary.AppendUvarint(dst, uint64(v.ReconcileCount))
	dst = binary.AppendUvarint(dst, uint64(v.DownstreamSecret))
	for _, s := range [...]string{v.Operation, v.TraceID, v.Point} {
		dst = appendText(dst, s)
	}
	dst = appendText(dst, v.Data)
	return v.appendTail(dst)
}

// usualID is the usual size of an encoded ID.
const usualID = 128

// appendTail appends the part that a settlement adds, or nothing.
func (v *value) appendTail(dst []byte) []byte {
	if !v.hasTail() {
		return dst
	}
	for _, s := range [...]string{v.ProviderID, v.LastError, v.FirstError, v.ReconcileError} {
		dst = appendText(dst, s)
	}
	if v.Response.Status != 0 {
		dst = appendResponse(dst, &v.Response)
	}
	return dst
}

func (v *value) hasTail() bool {
	return v.ProviderID != "" || v.LastError != "" || v.FirstError != "" || v.ReconcileError != "" ||
		v.Response.Status != 0
}

func (v *value) flags() (flags byte) {
	set := func(flag byte, on bool) {
		if on {
			flags |= flag
		}
	}
	set(flagNotReplayable, v.NotReplayable)
	set(flagDeadLetter, v.DeadLetter)
	set(flagSession, v.Fingerprint.Session != [16]byte{})
	set(flagTail, v.hasTail())
	set(flagData, len(v.Data) > 0)
	set(flagAwaited, v.awaited)
	return flags
}

// appendResponse appends an answer: its status with a bit for a body that was left out, its fields, its body.
func appendResponse(dst []byte, r *store.Response) []byte {
	status := uint64(r.Status) << 1
	if r.NotStored {
		status |= 1
	}
	dst = binary.AppendUvarint(dst, status)
	dst = binary.AppendUvarint(dst, uint64(len(r.Header)))
	for i := range r.Header {
		f := &r.Header[i]
		mode := fieldSet
		switch {
		case f.Removed:
			mode = fieldRemoved
		case f.Append:
			mode = fieldAppended
		}
		dst = append(dst, mode)
		dst = appendText(dst, f.Name)
		dst = appendText(dst, f.Value)
	}
	return appendText(dst, r.Body)
}

// These are the modes of a stored header field.
const (
	fieldSet byte = iota
	fieldAppended
	fieldRemoved
)

func appendText[T string | []byte](dst []byte, s T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendTime(dst []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(microseconds(t)))
}

// microseconds returns a time in its stored form: the zero time is zero.
func microseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicroseconds(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// decode decodes the value stored at a place. A format or a version that is not known here, the record of another ID,
// or bytes that are no record, give a [*store.UnreadableError]. The record shares no memory with b.
func decode(at place, b string) (value, error) {
	if b == "" {
		return value{}, nil // there is none
	}
	d := decoder{rest: b}
	v := d.value()
	if d.err == nil && d.rest != "" {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err == nil && !at.holds(&v) {
		d.err = errors.New("its place is taken by another key, whose hash is the same")
	}
	if d.err != nil {
		return value{}, &store.UnreadableError{Version: v.Version, Reason: d.err.Error()}
	}
	return v, nil
}

// decoder reads from a string; after the first error every read returns zero.
type decoder struct {
	rest string
	err  error
}

var errTruncated = errors.New("it is cut off")

func (d *decoder) value() (v value) {
	flags := d.outline(&v)
	if d.err != nil || v.State == store.StateNone {
		return v
	}
	for _, s := range [...]*string{&v.TraceID, &v.Point} {
		*s = d.text()
	}
	v.Data = d.bytes()
	if d.rest != "" || flags&flagTail != 0 {
		d.tail(&v)
	}
	if v.State == store.StateCompleted && v.Response.Status == 0 {
		d.fail("it is completed, but there is no response")
	}
	return v
}

func (d *decoder) tail(v *value) {
	for _, s := range [...]*string{&v.ProviderID, &v.LastError, &v.FirstError, &v.ReconcileError} {
		*s = d.text()
	}
	if d.err == nil && d.rest != "" {
		v.Response = d.response()
	}
}

// outlineSize is how many bytes of a record the outline takes, unless its ID is very long.
const outlineSize = 256

// outline decodes the beginning of a record, which identifies it and shows whether background work must process it.
func (d *decoder) outline(v *value) (flags byte) {
	flags = d.head(v)
	if d.err != nil || v.State == store.StateNone {
		return flags
	}
	v.ID = d.id()
	v.Version = d.byte()
	if d.err == nil && (v.Version == 0 || v.Version > store.RecordVersion) {
		d.fail("the version is not known to this program")
	}
	v.Fingerprint.Secret = uint32(d.uint(math.MaxUint32))
	v.Fingerprint.Rules = d.byte()
	d.copy(v.Fingerprint.Sum[:])
	if flags&flagSession != 0 {
		d.copy(v.Fingerprint.Session[:])
	}
	v.ReconcileAt = fromMicroseconds(d.int())
	v.ReconcileCount = int(d.uint(math.MaxInt32))
	v.DownstreamSecret = uint32(d.uint(math.MaxUint32))
	v.Operation = d.text()
	return flags
}

func (d *decoder) id() (id store.ID) {
	if b := d.text(); d.err == nil {
		id, d.err = store.ParseID([]byte(b))
	}
	return id
}

// head decodes the first headSize bytes.
func (d *decoder) head(v *value) (flags byte) {
	if f := d.byte(); d.err == nil && f != format {
		d.fail(fmt.Sprintf("the format %d is not known to this program", f))
	}
	v.State = store.State(d.byte())
	v.Attempt, v.SettledAt, v.ExpiresAt = int64(d.fixed()), d.time(), d.time()
	v.LeaseUntil, v.CreatedAt = d.time(), d.time()
	d.copy(v.Nonce[:])
	if v.State != store.StateInProgress {
		v.LeaseUntil, v.Nonce = time.Time{}, store.Nonce{}
	}
	retention := d.fixed()
	flags = d.byte()
	v.OnLost = store.LostPolicy(d.byte())
	v.revision = d.fixed32()
	if d.err == nil && (v.State > store.StateExpired || v.OnLost > store.LostResume || flags > flagsKnown ||
		retention > uint64(math.MaxInt64/store.ClockStep)) {
		d.fail("a state, policy, flag or retention that is not known")
	}
	v.Retention = time.Duration(retention) * store.ClockStep
	v.NotReplayable, v.DeadLetter = flags&flagNotReplayable != 0, flags&flagDeadLetter != 0
	v.awaited = flags&flagAwaited != 0
	if v.State == store.StateNone {
		v.floor, v.Attempt = v.Attempt, 0
	}
	return flags
}

// These are the bounds of a stored response's status: it must end a request.
const (
	minStatus = 200
	maxStatus = 999
)

func (d *decoder) response() (r store.Response) {
	status := d.uint(maxStatus<<1 | 1)
	r.Status, r.NotStored = int(status>>1), status&1 != 0
	if d.err == nil && r.Status < minStatus {
		d.fail("a response whose status ends no request")
	}
	// Each field takes at least three bytes. This bounds the allocation for a damaged count.
	if n := d.uint(uint64(len(d.rest) / 3)); n > 0 {
		r.Header = make([]store.HeaderField, n)
	}
	for i := range r.Header {
		mode := d.byte()
		if d.err == nil && mode > fieldRemoved {
			d.fail("a header field of a kind that is not known")
		}
		r.Header[i] = store.HeaderField{Name: d.text(), Value: d.text()}
		r.Header[i].Append, r.Header[i].Removed = mode == fieldAppended, mode == fieldRemoved
	}
	r.Body = d.bytes()
	return r
}

func (d *decoder) fail(reason string) {
	if d.err == nil {
		d.err = errors.New(reason)
	}
}

// take returns the next n bytes, which stay part of the input.
func (d *decoder) take(n uint64) string {
	if d.err == nil && n > uint64(len(d.rest)) {
		d.err = errTruncated
	}
	if d.err != nil {
		return ""
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != "" {
		return b[0]
	}
	return 0
}

func (d *decoder) copy(dst []byte) { copy(dst, d.take(uint64(len(dst)))) }

func (d *decoder) fixed() uint64 {
	var b [8]byte
	d.copy(b[:])
	return binary.BigEndian.Uint64(b[:])
}

func (d *decoder) fixed32() uint32 {
	var b [4]byte
	d.copy(b[:])
	return binary.BigEndian.Uint32(b[:])
}

func (d *decoder) time() time.Time { return fromMicroseconds(int64(d.fixed())) }

func (d *decoder) uint(most uint64) (n uint64) {
	for shift := 0; d.err == nil; shift += 7 {
		b := d.byte()
		if shift == 63 && b > 1 || shift > 63 {
			d.fail("a number is damaged or too large")
			break
		}
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	if n > most {
		d.fail("a number is damaged or too large")
	}
	if d.err != nil {
		return 0
	}
	return n
}

func (d *decoder) int() int64 {
	u := d.uint(math.MaxUint64)
	return int64(u>>1) ^ -int64(u&1)
}

func (d *decoder) text() string { return d.take(d.uint(math.MaxUint64)) }

func (d *decoder) bytes() []byte {
	if b := d.text(); b != "" {
		return []byte(b)
	}
	return nil
}
