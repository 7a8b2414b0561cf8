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

// addMessage adds a message. A number is drawn behind the lock on its lane, so that numbers are in the order of commits
// there: a CASE evaluates its condition first. The clock is read once, behind it.
const (
	addMessage = `INSERT INTO @outbox (number, id, lane, due, created_at, origin_attempt, topic, aggregatetype,
			aggregateid, type, downstream_key, attributes, origin_scope, origin_key, payload)
		SELECT number, $1::uuid, $2::bigint, now + $3::bigint, now, $4::bigint, $5::text, $6::text, $7::text,
			$8::text, $9::text, $10::text, $11::bytea, $12::bytea, $13::bytea
		FROM (SELECT NUMBER AS number, @now() AS now) AS drawn`
	drawNumber = `nextval('@outbox_number')`
	// What no worker delivers is apart from what workers look for.
	drawCaptured = `-` + drawNumber
	// Locks of two numbers are apart from those of records, which are of one.
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
	locked := `CASE WHEN ` + takePair(`$2::bigint`) + ` THEN ` + drawNumber + ` END`
	notify := strings.ReplaceAll(notifyOthers, "CHANNEL", channel)
	for kind, number := range [...]string{captured: drawCaptured, unordered: drawNumber, ordered: locked} {
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

// addition is a message that is ready to be written.
type addition struct {
	kind, notifies int
	id             string
	uuid           [16]byte // the same
	lane           int64
	delay          int64
	attempt        int64
	texts          [6]string // topic, aggregatetype, aggregateid, type, downstream_key, attributes
	scope, key     []byte    // of the origin
	payload        []byte
}

// addition makes an entry ready to be written. It shares no memory with the entry.
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

// notify makes a message that is about to be written notify, if it is time for that.
func (a *addition) notify(s *Store) {
	if a.kind != captured && s.messages.due(time.Now()) {
		a.notifies = 1
	}
}

// args are the parameters of the statement as pgx and database/sql take them.
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

// AddMessage is [outbox.Outbox.Add] in a transaction of pgx, such as [Tx] gives. The outbox is over a store of this
// package.
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
		gate = handler.gate // whichever context it is used with
	}
	if err := s.writeMessage(ctx, app, gate, e); err != nil {
		return "", err
	}
	return e.ID, nil
}

// writeMessage adds a message by a statement of its own. The gate is that of a handler which may be the one that adds
// it, or nil.
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
	defer s.messages.Wake() // it may be committed soon
	_, err = app.exec(ctx, s.sql.add[a.kind][a.notifies].text, a.args()...)
	return err
}

// AddToAnswer implements [outbox.AnswerStore]: the message goes along with the answer and COMMIT in one round trip.
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

// addMessages puts the messages of the answer into the round trip that commits it, sorted by their lanes: transactions
// that all take their locks in the same order do not wait for each other in a circle.
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

// prepareMessages makes the statements for the messages of the answer known to the connection. Which of them notifies
// is decided here: one of a handler that is undone, or takes its time, does not take the turn of another.
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

// lane is the number within which messages keep their order, or 0. Two aggregates may have the same: they then wait for
// each other.
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
