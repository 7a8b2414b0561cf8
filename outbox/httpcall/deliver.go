package httpcall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/outbox"
)

// deliver sends an operation, unless its answer is already stored, and reports the result.
func (c *Calls) deliver(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
	o, r, err := open(&d.Entry)
	switch {
	case errors.Is(err, errNewer):
		return outbox.Result{}, err
	case err != nil:
		return outbox.Result{}, outbox.Permanent(err)
	}
	if r.answer == nil {
		if err = c.send(ctx, d, &o, &r); err != nil && !errors.Is(err, errOver) {
			return outbox.Result{}, err
		}
		o.FirstSent, o.KeptUntil, o.Attempts = r.firstSent, r.keptUntil, d.Attempts
	}
	if err != nil {
		o.LastError = err.Error()
		return outbox.Result{Then: c.report(o)}, outbox.Permanent(err)
	}
	o.Outcome, o.Answer = client.OutcomeAnswered, *r.answer
	return outbox.Result{Then: c.report(o)}, nil
}

// report returns a function that ends a delivery by calling OnSettled. The error
// of OnSettled is never permanent: OnSettled is called again until it returns nil.
func (c *Calls) report(o Operation) func(ctx context.Context) error {
	if c.config.OnSettled == nil {
		return nil
	}
	return func(ctx context.Context) error {
		if err := c.config.OnSettled(ctx, o); err != nil {
			return fmt.Errorf("httpcall: OnSettled: %v", err)
		}
		return nil
	}
}

// errOver is the error of an operation that has no answer and must not be sent any more.
var errOver = errors.New("httpcall: the outcome is unknown, and a person has to find out whether it was executed")

// errMoved is the error of an operation that the service redirects: the service does not do the work at this URL.
var errMoved = errors.New("httpcall: the service redirects the operation, which is not followed: correct its URL")

// send sends an operation and stores its answer with the message. Before the first byte is sent, it
// records that the operation is sent and when it was first sent. An error that wraps errOver is final.
//
// All times are the store's, so that nodes with different clocks agree: the transport gets the age of the operation.
func (c *Calls) send(ctx context.Context, d *outbox.Delivery, o *Operation, r *record) error {
	now, firstSent := d.Now(), r.firstSent
	sentBefore := !firstSent.IsZero()
	if sentBefore {
		ctx = client.Resumed(ctx, time.Now().Add(-now.Sub(r.firstSent)))
	} else {
		firstSent = d.ClaimedAt
	}
	if !r.keptUntil.IsZero() {
		left := r.keptUntil.Sub(now)
		if left <= 0 {
			return over(d, client.ErrWindowClosed)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	request, err := c.prepare(ctx, d, o, firstSent)
	if err != nil {
		return err // nothing was sent
	}
	if !sentBefore {
		r.firstSent = firstSent
		if err := keep(ctx, d, r); err != nil {
			return err
		}
	}
	if err := d.CheckLease(); err != nil {
		return err
	}
	answer, until, err := c.exchange(request)
	if !until.IsZero() {
		r.keptUntil = d.Now().Add(time.Until(until))
	}
	r.answer = answer
	if err == nil || !until.IsZero() {
		if keepErr := keep(ctx, d, r); keepErr != nil {
			return errors.Join(err, keepErr) // the retry has the same key
		}
	}
	unfinished := (*client.UnfinishedError)(nil)
	// The clock of this node may be wrong: it alone must not close the window of an operation that was never sent.
	if errors.Is(err, client.ErrWindowClosed) && (sentBefore || errors.As(err, &unfinished) && unfinished.Attempts > 0) {
		return over(d, err)
	}
	if errors.Is(err, errMoved) {
		return over(d, err) // an earlier attempt may have been executed
	}
	return err
}

// over returns the error of an operation without an answer, with the reason why the previous sending had no answer.
func over(d *outbox.Delivery, err error) error {
	if d.LastError == "" {
		return fmt.Errorf("%w: %w", errOver, err)
	}
	return fmt.Errorf("%w: %w. Before that: %s", errOver, err, d.LastError)
}

const (
	// keepTimeout limits the attempts to store a record. It is shorter than the grace of a worker that stops.
	keepTimeout    = 5 * time.Second
	minKeepBackoff = 50 * time.Millisecond
	maxKeepBackoff = time.Second
)

// keep stores a record with the message, even if the time of the sending has run out.
func keep(ctx context.Context, d *outbox.Delivery, r *record) error {
	content, err := r.encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		err := d.RecordAnswer(ctx, content)
		if err == nil || errors.Is(err, outbox.ErrFenced) ||
			!backoff.Sleep(ctx, backoff.Jittered(minKeepBackoff, maxKeepBackoff, failures)) {
			return err
		}
	}
}

// prepare makes the request of one sending.
func (c *Calls) prepare(ctx context.Context, d *outbox.Delivery, o *Operation, firstSent time.Time) (*http.Request, error) {
	request, err := o.request(client.WithKey(ctx, d.DownstreamKey))
	if err != nil {
		return nil, err
	}
	request.Header.Del(c.profile.Header) // the message's key replaces a key in the header
	if c.profile.FirstSentHeader != "" {
		request.Header.Set(c.profile.FirstSentHeader, firstSent.UTC().Format(http.TimeFormat))
	}
	if c.config.Prepare != nil {
		if err := c.config.Prepare(request); err != nil {
			return nil, fmt.Errorf("httpcall: Prepare: %v", err) // it is never permanent
		}
	}
	return request, nil
}

// exchange sends an operation through the transport. It returns the final answer and the
// time until which the service keeps the key, if the service sent one. Errors contain
// nothing of an answer's body, because errors are logged and the body may be personal.
func (c *Calls) exchange(request *http.Request) (answer *Answer, until time.Time, err error) {
	response, err := c.config.Transport.RoundTrip(request)
	until = client.KeptUntil(response, err)
	if err != nil {
		return nil, until, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, outbox.MaxAnswer+1))
	if err != nil {
		return nil, until, fmt.Errorf("httpcall: read the answer: %w", err)
	}
	outcome, status := client.Classify(response, nil), response.StatusCode
	if outcome != client.OutcomeAnswered && status == http.StatusPermanentRedirect {
		host := "an unknown host"
		if to, err := response.Location(); err == nil {
			host = to.Host
		}
		return nil, until, fmt.Errorf("%w: status %d, to %s", errMoved, status, host)
	}
	if outcome != client.OutcomeAnswered {
		return nil, until, fmt.Errorf("httpcall: status %d, by which the outcome is %s", response.StatusCode, outcome)
	}
	header := response.Header.Clone()
	header.Del("Set-Cookie") // credentials are not kept
	return &Answer{Status: response.StatusCode, Header: header, Body: body}, until, nil
}
