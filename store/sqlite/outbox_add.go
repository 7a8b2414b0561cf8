package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// insertMessage goes through the handler's transaction, where the gate recognises it by its text.
const insertMessage = `INSERT INTO onceward_outbox (id, topic, lane, state, due, created_at, aggregatetype,
	aggregateid, type, step, content_type, source, subject, origin, origin_attempt, downstream_key, headers, payload)
	VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)`

// messageColumns are the columns that messageOf reads.
const messageColumns = `number, id, topic, aggregatetype, aggregateid, type, payload, content_type, source, subject,
	headers, step, origin, origin_attempt, downstream_key, created_at, state, due, attempts, provider_id, last_error,
	answer`

// AddMessage implements [outbox.Store]. There is one writer, so messages are in the order of commits automatically.
func (s *Store) AddMessage(ctx context.Context, tx *sql.Tx, e *outbox.Entry) error {
	if tx == nil {
		return errNoTx
	}
	args, err := messageArgs(e, s.now())
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, insertMessage, args...); err != nil {
		return unavailable(fmt.Errorf("add a message: %w", err))
	}
	s.writer.messages.add(1)
	return nil
}

// messageArgs returns the parameters of insertMessage, and sets the state
// and the times of the entry. The parameters share no memory with the entry.
func messageArgs(e *outbox.Entry, now time.Time) ([]any, error) {
	now = now.UTC().Truncate(time.Microsecond)
	e.State, e.Due, e.CreatedAt = outbox.StateReady, now.Add(e.Delay), now
	if e.Topic == "" {
		e.State, e.Due = outbox.StateCaptured, now
	}
	headers, err := encodeHeaders(e.Headers)
	if err != nil {
		return nil, err
	}
	return []any{
		e.ID, e.Topic, laneOf(e), int64(e.State), micros(e.Due), micros(now), e.AggregateType, e.AggregateID, e.Type, e.Step,
		e.ContentType, e.Source, e.Subject, originOf(e), e.OriginAttempt, e.DownstreamKey, headers,
		append([]byte{}, e.Payload...),
	}, nil
}

// answerMessages are the messages that a transactional handler has added to its answer in one turn, and the audit
// entries about the turn, which are stored whatever its outcome.
type answerMessages struct {
	store *Store
	id    store.ID

	mu   sync.Mutex
	over bool
	size outbox.AnswerSize
	args [][]any // the parameters of insertMessage, for each message

	executions []store.ExecutionEntry
}

type answerKey struct{}

// AddToAnswer implements [outbox.AnswerStore]: the writer adds the message when it stores the answer.
func (s *Store) AddToAnswer(ctx context.Context, e *outbox.Entry) error {
	answer, _ := store.Value(ctx, answerKey{}).(*answerMessages)
	if answer == nil || answer.store != s || !e.OfOperation(answer.id) {
		return outbox.ErrNoAnswer
	}
	args, err := messageArgs(e, s.now())
	if err != nil {
		return err
	}
	answer.mu.Lock()
	defer answer.mu.Unlock()
	if answer.over {
		return errAnswered
	}
	if err := answer.size.Add(e); err != nil {
		return err
	}
	answer.args = append(answer.args, args)
	return nil
}

// errAnswered is returned to a handler that adds to its answer too late.
var errAnswered = fmt.Errorf("%w: the handler has returned, or has had its time, and its answer takes no more messages",
	store.ErrTxOwned)

// close ends the turn: after it nothing can be added. A nil answer accepts nothing from the start.
func (a *answerMessages) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}

// write adds the messages in the transaction of the writer. If the database refuses a message, the work is refused.
func (a *answerMessages) write(r *records) error {
	if a == nil || len(a.args) == 0 {
		return nil
	}
	for _, args := range a.args {
		err := r.run(insertMessage, args, nil)
		if errors.Is(err, sqlite3.CONSTRAINT) {
			return refused{fmt.Errorf("%w: add a message: %w", store.ErrWorkRefused, err)}
		}
		if err != nil {
			return err
		}
	}
	a.store.writer.messages.add(len(a.args))
	return nil
}

// addExecution keeps an entry until the end of the turn.
func (a *answerMessages) addExecution(e *store.ExecutionEntry) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return errAnswered
	}
	a.executions = append(a.executions, *e)
	return nil
}

// writeExecutions adds the entries in the transaction of the writer.
func (a *answerMessages) writeExecutions(r *records, now time.Time) error {
	if a == nil {
		return nil
	}
	for i := range a.executions {
		if err := r.addExecution(&a.executions[i], now); err != nil {
			return err
		}
	}
	return nil
}

// laneOf returns the lane of a message, in which messages keep their order, or nil for a message that waits for no
// other. The lengths distinguish names that would be the same when joined.
func laneOf(e *outbox.Entry) any {
	if !e.Ordered() || e.Topic == "" {
		return nil
	}
	return fmt.Sprintf("%d:%s%d:%s%s", len(e.Topic), e.Topic, len(e.AggregateType), e.AggregateType, e.AggregateID)
}

// originOf returns the operation that added the message, or nil.
func originOf(e *outbox.Entry) any {
	if e.Origin == (store.ID{}) {
		return nil
	}
	return e.Origin.AppendBinary(nil)
}

func encodeHeaders(headers map[string]string) (string, error) {
	if len(headers) == 0 {
		return "{}", nil
	}
	text, err := json.Marshal(headers)
	return string(text), err
}

// message is an entry with its place in the order.
type message struct {
	number int64
	outbox.Entry
}

// messageOf reads a row of messageColumns. With an error the message is as complete as it can be.
func messageOf(stmt *sqlite3.Stmt) (m message, err error) {
	m.number = stmt.ColumnInt64(0)
	e := &m.Entry
	e.ID, e.Topic, e.AggregateType, e.AggregateID, e.Type = stmt.ColumnText(1), stmt.ColumnText(2), stmt.ColumnText(3),
		stmt.ColumnText(4), stmt.ColumnText(5)
	e.Payload = stmt.ColumnBlob(6, nil)
	e.ContentType, e.Source, e.Subject, e.Step = stmt.ColumnText(7), stmt.ColumnText(8), stmt.ColumnText(9),
		stmt.ColumnText(11)
	e.OriginAttempt, e.DownstreamKey = stmt.ColumnInt64(13), stmt.ColumnText(14)
	e.CreatedAt, e.State, e.Due, e.Attempts = timeOf(stmt, 15), outbox.State(stmt.ColumnInt(16)), timeOf(stmt, 17),
		stmt.ColumnInt(18)
	e.ProviderID, e.LastError, e.Answer = stmt.ColumnText(19), stmt.ColumnText(20), stmt.ColumnBlob(21, nil)
	if err := json.Unmarshal(stmt.ColumnRawText(10), &e.Headers); err != nil {
		return m, fmt.Errorf("%w: the headers of message %s: %w", store.ErrUnreadable, e.ID, err)
	}
	if len(e.Headers) == 0 {
		e.Headers = nil
	}
	if origin := stmt.ColumnRawBlob(12); origin != nil {
		if e.Origin, err = store.ParseID(origin); err != nil {
			return m, fmt.Errorf("%w: the origin of message %s: %w", store.ErrUnreadable, e.ID, err)
		}
	}
	return m, nil
}
