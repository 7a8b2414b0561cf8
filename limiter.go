package onceward

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/onceward/onceward/store"
)

// Limiter bounds the requests of one scope (rule L1). Package limit has one. It is called in the request, and must
// bound its own duration.
//
// A replay is free (rule A6). Only the store knows whether a key is new, so each request takes allowance before the
// store is called, and the allowance is returned if no record was made. A request of a scope without allowance is not
// refused immediately: it is reserved in the same call, but may not create a record.
type Limiter interface {
	// TakeKey takes allowance for one new key of a scope, whose record will be kept for the retention. It returns the
	// limit that was reached, or nil. The limit may be [LimitMismatches]: once it is used up, new keys are refused too,
	// so that the answer does not reveal whether a key exists.
	TakeKey(ctx context.Context, scope string, retention time.Duration) *LimitError
	// ReturnKey returns what TakeKey took: no record was made. If the handler ran, in a transaction that was rolled
	// back, only the place among the active keys is returned, because the rate of new keys bounds how often handlers
	// run.
	ReturnKey(scope string, retention time.Duration, ran bool)
	// Mismatch counts a key that was used for another request. It returns the limit that was passed, or nil.
	Mismatch(ctx context.Context, scope string) *LimitError
	// Lookup counts a status request. It returns the limit that was passed, or nil.
	Lookup(ctx context.Context, scope string) *LimitError
}

// These are the names of limits, as the header fields RateLimit and RateLimit-Policy show them.
const (
	LimitNewKeys    = "new-keys"
	LimitActiveKeys = "active-keys"
	LimitLookups    = "lookups"
	LimitMismatches = "mismatches"
)

// LimitError reports that a scope has reached a limit: nothing was executed and nothing stored. It is an [ErrRefused].
type LimitError struct {
	// Name is the name of the limit, such as [LimitNewKeys].
	Name string
	// Limit is the number that is allowed.
	Limit int
	// Window is the time for which Limit is allowed; zero for a limit on the number at one time.
	Window time.Duration
	// After is how long to wait before a retry.
	After time.Duration
}

// Error describes the limit.
func (e *LimitError) Error() string {
	per := ""
	if e.Window > 0 {
		per = " in " + e.Window.String()
	}
	return fmt.Sprintf("onceward: the limit of %d %s%s is reached, retry after %s", e.Limit, e.Name, per, e.After)
}

// Is makes errors.Is(err, ErrRefused) true.
func (e *LimitError) Is(target error) bool { return target == ErrRefused }

// RetryAfter returns how long to wait before a retry.
func (e *LimitError) RetryAfter() time.Duration { return e.After }

// problem returns the answer to a request that passed the limit.
func (e *LimitError) problem() *Problem {
	p := &problemRefused
	switch e.Name {
	case LimitNewKeys:
		p = p.detailed("there were too many new keys in a short time; requests that were made before are still answered")
	case LimitActiveKeys:
		p = p.detailed("too many keys are kept; requests that were made before are still answered")
	case LimitMismatches:
		p = problemMismatches.detailed("until this is over no new requests are accepted; use a new key for each of them, " +
			"and send a retry as the original was")
	case LimitLookups:
		p = problemLookups.detailed("send fewer status requests")
	default:
		p = p.detailed("")
	}
	p.RetryAfter, p.Limit = max(e.After, time.Second), e
	return p
}

// write sets the header fields of draft-ietf-httpapi-ratelimit-headers.
func (e *LimitError) write(h http.Header) {
	policy, left := httpsfv.NewItem(e.Name), httpsfv.NewItem(e.Name)
	policy.Params.Add("q", int64(e.Limit))
	if e.Window > 0 {
		policy.Params.Add("w", seconds(e.Window))
	}
	left.Params.Add("r", int64(0))
	left.Params.Add("t", seconds(e.After))
	for name, item := range map[string]httpsfv.Item{"RateLimit-Policy": policy, "RateLimit": left} {
		if value, err := httpsfv.Marshal(httpsfv.List{item}); err == nil { // a name that is not ASCII is left out
			h.Set(name, value)
		}
	}
}

// seconds rounds up to whole seconds, at least one.
func seconds(d time.Duration) int64 { return int64(max(1, math.Ceil(d.Seconds()))) }

// takeKey takes allowance before the store is called. A resumed operation makes no new key.
func (e *execution) takeKey() {
	limiter := e.guard.config.Limiter
	if limiter == nil || e.reservation.ResumeOnly {
		return
	}
	e.limit = limiter.TakeKey(e.caller, e.reservation.Scope, e.reservation.Retention)
	e.tookKey = e.limit == nil
	e.reservation.NoCreate = e.limit != nil
}

// returnKey returns the allowance, if any, because no record was made. ran means that the handler ran.
func (e *execution) returnKey(ran bool) {
	if e.tookKey {
		e.tookKey = false
		e.guard.config.Limiter.ReturnKey(e.reservation.Scope, e.reservation.Retention, ran)
	}
}

// countDecision returns or uses the allowance, depending on the store's decision, and counts a mismatch. A repeated
// grant counts as a new key, because its first origin is not known.
func (e *execution) countDecision(v *store.Verdict) {
	made := v.Decision == store.DecisionExecute && v.Origin != store.OriginRetried && v.Origin != store.OriginResumed
	if !made {
		e.returnKey(false)
	}
	switch limiter := e.guard.config.Limiter; {
	case v.Decision == store.DecisionRefused:
	case v.Decision != store.DecisionMismatch || limiter == nil:
		e.limit = nil
	case e.limit == nil || e.limit.Name != LimitMismatches: // else an existing key gets the same answer as a new key
		e.limit = limiter.Mismatch(e.caller, e.reservation.Scope)
	}
}

// lookup counts a status request.
func (h *statusHandler) lookup(ctx context.Context, scope string) *Problem {
	if h.guard.config.Limiter == nil {
		return nil
	}
	if limit := h.guard.config.Limiter.Lookup(ctx, scope); limit != nil {
		return limit.problem()
	}
	return nil
}
