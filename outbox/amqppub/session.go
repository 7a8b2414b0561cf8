package amqppub

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/internal/amqpconn"
)

// closeTimeout is how long the broker may take to say goodbye.
const closeTimeout = 2 * time.Second

// repairPause is for how long an attempt to connect that has failed is the answer to all who need a connection, so that not each
// of them makes an attempt of its own.
const repairPause = 250 * time.Millisecond

// session is one connection with its lanes. When it is lost it is not brought back, but replaced: the client can do the former,
// but then nobody would know what became of the messages in flight.
type session struct {
	conn *amqpconn.Conn
	// lanes and turn are guarded by the publisher.
	lanes []*lane
	turn  int
}

// next returns the lane whose turn it is, or nil if that is closed.
func (s *session) next() *lane {
	if s == nil || s.conn.IsClosed() {
		return nil
	}
	s.turn = (s.turn + 1) % len(s.lanes)
	if l := s.lanes[s.turn]; !l.channel.IsClosed() {
		return l
	}
	return nil
}

// cut ends the connection at once, and all that is in flight learns of it. It is for a connection that cannot be relied on: the
// client does not always external event by itself, for example when it could not write what it has buffered.
func (s *session) cut() { s.conn.Cut() }

// close says goodbye, if there is anybody to say it to.
func (s *session) close() error {
	err := s.conn.Goodbye(closeTimeout)
	if errors.Is(err, amqp.ErrClosed) {
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

// lane returns one that is open, and connects if there is none.
func (p *Publisher) lane(ctx context.Context) (*lane, error) {
	for {
		found, under, err := p.laneOrRepair()
		if found != nil || err != nil {
			return found, err
		}
		select {
		case <-under.done:
			if under.err != nil {
				return nil, fmt.Errorf("amqppub: no connection: %w", under.err)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("amqppub: no connection yet: %w", context.Cause(ctx))
		}
	}
}

// laneOrRepair returns a lane, or the repair to wait for.
func (p *Publisher) laneOrRepair() (*lane, *repair, error) {
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

// repair makes or mends the session. It does not hang on the context of the one who asked first, because others wait as well.
func (p *Publisher) repair(r *repair, old *session) {
	ctx, cancel := context.WithTimeout(p.life, p.config.ConnectTimeout)
	defer cancel()
	session, lanes, err := p.mend(ctx, old)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		session.lanes = lanes
		p.session = session
		p.repairing = nil
	}
	r.err, r.until = err, time.Now().Add(repairPause)
	close(r.done)
}

// mend returns a session with a full set of lanes: the old one, or a new one if its connection is lost.
func (p *Publisher) mend(ctx context.Context, old *session) (*session, []*lane, error) {
	if old != nil && !old.conn.IsClosed() {
		lanes, err := p.openLanes(ctx, old, old.lanes)
		if err != nil {
			old.cut()
		}
		return old, lanes, err
	}
	made, err := p.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	lanes, err := p.openLanes(ctx, made, make([]*lane, p.config.Channels))
	if err != nil {
		return nil, nil, errors.Join(err, made.close())
	}
	return made, lanes, nil
}

// openLanes returns the lanes with those opened anew that are not open. The client does not heed a context: if that ends, the
// connection is cut.
func (p *Publisher) openLanes(ctx context.Context, s *session, old []*lane) (lanes []*lane, err error) {
	stop := context.AfterFunc(ctx, s.cut)
	defer stop()
	for _, each := range old {
		if each == nil || each.channel.IsClosed() {
			if each, err = openLane(s, p.config.MaxInFlight); err != nil {
				return nil, err
			}
		}
		lanes = append(lanes, each)
	}
	return lanes, nil
}

// connect makes a connection.
func (p *Publisher) connect(ctx context.Context) (*session, error) {
	conn, err := amqpconn.Dial(ctx, amqpconn.Settings{
		URL: p.config.URL, Name: p.config.Name, TLS: p.config.TLS, Heartbeat: p.config.Heartbeat, WriteTimeout: p.config.ConnectTimeout,
	})
	if err != nil {
		return nil, err
	}
	return &session{conn: conn}, nil
}
