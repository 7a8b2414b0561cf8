package check

import (
	"fmt"
	"maps"
	"net/http"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// class is what an answer says about the operation.
type class uint8

const (
	// noAnswer says nothing: the request may have been executed, now or later.
	noAnswer class = iota
	// success is a 2xx of the application.
	success
	// refusal is a 4xx of the application: declined, already paid.
	refusal
	// mismatch says that the key belongs to another payload.
	mismatch
	// inProgress says that another attempt is at work.
	inProgress
	// unknown says that the outcome of an earlier attempt is not known.
	unknown
	// becameUnknown says that the outcome of this very attempt is not known.
	becameUnknown
	// rejected says that the request never got as far as its key.
	rejected
	// notExecuted says that this request executed nothing. Its reservation may have landed all the same.
	notExecuted
	// vague is every other answer: it promises nothing.
	vague
)

// problems are the classes of Onceward's problem codes. Codes that are not here are vague.
var problems = map[string]class{
	"mismatch":             mismatch,
	"in-progress":          inProgress,
	"outcome-unknown":      unknown,
	"missing-key":          rejected,
	"invalid-key":          rejected,
	"personal-data-key":    rejected,
	"unauthenticated":      rejected,
	"body-too-large":       rejected,
	"body-incomplete":      rejected,
	"body-consumed":        rejected,
	"operation-unnamed":    rejected,
	"protected-twice":      rejected,
	"invalid-request":      rejected,
	"upgrade-refused":      rejected,
	"first-sent-missing":   rejected,
	"first-sent-invalid":   rejected,
	"first-sent-too-old":   rejected,
	"first-sent-in-future": rejected,
	"method-not-allowed":   rejected,
	"store-unavailable":    notExecuted,
	"work-refused":         notExecuted,
	"new-keys-refused":     notExecuted,
	"not-executed":         notExecuted,
	"deadline-exceeded":    notExecuted,
	"response-too-large":   notExecuted,
	"record-unreadable":    notExecuted,
}

func classOf(a *history.Attempt) class {
	switch {
	case a.Status == 0 || a.Returned == 0:
		return noAnswer
	case a.Code != "":
		return problemClass(a)
	case a.Status >= 200 && a.Status < 300:
		return success
	case a.Status == http.StatusRequestTimeout, a.Status == http.StatusTooEarly, a.Status == http.StatusTooManyRequests:
		// These are never stored: the next attempt may fare better.
		return vague
	case a.Status >= 400 && a.Status < 500:
		return refusal
	default:
		return vague
	}
}

func problemClass(a *history.Attempt) class {
	c, known := problems[a.Code]
	switch {
	case !known:
		return vague
	case c == unknown && a.Status >= 500:
		return becameUnknown
	default:
		return c
	}
}

// definitive reports whether the answer is the application's last word.
func (c class) definitive() bool { return c == success || c == refusal }

// withoutEffect reports whether the answer says that its request did nothing.
func (c class) withoutEffect() bool {
	return c == refusal || c == mismatch || c == rejected || c == notExecuted
}

// sameAnswer reports whether two answers are equal in all that is stored.
func sameAnswer(a, b *history.Attempt) bool {
	return a.Status == b.Status && a.Body == b.Body && maps.Equal(a.Headers, b.Headers)
}

// describe is an answer in a few words.
func describe(a *history.Attempt) string {
	switch {
	case classOf(a) == noAnswer:
		return "no answer"
	case a.Code != "":
		return fmt.Sprintf("%d %s", a.Status, a.Code)
	default:
		return fmt.Sprintf("%d %.80q %v", a.Status, a.Body, a.Headers)
	}
}
