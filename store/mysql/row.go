package mysql

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// row is a record as its columns hold it. The times and the attempt have columns of their own, so that one statement
// can set them by the server's clock. Everything else is in one column, a frame, because each column slows down every
// write. Large content is in another column, so that records can be listed without it.
type row struct {
	hash      [16]byte
	attempt   int64
	revision  int64
	state     int
	due       int64
	createdAt int64
	settledAt int64
	record    []byte
	content   []byte // nil for none
	// summary means that content was not read.
	summary bool
}

const (
	// columns are the columns of a record without large content.
	columns = `r.attempt, r.revision, r.state, r.due, r.created_at, r.settled_at, r.record`
	// allColumns are the columns that row.read reads.
	allColumns = columns + `, r.content`
)

// micros returns a time as the columns hold it.
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

// encode returns the row of a record, for one write.
func encode(rec *store.Record) row {
	r := row{
		hash: rec.ID.HashBytes(), attempt: rec.Attempt, state: sqltx.StateCode(rec), due: micros(rec.Due()),
		createdAt: micros(rec.CreatedAt), settledAt: micros(rec.SettledAt), revision: newRevision(),
	}
	r.record, r.content = encodeFrame(rec)
	return r
}

// newRevision draws a number by which a writer recognises its own write: nobody else can have drawn it.
func newRevision() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return int64(binary.BigEndian.Uint64(b[:]))
}

// frame holds the parts of the columns record and content.
type frame struct{ rest, id, provider, operation, body, data []byte }

const (
	// lengths is how many bytes the lengths of the parts take, at the start of a frame.
	lengths = 6 * 4
	// maxInline is the largest size of body and data together that is stored
	// in the column record. Such a row fits into a page of the server.
	maxInline = 4096
	// usualRecord is the size of most records without body and data.
	usualRecord = 256
)

// encodeFrame encodes what has no column of its own. The rest comes first, because its first byte is its version, by
// which background work recognises records that it must not change.
func encodeFrame(rec *store.Record) (record, content []byte) {
	rest := *rec
	rest.Attempt = 0
	rest.LeaseUntil, rest.ReconcileAt, rest.ExpiresAt = time.Time{}, time.Time{}, time.Time{}
	rest.CreatedAt, rest.SettledAt = time.Time{}, time.Time{}
	rest.ProviderID, rest.Operation, rest.Response.Body, rest.Data = "", "", nil, nil
	large := len(rec.Response.Body) + len(rec.Data)
	size := lengths + usualRecord
	if large <= maxInline {
		size += large
	}
	record = rest.AppendBinary(make([]byte, lengths, size))
	restEnd := len(record)
	record = rec.ID.AppendBinary(record)
	idEnd := len(record)
	record = append(append(record, rec.ProviderID...), rec.Operation...)
	for i, n := range [...]int{
		restEnd - lengths, idEnd - restEnd, len(rec.ProviderID), len(rec.Operation), len(rec.Response.Body), len(rec.Data),
	} {
		binary.BigEndian.PutUint32(record[4*i:], uint32(n))
	}
	if large > maxInline {
		return record, append(append(make([]byte, 0, large), rec.Response.Body...), rec.Data...)
	}
	return append(append(record, rec.Response.Body...), rec.Data...), nil
}

// frame is the inverse of encodeFrame. For a summary it returns neither body nor data.
func (r *row) frame() (f frame, err error) {
	if len(r.record) < lengths {
		return f, errDamaged
	}
	rest := r.record[lengths:]
	for i, part := range [...]*[]byte{&f.rest, &f.id, &f.provider, &f.operation, &f.body, &f.data} {
		n := uint64(binary.BigEndian.Uint32(r.record[4*i:]))
		if part == &f.body && len(rest) == 0 {
			if r.summary {
				return f, nil
			}
			rest = r.content
		}
		if n > uint64(len(rest)) {
			return f, errDamaged
		}
		*part, rest = rest[:n:n], rest[n:]
	}
	if len(rest) != 0 {
		return f, errDamaged
	}
	if r.summary {
		f.body, f.data = nil, nil
	}
	return f, nil
}

// providerName returns the hash by which a provider's ID is found.
func providerName(providerID string) []byte {
	sum := sha256.Sum256([]byte(providerID))
	return sum[:16]
}

// nullable returns nil, which is stored as NULL, for an empty value.
func nullable(value []byte) []byte {
	if len(value) == 0 {
		return nil
	}
	return value
}

// recordOf is the inverse of encode, for the ID that the caller
// gives. It returns an error if the row belongs to another ID.
func (r *row) recordOf(id store.ID) (store.Record, error) {
	f, err := r.frame()
	if err != nil {
		return store.Record{}, err
	}
	if !bytes.Equal(f.id, id.AppendBinary(nil)) {
		return store.Record{}, errCollision
	}
	return r.decode(id, &f)
}

// decode returns the record of a row.
func (r *row) decode(id store.ID, f *frame) (store.Record, error) {
	rec, err := store.DecodeRecord(id, f.rest)
	if err != nil {
		return store.Record{}, err
	}
	rec.Attempt, rec.CreatedAt, rec.SettledAt = r.attempt, fromMicros(r.createdAt), fromMicros(r.settledAt)
	rec.ProviderID, rec.Operation = string(f.provider), string(f.operation)
	rec.Response.Body, rec.Data = nullable(f.body), nullable(f.data)
	due := fromMicros(r.due)
	switch rec.State {
	case store.StateInProgress:
		rec.LeaseUntil = due
	case store.StateUnknown:
		rec.ReconcileAt = due
	default:
		rec.ExpiresAt = due
	}
	if sqltx.StateCode(&rec) != r.state {
		return store.Record{}, errDamaged
	}
	return rec, nil
}

// The errors of rows that cannot be read.
var (
	errCollision = &store.UnreadableError{
		Version: store.RecordVersion, Reason: "its place is taken by another key, whose hash is the same",
	}
	errDamaged = &store.UnreadableError{
		Version: store.RecordVersion, Reason: "its columns do not agree with each other",
	}
)

// errEndOfRows is the error that a driver returns after the last row.
var errEndOfRows = io.EOF

// setting returns the value of a server setting as text. Newer servers return a name where others return a number.
func setting(value any) string {
	if s := text(value); s != "" || value == nil {
		return s
	}
	return fmt.Sprint(value)
}

// text returns a driver's value as a string, or an empty string if it is not text.
func text(value any) string {
	switch v := value.(type) {
	case []byte:
		return string(v)
	case string:
		return v
	default:
		return ""
	}
}
