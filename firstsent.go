package onceward

import (
	"errors"
	"net/http"
	"time"
)

// FirstSentHeader carries the time at which a client first sent a request; its retries carry the same time.
const FirstSentHeader = "Idempotency-First-Sent"

// firstSentRule is what a route asks of the time of first sending (L4).
type firstSentRule struct {
	checked   bool
	required  bool
	tolerance time.Duration
}

// RequireFirstSent refuses requests that do not carry a first-sent time, an HTTP date, or one that is older than the
// retention: a captured request then cannot be replayed after its record has gone. Clocks may differ by the
// tolerance, which is half of the retention at most. Default: no check.
//
// This helps only if the header is covered by the caller's signature: an attacker who can replay a request can
// otherwise also change its date.
func RequireFirstSent(tolerance time.Duration) Option {
	return firstSentOption(firstSentRule{checked: true, required: true, tolerance: tolerance})
}

// CheckFirstSent is [RequireFirstSent] for requests that carry a first-sent time; others pass. Default: no check.
func CheckFirstSent(tolerance time.Duration) Option {
	return firstSentOption(firstSentRule{checked: true, tolerance: tolerance})
}

func firstSentOption(rule firstSentRule) Option {
	return func(s *settings) error {
		if rule.tolerance < 0 {
			return errors.New("the tolerance of the first-sent time cannot be negative")
		}
		s.firstSent = rule
		return nil
	}
}

// check holds a request to the rule. A client whose clock is ahead by the tolerance claims to have sent later than it
// did, so the tolerance shortens the time that is accepted: the record must never be gone before.
func (f *firstSentRule) check(h http.Header, now time.Time, retention time.Duration) *Problem {
	if !f.checked {
		return nil
	}
	lines := h[FirstSentHeader]
	switch {
	case len(lines) == 0 && !f.required:
		return nil
	case len(lines) == 0:
		return problemNotSentFirst.detailed("send " + FirstSentHeader + " with the HTTP date of the first attempt, " +
			"the same on every retry")
	case len(lines) > 1:
		return problemBadFirstSent.detailed("it was sent in more than one header line")
	}
	sent, err := http.ParseTime(lines[0])
	switch {
	case err != nil:
		return problemBadFirstSent.detailed("send it in the form " + http.TimeFormat)
	case sent.After(now.Add(f.tolerance)):
		return problemFuture.detailed("check the clock of the client; nothing was executed")
	case now.Sub(sent) > retention-f.tolerance:
		return problemTooOld.detailed("its answer may no longer be stored, so it is not executed again; " +
			"find out what became of it")
	default:
		return nil
	}
}
