package mysql

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// The statements that add a message. Its place in the order of its aggregate is drawn from a
// row that stays locked until the transaction ends, so places are in the order of commits.
// If two nodes of a cluster draw at once, one of them is refused at its commit. Texts are
// sent as bytes, which have the same meaning in every character set of the session.
const (
	drawPlace = `INSERT INTO @lock (name, number) VALUES (?, LAST_INSERT_ID(@now))
		ON DUPLICATE KEY UPDATE number = LAST_INSERT_ID(GREATEST(number + 1, @now))`
	addMessage = `INSERT INTO @outbox (place, id, lane, open_lane, state, topic, due, created_at, origin_attempt,
			aggregatetype, aggregateid, type, downstream_key, origin, attributes, payload)
		VALUES (PLACE, ?, ?, ?, ?, ?, @now + ?, @now, ?, CONVERT(? USING utf8mb4), CONVERT(? USING utf8mb4),
			CONVERT(? USING utf8mb4), ?, ?, ?, ?)`
)

// The two forms of addMessage: with the place that the same session has just drawn, and without an order.
var (
	addOrdered   = replacePlace(`LAST_INSERT_ID()`)
	addUnordered = replacePlace(`0`)
)

func replacePlace(place string) string {
	return regexp.MustCompile(`PLACE`).ReplaceAllLiteralString(addMessage, place)
}

// errNoTx is returned if the transaction is nil.
var errNoTx = errors.New("mysql: there is no transaction: pass one, such as onceward.Tx(ctx)")

// attributes are the parts of a message that no statement reads.
type attributes struct {
	ContentType string            `json:"contenttype,omitempty"`
	Source      string            `json:"source,omitempty"`
	Subject     string            `json:"subject,omitempty"`
	Step        string            `json:"step,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
}

// addition is a message that is ready to be written. It shares no memory with its entry.
type addition struct {
	lane    int64
	ordered bool
	args    []any
}

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// newAddition prepares an entry to be written.
func newAddition(e *outbox.Entry) (a addition, err error) {
	if !uuidPattern.MatchString(e.ID) {
		return a, fmt.Errorf("mysql: the ID of a message is a UUID in lower case, not %q", e.ID)
	}
	more, err := json.Marshal(attributes{e.ContentType, e.Source, e.Subject, e.Step, e.Headers})
	if err != nil {
		return a, err
	}
	state := outbox.StateReady
	delay := e.Delay.Microseconds()
	if e.Topic == "" {
		state, delay = outbox.StateCaptured, 0
	}
	var lane, origin any
	if a.ordered = e.Ordered() && e.Topic != ""; a.ordered {
		a.lane = laneOf(&e.Message)
		lane = a.lane
	}
	if e.Origin != (store.ID{}) {
		origin = e.Origin.AppendBinary(nil)
	}
	a.args = []any{
		e.ID, lane, lane, int64(state), []byte(e.Topic), delay, e.OriginAttempt, []byte(e.AggregateType),
		[]byte(e.AggregateID), []byte(e.Type), []byte(e.DownstreamKey), origin, more, append([]byte{}, e.Payload...),
	}
	return a, nil
}

// laneOf returns the number of the lane in which messages keep their order. Two aggregates may have the same number:
// their messages then wait for each other.
func laneOf(m *outbox.Message) int64 {
	b := make([]byte, 0, 128)
	for _, part := range []string{m.Topic, m.AggregateType, m.AggregateID} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// lockOf returns the name of the row that is locked for a name of some kind.
func lockOf(kind string, name []byte) []byte {
	sum := sha256.Sum256(append([]byte("onceward "+kind+"\x00"), name...))
	return sum[:16]
}

// laneLock returns the name of the row from which the places of a lane are drawn.
func laneLock(lane int64) []byte {
	return lockOf("lane", binary.BigEndian.AppendUint64(nil, uint64(lane)))
}

// statement returns the statement that adds the message.
func (a *addition) statement() string {
	if a.ordered {
		return addOrdered
	}
	return addUnordered
}

// AddMessage implements [outbox.Store].
func (s *Store) AddMessage(ctx context.Context, tx *sql.Tx, e *outbox.Entry) error {
	if tx == nil {
		return errNoTx
	}
	if err := s.writable(); err != nil {
		return err
	}
	a, err := newAddition(e)
	if err != nil {
		return err
	}
	if g, _ := store.Value(ctx, gateKey{}).(*gate); g != nil && g.t.store == s {
		g.t.adds.Store(true)
	}
	defer s.messages.Wake() // it may be committed soon
	if a.ordered {
		if _, err := tx.ExecContext(ctx, s.render(drawPlace), laneLock(a.lane)); err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, s.render(a.statement()), a.args...)
	return err
}

// AddToAnswer implements [outbox.AnswerStore]: the message is sent with the answer and COMMIT in one round trip.
func (s *Store) AddToAnswer(ctx context.Context, e *outbox.Entry) error {
	g, _ := store.Value(ctx, gateKey{}).(*gate)
	if g == nil || g.t.store != s || !g.t.answers || !e.OfOperation(g.t.id) {
		return outbox.ErrNoAnswer
	}
	a, err := newAddition(e)
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
	g.t.adds.Store(true)
	g.messages = append(g.messages, a)
	return nil
}

// addMessages returns the statements for the messages of the answer, sorted by their lanes: transactions that take
// their locks in the same order do not deadlock.
func (t *transaction) addMessages() (all []statement) {
	slices.SortStableFunc(t.gate.messages, func(a, b addition) int { return cmp.Compare(a.lane, b.lane) })
	for i := range t.gate.messages {
		a := &t.gate.messages[i]
		if a.ordered {
			all = append(all, stmt(t.store.render(drawPlace), laneLock(a.lane)))
		}
		all = append(all, stmt(t.store.render(a.statement()), a.args...))
	}
	return all
}

// WatchMessages implements [outbox.Store]. Messages that other processes add are found by polling.
func (s *Store) WatchMessages() (hints <-chan struct{}, stop func()) { return s.messages.Watch() }

// HearsMessages implements [outbox.Store]. It returns false: the server has no way to notify other processes.
func (s *Store) HearsMessages() bool { return false }
