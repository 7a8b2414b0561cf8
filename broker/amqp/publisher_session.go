package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// repairPause is for how long an attempt to connect that has failed is the answer to all who need a connection, so that
// not each of them makes an attempt of its own.
const repairPause = 250 * time.Millisecond

// publisherSession is one connection with its channels. When it is lost it is not brought back, but replaced: the
// client can do the former, but then it would stay unknown what became of the messages in flight.
type publisherSession struct {
	conn *conn
	// channels and turn are guarded by the publisher.
	channels []*confirmChannel
	turn     int
}

// next returns the channel whose turn it is, or nil if that is closed.
func (s *publisherSession) next() *confirmChannel {
	if s == nil || s.conn.IsClosed() {
		return nil
	}
	s.turn = (s.turn + 1) % len(s.channels)
	if c := s.channels[s.turn]; !c.channel.IsClosed() {
		return c
	}
	return nil
}

// cut ends the connection at once, and all that is in flight learns of it. It is for a connection that cannot be relied
// on: the client does not always notice by itself, for example when it could not write what it has buffered.
func (s *publisherSession) cut() { s.conn.cut() }

// close says goodbye, if there is a broker to say it to.
func (s *publisherSession) close() error {
	err := s.conn.goodbye(closeTimeout)
	if errors.Is(err, amqp091.ErrClosed) {
		return nil
	}
	return err
}

// repair is an attempt to connect, or to open channels again. All who need one wait for the same.
type repair struct {
	done chan struct{}
	err  error
	// until is for how long it stands if it has failed. It is guarded by the publisher.
	until time.Time
}

// over reports whether a new attempt may be made.
func (r *repair) over() bool { return r == nil || !r.until.IsZero() && !time.Now().Before(r.until) }

// channel returns one that is open, and connects if there is none.
func (p *Publisher) channel(ctx context.Context) (*confirmChannel, error) {
	for {
		found, under, err := p.channelOrRepair()
		if found != nil || err != nil {
			return found, err
		}
		select {
		case <-under.done:
			if under.err != nil {
				return nil, fmt.Errorf("amqp: no connection: %w", under.err)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("amqp: no connection yet: %w", context.Cause(ctx))
		}
	}
}

// channelOrRepair returns a channel, or the repair to wait for.
func (p *Publisher) channelOrRepair() (*confirmChannel, *repair, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, ErrClosed
	}
	if found := p.session.next(); found != nil {
		return found, nil, nil
	}
	if p.repairing.over() {
		p.repairing = &repair{done: make(chan struct{})}
		go p.repair(p.repairing, p.session)
	}
	return nil, p.repairing, nil
}

// repair makes or mends the session. It does not hang on the context of the one who asked first, because others wait as
// well.
func (p *Publisher) repair(r *repair, old *publisherSession) {
	ctx, cancel := context.WithTimeout(p.life, p.config.ConnectTimeout)
	defer cancel()
	session, channels, err := p.mend(ctx, old)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		session.channels = channels
		p.session = session
		p.repairing = nil
	}
	r.err, r.until = err, time.Now().Add(repairPause)
	close(r.done)
}

// mend returns a session with a full set of channels: the old one, or a new one if its connection is lost.
func (p *Publisher) mend(ctx context.Context, old *publisherSession) (*publisherSession, []*confirmChannel, error) {
	if old != nil && !old.conn.IsClosed() {
		channels, err := p.openChannels(ctx, old, old.channels)
		if err != nil {
			old.cut()
		}
		return old, channels, err
	}
	made, err := p.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	channels, err := p.openChannels(ctx, made, make([]*confirmChannel, p.config.Channels))
	if err != nil {
		return nil, nil, errors.Join(err, made.close())
	}
	return made, channels, nil
}

// openChannels returns the channels, with those opened again that are closed. The client does not heed a context: if
// that ends, the connection is cut.
func (p *Publisher) openChannels(
	ctx context.Context, s *publisherSession, old []*confirmChannel,
) (channels []*confirmChannel, err error) {
	stop := context.AfterFunc(ctx, s.cut)
	defer stop()
	for _, each := range old {
		if each == nil || each.channel.IsClosed() {
			if each, err = openChannel(s, p.config.MaxInFlight); err != nil {
				return nil, err
			}
		}
		channels = append(channels, each)
	}
	return channels, nil
}

// connect makes a connection.
func (p *Publisher) connect(ctx context.Context) (*publisherSession, error) {
	conn, err := dial(ctx, connSettings{
		url: p.config.URL, name: p.config.Name, tls: p.config.TLS,
		heartbeat: p.config.Heartbeat, writeTimeout: p.config.ConnectTimeout,
	})
	if err != nil {
		return nil, err
	}
	return &publisherSession{conn: conn}, nil
}
