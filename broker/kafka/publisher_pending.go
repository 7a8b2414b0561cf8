package kafka

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// identity identifies an event in a topic.
type identity struct{ topic, source, id string }

// pendingRecord is a record that the client has and Kafka has not answered yet. It may outlast the delivery that
// produced it, because an idempotent producer cannot withdraw a record that it may have sent. So another delivery of
// the same event waits for this record instead of adding a copy. Otherwise there would soon be many copies while the
// brokers are unreachable.
type pendingRecord struct {
	// ctx is the context of the delivery that produced the record. After it has ended, the client may drop the record.
	ctx  context.Context
	done chan struct{}
	// err is the answer, once done is closed.
	err error
}

// pendingRecords are the pending records of a publisher.
type pendingRecords struct {
	mu sync.Mutex
	of map[identity]*pendingRecord
}

// join returns the pending record of an event, and reports whether the caller must produce it.
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

// answer records the result of a record: Kafka's answer, or why the record was not sent.
func (p *pendingRecords) answer(event identity, pending *pendingRecord, err error) {
	p.mu.Lock()
	delete(p.of, event)
	p.mu.Unlock()
	pending.err = err
	close(pending.done)
}

// produce writes a record and waits for the answer, or until the context ends.
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
			// The client dropped a record of another delivery, whose context had ended. That is no failure of this
			// delivery.
		case <-ctx.Done():
			return fmt.Errorf("not confirmed, it may be written yet: %w", context.Cause(ctx))
		}
	}
	return context.Cause(ctx)
}
