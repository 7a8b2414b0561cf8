package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
)

// addMessage adds a message. A number is drawn behind the lock on its lane, so that numbers are in the order of commits there:
// a CASE evaluates its condition first.
const (
	addMessage = `INSERT INTO @outbox (id, number, lane, due, created, attempt, state, topic, aggregatetype, aggregateid, type,
			downstream, attributes, origin, payload)
		VALUES ($1::uuid, NUMBER, $2::bigint, @now() + $3::bigint, @now(), $4::bigint, $5::smallint, $6::text, $7::text, $8::text,
			$9::text, $10::text, $11::text, $12::bytea, $13::bytea)`
	drawNumber = `nextval('@outbox_number')`
	// Locks of two numbers are apart from those of records, which are of one. What these functions return is void, which is
	// empty as a text.
	lockLane = `CASE WHEN pg_advisory_xact_lock(($2::bigint >> 32)::integer, ($2::bigint << 32 >> 32)::integer)::text = ''
		THEN nextval('@outbox_number') END`
	notifyOthers = `CASE WHEN pg_notify('CHANNEL', 'o')::text = '' THEN NUMBER END`
)

// addStatements are the four variants of the statement: with a lock or not, and with a notification or not.
type addStatements [2][2]string

func prepareAdd(n names, channel string) (all addStatements) {
	notify := strings.ReplaceAll(notifyOthers, "CHANNEL", channel)
	for locks, number := range []string{drawNumber, lockLane} {
		all[locks][0] = n.render(strings.ReplaceAll(addMessage, "NUMBER", number))
		all[locks][1] = n.render(strings.ReplaceAll(addMessage, "NUMBER", strings.ReplaceAll(notify, "NUMBER", number)))
	}
	return all
}

// attributes are what of a message no statement looks at. What is as usual is left out.
type attributes struct {
	ContentType string            `json:"contenttype,omitempty"`
	Source      string            `json:"source,omitempty"`
	Subject     string            `json:"subject,omitempty"`
	Step        string            `json:"step,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
}

func attributesOf(m *outbox.Message) attributes {
	a := attributes{m.ContentType, m.Source, m.Subject, m.Step, m.Headers}
	if a.ContentType == outbox.DefaultContentType {
		a.ContentType = ""
	}
	if a.Subject == m.AggregateID {
		a.Subject = ""
	}
	if a.Step == m.Topic {
		a.Step = ""
	}
	return a
}

// complete gives a message its attributes, and what was left out.
func (a *attributes) complete(m *outbox.Message) {
	m.ContentType = cmp.Or(a.ContentType, outbox.DefaultContentType)
	m.Subject = cmp.Or(a.Subject, m.AggregateID)
	m.Step = cmp.Or(a.Step, m.Topic)
	m.Source, m.Headers = a.Source, a.Headers
}

// AddMessage implements [outbox.Store]. The transaction is a pgx.Tx or a *sql.Tx; or it is a *pgx.Batch that the application
// sends in its transaction, with which the message costs no round trip of its own. Then the results of the batch tell whether
// it was added.
func (s *Store) AddMessage(ctx context.Context, tx any, e *outbox.Entry) error {
	app, err := transactionOf(tx)
	if err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	attributes, err := json.Marshal(attributesOf(&e.Message))
	if err != nil {
		return err
	}
	lane, locks, notifies := s.lane(&e.Message), 0, 0
	if lane != 0 {
		locks = 1
	}
	if e.Topic != "" && s.messages.due(time.Now()) {
		notifies = 1
	}
	var origin []byte
	if e.Origin != (onceward.ID{}) {
		origin = e.Origin.AppendBinary(nil)
	}
	payload := e.Payload
	if payload == nil {
		payload = []byte{} // nil would be null
	}
	_, err = app.exec(ctx, s.sql.add[locks][notifies], e.ID, lane, e.Delay.Microseconds(), e.Attempt, int16(e.State), e.Topic,
		e.AggregateType, e.AggregateID, e.Type, e.DownstreamKey, string(attributes), origin, payload)
	return err
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
