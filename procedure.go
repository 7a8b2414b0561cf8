package onceward

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// Procedure is a protected operation that is not called by net/http: a gRPC method, a tool of MCP, a mutation. It works
// like [Guard.Handler] for a route: it reads the key, refuses invalid calls, runs the work once, judges its answer by
// the same rules, and returns errors as a [Problem]. It is for adapters of frameworks; use [Guard.Do] for a job or a
// consumer.
type Procedure struct {
	guard    *Guard
	settings *settings
}

// Procedure returns an operation with the options of a route, and registers it for [Guard.CheckOperations]. Its name is
// its [OperationName]; without one each [Call] names its operation.
//
// Options that read an HTTP request, or change an HTTP answer, are refused, because a call has neither. Options in
// [Config].Defaults are refused if their guarantee would be broken: [BindSession], [WithoutBody], and the options that
// may add to the fingerprint, [IncludeHeaders] and [FingerprintBy], unless they are reset, as by IncludeHeaders() and
// FingerprintBy(nil). Other defaults are ignored, such as [InFlightAccepted]: a duplicate of a call in flight is a
// conflict.
func (g *Guard) Procedure(options ...Option) (*Procedure, error) {
	s, err := g.settings(options)
	if err != nil {
		return nil, err
	}
	own := new(settings)
	for _, option := range options {
		_ = option(own) // has already succeeded
	}
	if err := cmp.Or(s.refuseBroken(), own.refuseUnused()); err != nil {
		return nil, err
	}
	g.names.addProcedure(s.operation)
	return &Procedure{guard: g, settings: s}, nil
}

// refuseBroken refuses options whose guarantee a procedure would break.
func (s *settings) refuseBroken() error {
	switch {
	case s.session != nil:
		return errors.New("onceward: BindSession(…) is for HTTP routes: make the session a part of the scope")
	case s.withoutBody:
		return errors.New("onceward: WithoutBody() is for HTTP routes: keep what must not be stored out of the answer")
	case len(s.fingerprint.headers) > 0:
		return errors.New("onceward: IncludeHeaders(…) is for HTTP routes: make what counts a part of Call.Payload")
	case s.fingerprint.custom != nil:
		return errors.New("onceward: FingerprintBy(…) is for HTTP routes: make what counts the Call.Payload")
	default:
		return nil
	}
}

// refuseUnused refuses options that would have no effect.
func (s *settings) refuseUnused() error {
	switch {
	case len(s.include) > 0 || len(s.ignore) > 0:
		return errors.New("onceward: IncludeJSON(…) and IgnoreJSON(…) are for HTTP routes: " +
			"leave what does not count out of Call.Payload")
	case len(s.methods) > 0:
		return errors.New("onceward: Methods(…) is for HTTP routes: a procedure has none")
	case s.inFlight == inFlightAccepted:
		return errors.New("onceward: InFlightAccepted(…) is for HTTP routes: use InFlightWait(…)")
	default:
		return nil
	}
}

// Operation returns the procedure's [OperationName]; empty if each call names its operation.
func (p *Procedure) Operation() string { return p.settings.operation }

// KeyRequired reports whether a call without a key is refused, because the procedure does not have [KeyOptional].
func (p *Procedure) KeyRequired() bool { return !p.settings.optional }

// ParseKey parses a key of a call in the form of a header line, by the rules of [Config].Keys.
func (p *Procedure) ParseKey(line string) (string, error) { return p.guard.config.Keys.parse(line) }

// Answer is a procedure's answer, in its own format. Its status has the same meaning as a handler's (rule E5): 2xx and
// 3xx commit, a 4xx undoes the writes of a transaction and is stored, 401, 408, 425 and 429 mean that nothing was done,
// and a 5xx undoes a transaction, or else follows the [Failure] of the route.
type Answer struct {
	// Status is an HTTP status, 200 or above. Default: 200.
	Status int
	// ContentType describes Body to the program that replays it and to an operator. Do not use
	// application/problem+json, which is reserved for Onceward's problems. Default: application/octet-stream.
	ContentType string
	// Body is everything that a replay needs.
	Body []byte
}

func (a Answer) withDefaults() Answer {
	a.Status = cmp.Or(a.Status, http.StatusOK)
	a.ContentType = cmp.Or(a.ContentType, "application/octet-stream")
	return a
}

// Served is the result of [Procedure.Serve].
type Served struct {
	Answer
	// Replayed reports whether the answer comes from an earlier attempt.
	Replayed bool
	// ExpiresAt is the time until which the answer is kept; zero if it is not kept.
	ExpiresAt time.Time
	// Unknown means that the outcome is unknown. The answer is then a failure.
	Unknown bool
}

// Serve runs fn at most once for the call, and returns its answer, from this attempt or an earlier one. The call's Key
// must follow the rules of [Config].Keys, except for the syntax; if Key is empty it is taken from Header. Without a
// key, if the procedure has [KeyOptional], fn runs unprotected. A call without an Operation gets the name of the
// procedure.
//
// The context passes its values to fn, but not its cancellation; fn is bounded by the [Deadline] option, and may run
// again if a database undid its transaction: its input must then be the same. A panic of fn is raised again.
//
// If fn's answer cannot be returned, the error is a *[Problem], which was logged and reported to the observer.
func (p *Procedure) Serve(ctx context.Context, call Call, fn func(ctx context.Context) Answer) (Served, error) {
	p.guard.handling.Add(1)
	defer p.guard.handling.Add(-1)
	if call.Operation = cmp.Or(call.Operation, p.settings.operation); call.Operation == "" {
		return Served{}, p.refuse(ctx, call.Operation, problemUnnamed.detailed("the call does not name its operation"))
	}
	if call.Scope == "" {
		return Served{}, p.Refuse(ctx, call.Operation, ErrUnauthenticated)
	}
	if call.Key == "" {
		key, err := p.guard.config.Keys.fromHeader(call.Header)
		if errors.Is(err, ErrNoKey) && p.settings.optional {
			p.guard.observe(ctx, UnprotectedEvent{Operation: call.Operation})
			return Served{Answer: fn(ctx).withDefaults()}, nil
		}
		if err != nil {
			return Served{}, p.Refuse(ctx, call.Operation, err)
		}
		call.Key = key
	}
	if problem := p.refusal(&call); problem != nil {
		return Served{}, p.refuse(ctx, call.Operation, problem)
	}
	f := &procedureRun{fn: fn}
	f.prepareCall(p.guard, p.settings, ctx, &call)
	return f.served()
}

// Resume takes over an operation of [Procedure.Serve] whose owner was lost, without its caller: see [Guard.Resume].
func (p *Procedure) Resume(ctx context.Context, rec *store.Record, fn func(ctx context.Context) Answer) error {
	s, err := p.settings.resumed()
	if err != nil {
		return err
	}
	f := &procedureRun{fn: fn}
	if err := f.prepareResume(p.guard, s, ctx, rec); err != nil {
		return err
	}
	res := f.run(f)
	if f.panicked != nil {
		panic(f.panicked)
	}
	return f.failure(&res)
}

// Refuse returns the problem of a call that is not served, because its caller or its key cannot be determined: the
// error comes from a scope function or from [Procedure.ParseKey]. Nothing was executed. The problem is logged and
// reported to the observer.
func (p *Procedure) Refuse(ctx context.Context, operation string, err error) *Problem {
	switch {
	case errors.Is(err, ErrUnauthenticated):
		return p.refuse(ctx, operation, unauthenticated(err, "nothing was executed"))
	case errors.Is(err, ErrNoKey), errors.Is(err, ErrBadKey), errors.Is(err, ErrPersonalKey):
		return p.refuse(ctx, operation, keyProblem(err))
	default:
		p.guard.storeFailed(ctx, operation, "scope", err)
		return p.refuse(ctx, operation,
			problemUnavailable.detailed("the caller could not be identified; nothing was executed"))
	}
}

// Unreadable returns the problem of a stored answer that the adapter cannot decode. Nothing was executed now. The
// problem is logged and reported to the observer.
func (p *Procedure) Unreadable(ctx context.Context, operation string, err error) *Problem {
	p.guard.storeFailed(ctx, operation, "replay", err)
	return p.refuse(ctx, operation, p.guard.failureProblem(&store.UnreadableError{Reason: err.Error()}))
}

// RequestFields returns the canonical names of the fields of a [Call].Header that Serve reads: the names of the key, of
// which the first present one counts, and last the time of first sending.
func (p *Procedure) RequestFields() []string {
	return append(slices.Clone(p.guard.config.Keys.Headers), FirstSentHeader)
}

// AppendAnswerFields appends the header fields of an answer, for a transport that has header fields: the time until
// which the answer is kept, and whether it is a replay.
func (p *Procedure) AppendAnswerFields(fields []store.HeaderField, s *Served) []store.HeaderField {
	if !s.ExpiresAt.IsZero() {
		fields = append(fields, store.HeaderField{Name: expiresHeader, Value: s.ExpiresAt.UTC().Format(http.TimeFormat)})
	}
	if s.Replayed {
		fields = append(fields, store.HeaderField{Name: p.guard.config.ReplayedHeader, Value: "true"})
	}
	return fields
}

// KeepsField reports whether a header field of an answer is to be stored with it, by the rules for a handler's answer
// (rule A2) and by [StoreHeaders] and [DropHeaders].
func (p *Procedure) KeepsField(name string) bool {
	return p.settings.headers.keeps(http.CanonicalHeaderKey(name))
}

// refusal returns the problem of a call with a key, or nil.
func (p *Procedure) refusal(call *Call) *Problem {
	if err := call.check(); err != nil {
		return keyProblem(err)
	}
	if err := p.guard.config.Keys.checkDecoded(call.Key); err != nil {
		return keyProblem(err)
	}
	if int64(len(call.Payload)) > p.settings.bodyLimit {
		return tooLarge(p.settings.bodyLimit)
	}
	return p.settings.firstSent.check(call.Header, time.Now())
}

// refuse logs and reports a call that is refused before any reservation.
func (p *Procedure) refuse(ctx context.Context, operation string, problem *Problem) *Problem {
	now := p.guard.occurrence(problem)
	p.guard.logProblem(ctx, operation, now)
	p.guard.observe(ctx, RejectedEvent{Operation: operation, Code: now.Code, Instance: now.Instance})
	return p.guard.renamed(now)
}

// procedureRun is one call of [Procedure.Serve].
type procedureRun struct {
	execution
	fn       func(ctx context.Context) Answer
	answer   Answer   // the answer of the last run
	problem  *Problem // Onceward's own answer in place of answer
	sendOwn  bool     // the answer is returned for an unknown outcome
	panicked any
}

// work implements [runner].
func (f *procedureRun) work(ctx context.Context, op *Operation) outcome {
	f.answer, f.problem, f.sendOwn, f.panicked, f.passedOn = Answer{}, nil, false, nil, false
	op.restart()
	started := time.Now()
	f.call(ctx)
	end := f.outcome(ctx, op)
	f.hasRun(started, end.kind, f.answer.Status, f.panicked != nil, false)
	return end
}

// call runs the function and keeps its panic until after the result (rule E8).
func (f *procedureRun) call(ctx context.Context) {
	defer func() { f.panicked = recover() }()
	f.answer = f.fn(ctx)
}

// outcome returns the outcome of a run, from the function's answer and the outcome that the function set, by the same
// rules as for a handler (rule E5).
func (f *procedureRun) outcome(ctx context.Context, op *Operation) outcome {
	transactional := f.settings.mode == modeTransactional
	switch ended := op.outcome.Load(); {
	case ended == endedUnknown && !transactional:
		f.sendOwn = f.answer.Status >= http.StatusInternalServerError
		return outcome{kind: outcomeUnknown, reason: op.reasonOr("the procedure reported that the outcome is unknown")}
	case ended == endedSuspended && !transactional:
		return f.suspended()
	case ended != endedAsWritten:
		return f.declaredNotExecuted(op)
	case f.panicked != nil:
		return f.unanswered(ctx, "the procedure panicked", &problemHandlerFailed)
	case f.answer.Status == 0 && ctx.Err() != nil:
		reason := "the procedure ran past its deadline, or lost its lease, and gave no answer"
		return f.unanswered(ctx, reason, &problemDeadline)
	case f.answer.Status != 0 && f.answer.Status < http.StatusOK:
		return f.unanswered(ctx, "the procedure answered without a final status", &problemHandlerFailed)
	}
	response := f.response()
	if response.NotStored && transactional {
		f.problem = &problemTooLarge
		return outcome{kind: outcomeRelease, reason: errTooLarge.Error()}
	}
	end := f.judge(ctx, response)
	f.sendOwn = end.kind == outcomeUnknown
	return end
}

// declaredNotExecuted returns the outcome of a call of [Operation.NotExecuted] or [Operation.Reject]. An answer that
// reports success would contradict it, and is replaced.
func (f *procedureRun) declaredNotExecuted(op *Operation) outcome {
	if f.answer.Status < http.StatusBadRequest {
		f.problem = problemNotExecuted.detailed("retry with the same key")
	}
	reason := "the procedure reported that nothing was executed"
	if op.rejected.Load() {
		reason = "the procedure rejected the call"
	}
	return outcome{kind: outcomeRelease, reason: op.reasonOr(reason)}
}

// unanswered returns the outcome of a run without an answer of its own.
func (f *procedureRun) unanswered(ctx context.Context, reason string, problem *Problem) outcome {
	f.problem = problem
	end := failedAs(f.onFailure(ctx), f.op.reasonOr(reason), func() store.Response {
		f.answer = storedProblem(f.guard.occurrence(&problemHandlerFailed))
		f.problem = nil
		return f.response()
	})
	f.problem = end.problem(f.problem)
	return end
}

// problemType is the media type of a problem. It also marks a problem that is stored as the answer of a procedure that
// panicked.
const problemType = "application/problem+json"

func storedProblem(p *Problem) Answer {
	body, _ := json.Marshal(p) // text and numbers always encode
	return Answer{Status: p.Status, ContentType: problemType, Body: body}
}

// response returns the answer to store. It shares no memory with the answer of the function.
func (f *procedureRun) response() store.Response {
	f.answer = f.answer.withDefaults()
	if len(f.answer.Body) > f.settings.responseLimit {
		return store.Response{Status: f.answer.Status, NotStored: true}
	}
	return store.Response{
		Status: f.answer.Status,
		Header: []store.HeaderField{{Name: "Content-Type", Value: f.answer.ContentType}},
		Body:   slices.Clone(f.answer.Body),
	}
}

// served runs the call and returns its result. A panic of the function is raised again (rule E8).
func (f *procedureRun) served() (Served, error) {
	res := f.run(f)
	if f.panicked != nil {
		panic(f.panicked)
	}
	switch res.kind {
	case resultAnswer:
		return Served{Answer: f.answer, ExpiresAt: res.expires}, f.storedProblem(&f.answer)
	case resultStored:
		return f.replayed(&res)
	case resultReleased:
		return f.unkept()
	case resultUnknown:
		if !f.sendOwn {
			f.problem = becameUnknown()
		}
		served, err := f.unkept()
		served.Unknown = err == nil
		return served, err
	case resultDecision:
		return Served{}, f.report(f.guard.decisionProblem(&res))
	case resultCallerLeft:
		return Served{}, f.report(problemNotExecuted.detailed("the caller left before execution"))
	default:
		return Served{}, f.report(f.guard.failureProblem(res.err))
	}
}

// unkept returns the function's answer although it is not stored, or Onceward's own answer in its place.
func (f *procedureRun) unkept() (Served, error) {
	if f.problem != nil {
		return Served{}, f.report(f.problem)
	}
	return Served{Answer: f.answer}, nil
}

// replayed returns the stored answer.
func (f *procedureRun) replayed(res *result) (Served, error) {
	response := res.answer()
	if response.NotStored {
		return Served{}, f.report(problemNotStored.detailed("it was too large; the call is not executed again"))
	}
	answer := Answer{Status: response.Status, Body: slices.Clone(response.Body)}
	for _, field := range response.Header {
		if field.Name == "Content-Type" {
			answer.ContentType = field.Value
		}
	}
	return Served{Answer: answer, Replayed: true, ExpiresAt: res.expires}, f.storedProblem(&answer)
}

// storedProblem returns the problem that was stored in place of an answer; nil if an answer was stored.
func (f *procedureRun) storedProblem(a *Answer) error {
	if a.ContentType != problemType {
		return nil
	}
	p := new(Problem)
	if err := json.Unmarshal(a.Body, p); err != nil {
		return f.report(f.guard.failureProblem(&store.UnreadableError{Reason: err.Error()}))
	}
	return f.guard.renamed(p)
}

// report logs and reports a problem after the reservation.
func (f *procedureRun) report(p *Problem) *Problem {
	return f.guard.renamed(f.guard.reportProblem(f.base, f.reservation.ID, f.op.name, p))
}
