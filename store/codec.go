package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// This file contains the two encodings that stores share: the encoding of an ID as one binary key, and the encoding of
// a record as one versioned value. Both stay compatible permanently; golden files in testdata test this.

// These are the tags of an encoded key (rule H8): a text key never equals a UUID key.
const (
	keyTagText = 0
	keyTagUUID = 1
)

// AppendBinary appends a unique encoding of the ID: the length of the scope, the scope, a tag, and the key. A key that
// is a canonical lower-case UUID takes sixteen bytes.
func (id ID) AppendBinary(dst []byte) []byte {
	dst = appendString(dst, id.Scope)
	if packed, ok := packUUID(id.Key); ok {
		dst = append(dst, keyTagUUID)
		return append(dst, packed[:]...)
	}
	dst = append(dst, keyTagText)
	return append(dst, id.Key...)
}

// ParseID decodes the output of [ID.AppendBinary].
func ParseID(b []byte) (ID, error) {
	d := decoder{rest: b}
	scope := d.string()
	tag := d.byte()
	switch {
	case d.err != nil:
		return ID{}, fmt.Errorf("onceward: an encoded ID is damaged: %w", d.err)
	case tag == keyTagText:
		return ID{Scope: scope, Key: string(d.rest)}, nil
	case tag == keyTagUUID && len(d.rest) == 16:
		return ID{Scope: scope, Key: unpackUUID([16]byte(d.rest))}, nil
	default:
		return ID{}, fmt.Errorf("onceward: an encoded ID with tag %d and %d bytes after it", tag, len(d.rest))
	}
}

const uuidDashes = 1<<8 | 1<<13 | 1<<18 | 1<<23

// packUUID packs a key of the exact form 8-4-4-4-12 in lower-case hexadecimal digits. A UUID in any other form is a
// different key, and is not packed.
func packUUID(key string) (packed [16]byte, ok bool) {
	if len(key) != 36 {
		return packed, false
	}
	digits := 0
	for i := range len(key) {
		c := key[i]
		if uuidDashes>>i&1 == 1 {
			if c != '-' {
				return packed, false
			}
			continue
		}
		var v byte
		switch {
		case '0' <= c && c <= '9':
			v = c - '0'
		case 'a' <= c && c <= 'f':
			v = c - 'a' + 10
		default:
			return packed, false
		}
		packed[digits/2] = packed[digits/2]<<4 | v
		digits++
	}
	return packed, true
}

func unpackUUID(packed [16]byte) string {
	const hex = "0123456789abcdef"
	var text [36]byte
	digits := 0
	for i := range text {
		if uuidDashes>>i&1 == 1 {
			text[i] = '-'
			continue
		}
		text[i] = hex[packed[digits/2]>>(4*(1-digits%2))&15]
		digits++
	}
	return string(text[:])
}

// These are the flags of an encoded record.
const (
	flagNotReplayable = 1 << iota
	flagDeadLetter
	flagResponse
	flagNotStored
	flagSession
	flagReconcileError
	flagDownstreamSecret
	flagsKnown = 1<<iota - 1
)

// These are the bounds of a stored response's status. An informational status cannot be stored, because it does not end
// a request.
const (
	minStatus = 200
	maxStatus = 999
)

// AppendBinary appends the record, without its ID, as one value that [DecodeRecord] reads.
func (r *Record) AppendBinary(dst []byte) []byte {
	dst = append(dst, r.Version, byte(r.State), byte(r.OnLost), r.flags())
	dst = binary.AppendUvarint(dst, uint64(r.Fingerprint.Secret))
	dst = append(dst, r.Fingerprint.Rules)
	dst = append(dst, r.Fingerprint.Sum[:]...)
	if r.Fingerprint.Session != [16]byte{} {
		dst = append(dst, r.Fingerprint.Session[:]...)
	}
	dst = binary.AppendVarint(dst, r.Attempt)
	dst = append(dst, r.Nonce[:]...)
	dst = binary.AppendVarint(dst, int64(r.Retention))
	for _, t := range [...]time.Time{r.LeaseUntil, r.ReconcileAt, r.CreatedAt, r.SettledAt, r.ExpiresAt} {
		dst = binary.AppendVarint(dst, microseconds(t))
	}
	dst = binary.AppendUvarint(dst, uint64(r.ReconcileCount))
	for _, s := range [...]string{r.Operation, r.Point, r.LastError, r.FirstError, r.ProviderID, r.TraceID} {
		dst = appendString(dst, s)
	}
	dst = appendString(dst, r.Data)
	if r.hasResponse() {
		dst = r.Response.appendBinary(dst)
	}
	if r.ReconcileError != "" {
		dst = appendString(dst, r.ReconcileError)
	}
	if r.DownstreamSecret != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.DownstreamSecret))
	}
	return dst
}

func (r *Record) hasResponse() bool { return r.Response.Status != 0 }

func (r *Record) flags() (flags byte) {
	set := func(flag byte, on bool) {
		if on {
			flags |= flag
		}
	}
	set(flagNotReplayable, r.NotReplayable)
	set(flagDeadLetter, r.DeadLetter)
	set(flagResponse, r.hasResponse())
	set(flagNotStored, r.hasResponse() && r.Response.NotStored)
	set(flagSession, r.Fingerprint.Session != [16]byte{})
	set(flagReconcileError, r.ReconcileError != "")
	set(flagDownstreamSecret, r.DownstreamSecret != 0)
	return flags
}

func (r *Response) appendBinary(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(r.Status))
	dst = AppendHeader(dst, r.Header)
	return appendString(dst, r.Body)
}

// AppendHeader appends header fields in the encoding of [DecodeHeader], for stores that keep them outside the record.
func AppendHeader(dst []byte, header []HeaderField) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(header)))
	for i := range header {
		f := &header[i]
		dst = append(dst, f.mode())
		dst = appendString(dst, f.Name)
		dst = appendString(dst, f.Value)
	}
	return dst
}

// DecodeHeader decodes the output of [AppendHeader]. Bytes after it are an error.
func DecodeHeader(b []byte) ([]HeaderField, error) {
	d := decoder{rest: b}
	header := d.header()
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return nil, fmt.Errorf("onceward: encoded header fields are damaged: %w", d.err)
	}
	return header, nil
}

// These are the modes of an encoded header field.
const (
	fieldSet byte = iota
	fieldAppended
	fieldRemoved
)

func (f *HeaderField) mode() byte {
	switch {
	case f.Removed:
		return fieldRemoved
	case f.Append:
		return fieldAppended
	default:
		return fieldSet
	}
}

// DecodeRecord decodes the output of [Record.AppendBinary], from this program or an older one. A newer version, or
// bytes that are not a record, give an [*UnreadableError]. The record shares no memory with b.
func DecodeRecord(id ID, b []byte) (Record, error) {
	if len(b) == 0 {
		return Record{}, &UnreadableError{Reason: "it is empty"}
	}
	if version := b[0]; version == 0 || version > RecordVersion {
		return Record{}, &UnreadableError{Version: version, Reason: "the version is not known to this program"}
	}
	d := decoder{rest: b}
	r := d.record()
	r.ID = id
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return Record{}, &UnreadableError{Version: b[0], Reason: d.err.Error()}
	}
	return r, nil
}

func (d *decoder) record() Record {
	r := Record{Version: d.byte(), State: State(d.byte()), OnLost: LostPolicy(d.byte())}
	flags := d.byte()
	if d.err == nil && (r.State == StateNone || r.State > StateExpired || r.OnLost > LostResume || flags > flagsKnown) {
		d.err = errors.New("a state, policy or flag that is not known")
	}
	r.NotReplayable = flags&flagNotReplayable != 0
	r.DeadLetter = flags&flagDeadLetter != 0
	r.Fingerprint.Secret = uint32(d.uint(math.MaxUint32))
	r.Fingerprint.Rules = d.byte()
	d.copy(r.Fingerprint.Sum[:])
	if flags&flagSession != 0 {
		d.copy(r.Fingerprint.Session[:])
	}
	r.Attempt = d.int()
	d.copy(r.Nonce[:])
	r.Retention = time.Duration(d.int())
	for _, t := range [...]*time.Time{&r.LeaseUntil, &r.ReconcileAt, &r.CreatedAt, &r.SettledAt, &r.ExpiresAt} {
		*t = fromMicroseconds(d.int())
	}
	r.ReconcileCount = int(d.uint(math.MaxInt32))
	for _, s := range [...]*string{&r.Operation, &r.Point, &r.LastError, &r.FirstError, &r.ProviderID, &r.TraceID} {
		*s = d.string()
	}
	r.Data = d.bytes()
	if flags&flagResponse != 0 {
		r.Response = d.response()
		r.Response.NotStored = flags&flagNotStored != 0
	}
	if flags&flagReconcileError != 0 {
		r.ReconcileError = d.string()
	}
	if flags&flagDownstreamSecret != 0 {
		r.DownstreamSecret = uint32(d.uint(math.MaxUint32))
	}
	return r
}

func (d *decoder) response() Response {
	r := Response{Status: int(d.uint(maxStatus))}
	if d.err == nil && r.Status < minStatus {
		d.err = errors.New("a response whose status ends no request")
	}
	r.Header = d.header()
	r.Body = d.bytes()
	return r
}

func (d *decoder) header() (header []HeaderField) {
	// Each field takes at least three bytes. This bounds the allocation for a damaged count.
	if n := d.uint(uint64(len(d.rest) / 3)); n > 0 {
		header = make([]HeaderField, n)
	}
	for i := range header {
		mode := d.byte()
		if d.err == nil && mode > fieldRemoved {
			d.err = errors.New("a header field of a kind that is not known")
		}
		header[i] = HeaderField{Name: d.string(), Value: d.string()}
		header[i].Append, header[i].Removed = mode == fieldAppended, mode == fieldRemoved
	}
	return header
}

// appendString appends a length and the bytes.
func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// OperationInBinary returns the bytes that [Record.AppendBinary] writes for the name of an operation, for stores whose
// server searches for them. Other parts of a record may contain the same bytes: compare the operation of each match.
func OperationInBinary(operation string) []byte { return appendString(nil, operation) }

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

// decoder reads from a byte slice; after the first error every read returns zero.
type decoder struct {
	rest []byte
	err  error
}

var errTruncated = errors.New("it is cut off")

// take returns the next n bytes, which share the memory of the input.
func (d *decoder) take(n uint64) []byte {
	if d.err == nil && n > uint64(len(d.rest)) {
		d.err = errTruncated
	}
	if d.err != nil {
		return nil
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) copy(dst []byte) { copy(dst, d.take(uint64(len(dst)))) }

func (d *decoder) uint(most uint64) uint64 {
	v, n := binary.Uvarint(d.rest)
	if d.err == nil && (n <= 0 || v > most) {
		d.err = errors.New("a number is damaged or too large")
	}
	if d.err != nil {
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) int() int64 {
	u := d.uint(math.MaxUint64)
	return int64(u>>1) ^ -int64(u&1)
}

func (d *decoder) string() string { return string(d.take(d.uint(math.MaxUint64))) }

func (d *decoder) bytes() []byte {
	if b := d.take(d.uint(math.MaxUint64)); len(b) > 0 {
		return append([]byte(nil), b...)
	}
	return nil
}
