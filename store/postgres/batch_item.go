package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// kind is what an item asks for.
type kind uint8

// The kinds of item, in the order in which a round trip sends them. All is sent before anything is read: a server that
// cannot get rid of large answers to be replayed would not take large answers to be stored, and both sides would wait.
// So what is large to send goes before what is large to receive. Heartbeats are neither, and before completions they
// are not told that a lease is lost whose answer travels with them.
const (
	kindExtend kind = iota
	kindComplete
	kindReserve
	kinds
)

// shape is that of a statement: for any number of items of a kind, or for one, which costs the server half.
type shape uint8

// The shapes of the statements: of each kind the one for many, in the order of the kinds, and then the one for one.
const (
	shapeOne = shape(kinds)
	shapes   = 2 * shapeOne
)

// outcome is what came of an item.
type outcome uint8

// The outcomes. A reservation without a row met a record that was made at the same moment, a write without one was
// refused.
const (
	outcomeNone    outcome = iota
	outcomeRead            // of a reservation: the record as it stands
	outcomeCreated         // of a reservation: a record was made
	outcomeWritten         // of a heartbeat or an answer
)

// item is one call in a batch: what is asked, and how it was answered.
type item struct {
	kind      kind
	id        [16]byte
	attempt   int64
	span      int64
	retention int32
	state     int16
	answer    []byte // the nonce of a reservation
	request   []byte
	extra     []byte

	outcome outcome
	now     int64
	found   row // the record as it stands, if outcome is outcomeRead; else what was granted or written

	// done is closed when the item is answered, or err says why it was not.
	done chan struct{}
	err  error
}

// size is about what the item takes on the wire.
func (t *item) size() int { return 128 + len(t.answer) + len(t.request) + len(t.extra) }

// compareItems puts items into the order in which every batch locks them.
func compareItems(a, b *item) int {
	if a.kind != b.kind {
		return int(a.kind) - int(b.kind)
	}
	return bytes.Compare(a.id[:], b.id[:])
}

// reserveItem asks for the right to execute.
func reserveItem(r *store.Reservation, id [16]byte, number int32) *item {
	t := &item{
		kind: kindReserve, id: id, span: r.Lease.Microseconds(), retention: packRetention(truncated(r.Retention)),
		state: int16(store.StateInProgress) * codesPerState, answer: r.Nonce[:],
		request: appendRequest(
			make([]byte, 0, usualRequest), store.RecordVersion, &r.Fingerprints[0], number, r.Operation, r.ID),
		extra: appendSecret(appendTrace([]byte{}, r.TraceID), r.DownstreamSecret),
	}
	if r.OnLost == store.LostResume {
		t.state++
	}
	return t
}

// truncated is a duration in the resolution that records keep.
func truncated(d time.Duration) time.Duration { return d.Truncate(time.Microsecond) }

func extendItem(id [16]byte, attempt int64, lease time.Duration) *item {
	return &item{kind: kindExtend, id: id, attempt: attempt, span: lease.Microseconds()}
}

func completeItem(id [16]byte, attempt int64, done *store.Completion) *item {
	return &item{
		kind: kindComplete, id: id, attempt: attempt, retention: packRetention(truncated(done.Retention)),
		answer: appendAnswer(make([]byte, 0, usualHeader+len(done.Response.Body)), &done.Response),
		extra:  appendField([]byte{}, tagProviderID, done.ProviderID),
	}
}

// granted is the record that a reservation has made.
func (t *item) granted(r *store.Reservation) store.Record {
	now := fromMicros(t.now)
	return store.Record{
		ID: r.ID, Version: store.RecordVersion, State: store.StateInProgress, OnLost: r.OnLost, Operation: r.Operation,
		Fingerprint: r.Fingerprints[0], Attempt: t.found.attempt, Nonce: r.Nonce, LeaseUntil: now.Add(truncated(r.Lease)),
		Retention: unpackRetention(t.retention), DownstreamSecret: r.DownstreamSecret, TraceID: r.TraceID, CreatedAt: now,
	}
}

// sharesLook reports whether two items are reservations of one key: the first is sent for both.
func (t *item) sharesLook(other *item) bool {
	return t.kind == kindReserve && other.kind == t.kind && t.id == other.id
}

// shareLooks answers reservations of one key by what the first of them found. If that has made the record, or met one
// that was made at the same moment, the others ask again.
func shareLooks(items []*item) {
	for i, t := range items[1:] {
		if first := items[i]; t.sharesLook(first) && first.outcome == outcomeRead {
			t.outcome, t.now, t.found = first.outcome, first.now, first.found
		}
	}
}

// The types of the elements of arrays, by the numbers that PostgreSQL knows them by.
const (
	oidBytea = 17
	oidInt8  = 20
	oidInt2  = 21
	oidInt4  = 23
	oidUUID  = 2950
)

// arrayOf encodes one value of each item as an array in the binary format.
func arrayOf(oid uint32, items []*item, add func(dst []byte, t *item) []byte) []byte {
	dst := make([]byte, 0, 20+24*len(items))
	for _, header := range [...]uint32{1, 0, oid, uint32(len(items)), 1} { // one dimension, no nulls, from one on
		dst = binary.BigEndian.AppendUint32(dst, header)
	}
	for _, t := range items {
		start := len(dst)
		dst = add(append(dst, 0, 0, 0, 0), t)
		binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	}
	return dst
}

func ids(items []*item) []byte {
	return arrayOf(oidUUID, items, func(dst []byte, t *item) []byte { return append(dst, t.id[:]...) })
}

func attempts(items []*item) []byte {
	return arrayOf(oidInt8, items, func(dst []byte, t *item) []byte {
		return binary.BigEndian.AppendUint64(dst, uint64(t.attempt))
	})
}

func spans(items []*item) []byte {
	return arrayOf(oidInt8, items, func(dst []byte, t *item) []byte {
		return binary.BigEndian.AppendUint64(dst, uint64(t.span))
	})
}

func retentions(items []*item) []byte {
	return arrayOf(oidInt4, items, func(dst []byte, t *item) []byte {
		return binary.BigEndian.AppendUint32(dst, uint32(t.retention))
	})
}

func states(items []*item) []byte {
	return arrayOf(oidInt2, items, func(dst []byte, t *item) []byte {
		return binary.BigEndian.AppendUint16(dst, uint16(t.state))
	})
}

func answers(items []*item) []byte {
	return arrayOf(oidBytea, items, func(dst []byte, t *item) []byte { return append(dst, t.answer...) })
}

func requests(items []*item) []byte {
	return arrayOf(oidBytea, items, func(dst []byte, t *item) []byte { return append(dst, t.request...) })
}

func extras(items []*item) []byte {
	return arrayOf(oidBytea, items, func(dst []byte, t *item) []byte { return append(dst, t.extra...) })
}

// sending is a statement of a round trip, and the items that it is for.
type sending struct {
	shape shape
	items []*item
}

// sendings chooses the statements of a round trip, for items that are in their order.
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

// arguments are those of a statement.
func (s *sending) arguments(trip *pipeline) [][]byte {
	items, t := s.items, s.items[0]
	switch s.shape {
	case shape(kindReserve):
		return [][]byte{
			ids(items), spans(items), retentions(items), states(items), answers(items), requests(items), extras(items),
		}
	case shape(kindExtend):
		return [][]byte{ids(items), attempts(items), spans(items)}
	case shape(kindComplete):
		return [][]byte{ids(items), attempts(items), retentions(items), answers(items), extras(items)}
	case shape(kindReserve) + shapeOne:
		return [][]byte{
			t.id[:], trip.int64(t.span), trip.int32(t.retention), trip.int16(t.state), t.answer, t.request, t.extra,
		}
	case shape(kindExtend) + shapeOne:
		return [][]byte{t.id[:], trip.int64(t.attempt), trip.int64(t.span)}
	default:
		return [][]byte{t.id[:], trip.int64(t.attempt), trip.int32(t.retention), t.answer, t.extra}
	}
}

// batchStatements are the statements of a batch, by their shapes. Those for many items have an array for each column.
//
// They must not depend on what the planner thinks of the table. Records are found by a look-up for each item, which
// LIMIT keeps from becoming a join, and written through ON CONFLICT, which always goes by the primary key. The arrays
// are in a subquery each, so that one plan serves batches of every size and is kept. A statement for one item compares
// nothing but the name with what an index holds: zero is added to the state, because there is an index on it.
//
// Rows say which item they are for by its name, which no two items have.
var batchStatements = [shapes]string{
	// A heartbeat or an answer changes a record that is in progress at its attempt. An item without a row was refused.
	// Should the record have been removed since the look, nothing may be made in its place: what would be has the state
	// 0, and the division by that stops the statement.
	kindExtend: `INSERT INTO @record AS r (id, attempt, due, retention, answer, state, request, extra)
		SELECT u.id, u.attempt, n.now + u.span, 0, '', 0, '', ''
		FROM (SELECT @now() AS now) AS n
		CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::bigint[])) AS u (id, attempt, span)
		CROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND r.attempt = u.attempt AND r.state IN (10, 11)
			AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1 LIMIT 1) AS s
		ON CONFLICT (id) DO UPDATE SET due = excluded.due WHERE r.attempt = excluded.attempt AND r.state IN (10, 11)
		RETURNING r.id, r.due, r.attempt, r.state, 1 / r.state`,

	// The longer retention in microseconds is the greater of both in microseconds; asked the other way round, the
	// server would not put the function's text in its place but parse and plan it each time.
	kindComplete: `INSERT INTO @record AS r (id, attempt, due, retention, answer, state, request, extra)
		SELECT u.id, u.attempt, n.now, u.retention, u.answer, 0, '', u.extra
		FROM (SELECT @now() AS now) AS n
		CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::integer[]), (SELECT $4::bytea[]),
			(SELECT $5::bytea[])) AS u (id, attempt, retention, answer, extra)
		CROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND r.attempt = u.attempt AND r.state IN (10, 11)
			AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1 LIMIT 1) AS s
		ON CONFLICT (id) DO UPDATE SET state = 20, answer = excluded.answer,
			extra = r.extra || excluded.extra || CASE WHEN r.state = 11 THEN '\x0b0101'::bytea ELSE ''::bytea END,
			retention = @longer_retention(r.retention, excluded.retention),
			due = excluded.due + greatest(@retention_us(r.retention), @retention_us(excluded.retention))
		WHERE r.attempt = excluded.attempt AND r.state IN (10, 11)
		RETURNING r.id, r.due, r.attempt, r.state, 1 / r.state`,

	// A reservation makes a record where there is none, or hands it back as it stands. It takes none over: that is rare,
	// and the state machine's to do. Looking first keeps a duplicate from waiting for a transaction that changes its
	// record. No row comes if another one made the record since the look.
	kindReserve: `WITH n AS MATERIALIZED (SELECT @now() AS now), q AS MATERIALIZED (
			SELECT u.*, s.attempt AS s_attempt, s.due AS s_due, s.retention AS s_retention, s.answer AS s_answer,
				s.state AS s_state, s.request AS s_request, s.extra AS s_extra
			FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::integer[]), (SELECT $4::smallint[]),
				(SELECT $5::bytea[]), (SELECT $6::bytea[]), (SELECT $7::bytea[]))
				AS u (id, span, retention, state, nonce, request, extra)
			LEFT JOIN LATERAL (SELECT * FROM @record r WHERE r.id = u.id LIMIT 1) AS s ON true
		), w AS (
			INSERT INTO @record (id, attempt, due, retention, answer, state, request, extra)
			SELECT id, nextval('@attempt'), now + span, retention, nonce, state, request,
				'\x0108'::bytea || int8send(now) || extra
			FROM q, n WHERE s_state IS NULL
			ON CONFLICT (id) DO NOTHING
			RETURNING id, attempt, due, answer
		)
		SELECT id, true, now, pg_is_in_recovery(), answer, attempt, due, NULL::integer, NULL::bytea, NULL::smallint,
			NULL::bytea, NULL::bytea
		FROM w, n
		UNION ALL
		SELECT id, false, now, pg_is_in_recovery(), nonce, s_attempt, s_due, s_retention, s_answer, s_state, s_request,
			s_extra
		FROM q, n WHERE s_state IS NOT NULL`,

	shapeOne + shape(kindExtend): `UPDATE @record AS r SET due = @now() + $3::bigint
		WHERE r.id = $1::uuid AND r.attempt = $2::bigint AND r.state + 0 IN (10, 11)
			AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1
		RETURNING r.id, r.due, r.attempt, r.state`,

	shapeOne + shape(kindComplete): `UPDATE @record AS r SET state = 20, answer = $4::bytea,
			extra = r.extra || $5::bytea || CASE WHEN r.state = 11 THEN '\x0b0101'::bytea ELSE ''::bytea END,
			retention = @longer_retention(r.retention, $3::integer),
			due = @now() + greatest(@retention_us(r.retention),
				CASE WHEN $3::integer < 0 THEN -$3::bigint ELSE $3 * 1000000::bigint END)
		WHERE r.id = $1::uuid AND r.attempt = $2::bigint AND r.state + 0 IN (10, 11)
			AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1
		RETURNING r.id, r.due, r.attempt, r.state`,

	shapeOne + shape(kindReserve): `WITH s AS MATERIALIZED (
			SELECT attempt, due, retention, answer, state, request, extra FROM @record WHERE id = $1::uuid
		), w AS (
			INSERT INTO @record (id, attempt, due, retention, answer, state, request, extra)
			SELECT $1::uuid, nextval('@attempt'), n.now + $2::bigint, $3::integer, $5::bytea, $4::smallint, $6::bytea,
				'\x0108'::bytea || int8send(n.now) || $7::bytea
			FROM (SELECT @now() AS now) AS n WHERE NOT EXISTS (SELECT FROM s)
			ON CONFLICT (id) DO NOTHING
			RETURNING attempt, due
		)
		SELECT $1::uuid, true, due - $2::bigint, pg_is_in_recovery(), $5::bytea, attempt, due, NULL::integer,
			NULL::bytea, NULL::smallint, NULL::bytea, NULL::bytea
		FROM w
		UNION ALL
		SELECT $1::uuid, false, @now(), pg_is_in_recovery(), $5::bytea, attempt, due, retention, answer, state, request,
			extra
		FROM s`,
}

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

// itemNamed is the item that has the name in the first column, of items in the order of their names, which no two have.
func itemNamed(v *values, items []*item) (*item, error) {
	wanted := item{kind: items[0].kind, id: [16]byte(v.fixed(0, 16))}
	i, found := slices.BinarySearchFunc(items, &wanted, compareItems)
	if v.err != nil || !found {
		return nil, fmt.Errorf("%w: a record that was not asked for: %x", errForeignReply, wanted.id)
	}
	return items[i], nil
}

// readReserved reads the row of a reservation.
func (t *item) readReserved(v *values) error {
	if !bytes.Equal(v.column(4), t.answer) {
		return fmt.Errorf("%w: another reservation's", errForeignReply)
	}
	if v.bool(3) {
		return ErrStandby
	}
	t.now, t.found = v.int64(2), row{id: t.id}
	if v.bool(1) {
		t.outcome, t.found.attempt = outcomeCreated, v.int64(5)
	} else {
		t.outcome = outcomeRead
		t.found.read(v, 5)
	}
	return v.err
}

// readWritten reads the row of a heartbeat or an answer.
func (t *item) readWritten(v *values) error {
	if t.attempt != v.int64(2) || (t.kind == kindComplete) != (v.int16(3) == 20) {
		return fmt.Errorf("%w: a record that was not written: %x", errForeignReply, t.id)
	}
	t.outcome, t.found = outcomeWritten, row{id: t.id, due: v.int64(1)}
	return v.err
}
