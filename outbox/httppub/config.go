package httppub

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onceward/onceward/outbox"
)

// These are the defaults of [Config].
const (
	DefaultTimeout       = 15 * time.Second
	DefaultMaxRetryAfter = time.Hour

	// maxAnswer is how much of an answer's body is read, and maxQuoted is how much of it an error quotes.
	maxAnswer = 64 << 10
	maxQuoted = 200
	// maxAnswerHeader is the largest allowed size of an answer's header.
	maxAnswerHeader = 64 << 10
)

// Config configures a [Publisher].
type Config struct {
	// Endpoint is the URL that all events are sent to. Either it or URL is required. Default: none.
	Endpoint string
	// URL chooses the URL for each event. If it returns an error, the delivery fails and is
	// retried, unless the error is made with [outbox.Permanent]. Default: Endpoint for all events.
	URL func(e *outbox.Event) (string, error)

	// Secrets sign the events by Standard Webhooks. A secret is base64, with or without the prefix "whsec_", and has at
	// least 24 bytes when decoded. Each secret makes one signature, so during a rotation there are two. Default: none.
	Secrets []string
	// SecretsFor chooses the secrets for each event. Receivers that do not trust each other need different
	// secrets, because each could otherwise forge events for the others. Default: Secrets for all events.
	SecretsFor func(e *outbox.Event) ([]string, error)
	// Unsigned means that events are not signed; without it, secrets are required. Default: false.
	Unsigned bool

	// Header is sent with every event, such as Authorization. It is sent to every URL, even if a
	// third party chose the URL: all receivers see the credentials in it, so use a separate publisher
	// for each receiver that must not. The headers of a message cannot overwrite it. Default: none.
	Header http.Header

	// AllowPrivate allows addresses that are not public, such as 10.0.0.1 or 127.0.0.1, and plain
	// HTTP. Use it for your own receivers only, never for URLs that others choose. Default: false.
	AllowPrivate bool
	// AllowPlainHTTP allows URLs that begin with http:. Others can read the
	// events on the way and, if they are not signed, change them. Default: false.
	AllowPlainHTTP bool
	// TLS is the client's TLS configuration: your own roots, or a client certificate. Default: crypto/tls's default.
	TLS *tls.Config

	// Timeout limits a delivery, from resolving the name to the end of the answer. Default: [DefaultTimeout].
	Timeout time.Duration
	// MaxRetryAfter limits the wait that a receiver can request with Retry-After. Default: [DefaultMaxRetryAfter].
	MaxRetryAfter time.Duration
	// Permanent reports whether a status other than 2xx makes the
	// message a dead letter at once. Default: [PermanentStatus].
	Permanent func(status int) bool

	// Now is the clock for timestamps and for Retry-After, for tests. Default: [time.Now].
	Now func() time.Time
}

// check returns an error if settings are missing or contradictory. The error never contains a secret.
func (c *Config) check() error {
	var wrong []error
	if (c.Endpoint == "") == (c.URL == nil) {
		wrong = append(wrong, errors.New("httppub: exactly one of Config.Endpoint and Config.URL is required"))
	}
	switch signed := len(c.Secrets) > 0 || c.SecretsFor != nil; {
	case len(c.Secrets) > 0 && c.SecretsFor != nil:
		wrong = append(wrong, errors.New("httppub: only one of Config.Secrets and Config.SecretsFor may be set"))
	case signed && c.Unsigned:
		wrong = append(wrong, errors.New("httppub: Config.Unsigned contradicts the secrets"))
	case !signed && !c.Unsigned:
		wrong = append(wrong,
			errors.New("httppub: there is no secret to sign with: set Config.Secrets, Config.SecretsFor or Config.Unsigned"))
	}
	if c.Timeout < 0 || c.MaxRetryAfter < 0 {
		wrong = append(wrong, errors.New("httppub: Timeout and MaxRetryAfter must not be negative"))
	}
	for name := range c.Header {
		if reserved(http.CanonicalHeaderKey(name)) && http.CanonicalHeaderKey(name) != "Authorization" {
			wrong = append(wrong, fmt.Errorf("httppub: Config.Header must not set %s", name))
		}
	}
	return errors.Join(wrong...)
}

// withDefaults returns the configuration with its defaults.
func (c Config) withDefaults() Config {
	if c.URL == nil {
		endpoint := c.Endpoint
		c.URL = func(*outbox.Event) (string, error) { return endpoint, nil }
	}
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.MaxRetryAfter = cmp.Or(c.MaxRetryAfter, DefaultMaxRetryAfter)
	if c.Permanent == nil {
		c.Permanent = PermanentStatus
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}
