package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// addMessage adds a message. Its number is drawn after the lock on its lane was taken, so that the numbers of a lane
// are in the order of commits: a CASE evaluates its condition first. The clock is read once, after that.
const (
	addMessage = `INSERT INTO @outbox (number, id, lane, due, created_at, origin_attempt, topic, aggregatetype,
			aggregateid, type, downstream_key, attributes, origin_scope, origin_key, payload)
		SELECT number, $1::uuid, $2::bigint, now + $3::bigint, now, $4::bigint, $5::text, $6::text, $7::text,
			$8::text, $9::text, $10::text, $11::bytea, $12::bytea, $13::bytea
		FROM (SELECT NUMBER AS number, @now() AS now) AS drawn`
	drawNumber = `nextval('@outbox_number')`
	// The numbers of messages that no worker delivers are negative, apart from the messages that workers look for.
	drawCaptured = `-` + drawNumber
	// notifyOthers sends a notification, and then draws the number.
	notifyOthers = `CASE WHEN pg_notify('CHANNEL', 'o')::text = '' THEN NUMBER END`
)

// addStatements holds the variants of addMessage, each without and with a notification.
type addStatements [3][2]statement

// The variants: for change-data-capture only, for messages without an order, and for messages with an order.
const (
	captured = iota
	unordered
	ordered
)

func prepareAdd(channel string, named func(name, text string) statement) (all addStatements) {
	locked := `CASE WHEN ` + takePair(`$2::bigint`) + ` THEN ` + drawNumber + ` END`
	notify := strings.ReplaceAll(notifyOthers, "CHANNEL", channel)
	for kind, number := range [...]string{captured: drawCaptured, unordered: drawNumber, ordered: locked} {
		for notifies, drawn := range []string{number, strings.ReplaceAll(notify, "NUMBER", number)} {
			all[kind][notifies] = named("add_"+strconv.Itoa(2*kind+notifies), strings.ReplaceAll(addMessage, "NUMBER", drawn))
		}
	}
	return all
}

// attributes holds the fields of a message that no statement looks at.
type attributes struct {
	ContentType string            `json:"contenttype,omitempty"`
	Source      string            `json:"source,omitempty"`
	Subject     string            `json:"subject,omitempty"`
	Step        string            `json:"step,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
}

// addition is a message that is ready to be written.
type addition struct {
	kind, notifies int
	id             string
	uuid           [16]byte // the id
	lane           int64
	delay          int64
	attempt        int64
	texts          [6]string // topic, aggregatetype, aggregateid, type, downstream_key, attributes
	scope, key     []byte    // of the origin
	payload        []byte
}

// addition returns an entry as an addition. It shares no memory with the entry.
func (s *Store) addition(e *outbox.Entry) (a addition, err error) {
	var id pgtype.UUID
	if err := id.Scan(e.ID); err != nil {
		return a, fmt.Errorf("postgres: the ID of a message is a UUID: %w", err)
	}
	attributes, err := json.Marshal(attributes{e.ContentType, e.Source, e.Subject, e.Step, e.Headers})
	if err != nil {
		return a, err
	}
	a = addition{
		id: e.ID, uuid: id.Bytes, lane: s.lane(&e.Message), delay: e.Delay.Microseconds(), attempt: e.OriginAttempt,
		kind:    unordered,
		texts:   [6]string{e.Topic, e.AggregateType, e.AggregateID, e.Type, e.DownstreamKey, string(attributes)},
		payload: append([]byte{}, e.Payload...), // nil would be null
	}
	switch {
	case e.Topic == "":
		a.kind = captured
	case a.lane != 0:
		a.kind = ordered
	}
	if e.Origin != (store.ID{}) {
		a.scope, a.key = []byte(e.Origin.Scope), []byte(e.Origin.Key)
	}
	return a, nil
}

// notify lets a message that is about to be written send a notification, if it is time for one.
func (a *addition) notify(s *Store) {
	if a.kind != captured && s.messages.due(time.Now()) {
		a.notifies = 1
	}
}

// args returns the parameters of the statement for pgx and database/sql.
func (a *addition) args() []any {
	args := append(make([]any, 0, 13), a.id, a.lane, a.delay, a.attempt)
	for _, text := range a.texts {
		args = append(args, text)
	}
	return append(args, a.scope, a.key, a.payload)
}

// AddMessage implements [outbox.Store].
func (s *Store) AddMessage(ctx context.Context, tx *sql.Tx, e *outbox.Entry) error {
	app, err := ofSQL(tx)
	if err != nil {
		return err
	}
	gate, _ := store.Value(ctx, gateKey{}).(*gate)
	return s.writeMessage(ctx, app, gate, e)
}

// AddMessage does what [outbox.Outbox.Add] does, in a transaction of pgx such as the one that [Tx] returns. The outbox
// must be over a store of this package.
func AddMessage(ctx context.Context, box *outbox.Outbox, tx pgx.Tx, m outbox.Message) (id string, err error) {
	s, ok := store.Find[*Store](box.Store())
	if !ok {
		return "", fmt.Errorf("postgres: the outbox is over a %T, and not over a store of this package", box.Store())
	}
	e, err := box.Entry(ctx, m)
	if err != nil {
		return "", err
	}
	app, err := ofPgx(tx)
	if err != nil {
		return "", err
	}
	gate, _ := store.Value(ctx, gateKey{}).(*gate)
	if handler, ok := tx.(handlerTx); ok {
		gate = handler.gate // whichever context is passed
	}
	if err := s.writeMessage(ctx, app, gate, e); err != nil {
		return "", err
	}
	return e.ID, nil
}

// writeMessage adds a message with a statement of its own. g is the gate of the handler that adds the message, or nil.
func (s *Store) writeMessage(ctx context.Context, app appTx, g *gate, e *outbox.Entry) error {
	if err := s.writable(); err != nil {
		return err
	}
	a, err := s.addition(e)
	if err != nil {
		return err
	}
	if g != nil && g.store == s {
		g.adds.Store(true)
	}
	a.notify(s)
	defer s.messages.Wake() // the message may be committed soon
	_, err = app.exec(ctx, s.sql.add[a.kind][a.notifies].text, a.args()...)
	return err
}

// AddToAnswer implements [outbox.AnswerStore]. The message is sent with the answer and COMMIT in one round trip.
func (s *Store) AddToAnswer(ctx context.Context, e *outbox.Entry) error {
	g, _ := store.Value(ctx, gateKey{}).(*gate)
	if g == nil || g.store != s || !g.answers || !e.OfOperation(g.id) {
		return outbox.ErrNoAnswer
	}
	a, err := s.addition(e)
	if err != nil {
		return err
	}
	if err := g.Enter(); err != nil {
		return err
	}
	defer g.Leave()
	if err := g.answerSize.Add(e); err != nil {
		return err
	}
	g.adds.Store(true)
	g.messages = append(g.messages, a)
	return nil
}

// addMessages adds the messages of the answer to the round trip that commits it, sorted by lane: transactions that take
// their locks in the same order do not wait for each other in a circle.
func (t *transaction) addMessages(trip *pipeline) {
	slices.SortStableFunc(t.gate.messages, func(a, b addition) int { return cmp.Compare(a.lane, b.lane) })
	for i := range t.gate.messages {
		a := &t.gate.messages[i]
		parameters := [][]byte{a.uuid[:], trip.int64(a.lane), trip.int64(a.delay), trip.int64(a.attempt)}
		for _, text := range a.texts {
			parameters = append(parameters, []byte(text))
		}
		trip.add(&t.store.sql.add[a.kind][a.notifies], append(parameters, a.scope, a.key, a.payload)...)
	}
}

// prepareMessages prepares the statements for the messages of the answer on the connection. It also decides which
// messages send a notification: decided this late, a handler that is undone or slow does not use up the
// notification of another handler.
func (t *transaction) prepareMessages(trip *pipeline, deadline time.Time) error {
	for i := range t.gate.messages {
		a := &t.gate.messages[i]
		a.notify(t.store)
		if err := trip.prepare(context.Background(), deadline, &t.store.sql.add[a.kind][a.notifies]); err != nil {
			return err
		}
	}
	return nil
}

// lane returns the number of the lane in which messages keep their order, or 0. Two aggregates may have the same lane:
// their messages then wait for each other.
func (s *Store) lane(m *outbox.Message) int64 {
	if m.Topic == "" || !m.Ordered() {
		return 0
	}
	b := append(make([]byte, 0, 128), s.channel...)
	for _, part := range []string{m.Topic, m.AggregateType, m.AggregateID} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:]) | 1)
}
