package suite

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Payment is what a request asks for.
type Payment struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
	Memo    string `json:"memo,omitempty"`
}

// Reply is what a handler answers.
type Reply struct {
	// Status is that of HTTP; a transport with codes of its own maps it. Zero is a handler that returns without a word.
	Status int
	Body   string
	// Header holds fields of the answer, where the transport has such. Default: none.
	Header map[string]string
	// Err is an error that the handler returns after it has replied, where its framework lets it: see Features.LateErrors.
	// Default: none.
	Err error
}

// Work is a handler, in terms of no framework. The context is the one that the framework's handler finds in its
// request: the transaction and the operation are in it. It may panic, block, and say what became of its attempt.
type Work func(ctx context.Context, p Payment) Reply

// Request is one call.
type Request struct {
	// Key is the idempotency key. Default: none is sent.
	Key string
	// Keys are sent in place of Key, each in a line of its own, where the transport can do that. Default: none.
	Keys []string
	// Tenant is who calls. Default: a caller who is not known.
	Tenant string
	// FirstSent is the time of the first sending, as it is sent. Default: none is sent.
	FirstSent string
	// Refund asks for the other operation. Default: a payment.
	Refund bool
	Payment
}

// Answer is what a caller gets. A transport with codes of its own maps them to the statuses of HTTP.
type Answer struct {
	Status int
	// Code is that of Onceward's own answer; empty if it is the handler's or the framework's.
	Code string
	// Body is what the handler replied; of Onceward's own answers it is not looked at.
	Body string
	// Header holds the fields of the answer, where the transport has such.
	Header http.Header
	// Replayed says that the answer was stored before.
	Replayed bool
	// Retryable says of Onceward's own answer that the same request may be sent again.
	Retryable bool
	// RetryAfter is when; zero if that is not said.
	RetryAfter time.Duration
	// Expires is until when the answer is kept; zero if that is not said.
	Expires time.Time
}

// String describes the answer for the message of a test.
func (a Answer) String() string {
	return fmt.Sprintf("%d %s, replayed %t, retryable %t after %s, body %.200q",
		a.Status, a.Code, a.Replayed, a.Retryable, a.RetryAfter, a.Body)
}

// Caller calls a server.
type Caller interface {
	// Call sends one request and returns its answer. An error says that there was none: a connection was cut. It does not
	// send a request again by itself.
	Call(ctx context.Context, r Request) (Answer, error)
}
