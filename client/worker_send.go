package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// attend does what is to be done for an operation that was claimed at a time: it is sent, or only told of if a worker
// died between the two.
func (w *Worker) attend(ctx context.Context, c *Claimed, claimed time.Time) {
	if c.State == StatePending {
		s := w.send(ctx, c, claimed)
		if s.State != StatePending {
			s.Told = w.config.OnSettled == nil
			s.After = w.lease() - time.Since(claimed) // it is still this worker that has to tell of it
		}
		if !w.settle(ctx, c, claimed, s) {
			return
		}
		w.note(ctx, c, s)
		if s.State == StatePending || s.Told {
			return
		}
		c.State, c.Answer, c.LastError = s.State, s.Answer, s.Error
		c.SettledAt = c.Now.Add(time.Since(claimed))
	}
	w.tell(ctx, c, claimed)
}

// note counts what sending came to, and tells who should know.
func (w *Worker) note(ctx context.Context, c *Claimed, s Settlement) {
	if w.config.Observer != nil {
		w.config.Observer.ObserveClient(ctx, SettledEvent{
			Key: c.Key, Host: c.Host(), State: s.State, Attempts: c.Attempts, Error: s.Error,
		})
	}
	switch s.State {
	case StateAnswered:
		w.count(func(r *Report) { r.Answered++ })
	case StateUnknown:
		w.count(func(r *Report) { r.Unknown++ })
		w.config.Logger.ErrorContext(ctx, "client: an operation ended without an answer, and a person has to find out "+
			"whether it was executed: Journal.List with Open shows it", "host", c.Host(), "attempts", c.Attempts)
	default:
		w.count(func(r *Report) { r.Postponed++ })
		return
	}
	w.tellWaiting(c.Key)
}

// errWindowOver is why an operation becomes unknown.
var errWindowOver = fmt.Errorf("%w: the window since it was first sent has passed", ErrWindowClosed)

// send sends an operation, unless its window has passed, and says what is to be written down of it. The window counts
// by the journal's clock, and what has passed since the claim by this process's.
func (w *Worker) send(ctx context.Context, c *Claimed, claimed time.Time) Settlement {
	until := c.FirstSent.Add(safePart(w.config.Transport.profile.Window))
	if !c.KeptUntil.IsZero() {
		until = earlier(until, c.KeptUntil)
	}
	left := until.Sub(c.Now) - time.Since(claimed)
	if left <= 0 {
		return Settlement{State: StateUnknown, Error: errWindowOver.Error() + ". Before that: " + c.LastError}
	}
	sending, cancel := context.WithTimeout(ctx, min(w.config.SendTimeout, left))
	defer cancel()
	answer, kept, err := w.exchange(sending, &c.Operation)
	switch {
	case err == nil:
		return Settlement{State: StateAnswered, Answer: answer}
	case closedByService(err):
		return Settlement{State: StateUnknown, Error: err.Error()}
	}
	s := Settlement{State: StatePending, Error: err.Error()}
	if !kept.IsZero() {
		s.KeptFor = max(time.Until(kept), time.Microsecond)
	}
	if ctx.Err() == nil { // otherwise the worker ends: the next one need not wait
		s.After = backoff.Jittered(w.config.MinBackoff, w.config.MaxBackoff, c.Attempts)
	}
	return s
}

// closedByService reports whether the service has said that it keeps the key for less long than its profile promises.
// Without an attempt it was this process's clock alone that closed the window, and another worker's may be right.
func closedByService(err error) bool {
	unfinished := (*UnfinishedError)(nil)
	return errors.Is(err, ErrWindowClosed) && errors.As(err, &unfinished) && unfinished.Attempts > 0
}

// exchange sends an operation once, as the caller sees it, and returns its final answer, or until when the service has
// told that it keeps the key. A panic of the application's function is an error of the sending.
func (w *Worker) exchange(ctx context.Context, o *Operation) (a Answer, kept time.Time, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("client: panic: %v", p)
		}
	}()
	request, err := w.request(ctx, o)
	if err != nil {
		return a, kept, err
	}
	if w.config.Prepare != nil {
		if err := w.config.Prepare(request); err != nil {
			return a, kept, fmt.Errorf("client: prepare: %w", err)
		}
	}
	response, err := w.config.Transport.RoundTrip(request)
	if unfinished := (*UnfinishedError)(nil); errors.As(err, &unfinished) {
		return a, unfinished.keptUntil, err
	} else if err != nil {
		return a, kept, err
	}
	defer response.Body.Close()
	if op := operationOf(response); op != nil {
		kept = op.keptUntil()
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, MaxAnswer+1))
	if err != nil {
		return a, kept, fmt.Errorf("client: read the answer: %w", err)
	}
	if outcome := Classify(response, nil); outcome != OutcomeAnswered {
		return a, kept, fmt.Errorf("client: status %d, outcome %s: %.200q", response.StatusCode, outcome, body)
	}
	a = Answer{Status: response.StatusCode, Header: keptHeader(response.Header), Body: body}
	if len(body) > MaxAnswer {
		a.Body, a.Truncated = body[:MaxAnswer], true
	}
	return a, kept, nil
}

// request is the next sending. From the second on it may have been executed by one before; of the first it is known
// that there was none, so that a refusal of any kind is its answer.
func (w *Worker) request(ctx context.Context, o *Operation) (*http.Request, error) {
	profile := w.config.Transport.profile
	ctx = WithKey(ctx, o.Key)
	if o.Attempts > 1 {
		ctx = Resumed(ctx, o.FirstSent)
	}
	request, err := o.request(ctx)
	if err != nil {
		return nil, err
	}
	request.Header.Del(profile.Header) // the journal's key goes before one that it was enqueued with
	if profile.FirstSentHeader != "" {
		request.Header.Set(profile.FirstSentHeader, o.FirstSent.UTC().Format(http.TimeFormat))
	}
	return request, nil
}

// keptHeader is what is kept of the header of an answer: no credentials.
func keptHeader(header http.Header) http.Header {
	kept := header.Clone()
	kept.Del("Set-Cookie")
	return kept
}

// tell tells of an operation that is settled, and writes down that it was.
func (w *Worker) tell(ctx context.Context, c *Claimed, claimed time.Time) {
	s := Settlement{State: c.State, Told: true}
	if err := w.callOnSettled(ctx, c.Operation); err != nil {
		// It is left alone for as long as it has been tried, so that the times between double.
		since := c.Now.Sub(c.SettledAt) + time.Since(claimed)
		s = Settlement{State: c.State, Error: err.Error(), After: min(max(since, w.config.MinBackoff), w.config.MaxBackoff)}
		if ctx.Err() != nil {
			s.After = 0
		}
		w.config.Logger.WarnContext(ctx, "client: OnSettled failed, and is called again", "host", c.Host(), "error", err)
	}
	if w.settle(ctx, c, claimed, s) && s.Told {
		w.count(func(r *Report) { r.Told++ })
	}
}

// callOnSettled calls the application. A panic is an error.
func (w *Worker) callOnSettled(ctx context.Context, o Operation) (err error) {
	if w.config.OnSettled == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("client: panic: %v", p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, w.config.SendTimeout)
	defer cancel()
	return w.config.OnSettled(ctx, o)
}

const (
	// The time between two attempts to write something down.
	minSettleBackoff = 50 * time.Millisecond
	maxSettleBackoff = time.Second
	// lastSettle is how long a worker that is to end tries it.
	lastSettle = 5 * time.Second
)

// settle writes down what a claim came to, and reports whether it did. A journal that fails, such as one whose disk is
// full, is asked again as long as the lease lasts. If it stays so, the operation is sent again, by who claims it next:
// the server knows the key, and gives the same answer.
func (w *Worker) settle(ctx context.Context, c *Claimed, claimed time.Time, s Settlement) bool {
	writing, cancel := context.WithDeadline(context.WithoutCancel(ctx), claimed.Add(w.lease()))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		backoff.Sleep(writing, lastSettle)
		cancel()
	})()
	for failures := 1; ; failures++ {
		asking, cancel := context.WithTimeout(writing, journalTimeout)
		err := w.journal.Settle(asking, c.Lease(), s)
		cancel()
		switch {
		case err == nil:
			return true
		case errors.Is(err, ErrFenced):
			w.count(func(r *Report) { r.Fenced++ })
			return false
		}
		if !backoff.Sleep(writing, backoff.Jittered(minSettleBackoff, maxSettleBackoff, failures)) {
			w.count(func(r *Report) { r.Failed++ })
			w.config.Logger.ErrorContext(ctx, "client: what came of an operation could not be written down, and it is sent "+
				"again", "host", c.Host(), "error", err)
			return false
		}
	}
}
