package amqp

import (
	"context"
	"errors"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/internal/backoff"
)

// consumerSession is one connection that consumes. A lost connection is replaced: its deliveries can no longer be
// acknowledged, and the broker delivers them again.
type consumerSession struct {
	*runner
	conn       *conn
	channel    *amqp091.Channel
	closing    chan *amqp091.Error
	deliveries <-chan amqp091.Delivery
}

// session consumes on one connection until the connection is lost or the context ends. It returns how long it consumed.
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
	looks.Wait() // the connection is closed by now, so a look cannot hang
	return time.Since(begun), err
}

// lookEvery is the interval at which the length of the queue is read.
const lookEvery = 15 * time.Second

// look reads the length of the queue at each interval until the context ends.
func (s *consumerSession) look(ctx context.Context) {
	for backoff.Sleep(ctx, lookEvery) {
		s.lookOnce()
	}
}

// lookOnce reads how many messages wait in the queue. It uses a channel of its own, because the broker closes a channel
// on which it refuses a request.
func (s *consumerSession) lookOnce() {
	seen := -1
	if channel, err := s.conn.Channel(); err == nil {
		if queue, err := channel.QueueDeclarePassive(s.Queue, true, false, false, false, nil); err == nil {
			seen = queue.Messages
		}
		_ = channel.Close() // if this fails, the channel is closed with the connection
	}
	s.backlog.Store(int64(seen))
}

// open connects and starts to consume. The client ignores contexts: if the context ends or the timeout expires, open
// cuts the connection.
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

// begin opens a channel and starts to consume on it.
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

func (s *consumerSession) cut() { s.conn.cut() }

// consume processes deliveries until the context ends or the connection is lost, and returns an error in the second
// case. After a lost connection it does not wait for running handlers: their deliveries cannot be acknowledged any
// more, but their transactions may still commit.
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

// settle applies a delivery and sends its outcome to the broker.
func (s *consumerSession) settle(alive, applying context.Context, d *amqp091.Delivery) {
	outcome, failures := s.apply(applying, d)
	if outcome == requeueLater {
		s.pause(alive, failures)
	}
	_ = tell(d, outcome) // if this fails, the channel is closed and the broker delivers the message again
}

// tell sends the outcome of a delivery to the broker.
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

// reason returns why there are no more deliveries.
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

// end stops the deliveries, waits for the running handlers, and closes the connection.
func (s *consumerSession) end() {
	timer := time.AfterFunc(closeTimeout, s.cut) // a broker may not answer
	_ = s.channel.Cancel(s.Name, false)          // closing the channel requeues the deliveries that were not started
	timer.Stop()
	s.work.Wait()
	s.goodbye()
}

func (s *consumerSession) goodbye() { _ = s.conn.goodbye(closeTimeout) }
