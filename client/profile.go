package client

import (
	"net/http"
	"slices"
	"time"
)

// Profile is how a service takes keys: what its documentation says, in numbers. Change a field of a named one where
// your contract with the service says otherwise. The sources are in docs/client.md.
type Profile struct {
	// Name is for errors and metrics.
	Name string
	// Header carries the key. Default: Idempotency-Key.
	Header string
	// Quoted says that the key is sent as a quoted string of RFC 9651. Default: as it is.
	Quoted bool
	// MaxLength is the longest key that the service takes. Default: 255.
	MaxLength int
	// Window is how long the service keeps a key, at least, from when it first saw it. An answer that tells the time by
	// ExpiresHeader goes before it. There is no default: without it no retry is safe.
	Window time.Duration
	// FirstSentHeader carries the time at which the operation was first sent, for services that look at it. Default: it is
	// not sent.
	FirstSentHeader string
	// ReplayedHeader is in answers that were stored before. Default: the service does not tell.
	ReplayedHeader string
	// ExpiresHeader tells until when an answer is kept, as an HTTP date. Default: the service does not tell.
	ExpiresHeader string
	// OutcomeHeader says not-executed in an answer by which nothing was done and which is not kept: a refusal then is the
	// operation's own, and not that of a gateway. Default: the service does not tell.
	OutcomeHeader string
	// RetryHeader says true or false for whether to send the operation again; it goes before the status. Default: the
	// service does not tell.
	RetryHeader string
	// RetryStatuses are those of answers that are no final ones, where no problem document says more. Default: 408, 425,
	// 429, 502, 503 and 504.
	RetryStatuses []int
	// WaitStatuses are those with which the service says that an attempt of the operation is under way. Default: none.
	WaitStatuses []int
	// KeepsRefusals says that the answer to a request that is not valid is kept under its key: the corrected request
	// needs another key. Otherwise it may be sent with the same one. It is for callers who correct requests: a transport
	// never does. Default: the key stays free.
	KeepsRefusals bool
}

// ProfileIETF is the profile of services that follow the IETF draft, Onceward's among them, with Onceward's defaults
// for what the draft leaves open.
func ProfileIETF() *Profile {
	return &Profile{
		Name: "ietf", Header: keyHeader, Quoted: true, MaxLength: 255, Window: 24 * time.Hour,
		FirstSentHeader: firstSentHeader, ReplayedHeader: replayedHeader, ExpiresHeader: expiresHeader,
		OutcomeHeader: outcomeHeader,
		RetryStatuses: append(momentary(), http.StatusInternalServerError),
		KeepsRefusals: true,
	}
}

// ProfileStripe is that of Stripe's API v1.
func ProfileStripe() *Profile {
	return &Profile{
		Name: "stripe", Header: keyHeader, MaxLength: 255, Window: 24 * time.Hour,
		RetryHeader:   "Stripe-Should-Retry",
		RetryStatuses: append(serverErrors(), http.StatusTooManyRequests),
		WaitStatuses:  []int{http.StatusConflict},
		KeepsRefusals: true,
	}
}

// ProfilePayPal is that of PayPal's Orders API v2, which keeps keys for the shortest time of PayPal's.
func ProfilePayPal() *Profile {
	return &Profile{
		Name: "paypal", Header: "PayPal-Request-Id", MaxLength: 108, Window: 6 * time.Hour,
		RetryStatuses: serverErrors(),
		KeepsRefusals: true,
	}
}

// ProfileCheckout is that of Checkout.com, which keeps no result of a request that failed, and executes it again: only
// an attempt without an answer is sent again, and what is still under way is waited for.
func ProfileCheckout() *Profile {
	return &Profile{
		Name: "checkout.com", Header: "Cko-Idempotency-Key", Window: 24 * time.Hour,
		RetryStatuses: []int{}, WaitStatuses: []int{http.StatusTooManyRequests},
	}
}

// ProfilePPRO is that of PPRO.
func ProfilePPRO() *Profile {
	return &Profile{
		Name: "ppro", Header: "Request-Idempotency-Key", Window: 24 * time.Hour, ReplayedHeader: "Request-Idempotency",
		RetryStatuses: serverErrors(), WaitStatuses: []int{http.StatusConflict},
	}
}

// serverErrors are those that a provider means by 5xx.
func serverErrors() []int {
	return []int{
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	}
}

// The names of header fields that Onceward has. They are those of the root package, which a caller does not need.
const (
	keyHeader       = "Idempotency-Key"
	firstSentHeader = "Idempotency-First-Sent"
	replayedHeader  = "Idempotent-Replayed"
	expiresHeader   = "Idempotency-Key-Expires"
	outcomeHeader   = "Idempotency-Outcome"
)

// notExecutedOutcome is what an OutcomeHeader says.
const notExecutedOutcome = "not-executed"

// momentary are the statuses that say something about the moment, and nothing about the operation.
func momentary() []int {
	return []int{
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	}
}

// withDefaults fills in the defaults, or says what cannot be right.
func (p Profile) withDefaults() (Profile, error) {
	setDefault(&p.Name, "custom")
	setDefault(&p.Header, keyHeader)
	setDefault(&p.MaxLength, 255)
	if p.RetryStatuses == nil {
		p.RetryStatuses = momentary()
	}
	p.RetryStatuses, p.WaitStatuses = slices.Clone(p.RetryStatuses), slices.Clone(p.WaitStatuses)
	for _, name := range []*string{
		&p.Header, &p.FirstSentHeader, &p.ReplayedHeader, &p.ExpiresHeader, &p.OutcomeHeader, &p.RetryHeader,
	} {
		*name = http.CanonicalHeaderKey(*name)
	}
	switch {
	case p.Window <= 0:
		return p, misconfigured("the profile %s has no window: how long does the service keep a key?", p.Name)
	case p.MaxLength < 0:
		return p, misconfigured("the profile %s allows keys of %d characters", p.Name, p.MaxLength)
	default:
		return p, nil
	}
}
