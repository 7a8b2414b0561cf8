package mysql

import (
	"bytes"
	"io"
	"time"

	"github.com/onceward/onceward/store"
)

// row is a record as its columns hold it. The times and the attempt have columns of their own, so that one statement
// can set them by the server's clock. So have the body of the answer and the data, so that records can be looked
// through without them. The column record holds everything else, encoded as package store does it, with those left out.
type row struct {
	hash      [16]byte
	attempt   int64
	revision  int64
	state     int
	due       int64
	createdAt int64
	settledAt int64
	id        []byte
	record    []byte
	// These are nil for none.
	provider, body, data []byte
}

// columns are those of a record without its content.
const columns = `r.attempt, r.revision, r.state, r.due, r.created_at, r.settled_at, r.id, r.record`

// codesPerState is how far apart the codes of the column state are: ten times the state, plus one for a record that
// another than the usual background worker looks after.
const codesPerState = 10

const (
	codeInProgress = int(store.StateInProgress) * codesPerState
	codeCompleted  = int(store.StateCompleted) * codesPerState
	codeRetryable  = int(store.StateRetryable) * codesPerState
	codeUnknown    = int(store.StateUnknown) * codesPerState
	codeDeadLetter = codeUnknown + 1
	codeExpired    = int(store.StateExpired) * codesPerState
)

// stateCode is what the column state holds of a record.
func stateCode(rec *store.Record) int {
	code := int(rec.State) * codesPerState
	if rec.State == store.StateInProgress && rec.OnLost == store.LostResume || rec.DeadLetter {
		code++
	}
	return code
}

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

// encode makes the row of a record.
func encode(rec *store.Record) row {
	return row{
		hash: rec.ID.HashBytes(), attempt: rec.Attempt, state: stateCode(rec), due: micros(rec.Due()),
		createdAt: micros(rec.CreatedAt), settledAt: micros(rec.SettledAt),
		id: rec.ID.AppendBinary(nil), record: encodeRest(rec), provider: nullable([]byte(rec.ProviderID)),
		body: nullable(rec.Response.Body), data: nullable(rec.Data),
	}
}

// encodeRest is what the column record holds.
func encodeRest(rec *store.Record) []byte {
	rest := *rec
	rest.Attempt = 0
	rest.LeaseUntil, rest.ReconcileAt, rest.ExpiresAt = time.Time{}, time.Time{}, time.Time{}
	rest.CreatedAt, rest.SettledAt = time.Time{}, time.Time{}
	rest.Response.Body, rest.Data = nil, nil
	return rest.AppendBinary(make([]byte, 0, usualRecord))
}

// usualRecord is what most records take.
const usualRecord = 256

// nullable is NULL for nothing.
func nullable(value []byte) []byte {
	if len(value) == 0 {
		return nil
	}
	return value
}

// recordOf is the inverse of encode, for the record that the caller names.
func (r *row) recordOf(id store.ID) (store.Record, error) {
	if !bytes.Equal(r.id, id.AppendBinary(nil)) {
		return store.Record{}, errCollision
	}
	return r.decode(id)
}

// decode reads the record of a row.
func (r *row) decode(id store.ID) (store.Record, error) {
	rec, err := store.DecodeRecord(id, r.record)
	if err != nil {
		return store.Record{}, err
	}
	rec.Attempt, rec.CreatedAt, rec.SettledAt = r.attempt, fromMicros(r.createdAt), fromMicros(r.settledAt)
	rec.Response.Body, rec.Data = nullable(r.body), nullable(r.data)
	due := fromMicros(r.due)
	switch rec.State {
	case store.StateInProgress:
		rec.LeaseUntil = due
	case store.StateUnknown:
		rec.ReconcileAt = due
	default:
		rec.ExpiresAt = due
	}
	if stateCode(&rec) != r.state {
		return store.Record{}, errDamaged
	}
	return rec, nil
}

// What is wrong with rows that cannot be read.
var (
	errCollision = &store.UnreadableError{
		Version: store.RecordVersion, Reason: "its place is taken by another key, whose hash is the same",
	}
	errDamaged = &store.UnreadableError{
		Version: store.RecordVersion, Reason: "its columns do not agree about its state",
	}
)

// equal reports whether two rows hold the same, at the same revision.
func (r *row) equal(other *row) bool {
	return r.hash == other.hash && r.attempt == other.attempt && r.revision == other.revision && r.state == other.state &&
		r.due == other.due && r.createdAt == other.createdAt && r.settledAt == other.settledAt &&
		bytes.Equal(r.id, other.id) && bytes.Equal(r.record, other.record) && bytes.Equal(r.body, other.body) &&
		bytes.Equal(r.data, other.data)
}

// errEndOfRows is what a driver says behind the last row.
var errEndOfRows = io.EOF

// text is a value of a driver as a string.
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
