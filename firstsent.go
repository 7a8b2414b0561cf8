package onceward

import (
	"errors"
	"net/http"
	"time"
)

// FirstSentHeader carries the time at which a client first sent a request; its retries carry the same time.
const FirstSentHeader = "Idempotency-First-Sent"

// firstSentRule is a route's rule for the time of first sending (rule L4: no replay of a captured request).
type firstSentRule struct {
	checked           bool
	required          bool
	within, tolerance time.Duration
}

// RequireFirstSent refuses a request that has no first-sent time, which is an HTTP date, or whose first-sent time is
// longer ago than within: a captured request then cannot be replayed after its record has expired. Clocks may differ by
// the tolerance. The sum of both is at most the retention of the route, or [Guard.Route] refuses it. Default: no check.
//
// Raising a retention does not extend existing records. So within does not follow the retention automatically: raise it
// when all nodes have had the new retention for as long as the earlier retention.
//
// This helps only if the caller's signature covers the header: an attacker who can replay a request can otherwise also
// change its date.
func RequireFirstSent(within, tolerance time.Duration) Option {
	return firstSentOption(firstSentRule{checked: true, required: true, within: within, tolerance: tolerance})
}

// CheckFirstSent checks like [RequireFirstSent], but lets requests without a first-sent time pass. Default: no check.
func CheckFirstSent(within, tolerance time.Duration) Option {
	return firstSentOption(firstSentRule{checked: true, within: within, tolerance: tolerance})
}

func firstSentOption(rule firstSentRule) Option {
	return func(s *settings) error {
		if rule.tolerance < 0 || rule.within <= rule.tolerance {
			return errors.New("a first-sent time needs a time within which requests are accepted, " +
				"which is longer than the tolerance, and a tolerance that is not negative")
		}
		s.firstSent = rule
		return nil
	}
}

// check returns the problem of a request that breaks the rule, or nil.
func (f *firstSentRule) check(h http.Header, now time.Time) *Problem {
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
	case now.Sub(sent) > f.within:
		return problemTooOld.detailed("its answer may no longer be stored, so it is not executed again; " +
			"find out what became of it")
	default:
		return nil
	}
}
