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

// shape is that of a statement: for any number of items of a kind, or for one.
type shape uint8

// The shapes of the statements. Those for any number are first, in the order of the kinds.
const (
	shapeExtend shape = iota
	shapeComplete
	shapeReserve
	// shapeReserveNew makes records where there are none, or hands them back as they stand. It takes none over.
	shapeReserveNew
	shapeReserveOne // the same for one
	shapeCompleteOne
	// shapeLook hands records back as they stand, for reservations that are likely to be replays.
	shapeLook
	shapes
)

// The outcomes of a reservation, as its statement knows them, and those of a write.
const (
	outcomeRead      int16 = 0
	outcomeAbsent    int16 = 1
	outcomeCreated   int16 = 2
	outcomeRecreated int16 = 3
	outcomeRetried   int16 = 4
	outcomeAgain     int16 = 5
	outcomeRefused   int16 = 6
	outcomeWritten   int16 = 7
)

// item is one call in a batch: what is asked, and how it was answered.
type item struct {
	kind      kind
	id        [16]byte
	attempt   int64
	span      int64
	retention int32
	state     int16
	create    bool
	// look says that the item only looks, because another of its batch may write the record.
	look bool
	// whole says that a reservation is decided by the statement that knows every case, as one is that was tried before.
	whole bool
	// partly says that it was sent by a statement that does not: where there is more to do, it is to be sent again.
	partly  bool
	answer  []byte // the nonce of a reservation
	request []byte
	extra   []byte

	outcome int16
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
		state: int16(store.StateInProgress) * codesPerState, create: !r.NoCreate, answer: r.Nonce[:],
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

// granted is the record that a reservation has made its own.
func (t *item) granted(r *store.Reservation) (store.Record, store.Origin, error) {
	now := fromMicros(t.now)
	rec := store.Record{
		ID: r.ID, Version: store.RecordVersion, State: store.StateInProgress, OnLost: r.OnLost, Operation: r.Operation,
		Fingerprint: r.Fingerprints[0], Attempt: t.found.attempt, Nonce: r.Nonce, LeaseUntil: now.Add(truncated(r.Lease)),
		Retention: unpackRetention(t.retention), DownstreamSecret: r.DownstreamSecret, TraceID: r.TraceID, CreatedAt: now,
	}
	switch t.outcome {
	case outcomeCreated:
		return rec, store.OriginCreated, nil
	case outcomeRecreated:
		return rec, store.OriginRecreated, nil
	default:
		rec.DownstreamSecret, rec.TraceID, rec.CreatedAt = 0, "", time.Time{}
		rec.Retention = unpackRetention(t.found.retention)
		if err := parseExtra(t.found.extra, &rec); err != nil {
			return rec, 0, unreadable(err)
		}
		return rec, store.OriginRetried, nil
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

// The modes of a reservation: to look only, to take over what is there, or to make a record too.
const (
	modeLook   = 0
	modeTake   = 1
	modeCreate = 2
)

func modes(items []*item) []byte {
	return arrayOf(oidInt2, items, func(dst []byte, t *item) []byte {
		switch {
		case t.look:
			return append(dst, 0, modeLook)
		case t.create:
			return append(dst, 0, modeCreate)
		default:
			return append(dst, 0, modeTake)
		}
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

// These are up to how many of a kind go as a statement each: a simple statement costs the server less than what it takes
// to begin one for many.
const (
	fewReserve  = 2
	fewComplete = 3
)

// guess is what reservations are likely to find: it says which statement costs least, and never what is decided.
type guess uint8

const (
	guessNew guess = iota
	guessReplay
	guessNothing
)

// sendings are the statements for items of one kind, which are in the order of their names. Reservations of a round
// trip have one shape, so that they lock in that order.
func sendings(dst []sending, items []*item, few int, likely guess) []sending {
	switch k := items[0].kind; {
	case k == kindReserve && likely != guessNothing && !slices.ContainsFunc(items, (*item).needsWhole):
		switch {
		case likely == guessReplay:
			setPartly(items, outcomeRefused)
			return append(dst, sending{shapeLook, items})
		case len(items) <= few:
			setPartly(items, outcomeAgain)
			return appendSingly(dst, shapeReserveOne, items)
		default:
			setPartly(items, outcomeAgain)
			return append(dst, sending{shapeReserveNew, items})
		}
	case k == kindComplete && len(items) <= few && !slices.ContainsFunc(items, (*item).keptForMicros):
		return appendSingly(dst, shapeCompleteOne, items)
	}
	return append(dst, sending{shape(items[0].kind), items})
}

func appendSingly(dst []sending, s shape, items []*item) []sending {
	for i := range items {
		dst = append(dst, sending{s, items[i : i+1]})
	}
	return dst
}

// setPartly notes that reservations are sent by a statement that does not know every case, and what it means if no row
// comes for one.
func setPartly(items []*item, silence int16) {
	for _, t := range items {
		t.partly, t.outcome = true, silence
	}
}

// needsWhole reports whether only the statement that knows every case can decide a reservation.
func (t *item) needsWhole() bool { return t.whole || t.look || !t.create }

// keptForMicros reports whether the retention is not in whole seconds, which the statement for one item does not know.
func (t *item) keptForMicros() bool { return t.retention < 0 }

// arguments are those of a statement.
func (s *sending) arguments(trip *pipeline) [][]byte {
	items, t := s.items, s.items[0]
	switch s.shape {
	case shapeReserve:
		return [][]byte{
			ids(items), modes(items), spans(items), retentions(items), states(items), answers(items), requests(items),
			extras(items),
		}
	case shapeExtend:
		return [][]byte{ids(items), attempts(items), spans(items)}
	case shapeComplete:
		return [][]byte{ids(items), attempts(items), retentions(items), answers(items), extras(items)}
	case shapeReserveNew:
		return [][]byte{
			ids(items), spans(items), retentions(items), states(items), answers(items), requests(items), extras(items),
		}
	case shapeReserveOne:
		return [][]byte{
			t.id[:], trip.int64(t.span), trip.int32(t.retention), trip.int16(t.state), t.answer, t.request, t.extra,
		}
	case shapeCompleteOne:
		return [][]byte{t.id[:], trip.int64(t.attempt), trip.int32(t.retention), t.answer, t.extra}
	default:
		return [][]byte{ids(items), answers(items)}
	}
}

// batchStatements are the statements of a batch, by their shapes. Those for many items have an array for each column.
//
// They must not depend on what the planner thinks of the table. Records are found by a look-up for each item, which
// LIMIT keeps from becoming a join, and written through ON CONFLICT, which always goes by the primary key. The arrays
// hide behind a subquery, so that one plan serves batches of every size and is kept. A statement for one item compares
// nothing but the name with what an index holds.
var batchStatements = [shapes]string{
	// A reservation makes a record where there is none, replaces one that counts for nothing any more, takes
	// it over if it may be retried by the same request, or hands it back as it stands. A record that appeared or
	// changed since the look is not written: the item is to be sent again.
	shapeReserve: `WITH q AS MATERIALIZED (
			SELECT u.*, n.now, s.attempt AS s_attempt, s.due AS s_due, s.retention AS s_retention, s.answer AS s_answer,
				s.state AS s_state, s.request AS s_request, s.extra AS s_extra,
				coalesce(s.state = 50 OR s.state IN (20, 30) AND s.due <= n.now, true) AS fresh,
				CASE
					WHEN u.mode = 0 THEN false
					WHEN s.state IS NULL THEN u.mode = 2
					WHEN get_byte(s.request || '\x00'::bytea, 0) & 15 <> 1 THEN false
					WHEN s.state = 50 OR s.state IN (20, 30) AND s.due <= n.now THEN u.mode = 2
					ELSE s.state = 30 AND s.request = u.request
				END AS takes
			FROM (SELECT @now() AS now) AS n
			CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::smallint[]), (SELECT $3::bigint[]), (SELECT $4::integer[]),
				(SELECT $5::smallint[]), (SELECT $6::bytea[]), (SELECT $7::bytea[]), (SELECT $8::bytea[]))
				WITH ORDINALITY AS u (id, mode, span, retention, state, nonce, request, extra, item)
			LEFT JOIN LATERAL (SELECT * FROM @record r WHERE r.id = u.id LIMIT 1) AS s ON true
		), w AS (
			INSERT INTO @record AS r (id, attempt, due, retention, answer, state, request, extra)
			SELECT id, nextval('@attempt'), now + span,
				CASE WHEN fresh THEN retention ELSE @longer_retention(s_retention, retention) END, nonce, state, request,
				CASE WHEN fresh THEN '\x0108'::bytea || int8send(now) || extra ELSE s_extra || '\x0500060009000b0100'::bytea END
			FROM q WHERE takes
			ON CONFLICT (id) DO UPDATE SET attempt = excluded.attempt, due = excluded.due, retention = excluded.retention,
				answer = excluded.answer, state = excluded.state, request = excluded.request, extra = excluded.extra
			WHERE EXISTS (SELECT FROM q WHERE q.id = r.id AND q.s_attempt = r.attempt AND q.s_state = r.state
				AND q.s_due = r.due AND q.s_extra = r.extra)
			RETURNING r.id, r.attempt, r.retention, r.extra
		)
		SELECT q.item,
			CASE
				WHEN w.id IS NULL AND q.takes THEN 5
				WHEN w.id IS NULL AND q.s_state IS NULL THEN 1
				WHEN w.id IS NULL THEN 0
				WHEN q.s_state IS NULL THEN 2
				WHEN q.fresh THEN 3
				ELSE 4
			END::smallint,
			q.now, coalesce(w.attempt, q.s_attempt), q.s_due, coalesce(w.retention, q.s_retention), q.s_answer, q.s_state,
			q.s_request, coalesce(w.extra, q.s_extra), pg_is_in_recovery(), q.nonce
		FROM q LEFT JOIN w ON w.id = q.id AND q.takes`,

	// A heartbeat or an answer changes a record that is in progress at its attempt, and returns its name. An item whose
	// name does not come back was refused. Should the record have been removed since the look, nothing may be made in
	// its place: what would be has the state 0, and the division by that stops the statement.
	shapeExtend: `INSERT INTO @record AS r (id, attempt, due, retention, answer, state, request, extra)
		SELECT u.id, u.attempt, n.now + u.span, 0, '', 0, '', ''
		FROM (SELECT @now() AS now) AS n
		CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::bigint[])) AS u (id, attempt, span)
		CROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND r.attempt = u.attempt AND r.state IN (10, 11)
			AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1 LIMIT 1) AS s
		ON CONFLICT (id) DO UPDATE SET due = excluded.due WHERE r.attempt = excluded.attempt AND r.state IN (10, 11)
		RETURNING r.id, r.due, r.attempt, r.state, 1 / r.state`,

	// The longer retention in microseconds is the greater of both in microseconds; asked the other way round, the
	// server would not put the function's text in its place but parse and plan it each time.
	shapeComplete: `INSERT INTO @record AS r (id, attempt, due, retention, answer, state, request, extra)
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

	// Looking first keeps a duplicate from waiting for a transaction that changes its record. No row comes if another
	// made the record since the look. Rows say which item they are for by its name, which no two items have.
	shapeReserveNew: `WITH n AS MATERIALIZED (SELECT @now() AS now), q AS MATERIALIZED (
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
		SELECT id, 2::smallint, now, attempt, due, NULL::integer, NULL::bytea, NULL::smallint, NULL::bytea, NULL::bytea,
			pg_is_in_recovery(), answer
		FROM w, n
		UNION ALL
		SELECT id, 0::smallint, now, s_attempt, s_due, s_retention, s_answer, s_state, s_request, s_extra,
			pg_is_in_recovery(), nonce
		FROM q, n WHERE s_state IS NOT NULL`,

	shapeReserveOne: `WITH s AS MATERIALIZED (
			SELECT attempt, due, retention, answer, state, request, extra FROM @record WHERE id = $1::uuid
		), w AS (
			INSERT INTO @record (id, attempt, due, retention, answer, state, request, extra)
			SELECT $1::uuid, nextval('@attempt'), n.now + $2::bigint, $3::integer, $5::bytea, $4::smallint, $6::bytea,
				'\x0108'::bytea || int8send(n.now) || $7::bytea
			FROM (SELECT @now() AS now) AS n WHERE NOT EXISTS (SELECT FROM s)
			ON CONFLICT (id) DO NOTHING
			RETURNING attempt, due
		)
		SELECT 1::bigint, 2::smallint, due - $2::bigint, attempt, due, NULL::integer, NULL::bytea, NULL::smallint,
			NULL::bytea, NULL::bytea, pg_is_in_recovery(), $5::bytea
		FROM w
		UNION ALL
		SELECT 1::bigint, 0::smallint, @now(), attempt, due, retention, answer, state, request, extra, pg_is_in_recovery(),
			$5::bytea
		FROM s`,

	// Zero is added to the state because there is an index on it, which the planner may take for a better way.
	shapeCompleteOne: `UPDATE @record AS r SET state = 20, answer = $4::bytea,
			extra = r.extra || $5::bytea || CASE WHEN r.state = 11 THEN '\x0b0101'::bytea ELSE ''::bytea END,
			retention = greatest(r.retention, $3::integer),
			due = @now() + greatest(r.retention, $3::integer) * 1000000::bigint
		WHERE r.id = $1::uuid AND r.attempt = $2::bigint AND r.state + 0 IN (10, 11) AND r.retention >= 0
			AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1
		RETURNING r.id, r.due, r.attempt, r.state`,

	shapeLook: `SELECT u.item, CASE WHEN s.state IS NULL THEN 1 ELSE 0 END::smallint, n.now, s.attempt, s.due, s.retention,
			s.answer, s.state, s.request, s.extra, pg_is_in_recovery(), u.nonce
		FROM (SELECT @now() AS now) AS n
		CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bytea[])) WITH ORDINALITY AS u (id, nonce, item)
		LEFT JOIN LATERAL (SELECT * FROM @record r WHERE r.id = u.id LIMIT 1) AS s ON true`,
}

// unanswered says that no row came for a reservation, as one always does from a statement for many.
func (t *item) unanswered() bool { return t.kind == kindReserve && t.outcome == outcomeRefused }

// readOutcome reads one row that a statement returned. An item without a row was refused; a reservation always has one.
func (s *sending) readOutcome(raw [][]byte) error {
	v := values{raw: raw}
	if s.items[0].kind != kindReserve {
		return readWritten(&v, s.items)
	}
	t, err := s.reserved(&v)
	if err != nil {
		return err
	}
	if !bytes.Equal(v.column(11), t.answer) {
		return fmt.Errorf("%w: another reservation's", errForeignReply)
	}
	t.found = row{id: t.id}
	if v.bool(10) {
		return ErrStandby
	}
	t.outcome, t.now = v.int16(1), v.int64(2)
	switch t.outcome {
	case outcomeRead:
		t.found.read(&v, 3)
	case outcomeRetried:
		t.found.retention, t.found.extra = v.int32(5), v.bytes(9)
	}
	if t.outcome != outcomeAbsent && t.outcome != outcomeAgain {
		t.found.attempt = v.int64(3)
	}
	return v.err
}

// reserved is the reservation that a row is for, by its number or its name.
func (s *sending) reserved(v *values) (*item, error) {
	if s.shape == shapeReserveNew {
		return itemNamed(v, s.items)
	}
	n := v.int64(0)
	if v.err != nil || n < 1 || n > int64(len(s.items)) {
		return nil, fmt.Errorf("%w: item %d of %d", errForeignReply, n, len(s.items))
	}
	return s.items[n-1], nil
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

// readWritten reads the row of a heartbeat or an answer.
func readWritten(v *values, items []*item) error {
	t, err := itemNamed(v, items)
	if err != nil {
		return err
	}
	if t.attempt != v.int64(2) || (t.kind == kindComplete) != (v.int16(3) == 20) {
		return fmt.Errorf("%w: a record that was not written: %x", errForeignReply, t.id)
	}
	t.outcome, t.found = outcomeWritten, row{id: t.id, due: v.int64(1)}
	return v.err
}
