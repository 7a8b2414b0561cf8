package nats

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/consuming"
)

// ackTimeout is how long the server may take to confirm an acknowledgement. If an acknowledgement is lost, the message
// is delivered again and acknowledged then.
const ackTimeout = 5 * time.Second

// runner is the state of a running consumer.
type runner struct {
	ConsumerConfig
	ackWait time.Duration
	// failures counts the failures of each message by its sequence in the stream.
	failures consuming.Failures[uint64]
}

// Run consumes until the context ends, waits until the running handlers are acknowledged or returned to the server, and
// returns nil. It returns an error if the Source is no longer suitable, which wraps [onceward.ErrMisconfigured], if the
// Source or its connection is permanently gone, or if a message is poison and there is no OnPoison.
func (c *Consumer) Run(ctx context.Context) error {
	info, err := c.config.Source.Info(ctx)
	if err != nil {
		return fmt.Errorf("nats: what the consumer in JetStream is like: %w", err)
	}
	if err := checkSource(&info.Config); err != nil {
		return fmt.Errorf("%w: %w", onceward.ErrMisconfigured, err)
	}
	r := &runner{ConsumerConfig: c.config, ackWait: info.Config.AckWait}
	// While the server is unreachable, the client reconnects automatically, so missing heartbeats are not an error.
	messages, err := r.Source.Messages(
		jetstream.PullMaxMessages(r.Buffer), jetstream.WithMessagesErrOnMissingHeartbeat(false))
	if err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	return r.consume(ctx, messages)
}

// consume passes messages to workers until the context ends or the consumer has to stop.
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
				stop(fmt.Errorf("nats: %w", err))
			}
			break
		}
		if taking.Err() != nil { // Next may return a buffered message although the context has ended
			_ = m.Nak() // if the Nak is lost, the message is delivered again anyway
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

// handBack stops the deliveries and returns the messages that no worker has started to the server, so that other
// consumers get them before the AckWait is over.
func (r *runner) handBack(messages jetstream.MessagesContext) {
	messages.Drain()
	for {
		m, err := messages.Next(jetstream.NextMaxWait(r.Grace))
		if err != nil {
			return
		}
		_ = m.Nak() // if the Nak is lost, the message is delivered again anyway
	}
}

// process settles a message and sends the outcome to the server. It returns an error if the consumer has to stop.
func (r *runner) process(ctx, applying context.Context, m jetstream.Msg) error {
	sequence, deliveries := numbers(m)
	release := r.keep(m)
	outcome, err := r.settle(applying, m, sequence)
	release()
	if err := r.tell(ctx, m, outcome, deliveries); err != nil {
		r.Logger.WarnContext(ctx, "nats: the server was not told what became of a message",
			"subject", m.Subject(), "error", err)
	}
	if outcome == stopped {
		return err
	}
	if err != nil && applying.Err() == nil {
		r.Logger.WarnContext(ctx, "nats: a message could not be applied",
			"subject", m.Subject(), "delivery", deliveries, "error", err)
	}
	return nil
}

// tell sends the outcome of a message to the server. It waits until the server confirms an acknowledgement: the round
// trip costs less than the transaction of a needless repetition. A message that was interrupted, or that stopped the
// consumer, is delivered again at once, to another consumer.
func (r *runner) tell(ctx context.Context, m jetstream.Msg, outcome outcome, deliveries int) error {
	switch {
	case outcome == applied:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
		defer cancel()
		return m.DoubleAck(ctx)
	case outcome == putAside:
		return m.Term()
	case outcome == failed && ctx.Err() == nil:
		return m.NakWithDelay(backoff.Jittered(r.MinBackoff, r.MaxBackoff, deliveries))
	default:
		return m.Nak()
	}
}

// keep reports to the server that a message is being processed, often enough that the server does not deliver it to
// another worker.
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
				_ = m.InProgress() // if it is lost, the message may be delivered twice, and the inbox recognises it
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// numbers returns the sequence of a message in the stream, and the number of this delivery.
func numbers(m jetstream.Msg) (sequence uint64, deliveries int) {
	metadata, err := m.Metadata()
	if err != nil {
		return 0, 1
	}
	return metadata.Sequence.Stream, int(min(metadata.NumDelivered, math.MaxInt32))
}

// outcome is the way in which a message was settled.
type outcome int

const (
	applied  outcome = iota // now or earlier
	putAside                // by OnPoison
	failed                  // and must be delivered again
	stopped                 // the consumer: the message is poison and there is no OnPoison
)

// settle applies a message unless it was applied already. It passes poison to OnPoison.
func (r *runner) settle(ctx context.Context, m jetstream.Msg, sequence uint64) (outcome, error) {
	got, err := r.try(ctx, m, sequence)
	if got != failed {
		r.failures.Forget(sequence)
	}
	return got, err
}

// try is settle without cleaning up the failure count. It counts failures itself, because the server's count of
// deliveries includes deliveries while the store was unavailable, and deliveries that another consumer returned.
func (r *runner) try(ctx context.Context, m jetstream.Msg, sequence uint64) (outcome, error) {
	id, err := consuming.EventID(r.EventID, m)
	if err != nil {
		return r.poison(ctx, m, sequence, err)
	}
	_, err = r.watch(m).Handle(ctx, r.Inbox, r.Name, id, headersOf(m), func(ctx context.Context) error {
		return consuming.Guard(func() error { return r.Handle(ctx, m) })
	})
	if err == nil {
		return applied, nil
	}
	if ctx.Err() != nil {
		return failed, err
	}
	counts := consuming.Counts(err)
	attempts, _ := r.failures.Add(sequence, counts)
	if errors.Is(err, ErrPoison) || counts && attempts >= r.MaxAttempts {
		return r.poison(ctx, m, sequence, err)
	}
	return failed, err
}

// poison passes a message that cannot be applied to OnPoison.
func (r *runner) poison(ctx context.Context, m jetstream.Msg, sequence uint64, cause error) (outcome, error) {
	if r.OnPoison == nil {
		return stopped, fmt.Errorf("%w, and there is no OnPoison to decide about it: subject %s, sequence %d: %w",
			ErrPoison, m.Subject(), sequence, cause)
	}
	if err := r.OnPoison(ctx, m, cause); err != nil {
		return failed, fmt.Errorf("nats: OnPoison did not take the message: %w; it cannot be applied: %w", err, cause)
	}
	return putAside, nil
}
