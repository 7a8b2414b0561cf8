package oncewardmcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward/internal/backoff"
)

// The defaults of CallerConfig.
const (
	defaultMaxAttempts    = 5
	defaultMinBackoff     = 100 * time.Millisecond
	defaultMaxBackoff     = 5 * time.Second
	defaultAttemptTimeout = time.Minute
)

// CallerConfig configures a [Caller].
type CallerConfig struct {
	// Connect opens a session with the server. It is required: a call whose reply was lost is repeated on a new one.
	Connect func(ctx context.Context) (*mcp.ClientSession, error)
	// MaxAttempts bounds how often one call is made. Default: 5.
	MaxAttempts int
	// MinBackoff and MaxBackoff bound the time between two attempts, which doubles. Default: 100 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// AttemptTimeout is after how long without a reply a call counts as lost. Default: 1 min.
	AttemptTimeout time.Duration
}

// Caller calls tools with a key for each call, and repeats a call whose reply was lost with the same key on a new
// session, if the server says that it knows the key. It may be used by several goroutines.
type Caller struct {
	config CallerConfig

	mu      sync.Mutex
	session *mcp.ClientSession
	known   map[string]bool // tools by name: whether they are protected
	closing sync.WaitGroup
}

// NewCaller returns a caller. It connects with the first call.
func NewCaller(config CallerConfig) (*Caller, error) {
	if config.Connect == nil {
		return nil, errors.New("oncewardmcp: CallerConfig.Connect is missing")
	}
	if config.MaxAttempts < 0 || config.MinBackoff < 0 || config.MaxBackoff < 0 || config.AttemptTimeout < 0 {
		return nil, errors.New("oncewardmcp: MaxAttempts, MinBackoff, MaxBackoff and AttemptTimeout cannot be negative")
	}
	if config.MaxAttempts == 0 {
		config.MaxAttempts = defaultMaxAttempts
	}
	if config.MinBackoff == 0 {
		config.MinBackoff = defaultMinBackoff
	}
	if config.MaxBackoff == 0 {
		config.MaxBackoff = max(defaultMaxBackoff, config.MinBackoff)
	}
	if config.AttemptTimeout == 0 {
		config.AttemptTimeout = defaultAttemptTimeout
	}
	return &Caller{config: config, known: make(map[string]bool)}, nil
}

// ErrReplyLost is returned when a call was made, or may have been, and no reply came. The key in its params, see
// [WithKey], makes the same call again.
var ErrReplyLost = errors.New("oncewardmcp: the reply to the call was lost")

// WithKey returns the params with a key in _meta: the one that is there, or a new one. A program that has to repeat a
// call after its own restart makes the key first, and keeps it.
func WithKey(params *mcp.CallToolParams) *mcp.CallToolParams {
	keyed := *params
	keyed.Meta = maps.Clone(params.Meta)
	if keyed.Meta == nil {
		keyed.Meta = make(mcp.Meta)
	}
	if _, ok := keyed.Meta[MetaKey]; !ok {
		keyed.Meta[MetaKey] = rand.Text()
	}
	if _, ok := keyed.Meta[MetaFirstSent]; !ok {
		keyed.Meta[MetaFirstSent] = time.Now().UTC().Format(http.TimeFormat)
	}
	return &keyed
}

// CallTool makes a call, with the key in its params or a new one, until there is an answer: a result of the tool, an
// error of the protocol, or a [Problem] that may not be tried again. An unknown outcome is returned too: it is
// the application's, or its model's, to act on.
func (c *Caller) CallTool(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	params = WithKey(params)
	var lost error // with the last attempt
	for attempt := 1; ; attempt++ {
		result, err := c.repeat(ctx, params, lost)
		pause := backoff.Jittered(c.config.MinBackoff, c.config.MaxBackoff, attempt)
		switch problem := ProblemOf(result); {
		case err == nil && (problem == nil || !problem.Retryable || problem.Code == codeUnknown):
			return result, nil
		case err == nil:
			pause = max(pause, time.Duration(problem.RetryAfterSeconds)*time.Second)
		case ctx.Err() != nil || !errors.Is(err, ErrReplyLost) || errors.Is(err, errUnprotected):
			return nil, err
		}
		if attempt >= c.config.MaxAttempts || !backoff.Sleep(ctx, pause) {
			return result, err
		}
		if err != nil {
			lost = err
		}
	}
}

var errUnprotected = errors.New("it is not made again: the server does not say that it knows the key")

// repeat makes the call, but after a lost reply only if the server says that it knows the key. While it cannot be asked
// nothing is repeated.
func (c *Caller) repeat(ctx context.Context, params *mcp.CallToolParams, lost error) (*mcp.CallToolResult, error) {
	if lost == nil {
		return c.attempt(ctx, params)
	}
	switch known, err := c.protects(ctx, params.Name); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrReplyLost, err)
	case !known:
		return nil, fmt.Errorf("%w, and %w", lost, errUnprotected)
	default:
		return c.attempt(ctx, params)
	}
}

// attempt makes the call once.
func (c *Caller) attempt(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	session, err := c.connected(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReplyLost, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.AttemptTimeout)
	defer cancel()
	result, err := session.CallTool(ctx, params)
	if err == nil || isAnswer(err) {
		return result, err
	}
	c.drop(session)
	return nil, fmt.Errorf("%w: %w", ErrReplyLost, err)
}

// The codes of errors that the SDK makes itself, in the form of an answer, when there is none: a side that is closing,
// and a transport that failed.
const (
	codeClientClosing = -32003
	codeServerClosing = -32004
	codeRejected      = -32005
)

// isAnswer reports whether an error came from the server, as its answer.
func isAnswer(err error) bool {
	var wire *jsonrpc.Error
	if !errors.As(err, &wire) || errors.Is(err, mcp.ErrConnectionClosed) || errors.Is(err, mcp.ErrSessionMissing) {
		return false
	}
	switch wire.Code {
	case codeClientClosing, codeServerClosing, codeRejected:
		return false
	default:
		return true
	}
}

// protects asks the server whether a tool knows keys.
func (c *Caller) protects(ctx context.Context, name string) (bool, error) {
	c.mu.Lock()
	known, asked := c.known[name]
	c.mu.Unlock()
	if asked {
		return known, nil
	}
	session, err := c.connected(ctx)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.AttemptTimeout)
	defer cancel()
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			c.drop(session)
			return false, err
		}
		if tool.Name == name {
			known = tool.Meta[MetaKey] != nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[name] = known
	return known, nil
}

func (c *Caller) connected(ctx context.Context) (*mcp.ClientSession, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		return c.session, nil
	}
	session, err := c.config.Connect(ctx)
	if err == nil {
		c.session = session
	}
	return session, err
}

// drop gives up a session, which others may have given up before.
func (c *Caller) drop(session *mcp.ClientSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != session {
		return
	}
	c.session = nil
	c.closing.Go(func() { _ = session.Close() }) // it is lost already
}

// Close closes the session.
func (c *Caller) Close() error {
	c.mu.Lock()
	session := c.session
	c.session = nil
	c.mu.Unlock()
	var err error
	if session != nil {
		err = session.Close()
	}
	c.closing.Wait()
	return err
}
