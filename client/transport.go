package client

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Transport is an [http.RoundTripper] that gives operations their keys and retries them
// until they are answered, as long as that is safe. It is safe for concurrent use.
type Transport struct {
	config  Config
	profile *Profile
	// direct means that Base is an [http.Transport], which reports each connection that it uses.
	direct bool
	stamp  atomic.Pointer[stamp]
}

// New returns a transport, or an error that wraps [ErrMisconfigured].
func New(c Config) (*Transport, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	_, direct := c.Base.(*http.Transport)
	return &Transport{config: c, profile: c.Profile, direct: direct}, nil
}

// Profile returns the profile of the transport, with its defaults.
func (t *Transport) Profile() Profile { return *t.profile }

// RoundTrip sends one operation. Its key comes from the request's header or from
// [WithKey]; otherwise the key is new. The request is not changed; the Request field
// of the response is the request that was sent last, with the key in its header.
//
// An error of an operation is an [UnfinishedError]. The response may not be final if there is no time or no budget
// for a retry: [Classify] returns the outcome. The [http.Client] follows redirects: within the origin as the same
// operation, with the same key. An operation is not redirected to another origin, and no other request gets the key.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	before := operationOf(req.Response)
	switch {
	case before != nil && req.Method != before.request.Method:
		return t.see(req, before)
	case !t.protects(req):
		return t.config.Base.RoundTrip(req)
	}
	op, err := t.begin(req, before)
	if err != nil {
		closeBody(req)
		return op.fail(err)
	}
	t.config.Budget.begin()
	return op.run()
}

// CloseIdleConnections closes the idle connections of the base transport, for [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.config.Base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// protects reports whether a request is an operation.
func (t *Transport) protects(req *http.Request) bool {
	return slices.Contains(t.config.Methods, req.Method) || len(req.Header[t.profile.Header]) > 0 ||
		req.Context().Value(keyContext{}) != nil
}

// see sends the request that follows an operation's redirect with another method, as after a 303. It
// is not an operation, but net/http gives it the header and the context of the operation. Its response
// leads back to the operation, for a further redirect, and does not change the operation's outcome.
func (t *Transport) see(req *http.Request, op *operation) (*http.Response, error) {
	req = req.Clone(context.WithValue(req.Context(), operationContext{}, op))
	req.Header.Del(t.profile.Header)
	if t.profile.FirstSentHeader != "" {
		req.Header.Del(t.profile.FirstSentHeader)
	}
	resp, err := t.config.Base.RoundTrip(req)
	if err == nil {
		resp.Request = req
	}
	return resp, err
}

// begin makes the operation of a request: its key, its times, and a header and
// a body that can be sent again. If it returns an error, nothing was sent.
func (t *Transport) begin(req *http.Request, before *operation) (*operation, error) {
	op := newOperation(t, req)
	if before != nil {
		op.key, op.attempts, op.began = before.key, before.attempts, before.began
		op.firstSent, op.mayHaveExecuted = before.firstSent, before.mayHaveExecuted
		if !sameOrigin(before.request.URL, req.URL) {
			return op, ErrRedirectedAway
		}
	}
	line, err := op.chooseKey()
	if err != nil {
		return op, err
	}
	sent, err := op.chooseFirstSent()
	if err != nil {
		return op, err
	}
	// A time in the future, from a wrong clock, must not make the window longer.
	op.until = earlier(op.firstSent, op.began).Add(safePart(t.profile.Window))
	if !op.began.Before(op.until) {
		op.mayHaveExecuted = true // by an earlier sender, which knew the time
		return op, fmt.Errorf("%w: it was first sent at %v, and %s keeps keys for %v",
			ErrWindowClosed, op.firstSent.UTC(), t.profile.Name, t.profile.Window)
	}
	if err := req.Context().Err(); err != nil {
		return op, err
	}
	op.setHeader(req.Header, line, sent)
	return op, op.keepBody(req)
}

// chooseKey finds or makes the key, and returns it as it is written in the header.
func (op *operation) chooseKey() (line string, err error) {
	p := op.transport.profile
	if op.key == "" { // otherwise the operation was redirected and keeps its key
		key, given, err := p.givenKey(&op.request)
		switch {
		case err != nil:
			return "", err
		case !given:
			return op.newKey()
		}
		op.key = key
	}
	return p.encode(op.key)
}

// newKey makes a key and returns its header value, with one allocation for both.
func (op *operation) newKey() (line string, err error) {
	p := op.transport.profile
	if keyLength > p.MaxLength {
		return "", badKey("a new one has %d characters, and %s allows %d: give it one", keyLength, p.Name, p.MaxLength)
	}
	var b [keyLength + 2]byte
	putKey((*[keyLength]byte)(b[1 : keyLength+1]))
	if !p.Quoted {
		op.key = string(b[1 : keyLength+1])
		return op.key, nil
	}
	b[0], b[keyLength+1] = '"', '"'
	line = string(b[:])
	op.key = line[1 : keyLength+1]
	return line, nil
}

// chooseFirstSent finds when the operation was first sent, and returns it as it is written in the header.
func (op *operation) chooseFirstSent() (line string, err error) {
	name := op.transport.profile.FirstSentHeader
	if resumed, ok := op.Context.Value(resumedContext{}).(time.Time); ok {
		op.firstSent, op.mayHaveExecuted = resumed, true
	}
	if lines := op.request.Header[name]; name != "" && len(lines) > 0 {
		at, err := http.ParseTime(lines[0])
		if err != nil {
			return "", fmt.Errorf("client: the header %s is no HTTP date: %w", name, err)
		}
		if op.firstSent.IsZero() {
			op.firstSent = at
		}
		return lines[0], nil
	}
	if op.firstSent.IsZero() {
		op.firstSent = op.began
		return op.transport.timestamp(op.began), nil
	}
	return op.firstSent.UTC().Format(http.TimeFormat), nil
}

// stamp is a second and its text in a header.
type stamp struct {
	second int64
	text   string
}

// timestamp formats a time. Operations in the same second share the text.
func (t *Transport) timestamp(at time.Time) string {
	last := t.stamp.Load()
	if last == nil || last.second != at.Unix() {
		last = &stamp{second: at.Unix(), text: at.UTC().Format(http.TimeFormat)}
		t.stamp.Store(last)
	}
	return last.text
}

// setHeader makes the header that is sent: the caller's header, with the key and the time. The
// other values are shared with the caller's header, because a transport does not change them.
func (op *operation) setHeader(from http.Header, line, sent string) {
	p := op.transport.profile
	h := make(http.Header, len(from)+2)
	for name, values := range from {
		h[name] = values
	}
	op.values = [2]string{line, sent}
	h[p.Header] = op.values[0:1:1]
	if p.FirstSentHeader != "" {
		h[p.FirstSentHeader] = op.values[1:2:2]
	}
	op.request.Header = h
}

// safePart returns the part of a window that is used: a request sent in the last twentieth
// could arrive after the key was forgotten, because of a slow network or a clock that drifts.
func safePart(window time.Duration) time.Duration { return window - window/20 }

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // nothing of the body was used
	}
}

// contentType returns the media type of an answer, without parameters.
func contentType(resp *http.Response) string {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(kind))
}
