package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// The outcomes of [onceward.ReceivedEvent].
const (
	outcomeKept      = "kept"
	outcomeDuplicate = "duplicate"
	outcomeRefused   = "refused"
	outcomeFailed    = "failed"
)

// Receiver is an [http.Handler] that takes the deliveries of one sender. How long a body may trickle in is for the
// timeouts of the [http.Server] to say.
type Receiver struct{ cfg Config }

// New returns a receiver, or an error if something that is required is missing.
func New(cfg Config) (*Receiver, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Receiver{cfg: cfg.withDefaults()}, nil
}

// ServeHTTP answers 204 to a delivery that is kept, now or before, or ignored. Anything else is a problem document:
//
//   - 400 for a body that was cut off, that Parse makes nothing of or whose scope is not the sender's, and 413 for one that is too
//     large;
//   - 401 for a signature that is missing, wrong or stale. The answer does not say which, as only a forger would ask;
//   - 405 for anything but POST;
//   - 500 for a panic in Parse or Apply, and 503 if the external event could not be kept or its tenant not be looked up. The sender
//     sends it again.
//
// Once the body is there, a sender that hangs up changes nothing: what it sent is kept and applied.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		write(w, problemMethod)
		return
	}
	problem := rc.receive(context.WithoutCancel(r.Context()), w, r)
	if problem != nil {
		write(w, *problem)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// receive takes one delivery through all steps, and returns nil if it needs not be sent again.
func (rc *Receiver) receive(ctx context.Context, w http.ResponseWriter, r *http.Request) (problem *onceward.Problem) {
	defer func() {
		if v := recover(); v != nil {
			problem = rc.fail(ctx, problemFailed, fmt.Errorf("webhook: panic: %v", v), "stack", string(debug.Stack()))
		}
	}()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rc.cfg.MaxBody))
	if err != nil {
		return rc.refuse(ctx, bodyProblem(err), err)
	}
	scheme, scope, err := rc.cfg.sender(r)
	if err != nil && !errors.Is(err, ErrSignature) {
		return rc.fail(ctx, problemStore, fmt.Errorf("webhook: cannot find the tenant of a delivery: %w", err))
	}
	// Nothing looks into a body before it is known to be the sender's.
	if err == nil {
		err = scheme.Verify(r.Header, body, rc.cfg.Now())
	}
	if err != nil {
		return rc.refuse(ctx, problemSignature, err)
	}
	external, err := rc.external(scope, r.Header, body)
	if errors.Is(err, ErrIgnored) {
		rc.cfg.Logger.DebugContext(ctx, "webhook: event ignored", "source", rc.cfg.Source)
		return nil
	}
	if err != nil {
		return rc.refuse(ctx, problemUnreadable, err)
	}
	if err := rc.keep(ctx, external); err != nil {
		return rc.fail(ctx, problemStore, fmt.Errorf("webhook: cannot keep an external event: %w", err), "event", external.EventID)
	}
	if err := rc.apply(ctx, external); err != nil {
		// The external event is kept, so the reconciler will find it; the sender could add nothing to that.
		rc.fail(ctx, problemFailed, fmt.Errorf("webhook: cannot apply an external event that is kept: %w", err), "event", external.EventID)
	}
	return nil
}

// external event makes what is kept of what was delivered.
func (rc *Receiver) external(scope Scope, header http.Header, body []byte) (store.ExternalEvent, error) {
	event, err := rc.cfg.Parse(header, body)
	if err != nil {
		return store.ExternalEvent{}, err
	}
	if event.ID == "" || event.Subject == "" {
		return store.ExternalEvent{}, errors.New("webhook: the event has no id or no subject")
	}
	bound, all, err := scope.bind(&event)
	if err != nil {
		return store.ExternalEvent{}, err
	}
	if event.At.IsZero() {
		event.At = rc.cfg.Now()
	}
	return store.ExternalEvent{
		Source: rc.cfg.Source, Scope: bound, AnyScope: all, EventID: event.ID, Subject: event.Subject, At: event.At, Body: body,
	}, nil
}

// keep makes the external event durable.
func (rc *Receiver) keep(ctx context.Context, external store.ExternalEvent) error {
	storing, cancel := context.WithTimeout(ctx, rc.cfg.StoreTimeout)
	defer cancel()
	added, err := rc.cfg.Keeper.AddExternalEvent(storing, external)
	if err != nil {
		return err
	}
	outcome := outcomeKept
	if !added {
		outcome = outcomeDuplicate
	}
	rc.observe(ctx, outcome, nil)
	return nil
}

// apply is the same for a new external event and for a duplicate: nobody knows whether the process that kept the first
// one lived long enough to apply it.
func (rc *Receiver) apply(ctx context.Context, external store.ExternalEvent) error {
	applying, cancel := context.WithTimeout(ctx, rc.cfg.ApplyTimeout)
	defer cancel()
	return rc.cfg.Apply(applying, external)
}

// refuse records a delivery that the sender, or whoever it is, has to answer for.
func (rc *Receiver) refuse(ctx context.Context, problem onceward.Problem, err error) *onceward.Problem {
	rc.cfg.Logger.WarnContext(ctx, "webhook: delivery refused", "source", rc.cfg.Source, "error", err)
	rc.observe(ctx, outcomeRefused, err)
	return &problem
}

// fail records what went wrong on our side.
func (rc *Receiver) fail(ctx context.Context, problem onceward.Problem, err error, details ...any) *onceward.Problem {
	details = append([]any{"source", rc.cfg.Source, "error", err}, details...)
	rc.cfg.Logger.ErrorContext(ctx, "webhook: delivery failed", details...)
	rc.observe(ctx, outcomeFailed, err)
	return &problem
}

func (rc *Receiver) observe(ctx context.Context, outcome string, err error) {
	rc.cfg.Observer.Observe(ctx, onceward.ReceivedEvent{Source: rc.cfg.Source, Outcome: outcome, Err: err})
}
