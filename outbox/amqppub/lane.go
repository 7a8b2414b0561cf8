package amqppub

import (
	"context"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// lane is a channel in confirm mode on which many goroutines publish at once.
//
// Two habits of the client matter here. It gives a confirm to its waiter directly, but drops a returned message if nobody takes
// it from the Go channel for five seconds, and a message that was returned is confirmed all the same. So the Go channel has
// room for all that can be in flight. And the client passes on what the broker sends in its order: the return first, then the
// confirm. So whoever sees its confirm finds its return, if there is one, in the Go channel or already taken out of it.
type lane struct {
	session *session
	channel *amqp.Channel
	// slots bounds what is in flight: one is held until the confirm has come, also if nobody waits for that any more.
	slots   chan struct{}
	returns chan amqp.Return
	closing chan *amqp.Error

	mu sync.Mutex
	// published counts, to number the publishings.
	published int64
	// returned are messages that came back and were not yet looked for, by the number of their publishing.
	returned map[int64]amqp.Return
	// reason is why the channel was closed, once that has been asked for.
	reason error
}

// openLane opens a channel in confirm mode.
func openLane(s *session, maxInFlight int) (*lane, error) {
	channel, err := s.conn.Channel()
	if err != nil {
		return nil, err
	}
	l := &lane{
		session:  s,
		channel:  channel,
		slots:    make(chan struct{}, maxInFlight),
		returns:  channel.NotifyReturn(make(chan amqp.Return, maxInFlight)),
		closing:  channel.NotifyClose(make(chan *amqp.Error, 1)),
		returned: make(map[int64]amqp.Return),
	}
	return l, channel.Confirm(false)
}

// publish publishes a message and waits until the broker has said what became of it.
func (l *lane) publish(ctx context.Context, to route, message amqp.Publishing) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	number := l.number()
	message.Headers[publishHeader] = number
	confirm, err := l.channel.PublishWithDeferredConfirm(to.exchange, to.key, true, false, message)
	if err != nil {
		<-l.slots
		if !l.channel.IsClosed() {
			l.session.cut()
		}
		return l.lost(err)
	}
	select {
	case <-confirm.Done():
		return l.settle(number, message.MessageId, confirm)
	case <-ctx.Done():
		// It ends with the connection at the latest.
		go func() {
			<-confirm.Done()
			_ = l.settle(number, message.MessageId, confirm)
		}()
		return fmt.Errorf("amqppub: not confirmed, it may be published: %w", context.Cause(ctx))
	}
}

// enter takes a slot.
func (l *lane) enter(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case l.slots <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("amqppub: not published: %w", context.Cause(ctx))
}

func (l *lane) number() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published++
	return l.published
}

// settle says what became of a publishing that is no longer in flight, and gives its slot back. The client reports what was in
// flight on a channel that is closed as refused.
func (l *lane) settle(number int64, messageID string, confirm *amqp.DeferredConfirmation) error {
	back, returned := l.takeReturn(number)
	<-l.slots
	switch {
	case returned && back.MessageId == messageID:
		return fmt.Errorf("%w: %d %s", ErrUnroutable, back.ReplyCode, back.ReplyText)
	case confirm.Acked():
		return nil
	case l.channel.IsClosed():
		return l.lost(nil)
	default:
		return ErrRefused
	}
}

// takeReturn collects all messages that have come back, for their publishers to find, and takes out the one of a publishing.
func (l *lane) takeReturn(number int64) (back amqp.Return, returned bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		select {
		case each, open := <-l.returns:
			if open {
				if of, ok := each.Headers[publishHeader].(int64); ok {
					l.returned[of] = each
				}
				continue
			}
			l.returns = nil // closed with the channel
		default:
		}
		back, returned = l.returned[number]
		delete(l.returned, number)
		return back, returned
	}
}

// lost is the error for what was in flight when the channel was closed, with the broker's reason if it gave one.
func (l *lane) lost(cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reason == nil {
		select {
		case err, ok := <-l.closing:
			if ok {
				l.reason = err
			}
		default:
		}
	}
	switch {
	case l.reason != nil:
		return fmt.Errorf("%w: %w", ErrLost, l.reason)
	case cause != nil:
		return fmt.Errorf("%w: %w", ErrLost, cause)
	default:
		return ErrLost
	}
}
