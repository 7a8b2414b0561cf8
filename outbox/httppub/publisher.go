// Package httppub publishes the events of an outbox by HTTP: signed webhooks, in the binary mode of CloudEvents 1.0.
//
//	publisher, err := httppub.New(httppub.Config{
//		Endpoint: "https://receiver.example/hooks",
//		Secrets:  []string{"whsec_…"},
//	})
//	…
//	handler := outbox.Publish(publisher)
//
// The body is the unchanged payload of the message. The attributes of the event are in headers that begin with "ce-",
// and its downstream key is in Idempotency-Key. The headers webhook-id, webhook-timestamp and webhook-signature are the
// headers of Standard Webhooks; the id is the ID of the event. All headers except the timestamp and the signature are
// the same each time the event is sent, so that the receiver can recognise a repeated event. Package reconcile/webhook
// verifies such signatures. Unsigned events have no header of Standard Webhooks: their ID is only in ce-id.
//
// # Allowed receivers
//
// Receivers are often chosen by an untrusted party, such as a customer. An address that is not on the public
// Internet is therefore refused when a connection is made, after the name was resolved: a name that resolves
// differently the next time does not get around the check. Redirects are not followed, and proxies of the
// environment are not used. Private addresses and plain HTTP are refused unless the [Config] allows them.
//
// # What an answer means
//
// A status of 2xx confirms the event. A status that [PermanentStatus] lists makes the message a
// dead letter at once: with it the receiver refuses this very event, or, with 410, no longer
// exists. All other failures are retried. Some can be repaired on the other side without a new
// event, such as a URL that is not found (404) or refused credentials (401, 403); others pass
// (408, 409, 425, 429, 5xx, and failures of the network). The receiver's Retry-After is honoured.
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

// Publisher sends events to a receiver. It is an [outbox.Publisher] and safe for concurrent use.
type Publisher struct {
	config Config
	sign   signing
	client *http.Client
}

var _ outbox.Publisher = (*Publisher)(nil)

// New returns a publisher, or an error if the configuration is incomplete or contains an unusable Endpoint or Secret.
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
		// A redirect could lead to a place that must not get the event, so a redirect is a failure like any other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p, nil
}

// transport returns a transport that connects only to allowed addresses,
// and never through a proxy, because a proxy resolves the name itself.
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
		// A compressed answer would be decompressed here, which is not needed.
		DisableCompression: true,
	}
}

// Close closes idle connections.
func (p *Publisher) Close() { p.client.CloseIdleConnections() }

// Publish sends an event, and returns nil when the receiver has answered with a status of 2xx. The package
// documentation describes the other answers. Errors contain only the scheme and the host of the URL.
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
	// If a kept connection turns out to be dead, the transport automatically sends the request again, because it has
	// an Idempotency-Key. This is as harmless as a second delivery: the receiver sees the same ID and the same key.
	response, err := p.client.Do(request)
	if err != nil {
		return &sendError{shown(target), withoutURL(err)}
	}
	defer response.Body.Close()
	return p.judge(target, response, beginning(response.Body))
}

// parse parses a URL and refuses URLs that are never allowed. Its errors do not quote possible secrets.
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

// shown returns a URL for errors: the scheme and the host. Everything else
// may be secret, including the path, in which many webhooks have their token.
func shown(u *url.URL) string { return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String() }

// withoutURL unwraps an error of the HTTP client, because the wrapper contains the whole URL.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// sendError is the error of a request that got no readable answer.
type sendError struct {
	url   string
	cause error
}

// Error returns a text that contains at most maxQuoted bytes
// of the cause: the cause may quote a part of a broken answer.
func (e *sendError) Error() string {
	cause := e.cause.Error()
	return fmt.Sprintf("httppub: %s: %s", e.url, cause[:min(len(cause), maxQuoted)])
}

// Unwrap returns the cause.
func (e *sendError) Unwrap() error { return e.cause }

// beginning returns the first bytes of an answer and reads a little more, so that the
// connection can be reused. An answer that is cut off is not a failure: its status has arrived.
func beginning(body io.Reader) []byte {
	limited := io.LimitReader(body, maxAnswer)
	first, _ := io.ReadAll(io.LimitReader(limited, maxQuoted))
	_, _ = io.Copy(io.Discard, limited)
	return first
}
