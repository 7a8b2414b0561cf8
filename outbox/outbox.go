package outbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/part"
	"github.com/onceward/onceward/store"
)

// Config configures an [Outbox].
type Config struct {
	// Source names the program in its events, as CloudEvents wants it: a URI. Default: onceward.
	Source string
	// Guard derives the downstream keys of messages that are added in [Result.Then] from that of the message before them, so that
	// they are the same if all of it ever happens again. Default: none; those keys are then random.
	Guard *onceward.Guard
}

// Outbox adds messages.
type Outbox struct {
	store  Store
	guard  *onceward.Guard
	source string
}

// New returns an outbox that keeps its messages in the store.
func New(store Store, config Config) (*Outbox, error) {
	if store == nil {
		return nil, errors.New("outbox: there is no store")
	}
	if config.Source == "" {
		config.Source = "onceward"
	}
	if err := checkText("Source", config.Source); err != nil {
		return nil, err
	}
	return &Outbox{store: store, guard: config.Guard, source: config.Source}, nil
}

// Add adds a message in a transaction of the application: a *sql.Tx, such as [onceward.Tx] gives, or what the store's own
// package works with, such as a pgx.Tx. It returns the ID under which the message will be known everywhere. The message is
// delivered after the commit, and never if there is none.
//
// Within an operation of Onceward the message's downstream key is derived from that, and within [Result.Then] from the message
// that was delivered, if there is a [Config].Guard. Otherwise it is random. No outsider can compute it. Transactions that add for the same topic and aggregate wait for each other, so that the order of messages is
// that of commits: add late in the transaction, and where one adds for several aggregates, always in the same order.
func (o *Outbox) Add(ctx context.Context, tx any, m Message) (id string, err error) {
	if tx == nil {
		return "", errors.New("outbox: Add needs the transaction that the message belongs to")
	}
	if err := m.check(); err != nil {
		return "", err
	}
	e := o.entry(ctx, m)
	if err := o.store.AddMessage(ctx, tx, e); err != nil {
		return "", err
	}
	return e.ID, nil
}

// entry makes a message complete.
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
	return e
}

// following is the downstream key of a message that follows another one. It takes a secret: the receiver of the first message knows
// its key, and is not the receiver of this one.
func (o *Outbox) following(parent *Entry, part string) string {
	if o.guard == nil {
		return randomKey()
	}
	return o.guard.FollowingKey(parent.DownstreamKey, part)
}

// randomKey is a downstream key of a message that comes into being once. It is kept with the message, and nothing else leads to it.
func randomKey() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

type parentKey struct{}

// contextWithParent returns a context in which messages that are added follow that one: they have its origin, and downstream
// keys that are derived from its own.
func contextWithParent(ctx context.Context, e *Entry) context.Context {
	return context.WithValue(part.WithStep(ctx, ""), parentKey{}, e)
}

func parentOf(ctx context.Context) *Entry {
	parent, _ := ctx.Value(parentKey{}).(*Entry)
	return parent
}

// newID makes a UUID of version 7: those made later are larger, which keeps the index on them small and quick.
func newID(now time.Time) string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	text := hex.EncodeToString(b[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
