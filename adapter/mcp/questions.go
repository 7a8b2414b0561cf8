//lint:file-ignore SA1019 a proxy passes on what clients and servers of earlier versions of the protocol use

package oncewardmcp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// questions finds the client of a question of the server behind, or of a log message. All clients share one session
// with that server, and a question does not identify its call. So a question is forwarded only while a single client
// has open calls; otherwise a client could see data of another client.
type questions struct {
	mu    sync.Mutex
	calls map[*openCall]bool
}

// openCall is a request of a client that the server behind processes, or may still process.
type openCall struct {
	ctx    context.Context // the context of the client's request; the question uses its stream
	client *mcp.ServerSession
	behind *mcp.ClientSession
	left   time.Time // when the client stopped waiting for the reply; zero if it still waits
}

// unanswered is how long a call without a reply counts as open after its client has stopped waiting. The server behind
// received a cancellation, but may not have seen it yet, or may ignore it.
const unanswered = 10 * time.Minute

func (q *questions) open(ctx context.Context, client mcp.Session, behind *mcp.ClientSession) *openCall {
	c := &openCall{ctx: ctx, behind: behind}
	c.client, _ = client.(*mcp.ServerSession)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.calls == nil {
		q.calls = make(map[*openCall]bool)
	}
	q.calls[c] = true
	return c
}

// close ends a call. A call without a reply stays open for a while.
func (q *questions) close(c *openCall, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var wire *jsonrpc.Error
	if err == nil || errors.As(err, &wire) {
		delete(q.calls, c)
		return
	}
	c.ctx, c.left = nil, time.Now()
}

// asked returns an open call of the only client that the server behind can mean, or nil if there is no such client or
// more than one possible client.
func (q *questions) asked(behind *mcp.ClientSession) (found *openCall, several bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range q.calls {
		switch {
		case c.behind != behind || !c.left.IsZero() && time.Since(c.left) > unanswered:
			if !c.left.IsZero() {
				delete(q.calls, c)
			}
		case found != nil && found.client != c.client:
			return nil, true
		case found == nil || c.left.IsZero():
			found = c
		}
	}
	if found == nil {
		return nil, false
	}
	if found.client == nil || !found.left.IsZero() {
		return nil, true
	}
	kept := *found // the original may be closed in the meantime
	return &kept, false
}

// errNobody is the answer to the server behind for a question that is not forwarded.
var errNobody = &jsonrpc.Error{
	Code:    jsonrpc.CodeInvalidRequest,
	Message: "the proxy does not know which of its clients is asked, or that client cannot answer",
}

// question is the interface of the params of a question.
type question interface {
	mcp.Params
	withMeta
}

// ask forwards a question to its client.
func ask[P question, R mcp.Result](
	ctx context.Context, q *questions, req *mcp.ClientRequest[P],
	can func(*mcp.ClientCapabilities) bool, send func(*mcp.ServerSession, context.Context, P) (R, error),
) (mcp.Result, error) {
	call, _ := q.asked(req.Session)
	if call == nil {
		return nil, errNobody
	}
	about := call.client.InitializeParams()
	if about == nil || about.Capabilities == nil || !can(about.Capabilities) {
		return nil, errNobody
	}
	req.Params.SetMeta(passedMeta(req.Params.GetMeta()))
	asking, cancel := context.WithCancel(call.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	answer, err := send(call.client, asking, req.Params)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func canSample(c *mcp.ClientCapabilities) bool { return c.Sampling != nil }

func canElicit(c *mcp.ClientCapabilities) bool { return c.Elicitation != nil }

// passQuestions is a middleware that forwards questions unchanged, because the SDK's own client would refuse schemas
// that the proxy's client may support. Elicitation by URL is not offered, because the proxy could not see when it ends.
func (p *Proxy) passQuestions(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch r := req.(type) {
		case *mcp.CreateMessageWithToolsRequest:
			return ask(ctx, &p.questions, r, canSample, (*mcp.ServerSession).CreateMessageWithTools)
		case *mcp.ElicitRequest:
			return ask(ctx, &p.questions, r, canElicit, (*mcp.ServerSession).Elicit)
		default:
			return next(ctx, method, req)
		}
	}
}

// logged forwards a log message. A message that belongs to no call is sent to the only client, if there is exactly one.
func (p *Proxy) logged(ctx context.Context, req *mcp.LoggingMessageRequest) {
	call, several := p.questions.asked(req.Session)
	if call != nil {
		_ = call.client.Log(call.ctx, req.Params) // a client that is gone has no use for it
		return
	}
	p.tell(func(server *mcp.Server) {
		if clients := slices.Collect(server.Sessions()); len(clients) == 1 && !several {
			_ = clients[0].Log(ctx, req.Params)
		}
	})
}

// lateMessages is how long a reply waits for the log messages that were sent before it, because the SDK delivers them
// concurrently.
const lateMessages = 20 * time.Millisecond

// awaitMessages delays a reply so that earlier log messages are forwarded first, if a client wants log messages.
// Messages that arrive later may be lost.
func (p *Proxy) awaitMessages() {
	p.levelMu.Lock()
	wanted := p.level != ""
	p.levelMu.Unlock()
	if wanted {
		time.Sleep(lateMessages)
	}
}

// levels are the levels of log messages, the most verbose first.
var levels = []mcp.LoggingLevel{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// setLevel sets the level of the server behind to the most verbose level that a client has set. Each client gets the
// messages of its own level.
func (p *Proxy) setLevel(ctx context.Context, level mcp.LoggingLevel) error {
	p.levelMu.Lock()
	known := p.level != "" && slices.Index(levels, level) >= slices.Index(levels, p.level)
	if !known {
		p.level = level
	}
	p.levelMu.Unlock()
	session, err := p.upstream.get(ctx)
	if err != nil || known {
		return err
	}
	return withoutQuery(setLevelBehind(ctx, session, level))
}

// setLevelBehind sets the level of a server that supports log levels.
func setLevelBehind(ctx context.Context, session *mcp.ClientSession, level mcp.LoggingLevel) error {
	behind := session.InitializeResult()
	if level == "" || behind == nil || behind.Capabilities == nil || behind.Capabilities.Logging == nil {
		return nil
	}
	return session.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: level})
}

// relog sets the level of log messages for a new session.
func (p *Proxy) relog(ctx context.Context, session *mcp.ClientSession) error {
	p.levelMu.Lock()
	level := p.level
	p.levelMu.Unlock()
	return setLevelBehind(ctx, session, level)
}
