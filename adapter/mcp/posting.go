package oncewardmcp

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// posting records the HTTP response to the request that carried a call. The SDK returns the error that ended a session
// to every call of the session, so the error alone does not show which call caused it.
type posting struct{ first atomic.Int64 }

type postingKey struct{}

// notingPosts returns a context that records the response to its first POST.
func notingPosts(ctx context.Context) (context.Context, *posting) {
	p := new(posting)
	return context.WithValue(ctx, postingKey{}, p), p
}

// status returns the status of the response, or zero if there was no response or the transport is not HTTP.
func (p *posting) status() int { return int(p.first.Load()) }

// noting returns the transport with an HTTP client that records responses to POST requests.
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
