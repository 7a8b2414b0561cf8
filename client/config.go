package client

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Config is how a [Transport] sends operations. The zero value is good for a service that is protected by Onceward.
type Config struct {
	// Base sends each attempt. Of an [http.Transport] it is known when nothing was sent, unless another is registered
	// with it by RegisterProtocol, as for HTTP/3: hide such a one in a type of your own. Default: [http.DefaultTransport].
	Base http.RoundTripper
	// Profile is how the service takes keys. Default: [ProfileIETF].
	Profile *Profile
	// Methods are those whose requests are operations. Others are handed to Base as they are, unless they carry a key.
	// Default: POST and PATCH.
	Methods []string
	// MaxAttempts bounds how often an operation is sent, the first time included. Waiting for an operation that the
	// service says is still under way does not count: Timeout bounds that. Default: 5.
	MaxAttempts int
	// MinBackoff is the longest wait after the first failure; it doubles with each further one. The wait itself is
	// random, from nothing to that. A Retry-After of the service goes before it. Default: 200ms.
	MinBackoff time.Duration
	// MaxBackoff is where the wait stops growing. Default: 10s.
	MaxBackoff time.Duration
	// Timeout is how long after its beginning an operation may be sent again: no wait ends and no attempt begins later.
	// An attempt under way is not cut off by it, but by AttemptTimeout and by the context of the request. Default: 1m.
	Timeout time.Duration
	// AttemptTimeout bounds each attempt, its answer included. Default: none but the context's, as with net/http.
	AttemptTimeout time.Duration
	// Budget bounds the retries of all operations that share it, so that an outage does not multiply the traffic.
	// Default: one of this transport's own, by [NewBudget](0.2, 10).
	Budget *Budget
	// BodyLimit is how much of a request body without GetBody is kept in memory, to be sent again. A longer one is
	// refused before anything is sent. Default: 1 MiB.
	BodyLimit int64
	// ReadAnswer is up to which length an answer is read before it is returned, so that one which is cut off is asked
	// for again. A longer one, or one of the type text/event-stream, is for the caller to read as it comes: if that
	// fails, the same request is sent again with the key that [KeyOf] tells. A negative number reads none. Default: 1 MiB.
	ReadAnswer int64
	// Observer is told of attempts, waits and outcomes. Default: none.
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

// ErrMisconfigured is returned when a [Config], a [Profile] or a [Budget] cannot be right. The text says what.
var ErrMisconfigured = errors.New("client: misconfigured")

func misconfigured(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMisconfigured, fmt.Sprintf(format, args...))
}

// withDefaults fills in the defaults, or says what cannot be right.
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
