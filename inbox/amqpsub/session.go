package amqpsub

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/internal/amqpconn"
)

// closeTimeout is how long the broker may take to say goodbye.
const closeTimeout = 2 * time.Second

// session is one connection that consumes. When it is lost it is replaced: what was delivered on it cannot be acknowledged any
// more, and comes again.
type session struct {
	*runner
	conn       *amqpconn.Conn
	channel    *amqp.Channel
	closing    chan *amqp.Error
	deliveries <-chan amqp.Delivery
}

// session consumes on one connection until that is lost or the context ends, and returns for how long it did.
func (r *runner) session(ctx, applying context.Context) (lived time.Duration, err error) {
	s, err := r.open(ctx)
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	err = s.consume(ctx, applying)
	return time.Since(begun), err
}

// open connects and begins to consume. The client does not heed a context: if that ends, or time is up, the connection is cut.
func (r *runner) open(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, r.ConnectTimeout)
	defer cancel()
	conn, err := amqpconn.Dial(ctx, amqpconn.Settings{
		URL: r.URL, Name: r.Name, TLS: r.TLS, Heartbeat: r.Heartbeat, WriteTimeout: r.ConnectTimeout,
	})
	if err != nil {
		return nil, err
	}
	s := &session{runner: r, conn: conn}
	defer context.AfterFunc(ctx, s.cut)()
	if err := s.begin(); err != nil {
		s.goodbye()
		return nil, err
	}
	return s, nil
}

// begin opens a channel and consumes on it.
func (s *session) begin() (err error) {
	if s.channel, err = s.conn.Channel(); err != nil {
		return err
	}
	s.closing = s.channel.NotifyClose(make(chan *amqp.Error, 1))
	if err = s.channel.Qos(s.Prefetch, 0, false); err != nil {
		return err
	}
	s.deliveries, err = s.channel.Consume(s.Queue, s.Name, false, false, false, false, nil)
	return err
}

// cut ends the connection at once.
func (s *session) cut() { s.conn.Cut() }

// consume works on deliveries until the context ends or the connection is lost, and returns why in the latter case. Then it does
// not wait for what is being applied: that cannot be acknowledged, but it may be committed.
func (s *session) consume(ctx, applying context.Context) error {
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
func (s *session) settle(alive, applying context.Context, d *amqp.Delivery) {
	verdict, failures := s.judge(applying, d)
	if verdict == requeueLater {
		s.pause(alive, failures)
	}
	_ = tell(d, verdict) // if that fails the channel is closed, and the broker delivers it again
}

// tell tells the broker what became of a delivery.
func tell(d *amqp.Delivery, v verdict) error {
	switch v {
	case acknowledge:
		return d.Ack(false)
	case reject:
		return d.Reject(false)
	default:
		return d.Nack(false, true)
	}
}

// reason is why there are no more deliveries.
func (s *session) reason() error {
	select {
	case err, ok := <-s.closing:
		if ok {
			return err
		}
		return amqp.ErrClosed
	default:
		return errors.New("the broker has cancelled the consumer: the queue was deleted, or has moved")
	}
}

// end stops the deliveries, waits for what is being applied, and says goodbye.
func (s *session) end() {
	timer := time.AfterFunc(closeTimeout, s.cut) // a broker that does not answer is not waited for
	_ = s.channel.Cancel(s.Name, false)          // what was delivered and not begun goes back with the channel
	timer.Stop()
	s.work.Wait()
	s.goodbye()
}

func (s *session) goodbye() { _ = s.conn.Goodbye(closeTimeout) }
