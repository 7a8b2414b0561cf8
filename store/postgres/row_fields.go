package postgres

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"time"

	"github.com/onceward/onceward/store"
)

// The tags of the fields that only some records have. They are stored, and some are written by SQL functions too; their
// numbers never change.
const (
	tagCreated      = 1 // eight bytes, microseconds; always the first field
	tagSettled      = 2 // the same; only where it does not follow from the expiry, see keepsSettled
	tagPoint        = 3
	tagData         = 4
	tagLastError    = 5 // the first of several is the first error
	tagReconciled   = 6 // how often; empty for never
	tagProviderID   = 7
	tagTraceID      = 8
	tagFlags        = 9  // one byte; empty for none
	tagTraceIDBytes = 10 // a trace id of 32 hexadecimal digits, or with the id of a span 48, as bytes
	tagOnLost       = 11 // one byte; only where the column state does not tell

	tagReconcileError   = 12
	tagDownstreamSecret = 13
)

const flagNotReplayable = 1

// appendExtra encodes the fields of a record that have no column.
func appendExtra(dst []byte, rec *store.Record) []byte {
	if rec.State != store.StateCompleted || !rec.CreatedAt.Equal(rec.SettledAt) {
		dst = appendTime(dst, tagCreated, rec.CreatedAt)
	}
	if keepsSettled(rec.State) && !rec.SettledAt.IsZero() {
		dst = appendTime(dst, tagSettled, rec.SettledAt)
	}
	dst = appendField(dst, tagPoint, rec.Point)
	dst = appendField(dst, tagData, string(rec.Data))
	if rec.FirstError != "" { // it is one that another has taken the place of
		dst = appendField(dst, tagLastError, rec.FirstError)
		dst = appendText(append(dst, tagLastError), rec.LastError)
	} else {
		dst = appendField(dst, tagLastError, rec.LastError)
	}
	if rec.ReconcileCount > 0 {
		dst = appendField(dst, tagReconciled, string(binary.AppendUvarint(nil, uint64(rec.ReconcileCount))))
	}
	dst = appendField(dst, tagProviderID, rec.ProviderID)
	dst = appendTrace(dst, rec.TraceID)
	dst = appendField(dst, tagReconcileError, rec.ReconcileError)
	dst = appendSecret(dst, rec.DownstreamSecret)
	if rec.NotReplayable {
		dst = appendField(dst, tagFlags, string([]byte{flagNotReplayable}))
	}
	if rec.OnLost != store.LostReconcile && rec.State != store.StateInProgress {
		dst = appendField(dst, tagOnLost, string([]byte{byte(rec.OnLost)}))
	}
	return dst
}

// appendPoint encodes what a checkpoint sets. Data that is empty takes away what was there.
func appendPoint(dst []byte, p *store.Checkpoint) []byte {
	dst = appendField(dst, tagPoint, p.Point)
	if p.Data != nil {
		dst = appendText(append(dst, tagData), string(p.Data))
	}
	dst = appendField(dst, tagProviderID, p.ProviderID)
	if p.NotReplayable {
		dst = appendField(dst, tagFlags, string([]byte{flagNotReplayable}))
	}
	return dst
}

// keepsSettled reports whether a record in this state says when it was settled or lost. A settled one need not: it
// follows from the expiry, and what an earlier state left behind does not count.
func keepsSettled(state store.State) bool {
	return state == store.StateUnknown || state == store.StateExpired
}

// appendField appends a field that is not empty.
func appendField(dst []byte, tag byte, value string) []byte {
	if value == "" {
		return dst
	}
	return appendText(append(dst, tag), value)
}

func appendTime(dst []byte, tag byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(append(dst, tag, 8), uint64(micros(t)))
}

func appendTrace(dst []byte, trace string) []byte {
	packed, err := hex.DecodeString(trace)
	if err == nil && (len(packed) == 16 || len(packed) == 24) && hex.EncodeToString(packed) == trace {
		return appendField(dst, tagTraceIDBytes, string(packed))
	}
	return appendField(dst, tagTraceID, trace)
}

func appendSecret(dst []byte, secret uint32) []byte {
	if secret == 0 {
		return dst
	}
	return binary.BigEndian.AppendUint32(append(dst, tagDownstreamSecret, 4), secret)
}

// parseExtra reads the fields into a record. The last of a kind counts: SQL functions and steps append.
func parseExtra(b []byte, rec *store.Record) error {
	d := reader{rest: b}
	for len(d.rest) > 0 && !d.failed {
		tag := d.byte()
		value := d.text()
		if d.failed || !setField(rec, tag, value) {
			return errDamaged
		}
	}
	return nil
}

// setField reports whether the field is known and whole.
func setField(rec *store.Record, tag byte, value []byte) bool {
	switch tag {
	case tagCreated, tagSettled:
		if len(value) != 8 {
			return false
		}
		at := fromMicros(int64(binary.BigEndian.Uint64(value)))
		switch {
		case tag == tagCreated:
			rec.CreatedAt = at
		case keepsSettled(rec.State):
			rec.SettledAt = at
		}
	case tagPoint:
		rec.Point = string(value)
	case tagData:
		rec.Data = append([]byte(nil), value...)
	case tagLastError:
		if rec.FirstError == "" {
			rec.FirstError = rec.LastError
		}
		rec.LastError = string(value)
	case tagReconciled:
		n, size := binary.Uvarint(value)
		if len(value) > 0 && (size != len(value) || n > math.MaxInt32) {
			return false
		}
		rec.ReconcileCount = int(n)
	case tagProviderID:
		rec.ProviderID = string(value)
	case tagTraceID:
		rec.TraceID = string(value)
	case tagTraceIDBytes:
		rec.TraceID = hex.EncodeToString(value)
	case tagReconcileError:
		rec.ReconcileError = string(value)
	case tagDownstreamSecret:
		if len(value) != 4 {
			return false
		}
		rec.DownstreamSecret = binary.BigEndian.Uint32(value)
	case tagFlags:
		rec.NotReplayable = len(value) == 1 && value[0]&flagNotReplayable != 0
	case tagOnLost:
		if len(value) != 1 {
			return false
		}
		if rec.State != store.StateInProgress { // the column state tells
			rec.OnLost = store.LostPolicy(value[0])
		}
	default:
		return false
	}
	return true
}

// appendText appends a length and the bytes.
func appendText(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// reader reads from a byte slice; after the first failure every read gives nothing.
type reader struct {
	rest   []byte
	failed bool
}

func (d *reader) take(n uint64) []byte {
	if d.failed || n > uint64(len(d.rest)) {
		d.failed = true
		return nil
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *reader) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *reader) copy(dst []byte) { copy(dst, d.take(uint64(len(dst)))) }

func (d *reader) uint(most uint64) uint64 {
	v, n := binary.Uvarint(d.rest)
	if d.failed || n <= 0 || v > most {
		d.failed = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *reader) text() []byte { return d.take(d.uint(math.MaxUint64)) }

// The header fields that most answers have are stored as one byte. Both lists may grow at their ends; what is in them
// stays where it is, because it is stored.
var (
	commonNames = []string{
		"Content-Type", "Location", "Etag", "Content-Encoding", "Content-Language", "Content-Disposition", "Content-Location",
		"Last-Modified", "Link", "Vary", "Cache-Control", "Allow", "Retry-After", "Accept-Ranges", "Expires",
		"X-Content-Type-Options",
	}
	commonFields = []store.HeaderField{
		{Name: "Content-Type", Value: "application/json"},
		{Name: "Content-Type", Value: "application/json; charset=utf-8"},
		{Name: "Content-Type", Value: "application/problem+json"},
		{Name: "Content-Type", Value: "text/plain; charset=utf-8"},
		{Name: "Content-Type", Value: "text/html; charset=utf-8"},
		{Name: "Content-Type", Value: "application/octet-stream"},
		{Name: "Content-Type", Value: "application/xml"},
		{Name: "Content-Type", Value: "application/x-protobuf"},
		{Name: "Cache-Control", Value: "no-store"},
		{Name: "Cache-Control", Value: "no-cache"},
		{Name: "Content-Encoding", Value: "gzip"},
		{Name: "Vary", Value: "Accept-Encoding"},
		{Name: "Vary", Value: "Origin"},
		{Name: "X-Content-Type-Options", Value: "nosniff"},
	}

	codeOfName  = make(map[string]byte)
	codeOfField = make(map[store.HeaderField]byte)
)

// The codes of header fields: zero for one that is written out, then the common names, one for a field that was
// removed, then the common fields. Doubled, with one more for a field that is appended.
const (
	codeLiteral = 0
	firstName   = 1
	codeRemoved = 63
	firstField  = 64
)

func init() {
	for i, name := range commonNames {
		codeOfName[name] = byte(firstName + i)
	}
	for i, field := range commonFields {
		codeOfField[field] = byte(firstField + i)
	}
}

// flagNotStored is the lowest bit of the number that an answer begins with; the others are its status.
const flagNotStored = 1

// appendAnswer encodes a response: status, header fields, and the body to the end.
func appendAnswer(dst []byte, r *store.Response) []byte {
	status := uint64(r.Status) << 1
	if r.NotStored {
		status |= flagNotStored
	}
	dst = binary.AppendUvarint(dst, status)
	dst = binary.AppendUvarint(dst, uint64(len(r.Header)))
	for i := range r.Header {
		dst = appendHeader(dst, &r.Header[i])
	}
	return append(dst, r.Body...)
}

func appendHeader(dst []byte, f *store.HeaderField) []byte {
	if f.Removed {
		return appendText(append(dst, codeRemoved<<1), f.Name)
	}
	added := byte(0)
	if f.Append {
		added = 1
	}
	if code, ok := codeOfField[store.HeaderField{Name: f.Name, Value: f.Value}]; ok {
		return append(dst, code<<1|added)
	}
	if code, ok := codeOfName[f.Name]; ok {
		return appendText(append(dst, code<<1|added), f.Value)
	}
	dst = appendText(append(dst, codeLiteral<<1|added), f.Name)
	return appendText(dst, f.Value)
}

var errBadAnswer = errors.New("its answer is damaged")

// parseAnswer is the inverse of appendAnswer. The response shares no memory with b.
func parseAnswer(b []byte) (r store.Response, err error) {
	d := reader{rest: b}
	status := d.uint(math.MaxUint16)
	r.Status, r.NotStored = int(status>>1), status&flagNotStored != 0
	if n := d.uint(uint64(len(d.rest))); n > 0 {
		r.Header = make([]store.HeaderField, n)
	}
	for i := range r.Header {
		if !d.header(&r.Header[i]) {
			return r, errBadAnswer
		}
	}
	if d.failed || r.Status < 200 || r.Status > 999 {
		return r, errBadAnswer
	}
	if len(d.rest) > 0 {
		r.Body = append([]byte(nil), d.rest...)
	}
	return r, nil
}

func (d *reader) header(f *store.HeaderField) bool {
	code := d.byte()
	added := code&1 == 1
	code >>= 1
	switch {
	case code == codeLiteral:
		f.Name = string(d.text())
		f.Value = string(d.text())
	case code == codeRemoved && !added:
		f.Name, f.Removed = string(d.text()), true
	case int(code-firstName) < len(commonNames) && code < firstField:
		f.Name = commonNames[code-firstName]
		f.Value = string(d.text())
	case code >= firstField && int(code-firstField) < len(commonFields):
		*f = commonFields[code-firstField]
	default:
		return false
	}
	f.Append = added
	return !d.failed
}
