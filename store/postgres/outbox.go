package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// addMessage adds a message. A number is drawn behind the lock on its lane, so that numbers are in the order of commits there:
// a CASE evaluates its condition first.
const (
	addMessage = `INSERT INTO @outbox (number, id, lane, due, created, attempt, topic, aggregatetype, aggregateid, type,
			downstream, attributes, origin, payload)
		VALUES (NUMBER, $1::uuid, $2::bigint, @now() + $3::bigint, @now(), $4::bigint, $5::text, $6::text, $7::text,
			$8::text, $9::text, $10::text, $11::bytea, $12::bytea)`
	drawNumber = `nextval('@outbox_number')`
	// What nobody delivers is apart from what workers look for.
	drawCaptured = `-` + drawNumber
	// Locks of two numbers are apart from those of records, which are of one. What these functions return is void, which is
	// empty as a text.
	lockLane = `CASE WHEN pg_advisory_xact_lock(($2::bigint >> 32)::integer, ($2::bigint << 32 >> 32)::integer)::text = ''
		THEN ` + drawNumber + ` END`
	notifyOthers = `CASE WHEN pg_notify('CHANNEL', 'o')::text = '' THEN NUMBER END`
)

// addStatements are the variants of the statement, each with a notification or without.
type addStatements [3][2]statement

// The variants: for change-data-capture alone, without an order, and with one.
const (
	captured = iota
	unordered
	ordered
)

func prepareAdd(channel string, named func(name, text string) statement) (all addStatements) {
	notify := strings.ReplaceAll(notifyOthers, "CHANNEL", channel)
	for kind, number := range [...]string{captured: drawCaptured, unordered: drawNumber, ordered: lockLane} {
		for notifies, drawn := range []string{number, strings.ReplaceAll(notify, "NUMBER", number)} {
			all[kind][notifies] = named("add_"+strconv.Itoa(2*kind+notifies), strings.ReplaceAll(addMessage, "NUMBER", drawn))
		}
	}
	return all
}

// attributes are what of a message no statement looks at.
type attributes struct {
	ContentType string            `json:"contenttype,omitempty"`
	Source      string            `json:"source,omitempty"`
	Subject     string            `json:"subject,omitempty"`
	Step        string            `json:"step,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
}

// AddMessage implements [outbox.Store]. In the transaction of a transactional handler, or of [Store.InTx], the message goes along
// with COMMIT, at no round trip of its own. Otherwise the transaction is a pgx.Tx or a *sql.Tx; or it is a *pgx.Batch that the
// application sends in its transaction, also without a round trip more. Then the results of the batch tell whether it was
// added.
func (s *Store) AddMessage(ctx context.Context, tx any, e *outbox.Entry) error {
	app, err := transactionOf(tx)
	if err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	var id pgtype.UUID
	if err := id.Scan(e.ID); err != nil {
		return fmt.Errorf("postgres: the ID of a message is a UUID: %w", err)
	}
	attributes, err := json.Marshal(attributes{e.ContentType, e.Source, e.Subject, e.Step, e.Headers})
	if err != nil {
		return err
	}
	a := addition{
		id: e.ID, uuid: id.Bytes, lane: s.lane(&e.Message), delay: e.Delay.Microseconds(), attempt: e.OriginAttempt, kind: unordered,
		texts:   [6]string{e.Topic, e.AggregateType, e.AggregateID, e.Type, e.DownstreamKey, string(attributes)},
		payload: append([]byte{}, e.Payload...), // nil would be null
	}
	switch {
	case e.Topic == "":
		a.kind = captured
	case a.lane != 0:
		a.kind = ordered
	}
	if a.kind != captured && s.messages.due(time.Now()) {
		a.notifies = 1
	}
	if e.Origin != (store.ID{}) {
		a.origin = e.Origin.AppendBinary(nil)
	}
	defer s.messages.wake() // it may be committed soon
	if g := gateOf(ctx, tx); g != nil && g.t.store == s {
		g.t.adds.Store(true)
		if deferred, err := g.deferMessage(ctx, tx, &a); deferred || err != nil {
			return err
		}
	}
	_, err = app.exec(ctx, s.sql.add[a.kind][a.notifies].text, a.args()...)
	return err
}

// gateOf is the gate of the transaction, which may be used with another context than the one that it came in.
func gateOf(ctx context.Context, tx any) *gate {
	if handler, ok := tx.(handlerTx); ok {
		return handler.gate
	}
	g, _ := ctx.Value(gateKey{}).(*gate)
	return g
}

// lane is the number within which messages keep their order, or 0. Two aggregates may have the same: they then wait for each
// other.
func (s *Store) lane(m *outbox.Message) int64 {
	if m.Topic == "" || !m.Ordered() {
		return 0
	}
	b := append(make([]byte, 0, 128), *s.secret.Load()...)
	for _, part := range []string{m.Topic, m.AggregateType, m.AggregateID} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:]) | 1)
}
