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

// questions finds the client that a question of the server behind, or a log message, is for. All clients share one
// session with that server, and a question does not say which call it belongs to: it is passed on only while the calls
// of a single client are open, so that no client sees what is another one's.
type questions struct {
	mu    sync.Mutex
	calls map[*openCall]bool
}

// openCall is a request of a client that the server behind works at, or may work at.
type openCall struct {
	ctx    context.Context // of the client's request, whose stream the question goes out on
	client *mcp.ServerSession
	behind *mcp.ClientSession
	left   time.Time // since then nobody waits for its reply; zero if somebody does
}

// unanswered is for how long a call counts as open whose reply nobody waits for: the server behind was told to cancel
// it, and may not have seen that yet, or not heed it.
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

// close ends a call. One without a reply stays open for a while.
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

// asked is an open call of the only client that the server behind can mean; nil if there is none, or more than one.
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
	kept := *found // it may be closed meanwhile
	return &kept, false
}

// errNobody is what the server behind gets for a question that is not passed on.
var errNobody = &jsonrpc.Error{
	Code:    jsonrpc.CodeInvalidRequest,
	Message: "the proxy does not know which of its clients is asked, or that client cannot answer",
}

// question are the params of a question.
type question interface {
	mcp.Params
	withMeta
}

// ask passes a question on to the client that it is for.
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

// passQuestions is a middleware that passes questions on as they came: the SDK's own client would refuse schemas that a
// client may know. A question that sends a user to a page of the web has no end that the proxy could see, so that it is
// not offered.
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

// logged passes a log message on. A message that belongs to no call is for the only client, if there is one.
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

// lateMessages is how long the reply to a request waits for the log messages that came before it: the SDK hands them
// over beside each other.
const lateMessages = 20 * time.Millisecond

// awaitMessages lets log messages overtake a reply, if a client wants any. One that is later still may be lost.
func (p *Proxy) awaitMessages() {
	p.levelMu.Lock()
	wanted := p.level != ""
	p.levelMu.Unlock()
	if wanted {
		time.Sleep(lateMessages)
	}
}

// levels are those of log messages, from the one with most messages.
var levels = []mcp.LoggingLevel{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// setLevel asks the server behind for the messages that the client which wants most of them wants; each client gets
// those of its own level.
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

// setLevelBehind sets the level of a server that has one.
func setLevelBehind(ctx context.Context, session *mcp.ClientSession, level mcp.LoggingLevel) error {
	behind := session.InitializeResult()
	if level == "" || behind == nil || behind.Capabilities == nil || behind.Capabilities.Logging == nil {
		return nil
	}
	return session.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: level})
}

// relog asks a new session for log messages.
func (p *Proxy) relog(ctx context.Context, session *mcp.ClientSession) error {
	p.levelMu.Lock()
	level := p.level
	p.levelMu.Unlock()
	return setLevelBehind(ctx, session, level)
}
