package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// operation is one logical operation and also the context of its requests: the
// request of a response leads back to the operation. All of it is one allocation.
type operation struct {
	context.Context // the caller's context, with the trace

	transport *Transport
	original  *http.Request
	request   http.Request // the request that is sent
	values    [2]string    // the values of its header
	key       string
	began     time.Time
	firstSent time.Time
	until     time.Time // the time after which nothing may be sent
	untilSent bool      // until was sent by the service

	attempts int // passed to the base transport
	failures int // attempts that failed and may be retried
	waits    int // attempts that found the operation in progress
	// mayHaveExecuted means that at least one attempt is not proved to have done nothing.
	mayHaveExecuted bool
	outcome         Outcome

	trace     httptrace.ClientTrace
	connected atomic.Bool // the attempt got a connection
	answer    memoryBody
}

func newOperation(t *Transport, req *http.Request) *operation {
	op := &operation{transport: t, original: req, began: time.Now()}
	op.trace.GotConn = op.gotConn
	op.Context = httptrace.WithClientTrace(req.Context(), &op.trace)
	op.request = *req.WithContext(op)
	return op
}

// gotConn notes that from now on something may have been sent. net/http itself repeats a request with
// an idempotency key when a kept connection is closed: then a later error in dialling proves nothing.
func (op *operation) gotConn(httptrace.GotConnInfo) { op.connected.Store(true) }

type operationContext struct{}

// Value returns the operation itself for its own key, and the caller's values for other keys.
func (op *operation) Value(key any) any {
	if key == (operationContext{}) {
		return op
	}
	return op.Context.Value(key)
}

// operationOf returns the operation that a response belongs to, or nil.
func operationOf(resp *http.Response) *operation {
	if resp == nil || resp.Request == nil {
		return nil
	}
	op, _ := resp.Request.Context().Value(operationContext{}).(*operation)
	return op
}

// run sends the operation until it is answered or must not be sent again.
func (op *operation) run() (*http.Response, error) {
	for {
		resp, err := op.attempt()
		v := op.judge(resp, err)
		op.mayHaveExecuted = op.mayHaveExecuted || !v.accepted && v.outcome == OutcomeUnknown
		if v.accepted {
			return op.finish(resp, op.settled(resp, v))
		}
		if why := op.pause(v, resp); why != nil {
			return op.giveUp(resp, err, v, why)
		}
		if v.status != nil {
			if why := op.follow(v, resp); why != nil {
				return op.giveUp(resp, err, v, why)
			}
		}
		discard(resp)
	}
}

// attempt sends the operation once through the base transport
// and reads as much of its answer as the configuration asks.
func (op *operation) attempt() (*http.Response, error) {
	op.attempts++
	op.connected.Store(false)
	begun := time.Now()
	sent, cancel, err := op.prepare()
	if err != nil {
		return nil, err
	}
	resp, err := op.transport.config.Base.RoundTrip(sent)
	if err == nil {
		resp.Request = sent
		op.learnExpiry(resp) // even if the answer is cut off
		err = op.capture(resp, cancel)
	} else if cancel != nil {
		cancel()
	}
	if op.transport.config.Observer != nil {
		e := AttemptEvent{
			Request: op.original, Key: op.key, Attempt: op.attempts, Err: err, Elapsed: time.Since(begun),
		}
		if resp != nil {
			e.Status = resp.StatusCode
		}
		op.observe(e)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// prepare makes the request of an attempt. The first request is part of the operation; a
// later request is a copy, because the base transport may still hold the request before it.
func (op *operation) prepare() (sent *http.Request, cancel context.CancelFunc, err error) {
	sent = &op.request
	if op.attempts > 1 {
		sent = op.request.WithContext(op)
		if sent.GetBody != nil && sent.Body != nil {
			if sent.Body, err = sent.GetBody(); err != nil {
				return nil, nil, fmt.Errorf("the request body cannot be had again: %w", err)
			}
		}
	}
	sent, cancel = op.bounded(sent)
	return sent, cancel, nil
}

// bounded limits a request to the time of one attempt.
func (op *operation) bounded(req *http.Request) (*http.Request, context.CancelFunc) {
	limit := op.transport.config.AttemptTimeout
	if limit == 0 {
		return req, nil
	}
	ctx, cancel := context.WithTimeoutCause(op, limit, errAttemptTimeout)
	return req.WithContext(ctx), cancel
}

var errAttemptTimeout = errors.New("client: the attempt took longer than AttemptTimeout")

// notSent reports whether an attempt failed before any part of it can have been sent.
func (op *operation) notSent(err error) bool {
	if op.connected.Load() {
		return false
	}
	if op.transport.direct {
		return true
	}
	dial := (*net.OpError)(nil)
	return errors.As(err, &dial) && (dial.Op == "dial" || dial.Op == "proxyconnect")
}

// pause waits before the next attempt, or returns why there must be no next attempt.
func (op *operation) pause(v verdict, resp *http.Response) error {
	c := &op.transport.config
	if err := op.Context.Err(); err != nil {
		return err
	}
	count := &op.waits
	if v.failed {
		count = &op.failures
	}
	*count++
	if v.failed && op.failures >= c.MaxAttempts {
		return ErrTooManyAttempts
	}
	// Full jitter: callers that failed together do not retry together.
	wait := rand.N(backoff.Exponential(c.MinBackoff, c.MaxBackoff, *count) + 1)
	if v.hasAfter {
		wait = v.after + rand.N(c.MinBackoff+1)
	}
	if why := op.timeFor(wait); why != nil {
		return why
	}
	if v.failed && !c.Budget.withdraw() {
		return ErrBudgetSpent
	}
	if c.Observer != nil {
		op.observe(WaitEvent{
			Request: op.original, Key: op.key, Attempt: op.attempts, Reason: v.reason(resp), Wait: wait,
		})
	}
	if !backoff.Sleep(op.Context, wait) {
		return op.Context.Err()
	}
	return op.timeFor(0) // a process that was paused may have slept for longer
}

// timeFor returns why an attempt after this wait would be too
// late, or nil. An error at once is better than a useless wait.
func (op *operation) timeFor(wait time.Duration) error {
	then := time.Now().Add(wait)
	deadline, has := op.Context.Deadline()
	switch {
	case has && !then.Before(deadline), then.After(op.began.Add(op.transport.config.Timeout)):
		return ErrTimeout
	case reached(then, op.until):
		return ErrWindowClosed
	default:
		return nil
	}
}

// keptUntil returns how long the operation may be sent according to the service, or zero if the service sent no time.
func (op *operation) keptUntil() time.Time {
	if !op.untilSent {
		return time.Time{}
	}
	return op.until
}

// reached reports whether a time has come, by either clock: the monotonic clock
// stands still while the machine sleeps, and the wall clock may be set back.
func reached(now, at time.Time) bool { return !now.Before(at) || !now.Round(0).Before(at) }

// settled returns the outcome of the whole operation after an accepted answer. If an earlier attempt may have been
// executed, a refusal that is not the stored answer, such as an expired token, leaves the outcome of that attempt open.
func (op *operation) settled(resp *http.Response, v verdict) Outcome {
	if !op.mayHaveExecuted || v.marked || v.outcome == OutcomeUnknown || resp.StatusCode < http.StatusBadRequest {
		return v.outcome
	}
	if op.transport.profile.ExpiresHeader != "" {
		return OutcomeUnknown // such a service marks every answer that it keeps
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusPreconditionFailed:
		return OutcomeUnknown
	default:
		return v.outcome
	}
}

// giveUp ends an operation that is not sent again. It returns the last answer, which is not final, or an error.
func (op *operation) giveUp(resp *http.Response, err error, v verdict, why error) (*http.Response, error) {
	switch {
	case resp != nil && !errors.Is(why, ErrWindowClosed) && op.Context.Err() == nil:
		if op.mayHaveExecuted {
			v.outcome = OutcomeUnknown
		}
		return op.finish(resp, v.outcome)
	case resp != nil:
		discard(resp)
		err = fmt.Errorf("%w, after the answer %s", why, v.reason(resp))
	case errors.Is(err, why):
	default:
		err = fmt.Errorf("%w, after: %w", why, err)
	}
	return op.fail(err)
}

// finish reports the end of the operation and returns its response.
func (op *operation) finish(resp *http.Response, outcome Outcome) (*http.Response, error) {
	op.outcome = outcome
	if op.transport.config.Observer != nil {
		op.observe(FinishedEvent{
			Request: op.original, Key: op.key, Attempts: op.attempts, Outcome: outcome, Replayed: op.replayed(resp),
			Status: resp.StatusCode, Elapsed: time.Since(op.began),
		})
	}
	return resp, nil
}

// fail reports the end of the operation and returns its error.
func (op *operation) fail(err error) (*http.Response, error) {
	unfinished := &UnfinishedError{
		Key: op.key, Attempts: op.attempts, MayHaveExecuted: op.mayHaveExecuted, Err: err, keptUntil: op.keptUntil(),
	}
	if op.transport.config.Observer != nil {
		op.observe(FinishedEvent{
			Request: op.original, Key: op.key, Attempts: op.attempts, Outcome: Classify(nil, unfinished),
			Err: unfinished, Elapsed: time.Since(op.began),
		})
	}
	return nil, unfinished
}

func (op *operation) observe(e Event) { op.transport.config.Observer.ObserveClient(op.Context, e) }

// sameOrigin reports whether two URLs have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	switch p := u.Port(); {
	case p != "":
		return p
	case strings.EqualFold(u.Scheme, "https"):
		return "443"
	default:
		return "80"
	}
}
