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

// The defaults of [CallerConfig].
const (
	defaultMaxAttempts    = 5
	defaultMinBackoff     = 100 * time.Millisecond
	defaultMaxBackoff     = 5 * time.Second
	defaultAttemptTimeout = time.Minute
)

// CallerConfig configures a [Caller].
type CallerConfig struct {
	// Connect opens a session with the server. It is called again after a lost reply, because the call is repeated on a
	// new session. Required.
	Connect func(ctx context.Context) (*mcp.ClientSession, error)
	// MaxAttempts is the largest number of attempts of one call. Default: 5.
	MaxAttempts int
	// MinBackoff and MaxBackoff bound the wait between two attempts, which doubles. Default: 100 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// AttemptTimeout is how long to wait for a reply before the attempt counts as lost. Default: 1 min.
	AttemptTimeout time.Duration
}

// Caller calls tools with a key for each call. If a reply is lost, it repeats the call with the same key on a new
// session, if the server declares that the tool supports keys. It is safe for concurrent use.
type Caller struct {
	config CallerConfig

	mu      sync.Mutex
	session *mcp.ClientSession
	known   map[string]bool // whether a tool is protected, by name
	closing sync.WaitGroup
}

// NewCaller returns a caller. It connects when the first call is made.
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

// ErrReplyLost is returned if a call was made, or may have been made, and no reply was received. To repeat the same
// call, use the key in its params: see [WithKey].
var ErrReplyLost = errors.New("oncewardmcp: the reply to the call was lost")

// WithKey returns the params with a key in _meta: the existing key, or a new one. A program that must be able to repeat
// a call after its own restart creates the key first, and stores it.
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

// CallTool calls a tool, with the key in its params or a new key, until there is an answer: a result of the tool, an
// error of the protocol, or a [Problem] that must not be retried. An unknown outcome is returned too: the application,
// or its model, has to handle it.
func (c *Caller) CallTool(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	params = WithKey(params)
	var lost error // the error of the last attempt without a reply
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

// repeat makes the call. After a lost reply it does so only if the server declares that the tool supports keys. If the
// server cannot be asked, the call is not repeated.
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

// The codes of errors that the SDK itself makes in the form of an answer if there is none: one side is closing, or the
// transport failed.
const (
	codeClientClosing = -32003
	codeServerClosing = -32004
	codeRejected      = -32005
)

// isAnswer reports whether an error is the server's answer.
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

// protects reports whether the server declares that a tool supports keys.
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

// drop closes a session, unless another goroutine has already replaced it.
func (c *Caller) drop(session *mcp.ClientSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != session {
		return
	}
	c.session = nil
	c.closing.Go(func() { _ = session.Close() }) // the session is already lost
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
