// Package webhook receives unsolicited reports of other systems about an effect, so that an unknown outcome can be
// settled without a query.
//
// A [Receiver] is an [http.Handler] for the deliveries of one sender. It verifies the signature over the raw body,
// keeps the event as a [store.ExternalEvent], and only then applies it. This order makes deliveries harmless however
// they arrive:
//
//   - early, before the record or while it is in progress: the external event is kept, and the reconciler reads it
//     before it makes a query;
//   - twice: the id of the event is known, and nothing is kept again;
//   - out of order: [Latest] returns the external event that counts;
//   - forged, or recorded and sent again: refused before anything is parsed;
//   - about another tenant's operation, signed by a tenant without a right to it: kept, and settles nothing.
//     [Config] must set whose records the sender may settle.
//
// How a sender signs is a [Scheme]: [Timestamped], [StandardWebhooks], [HMAC] or your own.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/problembase"
	"github.com/onceward/onceward/store"
)

// These are the defaults of [Config].
const (
	DefaultMaxBody      = 1 << 20
	DefaultStoreTimeout = 5 * time.Second
	DefaultApplyTimeout = 5 * time.Second
)

// Config configures a [Receiver]: whose deliveries it accepts and what it does with them.
type Config struct {
	// Source is the name of the sender. Event ids are unique within it and a scope, and the reconciler finds external
	// events by it. Required.
	Source string
	// Scheme verifies the signature. Required, unless there is a Tenant.
	Scheme Scheme
	// Scope sets whose records the sender may settle: [OneScope], [ScopeOfEvent] or [AllScopes]. Required, unless there is
	// a Tenant.
	Scope Scope
	// Tenant is for one endpoint of many tenants with a secret each. It returns, from the path or a header, the tenant
	// whose delivery a request claims to be: the claim counts if the signature is that tenant's. For a tenant that does
	// not exist it returns [ErrSignature], which is answered with 401; any other error is answered with 503. Default:
	// none, and all deliveries are from one sender.
	Tenant func(r *http.Request) (Tenant, error)
	// Parse finds the event in a delivery whose signature is valid. It must not change the body. For an event that is not
	// needed it returns [ErrIgnored]; any other error is answered with 400. See [ParseJSON]. Required.
	Parse func(header http.Header, body []byte) (Event, error)
	// Apply acts on an external event, after it has been kept. Default: nothing is done, and the reconciler reads the
	// external event later.
	//
	// Apply must be idempotent and safe to be called by several deliveries at a time. It is also called for a duplicate,
	// because the first delivery may have been kept by a process that died before it applied it. The external event is not
	// always the latest either: Apply must use the [Latest] of all kept events about the subject, or query the sender. An
	// early external event is no error: it is kept, so return nil.
	//
	// An error is logged and observed, and the delivery is still answered as a success: it is kept, so nothing is lost.
	Apply func(ctx context.Context, e store.ExternalEvent) error
	// MaxBody is the largest size of a body in bytes. Default: [DefaultMaxBody].
	MaxBody int64
	// StoreTimeout bounds the storing of an event. Default: [DefaultStoreTimeout].
	StoreTimeout time.Duration
	// ApplyTimeout bounds Apply. Default: [DefaultApplyTimeout].
	ApplyTimeout time.Duration
	// ProblemBase comes before the code in the type of answers to deliveries that are not accepted, as in
	// [onceward.Config]. Default: [onceward.DefaultProblemBase].
	ProblemBase string
	// Observer receives a [ReceivedEvent] for every delivery: "kept", "duplicate", "refused" (it was answered with a 4xx)
	// or "failed" (because of this service). An Apply that fails is another "failed", after the "kept" or "duplicate". An
	// event that Parse ignores is not reported. Default: none.
	Observer onceward.Observer
	// Logger logs what was refused and what failed, with the reason but never with the body. Default: [slog.Default].
	Logger *slog.Logger
	// Now is the clock that timestamps are compared with, for tests. Default: [time.Now].
	Now func() time.Time
}

// check returns what is missing or wrong.
func (c *Config) check() error {
	var wrong []error
	for _, field := range []struct {
		name   string
		absent bool
	}{{"Source", c.Source == ""}, {"Parse", c.Parse == nil}, {"Scheme", c.Scheme == nil && c.Tenant == nil}} {
		if field.absent {
			wrong = append(wrong, fmt.Errorf("webhook: Config.%s is missing", field.name))
		}
	}
	if c.Tenant == nil {
		wrong = append(wrong, c.Scope.check())
	} else if c.Scheme != nil || c.Scope.kind != scopeMissing {
		wrong = append(wrong, errors.New("webhook: Config has a Tenant, which brings its own Scheme and Scope: "+
			"leave those out"))
	}
	if c.MaxBody < 0 || c.StoreTimeout < 0 || c.ApplyTimeout < 0 {
		wrong = append(wrong, errors.New("webhook: MaxBody, StoreTimeout and ApplyTimeout must not be negative"))
	}
	if c.ProblemBase != "" {
		if err := problembase.Check(c.ProblemBase); err != nil {
			wrong = append(wrong, fmt.Errorf("webhook: Config.ProblemBase: %w", err))
		}
	}
	return errors.Join(wrong...)
}

func (c Config) withDefaults() Config {
	if c.Apply == nil {
		c.Apply = func(context.Context, store.ExternalEvent) error { return nil }
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	if c.StoreTimeout == 0 {
		c.StoreTimeout = DefaultStoreTimeout
	}
	if c.ApplyTimeout == 0 {
		c.ApplyTimeout = DefaultApplyTimeout
	}
	if c.ProblemBase == "" {
		c.ProblemBase = onceward.DefaultProblemBase
	}
	if c.Observer == nil {
		c.Observer = onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) {})
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Receiver is an [http.Handler] that accepts the deliveries of one sender. The timeouts of the [http.Server] bound how
// long a body may take.
type Receiver struct {
	keeper store.ExternalEventKeeper
	config Config
}

// New returns a receiver that keeps events in the given store, or an error that names everything that is missing.
func New(keeper store.ExternalEventKeeper, config Config) (*Receiver, error) {
	err := config.check()
	if keeper == nil {
		err = errors.Join(errors.New("webhook: a receiver needs a store that keeps its events"), err)
	}
	if err != nil {
		return nil, err
	}
	return &Receiver{keeper: keeper, config: config.withDefaults()}, nil
}

// ServeHTTP answers 204 to a delivery that is kept, now or before, or ignored. Anything else is a problem document:
//
//   - 400 for a body that was cut off, that Parse cannot read or whose scope is not the sender's, and 413 for one that is
//     too large;
//   - 401 for a signature that is missing, wrong or stale. The answer does not distinguish these, because that would only
//     help a forger. Its WWW-Authenticate is "Webhook-Signature";
//   - 405 for anything but POST;
//   - 500 for a panic in Parse or Apply, and 503 if the external event could not be kept or its tenant not be found. The
//     sender sends it again.
//
// Once the body was received, a sender that disconnects changes nothing: the event is kept and applied.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		problem := rc.occurrence(problemMethod)
		rc.config.Logger.DebugContext(r.Context(), "webhook: no delivery", "source", rc.config.Source, "method", r.Method,
			"instance", problem.Instance)
		w.Header().Set("Allow", http.MethodPost)
		problem.Write(w)
		return
	}
	if problem := rc.receive(context.WithoutCancel(r.Context()), w, r); problem != nil {
		problem.Write(w)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// receive processes one delivery, and returns nil if it need not be sent again.
func (rc *Receiver) receive(ctx context.Context, w http.ResponseWriter, r *http.Request) (problem *onceward.Problem) {
	defer func() {
		if v := recover(); v != nil {
			problem = rc.fail(ctx, problemFailed, fmt.Errorf("webhook: panic: %v", v), "stack", string(debug.Stack()))
		}
	}()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rc.config.MaxBody))
	if err != nil {
		return rc.refuse(ctx, bodyProblem(err), err)
	}
	scheme, scope, err := rc.config.sender(r)
	if err != nil && !errors.Is(err, ErrSignature) {
		return rc.fail(ctx, problemStore, fmt.Errorf("webhook: cannot find the tenant of a delivery: %w", err))
	}
	// The body is not parsed before its signature is verified.
	if err == nil {
		err = scheme.Verify(r.Header, body, rc.config.Now())
	}
	if err != nil {
		return rc.refuse(ctx, problemSignature, err)
	}
	external, err := rc.external(scope, r.Header, body)
	if errors.Is(err, ErrIgnored) {
		rc.config.Logger.DebugContext(ctx, "webhook: event ignored", "source", rc.config.Source)
		return nil
	}
	if err != nil {
		return rc.refuse(ctx, problemUnreadable, err)
	}
	if err := rc.keep(ctx, external); err != nil {
		err = fmt.Errorf("webhook: cannot keep an external event: %w", err)
		return rc.fail(ctx, problemStore, err, "event", external.EventID)
	}
	if err := rc.apply(ctx, external); err != nil {
		// The external event is kept, so the reconciler will find it; another delivery would not help.
		err = fmt.Errorf("webhook: cannot apply an external event that is kept: %w", err)
		rc.fail(ctx, problemFailed, err, "event", external.EventID)
	}
	return nil
}

// external returns the external event of a delivery.
func (rc *Receiver) external(scope Scope, header http.Header, body []byte) (store.ExternalEvent, error) {
	event, err := rc.config.Parse(header, body)
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
		event.At = rc.config.Now()
	}
	return store.ExternalEvent{
		Source: rc.config.Source, Scope: bound, AnyScope: all, EventID: event.ID, Subject: event.Subject, At: event.At,
		Body: body,
	}, nil
}

// keep makes the external event durable.
func (rc *Receiver) keep(ctx context.Context, external store.ExternalEvent) error {
	storing, cancel := context.WithTimeout(ctx, rc.config.StoreTimeout)
	defer cancel()
	added, err := rc.keeper.AddExternalEvent(storing, external)
	if err != nil {
		return err
	}
	outcome := outcomeKept
	if !added {
		outcome = outcomeDuplicate
	}
	rc.observe(ctx, ReceivedEvent{Outcome: outcome})
	return nil
}

// apply treats a new external event and a duplicate alike: it is not known whether the process that kept the first one
// applied it.
func (rc *Receiver) apply(ctx context.Context, external store.ExternalEvent) error {
	applying, cancel := context.WithTimeout(ctx, rc.config.ApplyTimeout)
	defer cancel()
	return rc.config.Apply(applying, external)
}

// refuse logs and reports a delivery that the sender, or a forger, got wrong.
func (rc *Receiver) refuse(ctx context.Context, template onceward.Problem, err error) *onceward.Problem {
	problem := rc.occurrence(template)
	rc.config.Logger.WarnContext(ctx, "webhook: delivery refused", "source", rc.config.Source, "error", err,
		"instance", problem.Instance)
	rc.observe(ctx, ReceivedEvent{Outcome: outcomeRefused, Instance: problem.Instance, Err: err})
	return problem
}

// fail logs and reports an error of this service.
func (rc *Receiver) fail(ctx context.Context, template onceward.Problem, err error, details ...any) *onceward.Problem {
	problem := rc.occurrence(template)
	details = append([]any{"source", rc.config.Source, "error", err, "instance", problem.Instance}, details...)
	rc.config.Logger.ErrorContext(ctx, "webhook: delivery failed", details...)
	rc.observe(ctx, ReceivedEvent{Outcome: outcomeFailed, Instance: problem.Instance, Err: err})
	return problem
}

// occurrence returns a problem with a new instance.
func (rc *Receiver) occurrence(problem onceward.Problem) *onceward.Problem {
	problem.Type, problem.Instance = rc.config.ProblemBase+problem.Code, onceward.NewInstance()
	return &problem
}

func (rc *Receiver) observe(ctx context.Context, e ReceivedEvent) {
	e.Source = rc.config.Source
	rc.config.Observer.Observe(ctx, e)
}

// challenge is the WWW-Authenticate of a 401, which RFC 9110 requires. No scheme of webhook signatures is registered,
// so it is only a name: the sender knows how it signs. A 403 would mean that the sender is known and not allowed, while
// here the sender is not known.
const challenge = "Webhook-Signature"

// These are the answers to a delivery that is not accepted. They contain no more than the status: the details are
// logged.
var (
	problemMethod = onceward.Problem{
		Code: "method-not-allowed", Status: 405, Title: "Deliveries are sent with POST",
		Detail: "nothing was kept; send the event with POST",
	}
	problemTooLarge = onceward.Problem{
		Code: "body-too-large", Status: 413, Title: "The request body is too large", Detail: "nothing was kept",
	}
	problemIncomplete = onceward.Problem{
		Code: "body-incomplete", Status: 400, Title: "The request body was cut off", Retryable: true,
		Detail: "nothing was kept; send the whole delivery again",
	}
	problemSignature = onceward.Problem{
		Code: "unauthenticated", Status: 401, Title: "The caller is not authenticated", Challenges: []string{challenge},
		Detail: "the delivery is not signed as it should be; nothing was kept",
	}
	problemUnreadable = onceward.Problem{
		Code: "invalid-request", Status: 400, Title: "The event cannot be identified", Detail: "nothing was kept",
	}
	problemStore = onceward.Problem{
		Code: "store-unavailable", Status: 503, Title: "The event was not kept", Retryable: true,
		RetryAfter: time.Second, Detail: "send the delivery again later",
	}
	problemFailed = onceward.Problem{
		Code: "event-failed", Status: 500, Title: "The event could not be handled", Retryable: true,
		Detail: "the fault is not the sender's; send the delivery again later",
	}
)

// bodyProblem distinguishes a body that is too large from one that was cut off.
func bodyProblem(err error) onceward.Problem {
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return problemTooLarge
	}
	return problemIncomplete
}
