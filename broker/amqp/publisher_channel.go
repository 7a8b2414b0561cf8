package amqp

import (
	"context"
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// confirmChannel is a channel in confirm mode on which many goroutines publish at once.
//
// Two properties of the client matter here. It passes a confirm to its waiter directly, but drops a returned message
// that is not received from the Go channel within five seconds; the broker also confirms a returned message. So the Go
// channel has room for every message in flight. And the client keeps the broker's order: the return first, then the
// confirm. So when a publisher sees its confirm, its return, if any, is already in the Go channel or was taken out of
// it.
type confirmChannel struct {
	session *publisherSession
	channel *amqp091.Channel
	// slots bounds the messages in flight. A message holds its slot until its confirm arrives, even if its publisher
	// has stopped waiting.
	slots   chan struct{}
	returns chan amqp091.Return
	closing chan *amqp091.Error

	mu sync.Mutex
	// published counts the publishings, to number them.
	published int64
	// returned holds messages that came back and were not yet looked up, by the number of their publishing.
	returned map[int64]amqp091.Return
	// reason is why the channel was closed, once lost has read it.
	reason error
}

// openChannel opens a channel in confirm mode.
func openChannel(s *publisherSession, maxInFlight int) (*confirmChannel, error) {
	channel, err := s.conn.Channel()
	if err != nil {
		return nil, err
	}
	c := &confirmChannel{
		session:  s,
		channel:  channel,
		slots:    make(chan struct{}, maxInFlight),
		returns:  channel.NotifyReturn(make(chan amqp091.Return, maxInFlight)),
		closing:  channel.NotifyClose(make(chan *amqp091.Error, 1)),
		returned: make(map[int64]amqp091.Return),
	}
	return c, channel.Confirm(false)
}

// publish publishes a message and waits until the broker has confirmed, returned or refused it.
func (c *confirmChannel) publish(ctx context.Context, to route, message amqp091.Publishing) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	number := c.number()
	message.Headers[publishHeader] = number
	confirm, err := c.channel.PublishWithDeferredConfirm(to.exchange, to.key, true, false, message)
	if err != nil {
		<-c.slots
		if !c.channel.IsClosed() {
			c.session.cut()
		}
		return c.lost(err)
	}
	select {
	case <-confirm.Done():
		return c.settle(number, message.MessageId, confirm)
	case <-ctx.Done():
		// The goroutine ends with the connection at the latest.
		go func() {
			<-confirm.Done()
			_ = c.settle(number, message.MessageId, confirm) // to release its slot; the caller already has its error
		}()
		return fmt.Errorf("amqp: not confirmed, it may be published: %w", context.Cause(ctx))
	}
}

// enter takes a slot, or returns an error if the context ends first.
func (c *confirmChannel) enter(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case c.slots <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("amqp: not published: %w", context.Cause(ctx))
}

func (c *confirmChannel) number() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.published++
	return c.published
}

// settle returns the result of a publishing that is no longer in flight, and releases its slot. The client reports
// messages that were in flight on a closed channel as refused.
func (c *confirmChannel) settle(number int64, messageID string, confirm *amqp091.DeferredConfirmation) error {
	back, returned := c.takeReturn(number)
	<-c.slots
	switch {
	case returned && back.MessageId == messageID:
		return fmt.Errorf("%w: %d %s", ErrUnroutable, back.ReplyCode, back.ReplyText)
	case confirm.Acked():
		return nil
	case c.channel.IsClosed():
		return c.lost(nil)
	default:
		return ErrRefused
	}
}

// takeReturn moves all returned messages from the Go channel to the map, for their publishers, and removes and returns
// the message of one publishing.
func (c *confirmChannel) takeReturn(number int64) (back amqp091.Return, returned bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		select {
		case each, open := <-c.returns:
			if open {
				if of, ok := each.Headers[publishHeader].(int64); ok {
					c.returned[of] = each
				}
				continue
			}
			c.returns = nil // closed with the channel
		default:
		}
		back, returned = c.returned[number]
		delete(c.returned, number)
		return back, returned
	}
}

// lost returns the error for messages that were in flight when the channel was closed, with the broker's reason if it
// gave one.
func (c *confirmChannel) lost(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == nil {
		select {
		case err, ok := <-c.closing:
			if ok {
				c.reason = err
			}
		default:
		}
	}
	switch {
	case c.reason != nil:
		return fmt.Errorf("%w: %w", ErrLost, c.reason)
	case cause != nil:
		return fmt.Errorf("%w: %w", ErrLost, cause)
	default:
		return ErrLost
	}
}
