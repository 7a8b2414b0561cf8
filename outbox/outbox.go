// Package outbox delivers messages to systems outside the database: events for brokers and calls of other systems.
//
// A message is added in the business transaction, so it exists if and only if the transaction was
// committed. Workers, on any number of nodes, deliver it afterwards: at least once, always with the same ID
// and the same downstream key, so that its receiver can recognise a repeated message. Package inbox does
// that for your own consumers. The SQL stores keep the messages; for a pgx.Tx there is postgres.AddMessage.
//
//	box, err := outbox.New(store, outbox.Config{Source: "https://shop.example/payments"})
//	…
//	id, err := box.Add(ctx, tx, outbox.Message{
//		Topic: "charges", AggregateID: payment.ID, Type: "payment.created", Payload: body,
//	})
//
// A worker has a route for each topic that it delivers: a [Handler] that calls another system, or
// [Publish] with one of the publishers in the packages below. Messages about one aggregate keep the
// order in which they were committed; messages about different aggregates may overtake each other.
package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/part"
	"github.com/onceward/onceward/store"
)

// Config configures an [Outbox].
type Config struct {
	// Source is the URI that names the program in its events, as CloudEvents requires. Default: onceward.
	Source string
	// Guard derives the downstream keys of messages that are added in [Result.Then] from the key of the delivered
	// message, so that they are the same if everything happens again. Default: none; those keys are then random.
	Guard *onceward.Guard
	// Propagator adds the current trace to the headers of a message, such as traceparent, so that its delivery
	// and its consumers continue the trace. A header that the message already has is not changed. Default: none.
	Propagator onceward.Propagator
}

// Outbox adds messages.
type Outbox struct {
	store      Store
	guard      *onceward.Guard
	propagator onceward.Propagator
	source     string
}

// New returns an outbox that keeps its messages in the store. If the store is a
// wrapper of a store that keeps no messages, the error is [errors.ErrUnsupported].
func New(s Store, config Config) (*Outbox, error) {
	if err := checkStore(s); err != nil {
		return nil, err
	}
	if config.Source == "" {
		config.Source = "onceward"
	}
	if err := checkText("Source", config.Source); err != nil {
		return nil, err
	}
	return &Outbox{store: s, guard: config.Guard, propagator: config.Propagator, source: config.Source}, nil
}

// checkStore refuses a store that keeps no messages: a wrapper has all methods, whatever store it wraps.
func checkStore(s Store) error {
	if s == nil {
		return errors.New("outbox: there is no store")
	}
	if _, ok := store.As[Store](s); !ok {
		return fmt.Errorf("outbox: the store inside of %T keeps no messages: %w", s, errors.ErrUnsupported)
	}
	return nil
}

// Add writes a message at once, in a transaction of the application: a *sql.Tx, such as [onceward.Tx]
// returns. A store with another type of transaction has its own function for this, such as
// postgres.AddMessage. Add returns the ID that identifies the message everywhere. The message is delivered
// after the commit, and never without a commit; a savepoint that is rolled back removes the message too.
//
// In an operation of Onceward the message's downstream key is derived from the operation.
// In [Result.Then] it is derived from the delivered message, if there is a [Config].Guard.
// Otherwise it is random. No outsider can compute it. A message with a Key keeps that key.
//
// Transactions that add messages for the same topic and aggregate wait for each other, so that the
// messages are in the order of the commits: add late in the transaction and, if a transaction adds
// for several aggregates, always in the same order. [Outbox.AddToAnswer] does both automatically.
func (o *Outbox) Add(ctx context.Context, tx *sql.Tx, m Message) (id string, err error) {
	if tx == nil {
		return "", errors.New("outbox: Add needs the transaction that the message belongs to")
	}
	e, err := o.Entry(ctx, m)
	if err != nil {
		return "", err
	}
	if err := o.store.AddMessage(ctx, tx, e); err != nil {
		return "", err
	}
	return e.ID, nil
}

// AddToAnswer adds a message to the answer of a transactional handler: the message is kept in memory,
// and written with the answer in the round trip that commits both. So it needs no round trip of its
// own, and the lock of its aggregate is held only during the commit. The context is the handler's own.
//
// The message is written if and only if the answer is committed together with the handler's writes.
// If these writes are undone, the message is not written, even if the answer is kept. Savepoints
// have no effect on it. Messages of one aggregate keep the order in which they were added to the
// answer, and come after the messages that [Outbox.Add] wrote in the same transaction.
//
// AddToAnswer returns [ErrNoAnswer] outside of such a handler, or if the store does not support it,
// and [ErrAnswerFull] if the answer already has [MaxAnswerMessages] messages or [MaxAnswerBytes]
// bytes of messages. Another operation that runs inside the handler, by [onceward.Guard.Do], counts
// as outside: it is not undone with the handler, and it is not executed again when the handler is.
func (o *Outbox) AddToAnswer(ctx context.Context, m Message) (id string, err error) {
	answers, ok := store.As[AnswerStore](o.store)
	if !ok {
		return "", fmt.Errorf("%w: a %T cannot do that", ErrNoAnswer, o.store)
	}
	e, err := o.Entry(ctx, m)
	if err != nil {
		return "", err
	}
	if err := answers.AddToAnswer(ctx, e); err != nil {
		return "", err
	}
	return e.ID, nil
}

// Store returns the store in which the outbox keeps its messages.
func (o *Outbox) Store() Store { return o.store }

// Entry checks a message and completes it: with its ID, its downstream key and its
// origin, and sealed if the store is a [Sealer]. It is for the package of a store
// that adds messages in its own type of transaction. Add each entry only once.
func (o *Outbox) Entry(ctx context.Context, m Message) (*Entry, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	e := o.entry(ctx, m)
	if sealer, ok := store.Find[Sealer](o.store); ok {
		if err := sealer.SealEntry(e); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// entry completes a message.
func (o *Outbox) entry(ctx context.Context, m Message) *Entry {
	if m.Source == "" {
		m.Source = o.source
	}
	if m.Subject == "" {
		m.Subject = m.AggregateID
	}
	if m.ContentType == "" {
		m.ContentType = DefaultContentType
	}
	if m.Step == "" {
		m.Step = m.Topic
	}
	m.Headers = o.traced(ctx, m.Headers)
	e := &Entry{Message: m, ID: newID(time.Now())}
	if m.Topic == "" {
		e.State = StateCaptured
	}
	op, parent := onceward.FromContext(ctx), parentOf(ctx)
	switch {
	case op != nil:
		e.Origin, e.OriginAttempt = store.ID{Scope: op.Scope(), Key: op.Key()}, op.Attempt()
		e.DownstreamKey = op.DownstreamKey(part.Name(ctx, "outbox "+m.Step))
	case parent != nil:
		e.Origin, e.OriginAttempt = parent.Origin, parent.OriginAttempt
		e.DownstreamKey = o.following(parent, part.Name(ctx, m.Step))
	default:
		e.DownstreamKey = randomKey()
	}
	if m.Key != "" {
		e.DownstreamKey = m.Key
	}
	return e
}

// traced returns the headers together with the headers of the context's trace. It does not change the caller's map.
func (o *Outbox) traced(ctx context.Context, headers map[string]string) map[string]string {
	if o.propagator == nil {
		return headers
	}
	with := make(map[string]string, len(headers)+2)
	o.propagator.Inject(ctx, with)
	maps.Copy(with, headers)
	if len(with) == 0 {
		return headers
	}
	return with
}

// following returns the downstream key of a message that follows another message. It needs a secret:
// the receiver of the first message knows that message's key, and must not be able to compute this key.
func (o *Outbox) following(parent *Entry, part string) string {
	if o.guard == nil {
		return randomKey()
	}
	return o.guard.FollowingKey(parent.DownstreamKey, part)
}

// randomKey returns a downstream key for a message that is made only once.
// The key is stored with the message and cannot be derived from anything.
func randomKey() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

type parentKey struct{}

// contextWithParent returns a context in which added messages follow the message
// e: they have its origin, and downstream keys that are derived from its own key.
func contextWithParent(ctx context.Context, e *Entry) context.Context {
	return context.WithValue(part.WithStep(ctx, ""), parentKey{}, e)
}

func parentOf(ctx context.Context) *Entry {
	parent, _ := ctx.Value(parentKey{}).(*Entry)
	return parent
}

// newID returns a new UUID of version 7: later UUIDs are larger, which keeps the index on them small and fast.
func newID(now time.Time) string {
	b := idAt(now)
	_, _ = rand.Read(b[6:]) // it never fails
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return formatID(b)
}

// idAt returns the first bytes of the IDs that are made at a moment, followed by zeros.
func idAt(now time.Time) (b [16]byte) {
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	return b
}

func formatID(b [16]byte) string {
	text := hex.EncodeToString(b[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
