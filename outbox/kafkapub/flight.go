package kafkapub

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// identity tells events apart.
type identity struct{ topic, source, id string }

// flight is a record that the client has and Kafka has not answered yet. It may last for longer than the delivery that began it:
// an idempotent producer cannot take back a record that it may have sent. So a further delivery of the same event waits for it,
// and does not add a copy, of which there would soon be many while the brokers are away.
type flight struct {
	// ctx is that of the delivery that began it. When it has ended, the client may give the record up.
	ctx  context.Context
	done chan struct{}
	// err is the answer, once done is closed.
	err error
}

// flights are those of a publisher.
type flights struct {
	mu sync.Mutex
	of map[identity]*flight
}

// join returns the flight of an event, and whether the caller has to begin it.
func (f *flights) join(ctx context.Context, event identity) (joined *flight, begin bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if under := f.of[event]; under != nil {
		return under, false
	}
	if f.of == nil {
		f.of = make(map[identity]*flight)
	}
	joined = &flight{ctx: ctx, done: make(chan struct{})}
	f.of[event] = joined
	return joined, true
}

// land notes the answer to a flight.
func (f *flights) land(event identity, landed *flight, err error) {
	f.mu.Lock()
	delete(f.of, event)
	f.mu.Unlock()
	landed.err = err
	close(landed.done)
}

// produce writes a record and waits for the answer, but not for longer than the context lasts.
func (p *Publisher) produce(ctx context.Context, event identity, record *kgo.Record) error {
	for ctx.Err() == nil {
		under, begin := p.flights.join(ctx, event)
		if begin {
			p.client.Produce(ctx, record, func(_ *kgo.Record, err error) { p.flights.land(event, under, err) })
		}
		select {
		case <-under.done:
			if under.err == nil || begin || under.ctx.Err() == nil {
				return under.err
			}
			// The client has given up the record of a delivery that had ended, which says nothing about this one.
		case <-ctx.Done():
			return fmt.Errorf("not confirmed, it may be written yet: %w", context.Cause(ctx))
		}
	}
	return context.Cause(ctx)
}
