package client

import (
	"context"
	"net/http"
)

// Transport is an [http.RoundTripper] that gives operations their keys and sends them until they are answered, as far
// as that is safe. It is safe for concurrent use.
type Transport struct {
	config  Config
	profile *Profile
}

// New returns a transport, or an error that wraps [ErrMisconfigured].
func New(c Config) (*Transport, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Transport{config: c, profile: c.Profile}, nil
}

// RoundTrip sends one operation. Its key is that of the request's header, or that of [WithKey], or a new one. The
// request is not changed; the response's own Request is what was sent last, with the key in its header.
//
// An error is an [UnfinishedError]. A response may be one that is no final answer, when there is no time or no budget to
// ask again: [Classify] tells.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.config.Base.RoundTrip(req)
}

// operation is one logical operation, and the context of what is sent for it.
type operation struct {
	context.Context
	key     string
	outcome Outcome
}

type operationContext struct{}

// Value finds the operation itself, beside what the caller's context has.
func (op *operation) Value(key any) any {
	if key == (operationContext{}) {
		return op
	}
	return op.Context.Value(key)
}

// operationOf finds the operation that a response belongs to.
func operationOf(resp *http.Response) *operation {
	if resp == nil || resp.Request == nil {
		return nil
	}
	op, _ := resp.Request.Context().Value(operationContext{}).(*operation)
	return op
}
