package client

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// verdict is the result of an attempt.
type verdict struct {
	// accepted means that the answer is returned to the caller: a retry would not change the answer, or is not safe.
	accepted bool
	// marked means that the service has marked the answer as the operation's own:
	// an answer that it keeps, or an answer to a request that changed nothing.
	marked bool
	// failed means that the next attempt is a retry of a failed attempt, and not a wait for an attempt in progress.
	failed bool
	// outcome is the outcome of the operation as far as this attempt alone shows.
	outcome Outcome
	// code is the code of the service's problem, if the problem decided whether the answer is accepted.
	code string
	// after is the wait that the service requests, and hasAfter reports whether it requested one.
	after    time.Duration
	hasAfter bool
	// status is the URL of the operation's status, if the service sent one.
	status *url.URL
}

// reason returns why an answer is not accepted, in a word or two.
func (v *verdict) reason(resp *http.Response) string {
	switch {
	case v.code != "":
		return v.code
	case resp == nil:
		return "error"
	default:
		return "status " + strconv.Itoa(resp.StatusCode)
	}
}

// judge returns the result of an attempt. The rules are a table in docs/client.md, in this order.
func (op *operation) judge(resp *http.Response, err error) verdict {
	if err != nil {
		v := verdict{failed: true}
		if op.notSent(err) {
			v.outcome = OutcomeNotExecuted
		}
		return v
	}
	v := op.judgeAnswer(resp)
	if !v.accepted {
		v.after, v.hasAfter = retryAfter(resp)
	}
	return v
}

func (op *operation) judgeAnswer(resp *http.Response) verdict {
	p := op.transport.profile
	if op.replayed(resp) || p.ExpiresHeader != "" && resp.Header.Get(p.ExpiresHeader) != "" {
		return verdict{accepted: true, marked: true, outcome: OutcomeAnswered}
	}
	if p.OutcomeHeader != "" && resp.Header.Get(p.OutcomeHeader) == notExecutedOutcome {
		if slices.Contains(p.RetryStatuses, resp.StatusCode) {
			return verdict{failed: true, outcome: OutcomeNotExecuted}
		}
		return verdict{accepted: true, marked: true, outcome: OutcomeAnswered}
	}
	if p.RetryHeader != "" {
		switch resp.Header.Get(p.RetryHeader) {
		case "true":
			return verdict{failed: true}
		case "false":
			return verdict{accepted: true, outcome: byStatus(resp.StatusCode)}
		}
	}
	if problem := op.problem(resp); problem != nil {
		return problem.verdict(resp.StatusCode)
	}
	if at, ours := op.underWay(resp); ours {
		return verdict{status: at}
	}
	switch {
	case slices.Contains(p.WaitStatuses, resp.StatusCode):
		return verdict{}
	case slices.Contains(p.RetryStatuses, resp.StatusCode):
		return verdict{failed: true}
	default:
		return verdict{accepted: true, outcome: byStatus(resp.StatusCode)}
	}
}

// byStatus returns the outcome for an answer that is not retried, by its status alone. A plain failure
// of the service may have happened before or after the work. A redirect may come from a server in
// front of the service, such as a redirect to a login page. Only a 303 shows that the work was done.
func byStatus(status int) Outcome {
	redirect := status >= 300 && status < 400 && status != http.StatusSeeOther
	if redirect || status >= http.StatusInternalServerError {
		return OutcomeUnknown
	}
	return OutcomeAnswered
}

// problem is the part of Onceward's problem documents (RFC 9457) that the client needs.
type problem struct {
	Code      string `json:"code"`
	Retryable *bool  `json:"retryable"`
}

// problem returns the answer's problem, or nil if there is none with a member retryable.
func (op *operation) problem(resp *http.Response) *problem {
	if resp.StatusCode < http.StatusBadRequest || contentType(resp) != problemType {
		return nil
	}
	p := new(problem)
	if json.Unmarshal(op.answer.content, p) != nil || p.Retryable == nil {
		return nil
	}
	return p
}

const problemType = "application/problem+json"

// notExecuted are the codes of Onceward's problems which mean that this request executed nothing.
var notExecuted = []string{
	"body-incomplete", "unauthenticated", "store-unavailable", "new-keys-refused", "mismatches-refused",
	"not-executed", "work-refused", "deadline-exceeded",
}

func (p *problem) verdict(status int) verdict {
	v := verdict{accepted: !*p.Retryable, code: p.Code}
	switch {
	case slices.Contains(notExecuted, p.Code):
		v.outcome = OutcomeNotExecuted
	case v.accepted && p.Code != "record-unreadable":
		v.outcome = OutcomeAnswered
	}
	// A 409 means that another attempt is in progress, or that the service is finding out the outcome of an attempt.
	v.failed = !v.accepted && status != http.StatusConflict
	return v
}

// underWay recognises a 202 by which Onceward reports that the operation is in progress. A 202 of a handler
// that has accepted something is different: it does not contain the status of this very key. underWay returns
// the URL of the status if it has the same origin, because the credentials of the request are sent there too.
func (op *operation) underWay(resp *http.Response) (at *url.URL, ours bool) {
	if resp.StatusCode != http.StatusAccepted || contentType(resp) != "application/json" {
		return nil, false
	}
	var s status
	if json.Unmarshal(op.answer.content, &s) != nil || s.Key != op.key || s.State != stateInProgress {
		return nil, false
	}
	location := resp.Header.Get("Location")
	at, err := op.request.URL.Parse(location)
	if location == "" || err != nil || !sameOrigin(at, op.request.URL) || at.User != nil {
		return nil, true
	}
	return at, true
}

// replayed reports whether the service had stored the answer before.
func (op *operation) replayed(resp *http.Response) bool {
	name := op.transport.profile.ReplayedHeader
	return name != "" && strings.EqualFold(resp.Header.Get(name), "true")
}

// learnExpiry replaces the profile's window with the expiry that the service sent. It compares the
// expiry with the answer's Date, if there is one, so that a wrong clock of the service does no harm.
func (op *operation) learnExpiry(resp *http.Response) {
	name := op.transport.profile.ExpiresHeader
	if name == "" || resp.Header.Get(name) == "" {
		return
	}
	expires, err := http.ParseTime(resp.Header.Get(name))
	if err != nil {
		return
	}
	now := time.Now()
	theirs, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		theirs = now
	}
	op.until, op.untilSent = now.Add(safePart(max(expires.Sub(theirs), 0))), true
}

// longestWait is longer than any real wait, and small enough that adding it to a time does not overflow.
const longestWait = 365 * 24 * time.Hour

// retryAfter reads the Retry-After header: a number of seconds, or an HTTP date.
func retryAfter(resp *http.Response) (after time.Duration, ok bool) {
	value := resp.Header.Get("Retry-After")
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, longestWait), true
	} else if errors.Is(err, strconv.ErrRange) {
		return longestWait, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(time.Until(at), 0), longestWait), true
}
