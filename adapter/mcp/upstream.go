package oncewardmcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
)

// upstream keeps a session with the server behind a proxy, and opens a new one when it has ended.
type upstream struct {
	client  *mcp.Client
	connect func(ctx context.Context) (mcp.Transport, error)
	changed func() // the server behind may have other tools now
	log     *slog.Logger
	min     time.Duration
	max     time.Duration

	mu       sync.Mutex
	session  *mcp.ClientSession
	failures int
	next     time.Time // no attempt to connect before
	closed   bool
	watching sync.WaitGroup
}

// errDown is returned when the server behind the proxy cannot be reached: nothing was sent.
var errDown = errors.New("the server behind the proxy cannot be reached")

// get returns the session, of now or a new one. After failures it connects no more often than the backoff says.
func (u *upstream) get(ctx context.Context) (*mcp.ClientSession, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return nil, fmt.Errorf("%w: the proxy is closed", errDown)
	case u.session != nil:
		return u.session, nil
	case time.Now().Before(u.next):
		return nil, fmt.Errorf("%w: it is not tried again before %s", errDown, u.next.Format(time.RFC3339))
	}
	session, err := u.open(ctx)
	if err != nil {
		u.failures++
		u.next = time.Now().Add(backoff.Exponential(u.min, u.max, u.failures))
		u.log.WarnContext(ctx, "onceward: the server behind the proxy cannot be reached", "failures", u.failures,
			"error", err)
		return nil, fmt.Errorf("%w: %w", errDown, err)
	}
	u.session, u.failures = session, 0
	u.watching.Go(func() { u.watch(session) })
	return session, nil
}

func (u *upstream) open(ctx context.Context) (*mcp.ClientSession, error) {
	transport, err := u.connect(ctx)
	if err != nil {
		return nil, err
	}
	return u.client.Connect(context.WithoutCancel(ctx), transport, nil)
}

// watch waits for the end of a session, and lets the next call open another.
func (u *upstream) watch(session *mcp.ClientSession) {
	err := session.Wait()
	u.drop(session)
	_ = session.Close() // collects the process
	u.mu.Lock()
	closed := u.closed
	u.mu.Unlock()
	if closed {
		return
	}
	u.log.Warn("onceward: the session with the server behind the proxy has ended", "error", err)
	u.changed()
}

func (u *upstream) drop(session *mcp.ClientSession) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.session == session {
		u.session = nil
	}
}

func (u *upstream) close() error {
	u.mu.Lock()
	session := u.session
	u.session, u.closed = nil, true
	u.mu.Unlock()
	var err error
	if session != nil {
		err = session.Close()
	}
	u.watching.Wait()
	return err
}

// judged marks an error of a call that was surely not sent. Of every other it is not known what the server did. The
// next call gets a new session if this one is gone.
func (u *upstream) judged(session *mcp.ClientSession, err error) error {
	if errors.Is(err, mcp.ErrConnectionClosed) {
		u.drop(session)
	}
	var dial *net.OpError
	if errors.Is(err, mcp.ErrSessionMissing) || errors.As(err, &dial) && dial.Op == "dial" {
		u.drop(session)
		return onceward.NotExecuted(err)
	}
	return err
}
