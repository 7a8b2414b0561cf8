package onceward

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

// Status is the answer of a status handler about an operation in the caller's scope.
type Status struct {
	Key       string `json:"key"`
	Operation string `json:"operation,omitempty"`
	// State is in_progress, completed, failed_retryable or unknown.
	State string `json:"state"`
	// StatusCode is the status of the stored answer, which is returned in full to a retry of the original request.
	StatusCode int `json:"status_code,omitempty"`
	// Location is the address of the result, if the stored answer contains one.
	Location  string     `json:"location,omitempty"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	SettledAt *time.Time `json:"settled_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// accepted answers a duplicate of an operation in flight with the address of its status.
func (g *Guard) accepted(w http.ResponseWriter, statusPath, key string) {
	h := w.Header()
	h.Set("Location", statusPath+pathSegment(key))
	h.Set("Retry-After", retryAfter(time.Second))
	writeStatus(w, http.StatusAccepted, &Status{Key: key, State: store.StateInProgress.String()})
}

// pathSegment escapes a key so that it stays one segment of a path: a segment of dots would change the path.
func pathSegment(key string) string {
	if key == "." || key == ".." {
		return strings.ReplaceAll(key, ".", "%2E")
	}
	return url.PathEscape(key)
}

// StatusHandler returns a handler that answers with the status of an operation: mount it at the path given to
// [InFlightAccepted], for example under "GET /operations/{key}". It takes the key from the path value "key", or else
// from the last segment of the path.
//
// It answers within the caller's scope only. A key that does not exist, that is in another scope, or that is bound to
// another session gets the same 404. Give it the same [BindSession] as the routes whose operations it shows; other
// options have no effect on it.
func (g *Guard) StatusHandler(options ...Option) http.Handler {
	s, err := newSettings(g.config.Defaults, []Option{Reserved(FailureUnknown)}, options)
	if err == nil && g.config.Scope == nil {
		err = errors.New("onceward: Config.Scope is missing")
	}
	if err != nil {
		panic(err)
	}
	return &statusHandler{protected: &protected{guard: g, settings: s}}
}

type statusHandler struct{ *protected }

// ServeHTTP implements [http.Handler].
func (h *statusHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := store.ID{Key: statusKey(r)}
	scope, session, problem := h.caller(r)
	if problem != nil {
		h.decline(w, r, id, problem)
		return
	}
	id.Scope = scope
	if problem := h.lookup(r.Context(), scope); problem != nil {
		h.decline(w, r, id, problem)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.guard.config.StoreTimeout)
	defer cancel()
	rec, err := h.guard.store.Get(ctx, id)
	if errors.Is(err, store.ErrUnreadable) && rec.ID == id {
		h.guard.storeFailed(ctx, statusOperation, "get", err)
		// The state is readable without the content. The status code is not: it is sealed with the content.
		rec.Response, err = store.Response{}, nil
	}
	switch {
	case errors.Is(err, store.ErrNotFound) && h.inFlight(id):
		h.inProgress(w, id)
	case errors.Is(err, store.ErrNotFound):
		h.decline(w, r, id, noSuchKey())
	case err != nil:
		h.guard.storeFailed(ctx, statusOperation, "get", err)
		h.decline(w, r, id, h.statusProblem(err))
	case rec.ID != id:
		h.decline(w, r, id, h.statusProblem(store.ErrUnreadable))
	case !h.visible(&rec, session):
		h.decline(w, r, id, noSuchKey())
	default:
		h.show(ctx, w, r, &rec)
	}
}

// statusOperation is the name of status requests in events and in the log.
const statusOperation = "status"

// decline answers a status request with a problem.
func (h *statusHandler) decline(w http.ResponseWriter, r *http.Request, id store.ID, p *Problem) {
	h.guard.answerProblem(r.Context(), w, id, statusOperation, p)
}

// statusProblem returns the problem of a status request that the store could not answer. Unlike the problem of a failed
// reservation, it does not state whether the operation was executed.
func (h *statusHandler) statusProblem(err error) *Problem {
	p := h.guard.failureProblem(err)
	if errors.Is(err, store.ErrUnreadable) {
		p.Detail = "the status of the operation cannot be read; the operator has to look at the record"
	} else {
		p.Title, p.Detail = "The status of the operation cannot be read now", "retry later"
	}
	return p
}

func noSuchKey() *Problem { return problemNoSuchKey.detailed("there is none in your scope") }

// show answers with the record, unless it has expired.
func (h *statusHandler) show(ctx context.Context, w http.ResponseWriter, r *http.Request, rec *store.Record) {
	switch expired, err := h.expired(ctx, rec); {
	case err != nil:
		h.guard.storeFailed(ctx, statusOperation, "reserve", err)
		h.decline(w, r, rec.ID, h.statusProblem(err))
	case expired:
		h.decline(w, r, rec.ID, noSuchKey())
	default:
		showStatus(w, rec)
	}
}

// expired asks the store whether the record has expired, because a node's clock does not decide this (rule S3). It
// makes a reservation with another fingerprint that must not create: the decision is a mismatch while the record is
// valid, and refused when it has expired. Neither decision changes anything.
func (h *statusHandler) expired(ctx context.Context, rec *store.Record) (bool, error) {
	if !rec.State.Settled() {
		return rec.State == store.StateExpired, nil
	}
	other := rec.Fingerprint
	other.Sum[0] ^= 1
	v, err := h.guard.store.Reserve(ctx, &store.Reservation{
		ID: rec.ID, Operation: rec.Operation, Fingerprints: []store.Fingerprint{other}, NoCreate: true,
		Nonce: newNonce(), Lease: store.ClockStep, Retention: store.ClockStep,
	})
	return v.Decision == store.DecisionRefused, err
}

// inFlight reports whether a transaction that is not visible yet is in progress. If keys are bound to sessions, it
// returns false, because the transaction could belong to another session.
func (h *statusHandler) inFlight(id store.ID) bool {
	return h.guard.transactor != nil && h.settings.session == nil && h.guard.transactor.InFlight(id)
}

func (h *statusHandler) inProgress(w http.ResponseWriter, id store.ID) {
	w.Header().Set("Retry-After", retryAfter(time.Second))
	writeStatus(w, http.StatusOK, &Status{Key: id.Key, State: store.StateInProgress.String()})
}

// visible reports whether the caller's session may see the record.
func (h *statusHandler) visible(rec *store.Record, session string) bool {
	if rec.Fingerprint.Session == [16]byte{} {
		return true
	}
	for i := range h.guard.secrets {
		if key := &h.guard.secrets[i]; key.id == rec.Fingerprint.Secret && session != "" {
			return sessionTag(key, rec.Scope, session) == rec.Fingerprint.Session
		}
	}
	return false
}

// statusKey returns the key in the request's path. A router may return escaped path values: this is detected if the key
// is the last segment.
func statusKey(r *http.Request) string {
	last := path.Base(r.URL.EscapedPath())
	if key := r.PathValue("key"); key != "" && key != last {
		return key
	}
	key, err := url.PathUnescape(last)
	if err != nil {
		return ""
	}
	return key
}

func showStatus(w http.ResponseWriter, rec *store.Record) {
	status := &Status{
		Key: rec.Key, Operation: rec.Operation, State: rec.State.String(), StatusCode: rec.Response.Status,
		CreatedAt: optionalTime(rec.CreatedAt),
	}
	if rec.State.Settled() {
		// A record keeps the times of an attempt that ended as unknown; to a client such an operation is not settled.
		status.SettledAt, status.ExpiresAt = optionalTime(rec.SettledAt), optionalTime(rec.ExpiresAt)
	}
	for _, field := range rec.Response.Header {
		if field.Name == "Location" {
			status.Location = field.Value
		}
	}
	if rec.State == store.StateInProgress || rec.State == store.StateUnknown {
		w.Header().Set("Retry-After", retryAfter(time.Second))
	}
	writeStatus(w, http.StatusOK, status)
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func writeStatus(w http.ResponseWriter, code int, status *Status) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status) // a client that left has no use for the error
}
