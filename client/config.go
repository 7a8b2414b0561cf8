package client

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Config is the configuration of a [Transport]. The zero value works for a service that is protected by Onceward.
type Config struct {
	// Base sends each attempt. An [http.Transport] shows whether a failed attempt was sent
	// at all, unless another transport is registered with it by RegisterProtocol, as for
	// HTTP/3: wrap such a transport in a type of your own. Default: [http.DefaultTransport].
	Base http.RoundTripper
	// Profile describes how the service handles keys. Default: [ProfileIETF].
	Profile *Profile
	// Methods are the methods whose requests are operations. Other requests are
	// passed to Base unchanged, unless they carry a key. Default: POST and PATCH.
	Methods []string
	// MaxAttempts is the most times that an operation is sent, including the first time. Waiting for an
	// operation that is still in progress at the service does not count: Timeout limits it. Default: 5.
	MaxAttempts int
	// MinBackoff is the longest wait after the first failure; it doubles with each further failure. The wait itself
	// is random, between zero and this value. A Retry-After header from the service takes precedence. Default: 200ms.
	MinBackoff time.Duration
	// MaxBackoff is the value at which the wait stops growing. Default: 10s.
	MaxBackoff time.Duration
	// Timeout is the time after the start of an operation in which it may be sent again:
	// no wait ends later, and no attempt begins later. Timeout does not cut off an
	// attempt in progress; AttemptTimeout and the context of the request do. Default: 1m.
	Timeout time.Duration
	// AttemptTimeout limits each attempt, including its answer. Default: only the context's deadline, as in net/http.
	AttemptTimeout time.Duration
	// Budget limits the retries of all operations that share it, so that an outage does not
	// multiply the traffic. Default: the transport has its own budget, [NewBudget](0.2, 10).
	Budget *Budget
	// BodyLimit is the longest request body without GetBody that is kept in memory, to be sent
	// again. A request with a longer body is refused before anything is sent. Default: 1 MiB.
	BodyLimit int64
	// ReadAnswer is the longest answer that is read before it is returned: if such an answer is
	// cut off, the operation is retried. The caller reads longer answers, and answers of the
	// type text/event-stream, as they arrive; if that fails, send the same request again with
	// the key from [KeyOf]. With a negative number no answer is read in advance. Default: 1 MiB.
	ReadAnswer int64
	// Observer receives attempts, waits and outcomes. Default: none.
	Observer Observer
}

// The defaults of a configuration.
const (
	defaultMaxAttempts = 5
	defaultMinBackoff  = 200 * time.Millisecond
	defaultMaxBackoff  = 10 * time.Second
	defaultTimeout     = time.Minute
	defaultBodyLimit   = 1 << 20
	defaultReadAnswer  = 1 << 20
	defaultBudgetRatio = 0.2
	defaultBudgetFloor = 10
)

// ErrMisconfigured is returned for an invalid [Config], [Profile] or [Budget]. Its text contains the reason.
var ErrMisconfigured = errors.New("client: misconfigured")

func misconfigured(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMisconfigured, fmt.Sprintf(format, args...))
}

// withDefaults returns the configuration with its defaults, or an error if the configuration is invalid.
func (c Config) withDefaults() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	if c.Profile == nil {
		c.Profile = ProfileIETF()
	}
	profile, err := c.Profile.withDefaults()
	if err != nil {
		return c, err
	}
	c.Profile = &profile
	if len(c.Methods) == 0 {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	c.Methods = slices.Clone(c.Methods)
	if c.Budget == nil {
		if c.Budget, err = NewBudget(defaultBudgetRatio, defaultBudgetFloor); err != nil {
			return c, err
		}
	}
	setDefault(&c.MaxAttempts, defaultMaxAttempts)
	setDefault(&c.MinBackoff, defaultMinBackoff)
	setDefault(&c.MaxBackoff, max(defaultMaxBackoff, c.MinBackoff))
	setDefault(&c.Timeout, defaultTimeout)
	setDefault(&c.BodyLimit, defaultBodyLimit)
	setDefault(&c.ReadAnswer, defaultReadAnswer)
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

func (c *Config) check() error {
	switch {
	case c.MaxAttempts < 0:
		return misconfigured("MaxAttempts is %d: the least is 1", c.MaxAttempts)
	case c.MinBackoff < 0 || c.MaxBackoff < 0:
		return misconfigured("a backoff from %v to %v cannot be negative", c.MinBackoff, c.MaxBackoff)
	case c.MaxBackoff != 0 && c.MaxBackoff < c.MinBackoff:
		return misconfigured("MaxBackoff %v is less than MinBackoff %v", c.MaxBackoff, c.MinBackoff)
	case c.Timeout < 0 || c.AttemptTimeout < 0:
		return misconfigured("a timeout of %v, or %v for an attempt, cannot be negative", c.Timeout, c.AttemptTimeout)
	case c.BodyLimit < 0:
		return misconfigured("BodyLimit is %d: it cannot be negative", c.BodyLimit)
	case slices.Contains(c.Methods, ""):
		return misconfigured("Methods has an empty name")
	default:
		return nil
	}
}
