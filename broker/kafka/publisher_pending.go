package kafka

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// identity tells events apart.
type identity struct{ topic, source, id string }

// pendingRecord is a record that the client has and Kafka has not answered yet. It may outlast the delivery that
// produced it: an idempotent producer cannot take back a record that it may have sent. So a further delivery of the
// same event waits for it, and does not add a copy, of which there would soon be many while the brokers are away.
type pendingRecord struct {
	// ctx is that of the delivery that produced it. When it has ended, the client may give the record up.
	ctx  context.Context
	done chan struct{}
	// err is the answer, once done is closed.
	err error
}

// pendingRecords are those of a publisher.
type pendingRecords struct {
	mu sync.Mutex
	of map[identity]*pendingRecord
}

// join returns the pending record of an event, and whether the caller has to produce it.
func (p *pendingRecords) join(ctx context.Context, event identity) (joined *pendingRecord, produce bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pending := p.of[event]; pending != nil {
		return pending, false
	}
	if p.of == nil {
		p.of = make(map[identity]*pendingRecord)
	}
	joined = &pendingRecord{ctx: ctx, done: make(chan struct{})}
	p.of[event] = joined
	return joined, true
}

// answer notes what Kafka has answered, or why it was not asked.
func (p *pendingRecords) answer(event identity, pending *pendingRecord, err error) {
	p.mu.Lock()
	delete(p.of, event)
	p.mu.Unlock()
	pending.err = err
	close(pending.done)
}

// produce writes a record and waits for the answer, but not for longer than the context lasts.
func (p *Publisher) produce(ctx context.Context, event identity, record *kgo.Record) error {
	for ctx.Err() == nil {
		pending, first := p.pending.join(ctx, event)
		if first {
			p.config.Client.Produce(ctx, record, func(_ *kgo.Record, err error) { p.pending.answer(event, pending, err) })
		}
		select {
		case <-pending.done:
			if pending.err == nil || first || pending.ctx.Err() == nil {
				return pending.err
			}
			// The client has given up the record of a delivery that had ended, which says nothing about this one.
		case <-ctx.Done():
			return fmt.Errorf("not confirmed, it may be written yet: %w", context.Cause(ctx))
		}
	}
	return context.Cause(ctx)
}
