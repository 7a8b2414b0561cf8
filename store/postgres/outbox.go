package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
)

// addMessage adds a message. What stands for FIRST is done before its number is drawn and its time is taken: the lock on its
// lane, so that both are in the order of commits there.
const addMessage = `INSERT INTO @outbox (id, number, lane, due, created, attempt, state, topic, aggregatetype, aggregateid, type,
		downstream, attributes, origin, payload)
	SELECT $1::uuid, nextval('@outbox_number'), $2::bigint, f.now + $3::bigint, f.now, $4::bigint, $5::smallint, $6::text, $7::text, $8::text, $9::text,
		$10::text, $11::text, $12::bytea, $13::bytea
	FROM (SELECT FIRST @now() AS now OFFSET 0) f`

// The parts of the statement that not every message needs. Locks of two numbers are apart from those of records, which are
// of one.
const (
	lockLane     = `pg_advisory_xact_lock(($2::bigint >> 32)::integer, ($2::bigint << 32 >> 32)::integer), `
	notifyOthers = `pg_notify('CHANNEL', 'o'), `
)

// addStatements are the four variants of the statement: with a lock or not, and with a notification or not.
type addStatements [2][2]string

func prepareAdd(n names, channel string) (all addStatements) {
	for locks, lock := range []string{"", lockLane} {
		for notifies, notify := range []string{"", strings.ReplaceAll(notifyOthers, "CHANNEL", channel)} {
			all[locks][notifies] = n.render(strings.ReplaceAll(addMessage, "FIRST ", lock+notify))
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
	attributes, err := json.Marshal(attributes{e.ContentType, e.Source, e.Subject, e.Step, e.Headers})
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
