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

// operation is one logical operation, and the context of what is sent for it: a response leads back to it by its
// request. All of it is one allocation.
type operation struct {
	context.Context // the caller's, with the trace

	transport *Transport
	original  *http.Request
	request   http.Request // as it is sent
	values    [2]string    // of its header
	key       string
	began     time.Time
	firstSent time.Time
	until     time.Time // when nothing may be sent any more
	told      bool      // that, by the service

	attempts int // that were handed to the base
	failures int // of those, without an answer that counts
	waits    int // of those, answered with: not yet
	// mayHaveExecuted says that an attempt is not proved to have done nothing.
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

// gotConn notes that from here on something may have been sent. net/http itself sends a request with an idempotency
// key again when a kept connection is closed: then an error in dialling the next one proves nothing.
func (op *operation) gotConn(httptrace.GotConnInfo) { op.connected.Store(true) }

type operationContext struct{}

// Value returns the operation itself for its own key, and the caller's values for others.
func (op *operation) Value(key any) any {
	if key == (operationContext{}) {
		return op
	}
	return op.Context.Value(key)
}

// operationOf finds the operation that a response belongs to.
func operationOf(resp *http.Response) *operation {
	if resp == nil || resp.Request == nil {
		return nil
	}
	op, _ := resp.Request.Context().Value(operationContext{}).(*operation)
	return op
}

// run sends the operation until it is answered, or may not be sent again.
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

// attempt hands the operation to the base transport once, and reads its answer as far as that is wanted.
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
		op.learnExpiry(resp) // even of an answer that is cut off
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

// prepare makes the request of an attempt. The first one is part of the operation; a later one is a copy, because a
// base transport may still hold the one before.
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

// bounded gives a request the time of one attempt.
func (op *operation) bounded(req *http.Request) (*http.Request, context.CancelFunc) {
	limit := op.transport.config.AttemptTimeout
	if limit == 0 {
		return req, nil
	}
	ctx, cancel := context.WithTimeoutCause(op, limit, errAttemptTimeout)
	return req.WithContext(ctx), cancel
}

var errAttemptTimeout = errors.New("client: the attempt took longer than AttemptTimeout")

// notSent reports whether an attempt failed before anything of it can have been sent.
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

// pause waits before the next attempt, or says why there must be none.
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
	// Full jitter: those who failed together do not come back together.
	wait := rand.N(backoff.Exponential(c.MinBackoff, c.MaxBackoff, *count) + 1)
	if v.told {
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

// timeFor reports why an attempt after this wait would be too late: to return at once is better than to wait for
// nothing.
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

// keptUntil is until when the operation may be sent by what the service has told, or zero if it told nothing.
func (op *operation) keptUntil() time.Time {
	if !op.told {
		return time.Time{}
	}
	return op.until
}

// reached reports whether a time has come, by either clock: that which the system counts stands still while the machine
// sleeps, and the other may be set back.
func reached(now, at time.Time) bool { return !now.Before(at) || !now.Round(0).Before(at) }

// settled is what an accepted answer says of the whole operation. If an attempt before it may have executed, then a
// refusal that is not the stored answer does not tell what became of that attempt: an expired token, for example.
func (op *operation) settled(resp *http.Response, v verdict) Outcome {
	if !op.mayHaveExecuted || v.marked || v.outcome == OutcomeUnknown || resp.StatusCode < http.StatusBadRequest {
		return v.outcome
	}
	if op.transport.profile.ExpiresHeader != "" {
		return OutcomeUnknown // here every answer that is kept says so
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusPreconditionFailed:
		return OutcomeUnknown
	default:
		return v.outcome
	}
}

// giveUp returns what there is when the operation is not sent again: an answer that is not final, or an error.
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

// finish returns a response.
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

// fail returns an error.
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

// sameOrigin reports whether two URLs lead to the same scheme, host and port.
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
