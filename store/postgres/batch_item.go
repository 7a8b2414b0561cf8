package postgres

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// kind is the kind of call that an item makes.
type kind uint8

// The kinds of items, in the order in which a round trip sends them. Everything is sent before anything is read. A
// server that is blocked while it sends large answers to be replayed would not receive large answers to be stored, and
// both sides would wait. So completions, which may be large to send, go before reservations, whose replies may be
// large. Heartbeats are small. They go before completions, so that a heartbeat is not reported as lost because the
// answer of its lease is in the same round trip.
const (
	kindExtend kind = iota
	kindComplete
	kindReserve
	kinds
)

// shape is the shape of a statement: for any number of items of a kind, or for a single item, which
// costs the server half as much.
type shape uint8

// The shapes of the statements: first the statements for many items, in the order of the kinds, and then the
// statements for a single item.
const (
	shapeOne = shape(kinds)
	shapes   = 2 * shapeOne
)

// outcome is the outcome of an item.
type outcome uint8

// The outcomes. outcomeNone means that no row was returned for the item: a reservation met a record that was made at
// the same moment, or a write was refused.
const (
	outcomeNone    outcome = iota
	outcomeRead            // of a reservation: the existing record
	outcomeCreated         // of a reservation: a record was made
	outcomeWritten         // of a heartbeat or an answer
)

// item is one call in a batch, with its answer.
type item struct {
	kind    kind
	id      [16]byte
	attempt int64
	span    int64        // the lease
	made    store.Record // the record that a reservation makes
	row     row          // the columns that are written
	outcome outcome
	now     int64
	found   row   // of a reservation: the existing record
	due     int64 // of a write: the new value of the column due

	// done is closed when the item has an answer or an error, which is err.
	done chan struct{}
	err  error
}

// size returns the approximate size of the item on the wire.
func (t *item) size() int { return 256 + len(t.row.body) + len(t.row.header) }

// compareItems compares items by the order in which every batch locks their records.
func compareItems(a, b *item) int {
	if a.kind != b.kind {
		return int(a.kind) - int(b.kind)
	}
	return bytes.Compare(a.id[:], b.id[:])
}

// reserveItem returns the item of a reservation.
func reserveItem(r *store.Reservation, id [16]byte) *item {
	t := &item{
		kind: kindReserve, id: id, span: r.Lease.Microseconds(),
		made: store.Record{
			ID: r.ID, Version: store.RecordVersion, State: store.StateInProgress, OnLost: r.OnLost, Operation: r.Operation,
			Fingerprint: r.Fingerprints[0], Nonce: r.Nonce, Retention: r.Retention.Truncate(store.ClockStep),
			DownstreamSecret: r.DownstreamSecret, TraceID: r.TraceID,
		},
	}
	t.row.encode(&t.made, id)
	return t
}

func extendItem(id [16]byte, attempt int64, lease time.Duration) *item {
	return &item{kind: kindExtend, id: id, attempt: attempt, span: lease.Microseconds()}
}

func completeItem(id [16]byte, attempt int64, done *store.Completion) *item {
	t := &item{kind: kindComplete, id: id, attempt: attempt}
	t.row.retention, t.row.providerID = done.Retention.Microseconds(), nullable(done.ProviderID)
	t.row.encodeAnswer(&done.Response)
	return t
}

// granted returns the record that a reservation has made.
func (t *item) granted() store.Record {
	rec := t.made
	rec.Attempt, rec.CreatedAt, rec.LeaseUntil = t.found.attempt, fromMicros(t.now), fromMicros(t.now+t.span)
	return rec
}

// sharesLook reports whether two items are reservations of one key. Only the first one is sent.
func (t *item) sharesLook(other *item) bool {
	return t.kind == kindReserve && other.kind == t.kind && t.id == other.id
}

// shareLooks answers the reservations of one key with the record that the first of them found. If the first one made
// the record, or met a record that was made at the same moment, the others are sent again.
func shareLooks(items []*item) {
	for i, t := range items[1:] {
		if first := items[i]; t.sharesLook(first) && first.outcome == outcomeRead {
			t.outcome, t.now, t.found = first.outcome, first.now, first.found
		}
	}
}

// array returns one value of each item, encoded by the driver as an array.
func array[T any](trip *pipeline, oid uint32, items []*item, of func(t *item) T) []byte {
	elements := make([]T, len(items))
	for i, t := range items {
		elements[i] = of(t)
	}
	encoded, err := trip.conn.TypeMap().Encode(oid, pgtype.BinaryFormatCode, elements, nil)
	if err != nil {
		panic(err) // the driver knows these types
	}
	return encoded
}

// sending is a statement of a round trip, with its items.
type sending struct {
	shape shape
	items []*item
}

// sendings chooses the statements of a round trip. The items are sorted by compareItems.
func sendings(items []*item) (sent []sending) {
	for len(items) > 0 {
		n := 0
		for n < len(items) && items[n].kind == items[0].kind {
			items[n].outcome = outcomeNone
			n++
		}
		chosen := shape(items[0].kind)
		if n == 1 {
			chosen += shapeOne
		}
		sent = append(sent, sending{chosen, items[:n:n]})
		items = items[n:]
	}
	return sent
}

// arguments returns the arguments of the statement.
func (s *sending) arguments(trip *pipeline) [][]byte {
	if s.shape >= shapeOne {
		return s.items[0].arguments(trip)
	}
	numbers := func(of func(t *item) int64) []byte { return array(trip, pgtype.Int8ArrayOID, s.items, of) }
	smalls := func(of func(t *item) int16) []byte { return array(trip, pgtype.Int2ArrayOID, s.items, of) }
	texts := func(of func(t *item) []byte) []byte { return array(trip, pgtype.ByteaArrayOID, s.items, of) }
	ids := array(trip, pgtype.UUIDArrayOID, s.items, func(t *item) [16]byte { return t.id })
	switch kind(s.shape) {
	case kindExtend:
		return [][]byte{
			ids, numbers(func(t *item) int64 { return t.attempt }), numbers(func(t *item) int64 { return t.span }),
		}
	case kindComplete:
		return [][]byte{
			ids, numbers(func(t *item) int64 { return t.attempt }), numbers(func(t *item) int64 { return t.row.retention }),
			smalls(func(t *item) int16 { return t.row.status }),
			array(trip, pgtype.BoolArrayOID, s.items, func(t *item) bool { return bool(t.row.notStored) }),
			texts(func(t *item) []byte { return t.row.contentType }), texts(func(t *item) []byte { return t.row.header }),
			texts(func(t *item) []byte { return t.row.body }),
			texts(func(t *item) []byte { return t.row.providerID }),
		}
	default:
		return [][]byte{
			ids, numbers(func(t *item) int64 { return t.span }), numbers(func(t *item) int64 { return t.row.retention }),
			numbers(func(t *item) int64 { return int64(t.row.secret) }), smalls(func(t *item) int16 { return t.row.state }),
			texts(func(t *item) []byte { return t.row.nonce }), texts(func(t *item) []byte { return t.row.fingerprint }),
			texts(func(t *item) []byte { return t.row.operation }), texts(func(t *item) []byte { return t.row.scope }),
			texts(func(t *item) []byte { return t.row.key }),
			array(trip, pgtype.UUIDArrayOID, s.items, func(t *item) pgtype.UUID { return t.row.keyUUID }),
			texts(func(t *item) []byte { return t.row.trace }),
		}
	}
}

// arguments returns the arguments of the statement for a single item.
func (t *item) arguments(trip *pipeline) [][]byte {
	r := &t.row
	switch t.kind {
	case kindExtend:
		return [][]byte{t.id[:], trip.int64(t.attempt), trip.int64(t.span)}
	case kindComplete:
		return [][]byte{
			t.id[:], trip.int64(t.attempt), trip.int64(r.retention), trip.int16(r.status), trip.mark(r.notStored),
			r.contentType, r.header, r.body, r.providerID,
		}
	default:
		return [][]byte{
			t.id[:], trip.int64(t.span), trip.int64(r.retention), trip.int64(int64(r.secret)), trip.int16(r.state), r.nonce,
			r.fingerprint, r.operation, r.scope, r.key, trip.uuid(&r.keyUUID), r.trace,
		}
	}
}

// made is the list of the columns that a reservation writes.
const made = `(id, attempt, due, retention, created_at, downstream_secret, state, version, resumable, nonce, fingerprint, operation, scope,
				key, key_uuid, trace_id)`

// noColumns has a NULL for each column of a record except id and attempt.
var noColumns = strings.Repeat(", NULL", strings.Count(columns, ","))

// batchStatements holds the statements of a batch, indexed by shape. The statements for many items take
// an array for each column.
//
// Their plans must not depend on the planner's statistics of the table. Records are found by a look-up for each item,
// which LIMIT keeps from becoming a join, and are written with ON CONFLICT, which always uses the primary key. Each
// array is in a subquery, so that one plan serves batches of every size and is kept. A statement for a single item can
// only use the primary key: zero is added to the state, so that the index on the state is not used.
//
// A row names its item by the id of the record, which no two items of a statement share.
var batchStatements = [shapes]string{
	// A heartbeat or an answer changes a record that is in progress at its attempt. An item for which no row is
	// returned was refused. If the record was removed after the look, no record may be inserted in its place: the
	// inserted row would have the state 0, and the division by the state fails the statement.
	kindExtend: `INSERT INTO @record AS r (id, attempt, due, retention, state, version, fingerprint, operation, scope)
		SELECT u.id, u.attempt, n.now + u.span, 0, 0, 0, '', '', ''
		FROM (SELECT @now() AS now) AS n
		CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::bigint[])) AS u (id, attempt, span)
		CROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND r.attempt = u.attempt AND r.state IN (10, 11)
			AND r.version = 1 LIMIT 1) AS s
		ON CONFLICT (id) DO UPDATE SET due = excluded.due WHERE r.attempt = excluded.attempt AND r.state IN (10, 11)
		RETURNING r.id, r.due, r.attempt, r.state, 1 / r.state`,

	kindComplete: `INSERT INTO @record AS r (id, attempt, due, retention, state, version, fingerprint, operation, scope,
			status, not_stored, content_type, header, body, provider_id)
		SELECT u.id, u.attempt, n.now, u.retention, 0, 0, '', '', '', u.status, nullif(u.not_stored, false), u.content_type, u.header, u.body, u.provider_id
		FROM (SELECT @now() AS now) AS n
		CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::bigint[]), (SELECT $4::smallint[]),
				(SELECT $5::boolean[]), (SELECT $6::bytea[]), (SELECT $7::bytea[]), (SELECT $8::bytea[]), (SELECT $9::bytea[]))
			AS u (id, attempt, retention, status, not_stored, content_type, header, body, provider_id)
		CROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND r.attempt = u.attempt AND r.state IN (10, 11)
			AND r.version = 1 LIMIT 1) AS s
		ON CONFLICT (id) DO UPDATE SET state = 20, status = excluded.status, not_stored = excluded.not_stored, nonce = NULL,
			content_type = excluded.content_type, header = excluded.header, body = excluded.body, provider_id = coalesce(excluded.provider_id, r.provider_id),
			retention = greatest(r.retention, excluded.retention),
			due = excluded.due + greatest(r.retention, excluded.retention)
		WHERE r.attempt = excluded.attempt AND r.state IN (10, 11)
		RETURNING r.id, r.due, r.attempt, r.state, 1 / r.state`,

	// A reservation makes a record if there is none, and otherwise returns the record as it is. It takes no
	// record over: that is rare, and is left to the state machine. The statement looks first, so that a
	// duplicate does not wait for a transaction that changes its record. No row is returned if another
	// transaction made the record after the look.
	kindReserve: `WITH n AS MATERIALIZED (SELECT @now() AS now), q AS MATERIALIZED (
			SELECT u.id AS asked, u.nonce AS asking, u.span, u.kept, u.secret, u.code, u.print, u.name, u.place, u.word, u.uuid, u.trace, s.*
			FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::bigint[]), (SELECT $4::bigint[]),
					(SELECT $5::smallint[]), (SELECT $6::bytea[]), (SELECT $7::bytea[]), (SELECT $8::bytea[]),
					(SELECT $9::bytea[]), (SELECT $10::bytea[]), (SELECT $11::uuid[]), (SELECT $12::bytea[]))
				AS u (id, span, kept, secret, code, nonce, print, name, place, word, uuid, trace)
			LEFT JOIN LATERAL (SELECT ` + columns + ` FROM @record r WHERE r.id = u.id LIMIT 1) AS s ON true
		), w AS (
			INSERT INTO @record ` + made + `
			SELECT asked, nextval('@attempt'), now + span, kept, now, nullif(secret, 0), code, 1, nullif(code = 11, false), asking, print,
				name, place, word, uuid, trace
			FROM q, n WHERE state IS NULL
			ON CONFLICT (id) DO NOTHING
			RETURNING id, attempt, nonce
		)
		SELECT id, true, now, pg_is_in_recovery(), nonce, attempt` + noColumns + ` FROM w, n
		UNION ALL
		SELECT asked, false, now, pg_is_in_recovery(), asking, ` + columns + ` FROM q, n WHERE state IS NOT NULL`,

	shapeOne + shape(kindExtend): `UPDATE @record AS r SET due = @now() + $3::bigint
		WHERE r.id = $1::uuid AND r.attempt = $2::bigint AND r.state + 0 IN (10, 11) AND r.version = 1
		RETURNING r.id, r.due, r.attempt, r.state`,

	shapeOne + shape(kindComplete): `UPDATE @record AS r SET state = 20, status = $4::smallint, not_stored = $5::boolean,
			nonce = NULL, content_type = $6::bytea, header = $7::bytea, body = $8::bytea,
			provider_id = coalesce($9::bytea, r.provider_id),
			retention = greatest(r.retention, $3::bigint), due = @now() + greatest(r.retention, $3::bigint)
		WHERE r.id = $1::uuid AND r.attempt = $2::bigint AND r.state + 0 IN (10, 11) AND r.version = 1
		RETURNING r.id, r.due, r.attempt, r.state`,

	shapeOne + shape(kindReserve): `WITH s AS MATERIALIZED (SELECT ` + columns + ` FROM @record WHERE id = $1::uuid), w AS (
			INSERT INTO @record ` + made + `
			SELECT $1::uuid, nextval('@attempt'), n.now + $2::bigint, $3::bigint, n.now, nullif($4::bigint, 0), $5::smallint, 1,
				nullif($5::smallint = 11, false), $6::bytea, $7::bytea, $8::bytea, $9::bytea, $10::bytea, $11::uuid, $12::bytea
			FROM (SELECT @now() AS now) AS n WHERE NOT EXISTS (SELECT FROM s)
			ON CONFLICT (id) DO NOTHING
			RETURNING attempt, created_at
		)
		SELECT $1::uuid, true, created_at, pg_is_in_recovery(), $6::bytea, attempt` + noColumns + ` FROM w
		UNION ALL
		SELECT $1::uuid, false, @now(), pg_is_in_recovery(), $6::bytea, ` + columns + ` FROM s`,
}

// The columns of the row of a reservation, and of the row of a heartbeat or an answer.
const (
	reservedID, reservedMade, reservedNow, reservedStandby, reservedNonce, reservedRecord = 0, 1, 2, 3, 4, 5

	writtenID, writtenDue, writtenAttempt, writtenState = 0, 1, 2, 3
)

// readOutcome reads one row that a statement returned.
func (s *sending) readOutcome(raw [][]byte) error {
	v := values{raw: raw}
	t, err := itemNamed(&v, s.items)
	switch {
	case err != nil:
		return err
	case t.kind == kindReserve:
		return t.readReserved(&v)
	default:
		return t.readWritten(&v)
	}
}

// itemNamed returns the item whose id is in the first column. The items are sorted by id, and no two have the same id.
func itemNamed(v *values, items []*item) (*item, error) {
	wanted := item{kind: items[0].kind, id: [16]byte(v.fixed(reservedID, 16))} // writtenID is the same column
	i, found := slices.BinarySearchFunc(items, &wanted, compareItems)
	if v.err != nil || !found {
		return nil, fmt.Errorf("%w: a record that was not asked for: %x", errForeignReply, wanted.id)
	}
	return items[i], nil
}

// readReserved reads the row of a reservation.
func (t *item) readReserved(v *values) error {
	if !bytes.Equal(v.column(reservedNonce), t.row.nonce) {
		return fmt.Errorf("%w: another reservation's", errForeignReply)
	}
	if v.bool(reservedStandby) {
		return ErrStandby
	}
	t.now, t.found = v.int64(reservedNow), row{id: t.id}
	if v.bool(reservedMade) {
		t.outcome, t.found.attempt = outcomeCreated, v.int64(reservedRecord) // the record's first column
	} else {
		t.outcome = outcomeRead
		v.row(&t.found, reservedRecord)
	}
	return v.err
}

// readWritten reads the row of a heartbeat or an answer.
func (t *item) readWritten(v *values) error {
	if t.attempt != v.int64(writtenAttempt) || (t.kind == kindComplete) != (int(v.int16(writtenState)) == sqltx.CodeCompleted) {
		return fmt.Errorf("%w: a record that was not written: %x", errForeignReply, t.id)
	}
	t.outcome, t.due = outcomeWritten, v.int64(writtenDue)
	return v.err
}
