package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store"
)

// TracerConfig configures a [Tracer].
type TracerConfig struct {
	// Records is the store of the operations' records. Default: the store of the messages, if it keeps records.
	Records store.Store
	// Inboxes are the inboxes of the consumers, as far as they can be
	// reached. Default: the store of the messages, if it is an inbox.
	Inboxes []inbox.Store
}

// Tracer follows an operation from the client's key to the
// consumers of its messages, starting from any point on the way.
type Tracer struct {
	messages Store
	records  store.Store
	inboxes  []inbox.Store
}

// NewTracer returns a tracer for the store of the messages.
func NewTracer(s Store, config TracerConfig) (*Tracer, error) {
	if s == nil {
		return nil, errors.New("outbox: there is no store")
	}
	t := &Tracer{messages: s, records: config.Records, inboxes: config.Inboxes}
	if t.records == nil {
		t.records, _ = store.As[store.Store](s)
	}
	if own, ok := store.As[inbox.Store](s); ok && t.inboxes == nil {
		t.inboxes = []inbox.Store{own}
	}
	return t, nil
}

// TraceQuery contains one known value. The ID of a message is also the ID of the event that consumers see.
type TraceQuery struct {
	// Request is the scope and the key of the client's request.
	Request store.ID
	// MessageID is the ID of a message or an event.
	MessageID string
	// DownstreamKey is the idempotency key that a receiver has seen.
	DownstreamKey string
	// ProviderID is a receiver's id for the effect.
	ProviderID string
}

// Trail is the path of one message.
type Trail struct {
	// Request is the client's scope and key, and Record is the record of the
	// request. Record is nil if there was no request, or if its record has expired.
	Request store.ID
	Record  *store.Record
	// Message is the message that was sent because of the request, with its downstream key and the receiver's id.
	Message Entry
	// Consumers are the consumers that have applied the message.
	Consumers []inbox.Consumption
}

// Trace returns the trails of all messages of the operation that the query finds,
// oldest first. It returns [store.ErrNotFound] if there is no such message.
func (t *Tracer) Trace(ctx context.Context, query TraceQuery) ([]Trail, error) {
	entries, err := t.entries(ctx, query)
	if err != nil {
		return nil, err
	}
	trails := make([]Trail, 0, len(entries))
	for _, e := range entries {
		trail, err := t.trail(ctx, e)
		if err != nil {
			return nil, err
		}
		trails = append(trails, trail)
	}
	return trails, nil
}

// entries returns the message that the query finds, and the messages that the same operation added.
func (t *Tracer) entries(ctx context.Context, query TraceQuery) ([]Entry, error) {
	if query == (TraceQuery{}) {
		return nil, errors.New("outbox: a trace needs a query: a request, the ID of a message, a downstream key, or a provider's id")
	}
	since, err := t.since(ctx, query.Request)
	if err != nil {
		return nil, err
	}
	found, err := t.all(ctx, Filter{
		Origin: query.Request, ID: query.MessageID, DownstreamKey: query.DownstreamKey,
		ProviderID: query.ProviderID, Since: since,
	})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("outbox: no message that is still kept fits the query: %w", store.ErrNotFound)
	}
	if origin := found[0].Origin; query.Request == (store.ID{}) && origin != (store.ID{}) {
		since, err := t.since(ctx, origin)
		if err != nil {
			return nil, err
		}
		return t.all(ctx, Filter{Origin: origin, Since: since})
	}
	return found, nil
}

// clockSkew is the largest expected difference between the clocks of a program and of its store.
const clockSkew = 10 * time.Minute

// since returns a time before which no message of an operation was added, or zero if no such time is known.
func (t *Tracer) since(ctx context.Context, origin store.ID) (time.Time, error) {
	if t.records == nil || origin == (store.ID{}) {
		return time.Time{}, nil
	}
	rec, err := t.records.Get(ctx, origin)
	switch {
	case errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnreadable):
		return time.Time{}, nil
	case err != nil || rec.CreatedAt.IsZero():
		return time.Time{}, err
	}
	// A transaction makes its record at its end, and may have taken as long as the longest lease.
	return rec.CreatedAt.Add(-onceward.MaxLease - clockSkew), nil
}

// all returns the entries of all pages of a list.
func (t *Tracer) all(ctx context.Context, f Filter) (entries []Entry, err error) {
	f.Limit = 1000
	for {
		page, err := t.messages.Messages(ctx, f)
		entries = append(entries, page...)
		if err != nil || len(page) < f.Limit {
			return entries, err
		}
		f.After = page[len(page)-1].ID
	}
}

func (t *Tracer) trail(ctx context.Context, e Entry) (Trail, error) {
	trail := Trail{Request: e.Origin, Message: e}
	if t.records != nil && e.Origin != (store.ID{}) {
		rec, err := t.records.Get(ctx, e.Origin)
		switch {
		case err == nil:
			trail.Record = &rec
		case !errors.Is(err, store.ErrNotFound):
			return trail, err
		}
	}
	for _, box := range t.inboxes {
		had, err := box.ConsumedEvents(ctx, e.ID)
		if err != nil {
			return trail, err
		}
		trail.Consumers = append(trail.Consumers, had...)
	}
	return trail, nil
}
