package amqp

import (
	"context"
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// confirmChannel is a channel in confirm mode on which many goroutines publish at once.
//
// Two habits of the client matter here. It gives a confirm to its waiter directly, but drops a returned message if it
// is not taken from the Go channel within five seconds, and a message that was returned is confirmed all the same. So
// the Go channel has room for all that can be in flight. And the client passes on what the broker sends in its order:
// the return first, then the confirm. So a publisher that sees its confirm finds its return, if there is one, in the Go
// channel or already taken out of it.
type confirmChannel struct {
	session *publisherSession
	channel *amqp091.Channel
	// slots bounds what is in flight: one is held until the confirm has come, also if its publisher waits no more.
	slots   chan struct{}
	returns chan amqp091.Return
	closing chan *amqp091.Error

	mu sync.Mutex
	// published counts, to number the publishings.
	published int64
	// returned are messages that came back and were not yet looked for, by the number of their publishing.
	returned map[int64]amqp091.Return
	// reason is why the channel was closed, once that has been asked for.
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

// publish publishes a message and waits until the broker has said what became of it.
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
		// It ends with the connection at the latest.
		go func() {
			<-confirm.Done()
			_ = c.settle(number, message.MessageId, confirm) // for its slot: the caller was told that it may be published
		}()
		return fmt.Errorf("amqp: not confirmed, it may be published: %w", context.Cause(ctx))
	}
}

// enter takes a slot.
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

// settle says what became of a publishing that is no longer in flight, and releases its slot. The client reports what
// was in flight on a channel that is closed as refused.
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

// takeReturn collects all messages that have come back, for their publishers to find, and takes out the one of a
// publishing.
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

// lost is the error for what was in flight when the channel was closed, with the broker's reason if it gave one.
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
