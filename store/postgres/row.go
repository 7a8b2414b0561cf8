package postgres

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// row is a record in the form of its columns.
type row struct {
	id                                    [16]byte
	attempt, due, retention               int64
	created, settled, secret, reconciled  optional
	step                                  optional // a random number of the step that stored the recovery point
	state, version, status                int16
	resumable, notReplayable, notStored   mark
	keyUUID                               pgtype.UUID
	nonce                                 []byte
	fingerprint, operation, scope, key    []byte
	point                                 []byte
	lastError, firstError, reconcileError []byte
	providerID, trace                     []byte
	contentType, header, data, body       []byte
}

// columns lists the columns of a record except its id, in the order of [row.fields].
const columns = `attempt, due, retention, created_at, settled_at, downstream_secret, reconcile_count, step, state, ` +
	`version, status, resumable, not_replayable, not_stored, key_uuid, nonce, fingerprint, operation, scope, key, point, ` +
	`last_error, first_error, reconcile_error, provider_id, trace_id, content_type, header, data, body`

// fields returns pointers to the columns, to read and to write them.
func (r *row) fields() []any {
	return []any{
		&r.attempt, &r.due, &r.retention, &r.created, &r.settled, &r.secret, &r.reconciled, &r.step, &r.state, &r.version,
		&r.status,
		&r.resumable, &r.notReplayable, &r.notStored, &r.keyUUID, &r.nonce, &r.fingerprint, &r.operation, &r.scope, &r.key,
		&r.point, &r.lastError, &r.firstError, &r.reconcileError, &r.providerID, &r.trace, &r.contentType, &r.header, &r.data,
		&r.body,
	}
}

// optional is a number whose column is NULL where it is zero.
type optional int64

var _ pgtype.Int64Scanner = new(optional)

// ScanInt64 implements [pgtype.Int64Scanner].
func (o *optional) ScanInt64(v pgtype.Int8) error {
	*o = optional(v.Int64)
	return nil
}

// mark is a boolean whose column is NULL where it is false.
type mark bool

var _ pgtype.BoolScanner = new(mark)

// ScanBool implements [pgtype.BoolScanner].
func (m *mark) ScanBool(v pgtype.Bool) error {
	*m = mark(v.Bool)
	return nil
}

// nullable returns a text for a column, or nil, which is NULL, for an empty text.
func nullable[T string | []byte](text T) []byte {
	if len(text) == 0 {
		return nil
	}
	return []byte(text)
}

// micros returns a time in the form of a column.
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
func (r *row) encode(rec *store.Record, id [16]byte) {
	*r = row{
		id: id, attempt: rec.Attempt, due: micros(rec.Due()), retention: rec.Retention.Microseconds(),
		secret: optional(rec.DownstreamSecret), reconciled: optional(rec.ReconcileCount),
		state: int16(sqltx.StateCode(rec)), version: int16(rec.Version),
		resumable: rec.OnLost == store.LostResume, notReplayable: mark(rec.NotReplayable),
		fingerprint: encodeFingerprint(&rec.Fingerprint), operation: []byte(rec.Operation),
		scope: []byte(rec.Scope), point: nullable(rec.Point), data: nullable(rec.Data),
		lastError: nullable(rec.LastError), firstError: nullable(rec.FirstError),
		reconcileError: nullable(rec.ReconcileError), providerID: nullable(rec.ProviderID), trace: nullable(rec.TraceID),
	}
	if r.keyUUID = asUUID(rec.Key); !r.keyUUID.Valid {
		r.key = []byte(rec.Key)
	}
	if rec.State != store.StateCompleted || !rec.CreatedAt.Equal(rec.SettledAt) {
		r.created = optional(micros(rec.CreatedAt))
	}
	switch rec.State {
	case store.StateInProgress:
		r.nonce = rec.Nonce[:]
	case store.StateCompleted:
		r.encodeAnswer(&rec.Response)
	case store.StateUnknown, store.StateExpired:
		r.settled = optional(micros(rec.SettledAt))
	}
}

// asUUID returns a key as a UUID, if the key is a UUID in its usual text form.
func asUUID(key string) (id pgtype.UUID) {
	if len(key) != 36 || id.Scan(key) != nil || id.String() != key {
		return pgtype.UUID{}
	}
	return id
}

const contentType = "Content-Type"

// encodeAnswer sets the columns of an answer.
func (r *row) encodeAnswer(answer *store.Response) {
	r.status, r.notStored, r.body = int16(answer.Status), mark(answer.NotStored), nullable(answer.Body)
	header := answer.Header
	if len(header) > 0 && header[0] == (store.HeaderField{Name: contentType, Value: header[0].Value}) {
		r.contentType, header = []byte(header[0].Value), header[1:]
	}
	if len(header) > 0 {
		r.header = store.AppendHeader(nil, header)
	}
}

// record returns the record of an ID. It shares memory with the row.
func (r *row) record(id store.ID) (store.Record, error) {
	rec, err := r.decode()
	if err == nil && rec.ID != id {
		err = &store.UnreadableError{
			Version: store.RecordVersion, Reason: "its place is taken by another key, whose hash is the same",
		}
	}
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
}

// errDamaged is the error of a record whose columns have invalid values.
var errDamaged = &store.UnreadableError{Version: store.RecordVersion, Reason: "a column of it is damaged"}

// decode is the inverse of encode. For a row that cannot be read, it returns an [*store.UnreadableError],
// and a record with the ID.
func (r *row) decode() (store.Record, error) {
	id := store.ID{Scope: string(r.scope), Key: string(r.key)}
	if r.keyUUID.Valid {
		id.Key = r.keyUUID.String()
	}
	if r.version < 1 || r.version > int16(store.RecordVersion) {
		return store.Record{ID: id}, &store.UnreadableError{
			Version: uint8(min(max(r.version, 0), math.MaxUint8)), Reason: "the version is not known to this program",
		}
	}
	rec := store.Record{
		ID: id, Version: uint8(r.version), State: store.State(r.state / sqltx.CodesPerState),
		Operation: string(r.operation), Attempt: r.attempt, Retention: time.Duration(r.retention) * time.Microsecond,
		Point: string(r.point), NotReplayable: bool(r.notReplayable), LastError: string(r.lastError),
		FirstError: string(r.firstError), ReconcileError: string(r.reconcileError), ReconcileCount: int(r.reconciled),
		ProviderID: string(r.providerID), DownstreamSecret: uint32(r.secret), TraceID: string(r.trace),
		CreatedAt: fromMicros(int64(r.created)),
	}
	if r.resumable {
		rec.OnLost = store.LostResume
	}
	if len(r.data) > 0 {
		rec.Data = r.data
	}
	fits := r.state >= 0 && r.reconciled >= 0 && r.reconciled <= math.MaxInt32 && r.secret >= 0 && r.secret <= math.MaxUint32 &&
		r.retention >= 0 && r.retention <= math.MaxInt64/int64(time.Microsecond)
	if !fits || !decodeFingerprint(r.fingerprint, &rec.Fingerprint) || !r.decodeState(&rec) {
		return store.Record{ID: id}, errDamaged
	}
	if rec.CreatedAt.IsZero() {
		rec.CreatedAt = rec.SettledAt // a transaction makes its record at its end
	}
	return rec, nil
}

// decodeState reads the columns whose meaning depends on the state, and reports whether they are valid.
func (r *row) decodeState(rec *store.Record) bool {
	due := fromMicros(r.due)
	switch rec.State {
	case store.StateInProgress:
		rec.LeaseUntil = due
		return copy(rec.Nonce[:], r.nonce) == len(rec.Nonce) && int(r.state) == sqltx.StateCode(rec)
	case store.StateCompleted:
		rec.ExpiresAt, rec.SettledAt = due, due.Add(-rec.Retention)
		var err error
		rec.Response, err = r.decodeAnswer()
		return err == nil
	case store.StateRetryable:
		rec.ExpiresAt, rec.SettledAt = due, due.Add(-rec.Retention)
	case store.StateUnknown:
		rec.ReconcileAt, rec.SettledAt = due, fromMicros(int64(r.settled))
		rec.DeadLetter = int(r.state) == sqltx.CodeDeadLetter
	case store.StateExpired:
		rec.ExpiresAt, rec.SettledAt = due, fromMicros(int64(r.settled))
	default:
		return false
	}
	return true
}

// decodeAnswer reads the columns of an answer.
func (r *row) decodeAnswer() (answer store.Response, err error) {
	answer = store.Response{Status: int(r.status), NotStored: bool(r.notStored)}
	if len(r.body) > 0 {
		answer.Body = r.body
	}
	if answer.Status < 200 || answer.Status > 999 {
		return answer, errDamaged
	}
	if r.contentType != nil {
		answer.Header = []store.HeaderField{{Name: contentType, Value: string(r.contentType)}}
	}
	if r.header != nil {
		others, err := store.DecodeHeader(r.header)
		if err != nil {
			return answer, fmt.Errorf("%w: %w", errDamaged, err)
		}
		answer.Header = append(answer.Header, others...)
	}
	return answer, nil
}

// The sizes of a fingerprint, without a session and with one.
const (
	sizeOfFingerprint = 1 + 4 + 32
	sizeWithSession   = sizeOfFingerprint + 16
)

// encodeFingerprint returns the rules, the id of the secret, the sum and the session, if there is one.
func encodeFingerprint(f *store.Fingerprint) []byte {
	b := append(make([]byte, 0, sizeWithSession), f.Rules)
	b = binary.BigEndian.AppendUint32(b, f.Secret)
	b = append(b, f.Sum[:]...)
	if f.Session != [16]byte{} {
		b = append(b, f.Session[:]...)
	}
	return b
}

// decodeFingerprint is the inverse of encodeFingerprint. It reports whether b has the size of a fingerprint.
func decodeFingerprint(b []byte, f *store.Fingerprint) bool {
	if len(b) != sizeOfFingerprint && len(b) != sizeWithSession {
		return false
	}
	f.Rules, f.Secret = b[0], binary.BigEndian.Uint32(b[1:])
	copy(f.Session[:], b[5+copy(f.Sum[:], b[5:]):])
	return true
}
