package oncewardmcp

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// subscriptions are the resources to which the clients of a proxy have subscribed. The server behind has one session
// with the proxy, and so one subscription for all clients.
type subscriptions struct {
	mu sync.Mutex
	of map[string]map[*mcp.ServerSession]bool // by URI
}

func (s *subscriptions) add(uri string, session *mcp.ServerSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[string]map[*mcp.ServerSession]bool)
	}
	if s.of[uri] == nil {
		s.of[uri] = make(map[*mcp.ServerSession]bool)
	}
	s.of[uri][session] = true
}

func (s *subscriptions) remove(uri string, session *mcp.ServerSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of[uri], session)
}

// wanted returns the URIs to which a current session is subscribed. It removes the subscriptions of sessions that have
// ended.
func (s *subscriptions) wanted(server *mcp.Server) []string {
	if server == nil {
		return nil
	}
	now := slices.Collect(server.Sessions())
	s.mu.Lock()
	defer s.mu.Unlock()
	for uri, sessions := range s.of {
		maps.DeleteFunc(sessions, func(session *mcp.ServerSession, _ bool) bool { return !slices.Contains(now, session) })
		if len(sessions) == 0 {
			delete(s.of, uri)
		}
	}
	return slices.Collect(maps.Keys(s.of))
}

func (p *Proxy) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error {
	session, err := p.upstream.get(ctx)
	if err != nil {
		return err
	}
	if err := session.Subscribe(ctx, &mcp.SubscribeParams{URI: req.Params.URI}); err != nil {
		return withoutQuery(err)
	}
	p.watched.add(req.Params.URI, req.Session)
	return nil
}

// unsubscribeTimeout is the timeout of an unsubscribe request, which may continue after its client has disconnected.
const unsubscribeTimeout = 10 * time.Second

func (p *Proxy) unsubscribe(ctx context.Context, req *mcp.UnsubscribeRequest) error {
	p.watched.remove(req.Params.URI, req.Session)
	if slices.Contains(p.watched.wanted(p.server.Load()), req.Params.URI) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unsubscribeTimeout)
	defer cancel()
	session, err := p.upstream.get(ctx)
	if err != nil {
		return err
	}
	return withoutQuery(session.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: req.Params.URI}))
}

// renew restores the state of the clients in a new session: the level of log messages, and the subscriptions.
func (p *Proxy) renew(session *mcp.ClientSession) {
	ctx, cancel := context.WithTimeout(p.upstream.ending, p.config.ConnectTimeout)
	defer cancel()
	if err := p.relog(ctx, session); err != nil {
		p.config.Logger.Warn("onceward: the level of log messages was lost with the session of the server behind the proxy",
			"error", withoutQuery(err))
	}
	for _, uri := range p.watched.wanted(p.server.Load()) {
		if err := session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
			p.config.Logger.Warn("onceward: a subscription was lost with the session of the server behind the proxy",
				"error", withoutQuery(err))
		}
	}
}
