package natssub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/consuming"
)

// ackTimeout is how long the server may take to confirm an acknowledgement. One that is lost is made up for when the message
// comes again.
const ackTimeout = 5 * time.Second

// runner is a consumer at work.
type runner struct {
	Consumer
	ackWait time.Duration
	// failures are those of the messages, by their sequence in the stream.
	failures consuming.Failures[uint64]
}

// Run consumes until the context ends, and returns nil then, after what was being applied has been acknowledged or handed
// back. It returns an error if the consumer is not complete, the Source or its connection is gone for good, or a message is
// poison and there is no OnPoison.
func (c Consumer) Run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	info, err := c.Source.Info(ctx)
	if err != nil {
		return fmt.Errorf("natssub: what the consumer in JetStream is like: %w", err)
	}
	if err := checkSource(info.Config); err != nil {
		return err
	}
	r := &runner{Consumer: c.withDefaults(), ackWait: info.Config.AckWait}
	// While the server is away the client looks for it by itself, so that missing heartbeats are no error.
	messages, err := r.Source.Messages(jetstream.PullMaxMessages(r.Buffer), jetstream.WithMessagesErrOnMissingHeartbeat(false))
	if err != nil {
		return fmt.Errorf("natssub: %w", err)
	}
	return r.consume(ctx, messages)
}

// consume gives messages to workers until the context ends, or something ends it for good.
func (r *runner) consume(ctx context.Context, messages jetstream.MessagesContext) error {
	taking, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	applying, cancel := consuming.Grace(taking, r.Grace)
	defer cancel()
	slots := make(chan struct{}, r.Workers)
	var work sync.WaitGroup
	for taking.Err() == nil {
		slots <- struct{}{}
		m, err := messages.Next(jetstream.NextContext(taking))
		if err != nil {
			if taking.Err() == nil {
				stop(fmt.Errorf("natssub: %w", err))
			}
			break
		}
		if taking.Err() != nil { // a message that is there already counts for Next as much as the end
			_ = m.Nak() // if it is lost, the message comes again all the same
			break
		}
		work.Go(func() {
			defer func() { <-slots }()
			if err := r.process(taking, applying, m); err != nil {
				stop(err)
			}
		})
	}
	r.handBack(messages)
	work.Wait()
	if ctx.Err() != nil && errors.Is(context.Cause(taking), context.Cause(ctx)) {
		return nil
	}
	return context.Cause(taking)
}

// handBack ends the deliveries, and returns those messages to the server that no worker has begun, so that others need not
// wait until their AckWait is over.
func (r *runner) handBack(messages jetstream.MessagesContext) {
	messages.Drain()
	for {
		m, err := messages.Next(jetstream.NextMaxWait(r.Grace))
		if err != nil {
			return
		}
		_ = m.Nak() // if it is lost, the message comes again all the same
	}
}

// process settles a message and tells the server what became of it. It returns the error by which the consumer has to stop.
func (r *runner) process(ctx, applying context.Context, m jetstream.Msg) error {
	sequence, deliveries := numbers(m)
	release := r.keep(m)
	ending, err := r.settle(applying, m, sequence)
	release()
	if err := r.tell(ctx, m, ending, deliveries); err != nil {
		r.Logger.WarnContext(ctx, "natssub: the server was not told what became of a message", "subject", m.Subject(), "error", err)
	}
	if ending == stopped {
		return err
	}
	if err != nil && applying.Err() == nil {
		r.Logger.WarnContext(ctx, "natssub: a message could not be applied", "subject", m.Subject(), "delivery", deliveries, "error", err)
	}
	return nil
}

// tell says to the server what became of a message. The acknowledgement is confirmed: the way there and back costs little
// beside the transaction that a needless repetition would cost. A message that was interrupted or stopped at comes again at
// once, for another consumer.
func (r *runner) tell(ctx context.Context, m jetstream.Msg, ending ending, deliveries int) error {
	switch {
	case ending == applied:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
		defer cancel()
		return m.DoubleAck(ctx)
	case ending == putAside:
		return m.Term()
	case ending == failed && ctx.Err() == nil:
		return m.NakWithDelay(backoff.Jittered(r.MinBackoff, r.MaxBackoff, deliveries))
	default:
		return m.Nak()
	}
}

// keep tells the server that a message is being worked on, as often as it takes for the message not to be delivered to another
// worker meanwhile.
func (r *runner) keep(m jetstream.Msg) (release func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(max(r.ackWait/3, 10*time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				_ = m.InProgress() // if it is lost, the message may come twice, and the inbox knows it
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// numbers returns the sequence of a message in the stream, and which delivery of it this is.
func numbers(m jetstream.Msg) (sequence uint64, deliveries int) {
	metadata, err := m.Metadata()
	if err != nil {
		return 0, 1
	}
	return metadata.Sequence.Stream, int(min(metadata.NumDelivered, math.MaxInt32))
}
