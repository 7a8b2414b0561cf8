// Package httppub publishes the events of an outbox by HTTP: webhooks, signed, in the binary mode of CloudEvents 1.0.
//
//	publisher, err := httppub.New(httppub.Config{
//		Endpoint: "https://receiver.example/hooks",
//		Secrets:  []string{"whsec_…"},
//	})
//	…
//	handler := outbox.Publish(publisher)
//
// The body is the payload of the message as it is. The attributes of the event are in headers that begin with "ce-",
// its downstream key is in Idempotency-Key, and webhook-id, webhook-timestamp and webhook-signature are those of
// Standard Webhooks, where the id is the ID of the event. All of them but the timestamp and the signature are the same
// each time the event is sent, so that the receiver can tell a repetition. Package reconcile/webhook verifies such
// signatures. Events that are not signed have no header of Standard Webhooks: their ID is in ce-id alone.
//
// # Where it sends to
//
// Receivers are often named by a party that is not trusted, such as a customer. So an address that is not one of the
// public Internet is refused when a connection is made, after the name was resolved, which a name that resolves
// differently the next time does not get around. Redirects are not followed, proxies of the environment are not used,
// and plain HTTP is not spoken, unless the [Config] says so.
//
// # What an answer means
//
// A status of 2xx confirms the event. [PermanentStatus] tells which make a dead letter of the message at once: those by
// which the receiver refuses this very event, and 410, by which it has gone. All else is tried again: it can be
// repaired on the other side without a new event, as can a URL that is not found (404) or credentials that are refused
// (401, 403), or it passes (408, 409, 425, 429, 5xx, and failures of the network). The receiver's Retry-After is
// honoured.
package httppub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/onceward/onceward/outbox"
)

// Publisher sends events to a receiver. It is an [outbox.Publisher], and safe for concurrent use.
type Publisher struct {
	config Config
	sign   signing
	client *http.Client
}

var _ outbox.Publisher = (*Publisher)(nil)

// New returns a publisher, or an error if the config is incomplete or an Endpoint or Secret in it cannot be used.
func New(config Config) (*Publisher, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	p := &Publisher{config: config.withDefaults()}
	if config.Endpoint != "" {
		if _, err := p.parse(config.Endpoint); err != nil {
			return nil, err
		}
	}
	sign, err := newSigning(config)
	if err != nil {
		return nil, err
	}
	p.sign = sign
	p.client = &http.Client{
		Transport: transport(config),
		// A redirect could lead to where the event was not meant to go, so it is an answer like any other: a failure.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p, nil
}

// transport returns a transport that makes connections only to addresses that are allowed, and never through a proxy:
// that would resolve the name by itself.
func transport(config Config) *http.Transport {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if config.TLS != nil {
		tlsConfig = config.TLS.Clone()
	}
	return &http.Transport{
		DialContext:            dialer(config.AllowPrivate).DialContext,
		TLSClientConfig:        tlsConfig,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    16,
		MaxIdleConns:           256,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxAnswerHeader,
		// A compressed answer would be unpacked here, and is not needed.
		DisableCompression: true,
	}
}

// Close closes the connections that are kept for later events.
func (p *Publisher) Close() { p.client.CloseIdleConnections() }

// Publish sends an event, and returns nil when the receiver has answered with a status of 2xx. What other answers lead
// to is told in the documentation of the package. Errors name of the URL only the scheme and the host.
func (p *Publisher) Publish(ctx context.Context, e *outbox.Event) error {
	text, err := p.config.URL(e)
	if err != nil {
		return fmt.Errorf("httppub: no URL for event %s: %w", e.ID, err)
	}
	target, err := p.parse(text)
	if err != nil {
		return outbox.Permanent(err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	request, err := p.request(ctx, target, e)
	if err != nil {
		return err
	}
	// If a kept connection turns out to be dead, the transport sends the request again by itself, since it carries an
	// Idempotency-Key. That is as harmless as a second delivery: the receiver sees the same ID and the same key.
	response, err := p.client.Do(request)
	if err != nil {
		return &sendError{shown(target), withoutURL(err)}
	}
	defer response.Body.Close()
	return p.judge(target, response, beginning(response.Body))
}

// parse reads a URL and refuses what can never be sent to. Its errors do not quote what may be a secret.
func (p *Publisher) parse(text string) (*url.URL, error) {
	target, err := url.Parse(text)
	if err != nil || target.Hostname() == "" {
		return nil, errors.New("httppub: the URL cannot be read or names no host")
	}
	switch {
	case target.Scheme == "https":
	case target.Scheme == "http" && (p.config.AllowPlainHTTP || p.config.AllowPrivate):
	case target.Scheme == "http":
		return nil, fmt.Errorf("httppub: %s: plain HTTP is not allowed", shown(target))
	default:
		return nil, fmt.Errorf("httppub: %s: only https and http can be spoken", shown(target))
	}
	if err := checkLiteral(target.Hostname(), p.config.AllowPrivate); err != nil {
		return nil, fmt.Errorf("httppub: %s: %w", shown(target), err)
	}
	return target, nil
}

// shown returns a URL for errors: the scheme and the host. All else may be secret, also the path, which is where many
// webhooks have their token.
func shown(u *url.URL) string { return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String() }

// withoutURL takes off what the client wraps its errors in, because that quotes the whole URL.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// sendError is a request that got no answer that can be read.
type sendError struct {
	url   string
	cause error
}

// Error quotes no more of the cause than of an answer: that of a broken answer holds a part of it.
func (e *sendError) Error() string {
	cause := e.cause.Error()
	return fmt.Sprintf("httppub: %s: %s", e.url, cause[:min(len(cause), maxQuoted)])
}

// Unwrap returns the cause.
func (e *sendError) Unwrap() error { return e.cause }

// beginning returns the first bytes of an answer, and reads on a little, so that the connection can be used again. An
// answer that breaks off is no failure: its status has arrived.
func beginning(body io.Reader) []byte {
	limited := io.LimitReader(body, maxAnswer)
	first, _ := io.ReadAll(io.LimitReader(limited, maxQuoted))
	_, _ = io.Copy(io.Discard, limited)
	return first
}
