package onceward

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/canon"
	"github.com/onceward/onceward/store"
)

// Failure is the meaning of a reserved handler's failure. A handler fails if it answers 5xx, panics, or runs past its
// deadline.
type Failure uint8

const (
	// FailureUnknown means that the handler may have done something: the record becomes unknown, and a reconciler or an
	// operator settles it.
	FailureUnknown Failure = iota + 1
	// FailureRetry means that the handler has no effect outside unless it succeeds: the record is released, and a retry
	// executes.
	FailureRetry
	// FailureStore means that the failure is stored as the answer: every retry gets it.
	FailureStore
)

// LostPolicy sets what happens to an operation whose owner was lost: see [OnLost].
type LostPolicy = store.LostPolicy

const (
	// LostReconcile makes the operation unknown: it is never executed again on a guess. This is the default.
	LostReconcile = store.LostReconcile
	// LostResume lets a later attempt continue from the last recovery point.
	LostResume = store.LostResume
)

type mode uint8

const (
	modeUnset mode = iota
	modeTransactional
	modeReserved
)

type inFlightPolicy uint8

const (
	inFlightConflict inFlightPolicy = iota
	inFlightWait
	inFlightAccepted
)

// These are the longest lease and the longest retention of a route that every store supports.
const (
	// MaxLease is the longest lease: a key whose owner is lost stays locked no longer than this.
	MaxLease = 24 * time.Hour
	// MaxRetention is the longest retention, 50 years.
	MaxRetention = 50 * 365 * 24 * time.Hour
)

// These are the defaults and limits of a route.
const (
	defaultRetention = 24 * time.Hour
	leastRetention   = time.Hour
	defaultLease     = 30 * time.Second
	leastLease       = 100 * time.Millisecond
	defaultDeadline  = time.Minute
	leastDeadline    = time.Millisecond
	defaultBodyLimit = 1 << 20
	maxResponseLimit = 256 << 20
)

// settings are the settings of a route.
type settings struct {
	mode          mode
	isolation     sql.IsolationLevel
	onFailure     Failure
	onLost        store.LostPolicy
	retention     time.Duration
	lease         time.Duration
	deadline      time.Duration
	inFlight      inFlightPolicy
	wait          time.Duration
	statusPath    string
	optional      bool
	methods       []string
	bodyLimit     int64
	responseLimit int
	operation     string
	include       []string
	ignore        []string
	fingerprint   fingerprintOptions
	session       func(*http.Request) string
	challenges    []string
	firstSent     firstSentRule
	headers       headerRules
	withoutBody   bool
	audits        bool
	actor         func(*http.Request) string
}

// Option configures a route, or a call of [Guard.Do].
type Option func(*settings) error

// Transactional runs the handler inside one database transaction with its claim and its answer. The handler gets the
// transaction from [Tx]. A crash leaves no trace, and a retry starts from the beginning.
func Transactional() Option {
	return func(s *settings) error {
		s.mode = modeTransactional
		return nil
	}
}

// Isolation sets the level of a [Transactional] route's transaction: [sql.LevelReadCommitted],
// [sql.LevelRepeatableRead] or [sql.LevelSerializable]. A store without levels, such as SQLite, always serializes.
// Default: the default level of the pool that the handlers use, or of its database.
func Isolation(level sql.IsolationLevel) Option {
	return func(s *settings) error {
		switch level {
		case sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
			s.isolation = level
			return nil
		default:
			return fmt.Errorf("Isolation(%s): the levels are Read Committed, Repeatable Read and Serializable", level)
		}
	}
}

// Reserved records the intent durably before the handler runs, and the answer afterwards. It is for handlers that call
// other systems. The meaning of a failure is required, because only the author of the handler can know it.
func Reserved(onFailure Failure) Option {
	return func(s *settings) error {
		if onFailure < FailureUnknown || onFailure > FailureStore {
			return errors.New("Reserved needs FailureUnknown, FailureRetry or FailureStore: " +
				"what does a failure of this handler mean?")
		}
		s.mode, s.onFailure = modeReserved, onFailure
		return nil
	}
}

// OnLost sets what happens to an operation whose owner was lost. [LostResume] is for operations that continue from a
// recovery point and whose effects other systems recognise by their downstream key: a handler that starts from the
// beginning repeats its work. Default: [LostReconcile].
func OnLost(policy LostPolicy) Option {
	return func(s *settings) error {
		if policy > store.LostResume {
			return fmt.Errorf("OnLost: policy %d does not exist", policy)
		}
		s.onLost = policy
		return nil
	}
}

// Retain keeps the answer for this long after it was stored. Less than 1 h and more than [MaxRetention] are refused.
// Default: 24 h.
func Retain(d time.Duration) Option {
	return func(s *settings) error {
		if d < leastRetention {
			return fmt.Errorf("Retain(%s): clients retry for longer than that; the least is %s", d, leastRetention)
		}
		if d > MaxRetention {
			return fmt.Errorf("Retain(%s): the most is %s", d, MaxRetention)
		}
		s.retention = d
		return nil
	}
}

// Lease sets how long the right to execute lasts without a heartbeat. A heartbeat is sent after each third of this
// time. Less than 100 ms and more than [MaxLease] are refused. Default: 30 s.
func Lease(d time.Duration) Option {
	return func(s *settings) error {
		if d < leastLease {
			return fmt.Errorf("Lease(%s): the least is %s", d, leastLease)
		}
		if d > MaxLease {
			return fmt.Errorf("Lease(%s): a key would stay locked for that long when its owner is lost; the most is %s",
				d, MaxLease)
		}
		s.lease = d
		return nil
	}
}

// Deadline bounds the handler's context. An earlier deadline set by a middleware in front replaces it. A transactional
// handler that returns after its deadline is undone, unless it succeeds within a quarter of a second. All runs of a
// handler that the database undoes share one deadline.
//
// In transactional mode the deadline is at most the lease, and on a store with a single writer a third of it. Less than
// 1 ms is refused. Default: 1 min.
func Deadline(d time.Duration) Option {
	return func(s *settings) error {
		if d < leastDeadline {
			return fmt.Errorf("Deadline(%s): the least is %s", d, leastDeadline)
		}
		s.deadline = d
		return nil
	}
}

// InFlightConflict answers a duplicate of an operation in flight with 409 and Retry-After. It is the default.
func InFlightConflict() Option {
	return func(s *settings) error {
		s.inFlight = inFlightConflict
		return nil
	}
}

// InFlightWait makes a duplicate of an operation in flight wait up to d for the answer; after that it is answered with
// 409.
func InFlightWait(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return fmt.Errorf("InFlightWait(%s): it must be positive", d)
		}
		s.inFlight, s.wait = inFlightWait, d
		return nil
	}
}

// InFlightAccepted answers a duplicate of an operation in flight with 202 and the address of its status: path followed
// by the key. Mount [Guard.StatusHandler] there, for example under "GET /operations/{key}" for the path "/operations/".
func InFlightAccepted(path string) Option {
	return func(s *settings) error {
		if !strings.HasPrefix(path, "/") || !strings.HasSuffix(path, "/") {
			return fmt.Errorf("InFlightAccepted(%q): the path starts and ends with a slash", path)
		}
		s.inFlight, s.statusPath = inFlightAccepted, path
		return nil
	}
}

// KeyOptional lets requests without a key run unprotected. Default: they are refused with 400.
func KeyOptional() Option {
	return func(s *settings) error {
		s.optional = true
		return nil
	}
}

// Methods sets which methods are protected. Requests of other methods pass through unprotected. Default: POST and
// PATCH.
func Methods(methods ...string) Option {
	return func(s *settings) error {
		if len(methods) == 0 {
			return errors.New("Methods: at least one is needed")
		}
		for _, method := range methods {
			if method == "" || method != strings.ToUpper(method) {
				return fmt.Errorf("Methods(%q): methods are case-sensitive and would never match; write %q",
					method, strings.ToUpper(method))
			}
		}
		s.methods = slices.Clone(methods)
		return nil
	}
}

// BodyLimit sets the largest request body, in bytes; a larger body is answered with 413. Default: 1 MiB.
func BodyLimit(bytes int64) Option {
	return func(s *settings) error {
		if bytes < 0 {
			return fmt.Errorf("BodyLimit(%d): it cannot be negative", bytes)
		}
		s.bodyLimit = min(bytes, math.MaxInt64-1) // one byte more is read, to detect a larger body
		return nil
	}
}

// ResponseLimit sets the largest response body that is stored, in bytes. A larger body is sent but not stored in
// reserved mode, and refused with a rollback in transactional mode. An answer after [Operation.Reject],
// [Operation.NotExecuted] and the like is not stored, and has no limit. More than 256 MiB is refused, because databases
// limit the size of rows. Default: 1 MiB.
func ResponseLimit(bytes int) Option {
	return func(s *settings) error {
		if bytes < 0 || bytes > maxResponseLimit {
			return fmt.Errorf("ResponseLimit(%d): the limits are 0 and %d", bytes, maxResponseLimit)
		}
		s.responseLimit = bytes
		return nil
	}
}

// OperationName names the operation if the route pattern is not visible: under a router that does not set
// http.Request.Pattern, or in a middleware in front of the router (with chi, protect single routes by With, not a whole
// router by Use). Reconcilers and resumers find the operation by this name. The name counts in the fingerprint with the
// method and the path: after a change of the name, retries of earlier requests get a mismatch. Default: the method and
// the pattern; without a pattern, protected requests are refused with 500.
func OperationName(name string) Option {
	return func(s *settings) error {
		s.operation = name
		return nil
	}
}

// IncludeJSON limits the fingerprint to these parts of a JSON body, named by JSON pointers. Default: the whole body.
func IncludeJSON(pointers ...string) Option {
	return func(s *settings) error {
		s.include = slices.Clone(pointers)
		return nil
	}
}

// IgnoreJSON excludes these parts of a JSON body, named by JSON pointers, from the fingerprint: a client's timestamp, a
// trace id. Default: none.
func IgnoreJSON(pointers ...string) Option {
	return func(s *settings) error {
		s.ignore = slices.Clone(pointers)
		return nil
	}
}

// IncludeHeaders adds these request headers to the fingerprint: an API version, for example. Default: none.
func IncludeHeaders(names ...string) Option {
	return func(s *settings) error {
		s.fingerprint.headers = nil
		for _, name := range names {
			s.fingerprint.headers = append(s.fingerprint.headers, http.CanonicalHeaderKey(name))
		}
		slices.Sort(s.fingerprint.headers)
		return nil
	}
}

// FingerprintBy uses the result of a function in the fingerprint, in place of the query, the media type and the body.
// Default: the query, the media type and the body.
func FingerprintBy(f FingerprintFunc) Option {
	return func(s *settings) error {
		s.fingerprint.custom = f
		return nil
	}
}

// BindSession binds each key to the caller's session: the same key from another session of the same scope gets a
// mismatch, and its status is not found. A request without a session is answered with 401, with the challenges as its
// WWW-Authenticate. Default: keys belong to the scope.
func BindSession(session func(*http.Request) string, challenges ...string) Option {
	return func(s *settings) error {
		if session == nil {
			return errors.New("BindSession: the function is nil")
		}
		s.session, s.challenges = session, challenges
		return nil
	}
}

// newSettings applies the options to the defaults and refuses wrong combinations.
func newSettings(options ...[]Option) (*settings, error) {
	s := &settings{
		retention: defaultRetention, lease: defaultLease, deadline: defaultDeadline,
		methods:   []string{http.MethodPost, http.MethodPatch},
		bodyLimit: defaultBodyLimit, responseLimit: defaultBodyLimit,
	}
	for _, group := range options {
		for _, option := range group {
			if err := option(s); err != nil {
				return nil, fmt.Errorf("onceward: %w", err)
			}
		}
	}
	if s.mode == modeUnset {
		return nil, errors.New("onceward: the route has no mode of execution: " +
			"add Transactional(), or Reserved(…) with what a failure means")
	}
	// A client whose clock is ahead by the tolerance sends a time later than the true time: the record must exist for
	// the tolerance too.
	if f := s.firstSent; f.within+f.tolerance > s.retention {
		return nil, fmt.Errorf("onceward: requests that were first sent %s ago, with a tolerance of %s, cannot be accepted: "+
			"their records are kept for %s", f.within, f.tolerance, s.retention)
	}
	if len(s.include) > 0 || len(s.ignore) > 0 {
		selection, err := canon.Select(s.include, s.ignore)
		if err != nil {
			return nil, fmt.Errorf("onceward: %w", err)
		}
		s.fingerprint.selection = selection
	}
	return s, nil
}
