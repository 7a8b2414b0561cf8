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

// Procedure is a protected operation that does not come by net/http: a gRPC method, a tool of MCP, a mutation. It is to
// them what [Guard.Handler] is to a route: it reads the key, refuses what is not valid, runs the work once, judges its
// answer by the same rules, and says what is wrong as a [Problem]. Adapters of frameworks are made of it; a job or a
// consumer wants [Guard.Do].
type Procedure struct {
	guard    *Guard
	settings *settings
}

// Procedure returns an operation with the options of a route, and counts it among those of [Guard.CheckOperations]. Its
// name is that of [OperationName]; without one each [Call] says what it does.
//
// Options that read an HTTP request, or answer one, are refused: a call has none. Of [Config].Defaults those are
// refused whose promise would be broken: [BindSession], [WithoutBody], and what may add to the fingerprint,
// [IncludeHeaders] and [FingerprintBy], unless they are taken back, as by IncludeHeaders() and FingerprintBy(nil).
// Others are left out, as [InFlightAccepted] is: a duplicate of a call in flight is a conflict.
func (g *Guard) Procedure(options ...Option) (*Procedure, error) {
	s, err := g.settings(options)
	if err != nil {
		return nil, err
	}
	own := new(settings)
	for _, option := range options {
		_ = option(own) // which has succeeded before
	}
	if err := cmp.Or(s.refuseBroken(), own.refuseUnused()); err != nil {
		return nil, err
	}
	g.names.addProcedure(s.operation)
	return &Procedure{guard: g, settings: s}, nil
}

// refuseBroken refuses options without which a promise would be broken.
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

// Operation returns the name of [OperationName]; empty if each call says what it does.
func (p *Procedure) Operation() string { return p.settings.operation }

// ParseKey reads a key that came along with a call as it would stand in a header line, by the rules of [Config].Keys.
func (p *Procedure) ParseKey(line string) (string, error) { return p.guard.config.Keys.parse(line) }

// Answer is what a procedure answers, in a form of its own. Its status says what it means, by the rules for the answers
// of handlers (E5): 2xx and 3xx commit, a 4xx undoes the writes of a transaction and is stored, 401, 408, 425 and 429
// say that nothing was done, and a 5xx undoes a transaction, or else follows the [Failure] of the route.
type Answer struct {
	// Status is an HTTP status, 200 or above. Default: 200.
	Status int
	// ContentType says what Body is, to the program that replays it and to an operator. A problem of its own is not to
	// be given as application/problem+json, which is kept for those of Onceward. Default: application/octet-stream.
	ContentType string
	// Body is all that a replay needs.
	Body []byte
}

func (a Answer) withDefaults() Answer {
	a.Status = cmp.Or(a.Status, http.StatusOK)
	a.ContentType = cmp.Or(a.ContentType, "application/octet-stream")
	return a
}

// Served is what [Procedure.Serve] returns.
type Served struct {
	Answer
	// Replayed says that the answer is that of an earlier attempt.
	Replayed bool
	// ExpiresAt is until when the answer is kept; zero for one that is not kept.
	ExpiresAt time.Time
	// Unknown says that the answer was passed on although the outcome is unknown: it is that of a failure.
	Unknown bool
}

// Serve runs fn at most once for the call, and returns its answer, of now or of an earlier attempt. The rules of
// [Config].Keys hold for its Key, but for the syntax; a call without one has it in its Header. If it has none and the
// procedure has [KeyOptional], fn runs unprotected. A call without an Operation has that of the procedure.
//
// The context's cancellation does not reach fn, but its values do; fn is bounded by the [Deadline] option, and may run
// again if a database undid its transaction: what it is given has to be the same then. A panic of fn goes on.
//
// Where there is no answer of fn's to give, the error is a *[Problem], which was told to the log and the observer.
func (p *Procedure) Serve(ctx context.Context, call Call, fn func(ctx context.Context) Answer) (Served, error) {
	p.guard.handling.Add(1)
	defer p.guard.handling.Add(-1)
	if call.Operation = cmp.Or(call.Operation, p.settings.operation); call.Operation == "" {
		return Served{}, p.refuse(ctx, call.Operation, problemUnnamed.detailed("the call does not say what it does"))
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

// Refuse says why a call is not served, when its caller or its key cannot be told: the error is that of a scope function
// or of [Procedure.ParseKey]. Nothing was executed. The problem was told to the log and the observer.
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

// Unreadable says that the stored answer of a call cannot be given again by the program that asks for it: its form is
// not one that the adapter knows. Nothing was executed now. The problem was told to the log and the observer.
func (p *Procedure) Unreadable(ctx context.Context, operation string, err error) *Problem {
	p.guard.storeFailed(ctx, operation, "replay", err)
	return p.refuse(ctx, operation, p.guard.failureProblem(&store.UnreadableError{Reason: err.Error()}))
}

// RequestFields returns the canonical names of the fields of a [Call].Header that Serve reads: those of the key, the
// first of which counts, and last that of the time of first sending.
func (p *Procedure) RequestFields() []string {
	return append(slices.Clone(p.guard.config.Keys.Headers), FirstSentHeader)
}

// AppendAnswerFields appends the header fields that go out with an answer, where a transport has such: until when it is
// kept, and whether it is a replay.
func (p *Procedure) AppendAnswerFields(fields []store.HeaderField, s *Served) []store.HeaderField {
	if !s.ExpiresAt.IsZero() {
		fields = append(fields, store.HeaderField{Name: expiresHeader, Value: s.ExpiresAt.UTC().Format(http.TimeFormat)})
	}
	if s.Replayed {
		fields = append(fields, store.HeaderField{Name: p.guard.config.ReplayedHeader, Value: "true"})
	}
	return fields
}

// KeepsField reports whether a header field of an answer is to be stored with it, by the rules for the fields of a
// handler's answer (A2) and by [StoreHeaders] and [DropHeaders].
func (p *Procedure) KeepsField(name string) bool {
	return p.settings.headers.keeps(http.CanonicalHeaderKey(name))
}

// refusal is what is wrong with a call that has a key.
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

// refuse tells of a call that is refused before any reservation.
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
	answer   Answer   // of the last run
	problem  *Problem // Onceward's own in its place
	passOn   bool     // the answer is given although the outcome is unknown
	panicked any
}

// work implements [runner].
func (f *procedureRun) work(ctx context.Context, op *Operation) outcome {
	f.answer, f.problem, f.passOn, f.panicked = Answer{}, nil, false, nil
	op.restart()
	started := time.Now()
	f.call(ctx)
	end := f.outcome(ctx, op)
	f.logFailure(f.answer.Status, end.kind)
	if f.guard.config.Observer != nil {
		f.guard.observe(f.base, ExecutedEvent{
			ID: f.reservation.ID, Operation: op.name, Attempt: op.attempt, Status: f.answer.Status,
			Panicked: f.panicked != nil, Unknown: end.kind == outcomeUnknown, Elapsed: time.Since(started),
		})
	}
	return end
}

// call runs the function and keeps its panic for after the result (E8).
func (f *procedureRun) call(ctx context.Context) {
	defer func() { f.panicked = recover() }()
	f.answer = f.fn(ctx)
}

// outcome judges what the function did and said, as that of a handler is judged (E5).
func (f *procedureRun) outcome(ctx context.Context, op *Operation) outcome {
	transactional := f.settings.mode == modeTransactional
	switch said := op.outcome.Load(); {
	case said == endedUnknown && !transactional:
		f.passOn = f.answer.Status >= http.StatusInternalServerError
		return outcome{kind: outcomeUnknown, reason: op.reasonOr("the procedure said that the outcome is unknown")}
	case said == endedSuspended && !transactional:
		return f.suspended()
	case said != endedAsWritten:
		return f.saidNotExecuted(op)
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
	f.passOn = end.kind == outcomeUnknown
	return end
}

// saidNotExecuted: an answer that claims success would contradict it, and is replaced.
func (f *procedureRun) saidNotExecuted(op *Operation) outcome {
	if f.answer.Status < http.StatusBadRequest {
		f.problem = problemNotExecuted.detailed("retry with the same key")
	}
	reason := "the procedure said that nothing was executed"
	if op.rejected.Load() {
		reason = "the procedure rejected the call"
	}
	return outcome{kind: outcomeRelease, reason: op.reasonOr(reason)}
}

// unanswered is the outcome of a run without an answer of its own.
func (f *procedureRun) unanswered(ctx context.Context, reason string, problem *Problem) outcome {
	f.problem = problem
	return failedAs(f.onFailure(ctx), f.op.reasonOr(reason), func() store.Response {
		f.answer = storedProblem(f.guard.occurrence(&problemHandlerFailed))
		f.problem = nil
		return f.response()
	})
}

// problemType is the media type of a problem, also of one that is stored as the answer of a procedure that panicked.
const problemType = "application/problem+json"

func storedProblem(p *Problem) Answer {
	body, _ := json.Marshal(p) // of text and numbers
	return Answer{Status: p.Status, ContentType: problemType, Body: body}
}

// response is the answer as it is stored. It shares no memory with the caller's.
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

// served takes the call to its result. A panic of the function goes on (E8).
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
		if !f.passOn {
			f.problem = becameUnknown()
		}
		served, err := f.unkept()
		served.Unknown = err == nil
		return served, err
	case resultDecision:
		return Served{}, f.tell(f.guard.decisionProblem(&res))
	case resultCallerLeft:
		return Served{}, f.tell(problemNotExecuted.detailed("the caller left before execution"))
	default:
		return Served{}, f.tell(f.guard.failureProblem(res.err))
	}
}

// unkept gives the answer of the function although it is not stored, or Onceward's own in its place.
func (f *procedureRun) unkept() (Served, error) {
	if f.problem != nil {
		return Served{}, f.tell(f.problem)
	}
	return Served{Answer: f.answer}, nil
}

// replayed gives the stored answer.
func (f *procedureRun) replayed(res *result) (Served, error) {
	response := res.answer()
	if response.NotStored {
		return Served{}, f.tell(problemNotStored.detailed("it was too large; the call is not executed again"))
	}
	answer := Answer{Status: response.Status, Body: slices.Clone(response.Body)}
	for _, field := range response.Header {
		if field.Name == "Content-Type" {
			answer.ContentType = field.Value
		}
	}
	return Served{Answer: answer, Replayed: true, ExpiresAt: res.expires}, f.storedProblem(&answer)
}

// storedProblem is the problem that was stored in the place of an answer; nil if it is an answer.
func (f *procedureRun) storedProblem(a *Answer) error {
	if a.ContentType != problemType {
		return nil
	}
	p := new(Problem)
	if err := json.Unmarshal(a.Body, p); err != nil {
		return f.tell(f.guard.failureProblem(&store.UnreadableError{Reason: err.Error()}))
	}
	return f.guard.renamed(p)
}

// tell tells of a problem after the reservation.
func (f *procedureRun) tell(p *Problem) *Problem {
	return f.guard.renamed(f.guard.tellProblem(f.base, f.reservation.ID, f.op.name, p))
}
