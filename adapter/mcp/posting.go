package oncewardmcp

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// posting is what became of the HTTP request that carried a call. The SDK gives every call of a session the error that
// ended the session, so that the error alone does not say which call it is about.
type posting struct{ first atomic.Int64 }

type postingKey struct{}

// notingPosts returns a context whose first POST is noted.
func notingPosts(ctx context.Context) (context.Context, *posting) {
	p := new(posting)
	return context.WithValue(ctx, postingKey{}, p), p
}

// status is that of the response; zero if there was none, or if the transport is another.
func (p *posting) status() int { return int(p.first.Load()) }

// noting is the transport with a client that notes what is posted.
func noting(transport mcp.Transport) mcp.Transport {
	web, ok := transport.(*mcp.StreamableClientTransport)
	if !ok {
		return transport
	}
	client := new(http.Client)
	if web.HTTPClient != nil {
		*client = *web.HTTPClient
	}
	client.Transport = notingTransport{client.Transport}
	noted := *web
	noted.HTTPClient = client
	return &noted
}

type notingTransport struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t notingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	next := t.next
	if next == nil {
		next = http.DefaultTransport
	}
	response, err := next.RoundTrip(r)
	if p, ok := r.Context().Value(postingKey{}).(*posting); ok && err == nil && r.Method == http.MethodPost {
		p.first.CompareAndSwap(0, int64(response.StatusCode))
	}
	return response, err
}
