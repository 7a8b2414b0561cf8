package amqp

import (
	"context"
	"errors"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/internal/backoff"
)

// consumerSession is one connection that consumes. When it is lost it is replaced: what was delivered on it cannot be
// acknowledged any more, and comes again.
type consumerSession struct {
	*runner
	conn       *conn
	channel    *amqp091.Channel
	closing    chan *amqp091.Error
	deliveries <-chan amqp091.Delivery
}

// session consumes on one connection until that is lost or the context ends, and returns for how long it did.
func (r *runner) session(ctx, applying context.Context) (lived time.Duration, err error) {
	s, err := r.open(ctx)
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	looking, stop := context.WithCancel(ctx)
	var looks sync.WaitGroup
	if s.Observer != nil {
		looks.Go(func() { s.look(looking) })
	}
	err = s.consume(ctx, applying)
	stop()
	looks.Wait() // the connection is closed by now, which ends a look that hangs
	return time.Since(begun), err
}

// lookEvery is the time between two looks at how many messages wait in the queue.
const lookEvery = 15 * time.Second

// look looks at the queue now and then until the context ends.
func (s *consumerSession) look(ctx context.Context) {
	for backoff.Sleep(ctx, lookEvery) {
		s.lookOnce()
	}
}

// lookOnce asks the broker how many messages wait, on a channel of its own: the broker closes one on which it refuses.
func (s *consumerSession) lookOnce() {
	seen := -1
	if channel, err := s.conn.Channel(); err == nil {
		if queue, err := channel.QueueDeclarePassive(s.Queue, true, false, false, false, nil); err == nil {
			seen = queue.Messages
		}
		_ = channel.Close() // at the latest it is closed with the connection
	}
	s.backlog.Store(int64(seen))
}

// open connects and begins to consume. The client does not heed a context: if that ends, or time is up, the connection
// is cut.
func (r *runner) open(ctx context.Context) (*consumerSession, error) {
	ctx, cancel := context.WithTimeout(ctx, r.ConnectTimeout)
	defer cancel()
	conn, err := dial(ctx, connSettings{
		url: r.URL, name: r.Name, tls: r.TLS, heartbeat: r.Heartbeat, writeTimeout: r.ConnectTimeout,
	})
	if err != nil {
		return nil, err
	}
	s := &consumerSession{runner: r, conn: conn}
	defer context.AfterFunc(ctx, s.cut)()
	if err := s.begin(); err != nil {
		s.goodbye()
		return nil, err
	}
	return s, nil
}

// begin opens a channel and consumes on it.
func (s *consumerSession) begin() (err error) {
	if s.channel, err = s.conn.Channel(); err != nil {
		return err
	}
	s.closing = s.channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err = s.channel.Qos(s.Prefetch, 0, false); err != nil {
		return err
	}
	if s.Observer != nil {
		s.lookOnce()
	}
	s.deliveries, err = s.channel.Consume(s.Queue, s.Name, false, false, false, false, nil)
	return err
}

// cut ends the connection at once.
func (s *consumerSession) cut() { s.conn.cut() }

// consume works on deliveries until the context ends or the connection is lost, and returns why in the latter case.
// Then it does not wait for what is being applied: that cannot be acknowledged, but it may be committed.
func (s *consumerSession) consume(ctx, applying context.Context) error {
	alive, lost := context.WithCancel(ctx)
	defer lost()
	for {
		select {
		case d, ok := <-s.deliveries:
			if !ok {
				defer s.goodbye()
				return s.reason()
			}
			s.work.Go(func() { s.settle(alive, applying, &d) })
		case <-ctx.Done():
			s.end()
			return nil
		}
	}
}

// settle applies a delivery and tells the broker what became of it.
func (s *consumerSession) settle(alive, applying context.Context, d *amqp091.Delivery) {
	outcome, failures := s.apply(applying, d)
	if outcome == requeueLater {
		s.pause(alive, failures)
	}
	_ = tell(d, outcome) // if that fails the channel is closed, and the broker delivers it again
}

// tell tells the broker what became of a delivery.
func tell(d *amqp091.Delivery, o outcome) error {
	switch o {
	case acknowledge:
		return d.Ack(false)
	case reject:
		return d.Reject(false)
	default:
		return d.Nack(false, true)
	}
}

// reason is why there are no more deliveries.
func (s *consumerSession) reason() error {
	select {
	case err, ok := <-s.closing:
		if ok {
			return err
		}
		return amqp091.ErrClosed
	default:
		return errors.New("the broker has cancelled the consumer: the queue was deleted, or has moved")
	}
}

// end stops the deliveries, waits for what is being applied, and says goodbye.
func (s *consumerSession) end() {
	timer := time.AfterFunc(closeTimeout, s.cut) // a broker that does not answer is not waited for
	_ = s.channel.Cancel(s.Name, false)          // what was delivered and not begun goes back with the channel
	timer.Stop()
	s.work.Wait()
	s.goodbye()
}

func (s *consumerSession) goodbye() { _ = s.conn.goodbye(closeTimeout) }
