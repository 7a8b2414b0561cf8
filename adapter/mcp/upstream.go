package oncewardmcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
)

// upstream holds the session with the server behind a proxy, and opens a new session after the session has ended.
type upstream struct {
	client  *mcp.Client
	connect func(ctx context.Context) (mcp.Transport, error)
	opening func(*mcp.ClientSession) // called with each new session
	changed func()                   // called when the server behind may have other tools
	log     *slog.Logger
	min     time.Duration
	max     time.Duration
	timeout time.Duration // the timeout of an attempt to connect

	ending context.Context // done when no session may be opened any more
	end    context.CancelFunc
	living context.Context // done when there is no session any more
	die    context.CancelFunc

	mu       sync.Mutex
	session  *mcp.ClientSession
	opened   time.Time
	failures int
	next     time.Time // no attempt to connect before this time
	closed   bool
	watching sync.WaitGroup
}

// errDown is returned if the server behind the proxy cannot be reached. Nothing was sent.
var errDown = errors.New("the server behind the proxy cannot be reached")

// get returns the current session, or a new one. After failures it returns errDown until the backoff is over.
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
	if err = withoutQuery(err); err != nil {
		u.failures++
		u.next = time.Now().Add(u.pause())
		u.log.WarnContext(ctx, "onceward: the server behind the proxy cannot be reached", "failures", u.failures,
			"error", err)
		return nil, fmt.Errorf("%w: %w", errDown, err)
	}
	u.session, u.opened = session, time.Now()
	u.watching.Go(func() { u.opening(session) })
	u.watching.Go(func() { u.watch(session) })
	return session, nil
}

// pause returns the time to wait after the failures so far.
func (u *upstream) pause() time.Duration { return backoff.Exponential(u.min, u.max, u.failures) }

// open opens a session. The end of the caller's context does not stop it, because other callers wait for the same
// session.
func (u *upstream) open(ctx context.Context) (*mcp.ClientSession, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.timeout)
	defer cancel()
	defer context.AfterFunc(u.ending, cancel)()
	transport, err := u.connect(u.living)
	if err != nil {
		return nil, err
	}
	return u.client.Connect(ctx, noting(transport), nil)
}

// watch waits for the end of a session, so that the next call opens a new one.
func (u *upstream) watch(session *mcp.ClientSession) {
	err := withoutQuery(session.Wait())
	u.drop(session)
	_ = session.Close() // waits for the process of the server, if there is one
	u.mu.Lock()
	closed := u.closed
	u.mu.Unlock()
	if closed {
		return
	}
	u.log.Warn("onceward: the session with the server behind the proxy has ended", "error", err)
	u.changed()
}

// steady is how many pauses a session must last before its end resets the failures.
const steady = 10

func (u *upstream) drop(session *mcp.ClientSession) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.session != session {
		return
	}
	u.session = nil
	if u.failures++; time.Since(u.opened) > steady*u.pause() {
		u.failures = 0
		return
	}
	u.next = time.Now().Add(u.pause()) // the server may fail soon after each start
}

func (u *upstream) close() error {
	u.end()
	defer u.die()
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

// judged marks an error of a call that was certainly not executed: the server was not reached, or its response to this
// call was that it does not know the session. For all other errors it is unknown what the server did, also for a call
// whose session was lost after the call was sent. If the session is gone, the next call gets a new one.
func (u *upstream) judged(session *mcp.ClientSession, sent *posting, err error) error {
	err = withoutQuery(err)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
	case errors.Is(err, mcp.ErrSessionMissing):
		u.drop(session)
		if sent.status() != http.StatusNotFound {
			return err
		}
	case errors.Is(err, mcp.ErrConnectionClosed):
		u.drop(session)
		return err
	default:
		return err
	}
	return onceward.NotExecuted(err)
}

// withoutQuery returns an error that does not contain the query of a URL, which may be a secret: clients see errors of
// the server behind.
func withoutQuery(err error) error {
	var web *url.Error
	if !errors.As(err, &web) {
		return err
	}
	shown, _, found := strings.Cut(web.URL, "?")
	if !found {
		return err
	}
	return &hiding{err, strings.ReplaceAll(err.Error(), web.URL, shown)}
}

// hiding is an error with a different text.
type hiding struct {
	error
	text string
}

func (h *hiding) Error() string { return h.text }
func (h *hiding) Unwrap() error { return h.error }
