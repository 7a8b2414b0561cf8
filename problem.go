package onceward

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

// DefaultProblemBase comes before the code in the type of a problem, unless [Config] sets another base. The type is
// then the address of the code's section in docs/problems.md.
const DefaultProblemBase = "https://github.com/onceward/onceward/blob/main/docs/problems.md#"

// Problem is the body of Onceward's own answers (RFC 9457). It never contains stored data, a fingerprint, or a sign of
// another scope.
type Problem struct {
	// Type is the address of the code's documentation.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Instance identifies this occurrence, as a urn:uuid. The observer and the log get it too.
	Instance string `json:"instance"`
	// Code identifies the kind of the problem, for programs. It is stable.
	Code string `json:"code"`
	// Retryable means that the client may send the same request again with the same key.
	Retryable bool `json:"retryable"`

	// RetryAfter is sent as the header Retry-After, in whole seconds, at least one. Zero sends no header.
	RetryAfter time.Duration `json:"-"`
	// Challenges are the values of WWW-Authenticate, for a 401.
	Challenges []string `json:"-"`
	// Limit is the content of the header fields RateLimit and RateLimit-Policy of a 429. Default: none.
	Limit *LimitError `json:"-"`

	ownCode string // Onceward's code if Code was renamed
	logged  bool   // the cause was already logged
}

// These are Onceward's problems. Their details, and some statuses, are set for each request.
var (
	problemNoKey          = problem(400, "missing-key", "Idempotency-Key is missing")
	problemBadKey         = problem(400, "invalid-key", "The idempotency key is not valid")
	problemPersonalKey    = problem(400, "personal-data-key", "The idempotency key looks like personal data")
	problemNoAuth         = problem(401, "unauthenticated", "The caller is not authenticated")
	problemBodyTooLarge   = problem(413, "body-too-large", "The request body is too large")
	problemBodyIncomplete = retryable(400, 0, "body-incomplete", "The request body was cut off")
	problemBodyConsumed   = problem(500, "body-consumed",
		"The request body was read before the request could be identified")
	problemUnnamed      = problem(500, "operation-unnamed", "The operation of the request has no name")
	problemTwice        = problem(500, "protected-twice", "The operation is protected inside of itself")
	problemBadRequest   = problem(400, "invalid-request", "The request cannot be identified")
	problemUpgrade      = problem(400, "upgrade-refused", "A protected request cannot switch protocols")
	problemNotSentFirst = problem(400, "first-sent-missing", "The time of the first sending is required")
	problemBadFirstSent = problem(400, "first-sent-invalid", "The time of the first sending is not an HTTP date")
	problemTooOld       = problem(412, "first-sent-too-old", "The request was first sent too long ago")
	problemFuture       = problem(412, "first-sent-in-future", "The request was first sent in the future")
	problemMismatch     = problem(422, "mismatch", "Idempotency-Key is already used")
	problemInProgress   = retryable(409, time.Second, "in-progress",
		"A request is outstanding for this Idempotency-Key")
	problemUnknown    = retryable(409, 0, "outcome-unknown", "The outcome of the request is not known yet")
	problemUnreadable = problem(500, "record-unreadable", "The record of the request cannot be read")
	problemNotStored  = problem(409, "response-not-stored",
		"The request was executed, but its response was not stored")
	problemUnavailable = retryable(503, time.Second, "store-unavailable", "The request was not executed")
	problemRefused     = retryable(429, time.Second, "new-keys-refused", "No new requests are accepted")
	problemMismatches  = retryable(429, time.Second, "mismatches-refused",
		"Too many requests did not match their Idempotency-Key")
	problemLookups     = retryable(429, time.Second, "lookups-refused", "Too many status requests")
	problemNotExecuted = retryable(503, time.Second, "not-executed", "The request was not executed")
	problemDeadline    = retryable(503, time.Second, "deadline-exceeded",
		"The request took too long and was not executed")
	problemHandlerFailed = problem(500, "handler-failed", "The request failed")
	problemHandlerUndone = retryable(500, 0, "handler-failed", "The request failed")
	problemWorkRefused   = retryable(500, 0, "work-refused", "The request was not executed")
	problemTooLarge      = problem(500, "response-too-large",
		"The response was too large to store, and nothing was executed")
	problemNoSuchKey = problem(404, "key-not-found", "There is no such operation")
)

func problem(status int, code, title string) Problem {
	return Problem{Code: code, Status: status, Title: title}
}

// retryable returns a problem for which the same request may be sent again; zero after means that the time is not
// known.
func retryable(status int, after time.Duration, code, title string) Problem {
	return Problem{Code: code, Status: status, Title: title, Retryable: true, RetryAfter: after}
}

// detailed returns the problem with a detail.
func (p Problem) detailed(detail string) *Problem {
	p.Detail = detail
	return &p
}

// Error makes a problem an error value.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return "onceward: " + p.Title
	}
	return "onceward: " + p.Title + ": " + p.Detail
}

// OwnCode returns Onceward's code for the problem, for adapters that map each code to their own answer:
// [Config].ProblemCode may have renamed Code.
func (p *Problem) OwnCode() string { return cmp.Or(p.ownCode, p.Code) }

// Write answers a request with the problem, for a middleware or an adapter that refuses like Onceward. It fills in
// empty fields: the Instance with a new one, and the Type from [DefaultProblemBase], so a problem with your own code
// needs its own Type. It adds a Link header to the type (rule A1). Write does not change the problem: if it is written
// again, it is another occurrence.
func (p *Problem) Write(w http.ResponseWriter) {
	now := *p
	if now.Instance == "" {
		now.Instance = NewInstance()
	}
	if now.Type == "" {
		now.Type = DefaultProblemBase + now.Code
	}
	body, err := json.Marshal(now)
	if err != nil {
		// Strings, numbers and bools always encode.
		panic("onceward: " + err.Error())
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if !strings.HasPrefix(now.Type, "urn:") {
		h.Add("Link", "<"+inBrackets(now.Type)+`>; rel="describedby"; type="text/html"`)
	}
	for _, challenge := range headerValues(p.Challenges) {
		h.Add("WWW-Authenticate", challenge)
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", retryAfter(p.RetryAfter))
	}
	if p.Limit != nil {
		p.Limit.write(h)
	}
	w.WriteHeader(p.Status)
	// A client that left has no use for the error, and nothing depends on it.
	_, _ = w.Write(append(body, '\n'))
}

// inBrackets escapes characters that are not allowed in a URI, so that the URI cannot contain its closing bracket.
func inBrackets(uri string) string {
	escaped := make([]byte, 0, len(uri))
	for i := range len(uri) {
		if c := uri[i]; c > ' ' && c < 0x7f && c != '<' && c != '>' && c != '"' {
			escaped = append(escaped, c)
		} else {
			escaped = fmt.Appendf(escaped, "%%%02X", c)
		}
	}
	return string(escaped)
}

// NewInstance returns a name for one occurrence of a [Problem]: a random urn:uuid.
func NewInstance() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// occurrence returns a problem with a new instance.
func (g *Guard) occurrence(p *Problem) *Problem {
	now := *p
	now.Type, now.Instance = g.config.ProblemBase+p.Code, NewInstance()
	return &now
}

// writeProblem answers with an occurrence. Only the client gets the renamed code: observers and logs get Onceward's
// code.
func (g *Guard) writeProblem(w http.ResponseWriter, now *Problem) { g.renamed(now).Write(w) }

// renamed renames the code of an occurrence for clients.
func (g *Guard) renamed(now *Problem) *Problem {
	now.ownCode, now.Code = now.Code, g.config.ProblemCode(now.Code)
	return now
}

// answerProblem answers with a problem after a reservation, or to a status request.
func (g *Guard) answerProblem(
	ctx context.Context, w http.ResponseWriter, id store.ID, operation string, p *Problem,
) {
	g.writeProblem(w, g.reportProblem(ctx, id, operation, p))
}

// reportProblem makes an occurrence of a problem after a reservation, and sends it to the log and the observer.
func (g *Guard) reportProblem(ctx context.Context, id store.ID, operation string, p *Problem) *Problem {
	now := g.occurrence(p)
	g.logProblem(ctx, operation, now, "key_hash", id.Hash())
	g.observe(ctx, ProblemEvent{
		ID: id, Operation: operation, Status: now.Status, Code: now.Code, Instance: now.Instance,
	})
	return now
}

// logProblem logs an occurrence with its instance, which a client may report. A failure of the service is logged at
// info level, a refusal at debug level.
func (g *Guard) logProblem(ctx context.Context, operation string, p *Problem, more ...any) {
	level := slog.LevelDebug
	if p.Status >= http.StatusInternalServerError && !p.logged {
		level = slog.LevelInfo
	}
	g.config.Logger.Log(ctx, level, "onceward: answered with a problem", append([]any{
		"code", p.Code, "status", p.Status, "operation", operation, "instance", p.Instance,
	}, more...)...)
}

// DraftCode returns the name of a code in the terms of the IETF draft of Idempotency-Key. It returns codes that the
// draft does not describe unchanged. It is for [Config].ProblemCode.
func DraftCode(code string) string {
	switch code {
	case problemNoKey.Code:
		return "idempotency-key-missing"
	case problemBadKey.Code:
		return "idempotency-key-invalid"
	case problemMismatch.Code:
		return "idempotency-key-already-used"
	case problemInProgress.Code:
		return "request-outstanding"
	default:
		return code
	}
}

// retryAfter returns the value of the header Retry-After: whole seconds, at least one.
func retryAfter(d time.Duration) string {
	return strconv.FormatInt(seconds(d), 10)
}

// keyProblem returns the problem of a key that is missing or wrong.
func keyProblem(err error) *Problem {
	switch {
	case errors.Is(err, ErrNoKey):
		return problemNoKey.detailed("send an Idempotency-Key header with a value that is unique to this operation, " +
			"and the same value on every retry")
	case errors.Is(err, ErrPersonalKey):
		return problemPersonalKey.detailed(err.Error())
	default:
		return problemBadKey.detailed(strings.TrimPrefix(err.Error(), ErrBadKey.Error()+": ")) // the prefix is the title
	}
}

// unauthenticated returns a 401 with the challenges of the scope function (rule A8).
func unauthenticated(err error, detail string) *Problem {
	p := problemNoAuth.detailed(detail)
	if with := (*UnauthenticatedError)(nil); errors.As(err, &with) && with != nil {
		p.Challenges = with.Challenges
	}
	return p
}

// decisionProblem returns the problem for a decision that neither executes nor replays.
func (g *Guard) decisionProblem(res *result) *Problem {
	if res.limit != nil {
		return res.limit.problem()
	}
	switch res.decision {
	case store.DecisionMismatch:
		p := problemMismatch.detailed("use a new key for a new request; the original can still be retried as it was")
		if g.config.Profile == ProfileStripe {
			p.Status = http.StatusBadRequest
		}
		return p
	case store.DecisionUnknown:
		p := problemUnknown.detailed("an earlier attempt may have taken effect; " +
			"it is not executed again until its outcome has been settled")
		p.RetryAfter = unknownRetryAfter(res)
		return p
	case store.DecisionRefused:
		return &problemRefused
	default:
		return problemInProgress.detailed("the first one is still being processed; " +
			"retry later with the same key to get its answer")
	}
}

// These are the bounds of Retry-After for an unknown outcome, because reconciliation takes time.
const (
	leastUnknownRetry = 5 * time.Second
	mostUnknownRetry  = time.Minute
)

func unknownRetryAfter(res *result) time.Duration {
	return min(max(res.record.ReconcileAt.Sub(res.now), leastUnknownRetry), mostUnknownRetry)
}

// becameUnknown returns the problem of a request during which the outcome became unknown (rule E7).
func becameUnknown() *Problem {
	p := problemUnknown.detailed("the request may have taken effect, but its outcome is not known, or could not be " +
		"stored; it is not executed again: retry with the same key to get the outcome once it is settled")
	p.Status, p.RetryAfter = http.StatusInternalServerError, leastUnknownRetry
	return p
}

// failureProblem returns the problem of a request that failed because the store could not answer, or the database
// refused the work: nothing was executed. If the store timed out, every request waits for the whole timeout, so the
// client should not retry earlier.
func (g *Guard) failureProblem(err error) *Problem {
	switch {
	case errors.Is(err, store.ErrUnreadable):
		return problemUnreadable.detailed("nothing was executed; the operator has to look at the record")
	case errors.Is(err, store.ErrWorkRefused):
		return problemWorkRefused.detailed("the database refused what the request would have written")
	case errors.Is(err, errProtectedTwice):
		return problemTwice.detailed("the inner protection did not execute its handler")
	case errors.Is(err, store.ErrDeadline):
		return problemDeadline.detailed("retry later with the same key")
	}
	p := problemUnavailable.detailed("retry later with the same key")
	p.logged = errors.Is(err, store.ErrNotSent)
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, store.ErrBusy) {
		p.RetryAfter = max(g.config.StoreTimeout, p.RetryAfter)
	}
	if wait := (interface{ RetryAfter() time.Duration })(nil); errors.As(err, &wait) {
		p.RetryAfter = max(wait.RetryAfter(), p.RetryAfter)
	}
	return p
}
