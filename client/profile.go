package client

import (
	"net/http"
	"slices"
	"time"
)

// Profile describes how a service handles keys, according to its documentation. Change a field of
// a named profile where your contract with the service differs. The sources are in docs/client.md.
type Profile struct {
	// Name is used in errors and metrics.
	Name string
	// Header is the name of the header with the key. Default: Idempotency-Key.
	Header string
	// Quoted means that the key is sent as a quoted string (RFC 9651). Default: the key is sent as it is.
	Quoted bool
	// MaxLength is the length of the longest key that the service accepts. Default: 255.
	MaxLength int
	// Window is how long the service keeps a key, at least, after it first received the key. An expiry that an
	// answer has in ExpiresHeader takes precedence. There is no default: without a window no retry is safe.
	Window time.Duration
	// FirstSentHeader is the name of the header with the time at which the operation
	// was first sent, for services that check it. Default: the time is not sent.
	FirstSentHeader string
	// ReplayedHeader is the name of a header in answers that were
	// stored before. Default: the service sends no such header.
	ReplayedHeader string
	// ExpiresHeader is the name of the header with the expiry of an
	// answer, as an HTTP date. Default: the service sends no such header.
	ExpiresHeader string
	// OutcomeHeader is the name of a header that has the value not-executed if the
	// request did nothing and its answer is not kept: a refusal with it comes from the
	// operation itself and not from a gateway. Default: the service sends no such header.
	OutcomeHeader string
	// RetryHeader is the name of a header that is true or false and decides whether the operation is
	// sent again; it takes precedence over the status. Default: the service sends no such header.
	RetryHeader string
	// RetryStatuses are the statuses of answers that are not final, unless a
	// problem document decides otherwise. Default: 408, 425, 429, 502, 503 and 504.
	RetryStatuses []int
	// WaitStatuses are the statuses which mean that an attempt of the operation is in progress. Default: none.
	WaitStatuses []int
	// KeepsRefusals means that the service keeps the answer to an invalid request under its key, so that
	// the corrected request needs another key. Otherwise the corrected request may use the same key. The
	// field is for callers that correct requests: a transport never does. Default: the key stays free.
	KeepsRefusals bool
}

// ProfileIETF returns the profile of services that follow the IETF draft, including services
// protected by Onceward. Where the draft leaves a choice, the profile has Onceward's defaults.
func ProfileIETF() *Profile {
	return &Profile{
		Name: "ietf", Header: keyHeader, Quoted: true, MaxLength: 255, Window: 24 * time.Hour,
		FirstSentHeader: firstSentHeader, ReplayedHeader: replayedHeader, ExpiresHeader: expiresHeader,
		OutcomeHeader: outcomeHeader,
		RetryStatuses: append(momentary(), http.StatusInternalServerError),
		KeepsRefusals: true,
	}
}

// ProfileStripe returns the profile of Stripe's API v1.
func ProfileStripe() *Profile {
	return &Profile{
		Name: "stripe", Header: keyHeader, MaxLength: 255, Window: 24 * time.Hour,
		RetryHeader:   "Stripe-Should-Retry",
		RetryStatuses: append(serverErrors(), http.StatusTooManyRequests),
		WaitStatuses:  []int{http.StatusConflict},
		KeepsRefusals: true,
	}
}

// ProfilePayPal returns the profile of PayPal's Orders API v2,
// which keeps keys for a shorter time than PayPal's other APIs.
func ProfilePayPal() *Profile {
	return &Profile{
		Name: "paypal", Header: "PayPal-Request-Id", MaxLength: 108, Window: 6 * time.Hour,
		RetryStatuses: serverErrors(),
		KeepsRefusals: true,
	}
}

// ProfileCheckout returns the profile of Checkout.com, which keeps no result of a failed request and would execute
// the request again: only an attempt without an answer is retried, and an attempt in progress is waited for.
func ProfileCheckout() *Profile {
	return &Profile{
		Name: "checkout.com", Header: "Cko-Idempotency-Key", Window: 24 * time.Hour,
		RetryStatuses: []int{}, WaitStatuses: []int{http.StatusTooManyRequests},
	}
}

// ProfilePPRO returns the profile of PPRO.
func ProfilePPRO() *Profile {
	return &Profile{
		Name: "ppro", Header: "Request-Idempotency-Key", Window: 24 * time.Hour, ReplayedHeader: "Request-Idempotency",
		RetryStatuses: serverErrors(), WaitStatuses: []int{http.StatusConflict},
	}
}

// serverErrors returns the statuses that a provider means by 5xx.
func serverErrors() []int {
	return []int{
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	}
}

// These are the names of Onceward's header fields. The root
// package has them too, but a caller does not need that package.
const (
	keyHeader       = "Idempotency-Key"
	firstSentHeader = "Idempotency-First-Sent"
	replayedHeader  = "Idempotent-Replayed"
	expiresHeader   = "Idempotency-Key-Expires"
	outcomeHeader   = "Idempotency-Outcome"
)

// notExecutedOutcome is the value of OutcomeHeader for a request that did nothing.
const notExecutedOutcome = "not-executed"

// momentary returns the statuses that describe the current situation and not the operation.
func momentary() []int {
	return []int{
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	}
}

// withDefaults returns the profile with its defaults, or an error if the profile is invalid.
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
