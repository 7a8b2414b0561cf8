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

// verdict is what an attempt came to.
type verdict struct {
	// accepted says that the answer is for the caller: asking again would not change it, or is not safe.
	accepted bool
	// marked says that the service has marked the answer as the operation's own: one that it keeps, or one by which
	// nothing was done.
	marked bool
	// failed says that the next attempt is a retry of one that failed, and not a wait for one under way.
	failed bool
	// outcome is what this attempt alone says of the operation.
	outcome Outcome
	// code is that of the service's problem, if it is for that that the answer is not accepted.
	code string
	// after is the wait that the service asks for, if it told one.
	after time.Duration
	told  bool
	// status is where to ask for the operation, if the service said so.
	status *url.URL
}

// reason is why an answer is not accepted, in a word or two.
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

// judge says what an attempt came to. The rules are a table in docs/client.md, in this order.
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
		v.after, v.told = retryAfter(resp)
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

// byStatus is what an answer says that is not asked for again: a failure of a service that does not say more may have
// come before or after the work, and a redirect may come from what is in front of it, as that to a page for logging in.
// Only a 303 says that the work was done.
func byStatus(status int) Outcome {
	redirect := status >= 300 && status < 400 && status != http.StatusSeeOther
	if redirect || status >= http.StatusInternalServerError {
		return OutcomeUnknown
	}
	return OutcomeAnswered
}

// problem is what counts of a problem document (RFC 9457) as Onceward writes it.
type problem struct {
	Code      string `json:"code"`
	Retryable *bool  `json:"retryable"`
}

// problem reads the answer's problem, if it has one that says whether to send the request again.
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

// notExecuted are the codes of Onceward's problems that say: nothing was executed by this request.
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
	// With a 409 the service says that another attempt is under way, or that it is finding out what became of one.
	v.failed = !v.accepted && status != http.StatusConflict
	return v
}

// underWay recognises a 202 by which Onceward says that the operation is under way, and not the answer of a handler
// that has accepted something: it is the status of this very key. It returns where to ask, if that is of the same
// origin: what the request has of credentials goes there too.
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

// replayed reports whether an answer is one that the service had stored.
func (op *operation) replayed(resp *http.Response) bool {
	name := op.transport.profile.ReplayedHeader
	return name != "" && strings.EqualFold(resp.Header.Get(name), "true")
}

// learnExpiry takes over until when the service says that it keeps the key, in place of the profile's window. Its
// clock counts only against itself: by the answer's Date, if it has one.
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
	op.until, op.told = now.Add(safePart(max(expires.Sub(theirs), 0))), true
}

// longestWait is longer than any time that is waited, and can be added to.
const longestWait = 365 * 24 * time.Hour

// retryAfter reads the header of that name: seconds, or an HTTP date.
func retryAfter(resp *http.Response) (after time.Duration, told bool) {
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
