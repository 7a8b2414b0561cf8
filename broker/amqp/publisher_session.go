package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// repairPause is how long the error of a failed attempt to connect is returned to all callers, so that not every caller
// makes its own attempt.
const repairPause = 250 * time.Millisecond

// publisherSession is one connection with its channels. A lost session is replaced, not recovered: the client could
// recover it, but the fate of the messages in flight would stay unknown.
type publisherSession struct {
	conn *conn
	// channels and turn are guarded by the publisher's mutex.
	channels []*confirmChannel
	turn     int
}

// next returns the channel whose turn it is, or nil if the channel or the connection is closed.
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

// cut closes the connection at once, and everything in flight fails. It is for a connection that cannot be relied on:
// the client does not always notice a broken connection, for example when it could not write its buffered data.
func (s *publisherSession) cut() { s.conn.cut() }

// close closes the connection gracefully. It is not an error if the connection is already closed.
func (s *publisherSession) close() error {
	err := s.conn.goodbye(closeTimeout)
	if errors.Is(err, amqp091.ErrClosed) {
		return nil
	}
	return err
}

// repair is an attempt to connect, or to reopen channels. All callers that need a channel wait for the same repair.
type repair struct {
	done chan struct{}
	err  error
	// until is when a new attempt may replace a failed one. It is guarded by the publisher's mutex.
	until time.Time
}

// over reports whether a new attempt may be made.
func (r *repair) over() bool { return r == nil || !r.until.IsZero() && !time.Now().Before(r.until) }

// channel returns an open channel, and connects if there is none.
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

// channelOrRepair returns an open channel, or else the repair to wait for.
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

// repair makes or mends the session. It does not use the context of the caller that started it, because other callers
// wait for it too.
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

// mend returns a session with a full set of channels: the old session, or a new one if the old connection is lost.
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

// openChannels returns the channels, and opens new ones in place of those that are closed. The client ignores contexts:
// if the context ends, openChannels cuts the connection.
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
