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

// The defaults of [Config].
const (
	DefaultTimeout       = 15 * time.Second
	DefaultMaxRetryAfter = time.Hour

	// maxAnswer is how much of an answer's body is read, and maxQuoted how much of that is kept in an error.
	maxAnswer = 64 << 10
	maxQuoted = 200
	// maxAnswerHeader is how large the header of an answer may be.
	maxAnswerHeader = 64 << 10
)

// Config configures a [Publisher].
type Config struct {
	// Endpoint is the URL that all events are sent to. Either it or URL is required. Default: none.
	Endpoint string
	// URL chooses the URL for each event. Its error counts as one of the delivery, which is tried again unless the error
	// is made with [outbox.Permanent]. Default: Endpoint for all.
	URL func(e *outbox.Event) (string, error)

	// Secrets sign the events by Standard Webhooks: base64, with or without "whsec_" before it, of 24 bytes at least when
	// decoded. Each gives a signature, so that during a rotation there are two. Default: none.
	Secrets []string
	// SecretsFor chooses the secrets for each event. Receivers that do not trust each other need different ones, or each
	// could forge events for the others. Default: Secrets for all.
	SecretsFor func(e *outbox.Event) ([]string, error)
	// Unsigned says that events are not signed; without it, secrets are required. Default: false.
	Unsigned bool

	// Header is sent with every event, such as Authorization. It goes to every URL, also those that others choose:
	// credentials in it are for receivers that may all know them, so give each other receiver a publisher of its own. The
	// headers of a message cannot overwrite it. Default: none.
	Header http.Header

	// AllowPrivate allows addresses that are not public, such as 10.0.0.1 or 127.0.0.1, and plain HTTP. It is for
	// receivers of one's own, never for URLs that others choose. Default: false.
	AllowPrivate bool
	// AllowPlainHTTP allows URLs that begin with http:. What is sent can be read on the way, and if it is not signed also
	// be changed. Default: false.
	AllowPlainHTTP bool
	// TLS configures the client's side of TLS: roots of one's own, or a client certificate. Default: that of crypto/tls.
	TLS *tls.Config

	// Timeout bounds a delivery from the resolving of the name to the end of the answer. Default: [DefaultTimeout].
	Timeout time.Duration
	// MaxRetryAfter bounds what a receiver's Retry-After can ask for. Default: [DefaultMaxRetryAfter].
	MaxRetryAfter time.Duration
	// Permanent says which status, other than 2xx, makes a dead letter of the message at once. Default: [PermanentStatus].
	Permanent func(status int) bool

	// Now is the clock of timestamps and of Retry-After, for tests. Default: [time.Now].
	Now func() time.Time
}

// check finds what is missing or makes no sense. Nothing that it says quotes a secret.
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

// withDefaults fills in what was left out.
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
