package onceward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/onceward/onceward/store"
)

// Handler returns next with protection: for each key, next runs once. It panics if the options are wrong, as
// [http.ServeMux] does with a bad pattern: such a route must not start. [Guard.Route] returns the error instead.
func (g *Guard) Handler(next http.Handler, options ...Option) http.Handler {
	return g.Middleware(options...)(next)
}

// HandlerFunc protects a function, as [Guard.Handler] protects a handler.
func (g *Guard) HandlerFunc(next http.HandlerFunc, options ...Option) http.Handler {
	return g.Handler(next, options...)
}

// Middleware returns a middleware that protects the handler it wraps. It panics if the options are wrong. The wrapped
// handler must answer through the ResponseWriter that it gets, and runs again if a database undid its transaction. For
// frameworks with their own writer or handler chain see docs/routers.md.
func (g *Guard) Middleware(options ...Option) func(http.Handler) http.Handler {
	middleware, err := g.Route(options...)
	if err != nil {
		panic(err)
	}
	return middleware
}

// Route returns the same as [Guard.Middleware], with an error instead of a panic.
func (g *Guard) Route(options ...Option) (func(http.Handler) http.Handler, error) {
	s, err := g.settings(options)
	if err != nil {
		return nil, err
	}
	if g.config.Scope == nil {
		return nil, errors.New("onceward: Config.Scope is missing: it separates the keys of different callers; " +
			"use SingleScope if there is one caller only")
	}
	if s.audits && s.actor == nil {
		return nil, errors.New("onceward: AuditExecutions(nil): a route needs a function that returns the caller's name")
	}
	if s.retention < defaultRetention {
		g.config.Logger.Warn(
			"onceward: answers are kept for less than a day; a client that retries later executes again",
			"retention", s.retention, "operation", s.operation)
	}
	return func(next http.Handler) http.Handler {
		p := &protected{guard: g, settings: s, next: next}
		g.names.addRoute(p)
		return p
	}, nil
}

// protected is a handler with protection.
type protected struct {
	guard    *Guard
	settings *settings
	next     http.Handler
	placed   bool      // the guard's names include the route, or the route was dropped
	unnamed  sync.Once // guards the log line about the missing name
	latest   atomic.Pointer[patternName]
}

// patternName is the name of an operation, with the method and pattern it was made from.
type patternName struct{ method, pattern, name string }

// ServeHTTP implements [http.Handler].
func (p *protected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(p.settings.methods, r.Method) {
		p.next.ServeHTTP(w, r)
		return
	}
	p.guard.handling.Add(1)
	defer p.guard.handling.Add(-1)
	operation := p.operation(r)
	id, session, problem := p.identify(r)
	if problem != nil {
		p.reject(w, r, operation, problem)
		return
	}
	if id.Key == "" {
		p.guard.observe(r.Context(), UnprotectedEvent{Operation: cmp.Or(operation, r.Method)})
		p.next.ServeHTTP(w, r)
		return
	}
	if operation == "" {
		p.rejectUnnamed(w, r)
		return
	}
	x := newHTTPExecution(p, w, r)
	x.session = session
	if p.settings.audits {
		x.actor = strings.Clone(p.settings.actor(r))
	}
	x.prepare(p.guard, p.settings, r.Context(), id, operation)
	x.until, _ = r.Context().Deadline()
	x.serve()
}

// operation returns the name of the operation: the name of the route, or method and pattern. It is empty if the request
// has neither. A path is not used as a name, because it may contain values; the path counts in the fingerprint. Most
// handlers are on one route, whose name is computed once.
func (p *protected) operation(r *http.Request) string {
	if p.settings.operation != "" || r.Pattern == "" {
		return p.settings.operation
	}
	if latest := p.latest.Load(); latest != nil && latest.method == r.Method && latest.pattern == r.Pattern {
		return latest.name
	}
	name := operationName(r.Method, r.Pattern)
	p.latest.Store(&patternName{r.Method, r.Pattern, name})
	return name
}

// rejectUnnamed refuses a request of an operation without a name: with its method as its name, it would share rules
// with other operations. The remedy is logged once.
func (p *protected) rejectUnnamed(w http.ResponseWriter, r *http.Request) {
	p.unnamed.Do(func() {
		p.guard.config.Logger.ErrorContext(r.Context(), "onceward: a protected route has no name, and all of its requests "+
			"are refused: put the guard behind the router, around the single route, on a router that sets "+
			"http.Request.Pattern, or name the route with onceward.OperationName", "method", r.Method, "path", r.URL.Path)
	})
	p.reject(w, r, "", problemUnnamed.detailed("the operator of the service has to name it; nothing was executed"))
}

// identify returns the caller's scope and session and the key, from the header alone (rule A5: a request that can be
// refused by its header is refused before the body is read). An empty key means that the request runs unprotected.
func (p *protected) identify(r *http.Request) (id store.ID, session string, problem *Problem) {
	scope, session, problem := p.caller(r)
	if problem != nil {
		return id, "", problem
	}
	key, err := p.guard.config.Keys.fromHeader(r.Header)
	if errors.Is(err, ErrNoKey) && p.settings.optional {
		return id, "", nil
	}
	if err != nil {
		return id, "", keyProblem(err)
	}
	return store.ID{Scope: scope, Key: key}, session, p.refuseByHeader(r)
}

// caller returns the scope of a request, and its session if keys are bound to one. A store in memory or a limit keeps
// the scope for longer than the request, and some frameworks, such as fiber, reuse the memory of a request, including
// its strings. So the scope is copied, once for all requests of a scope.
func (p *protected) caller(r *http.Request) (scope, session string, problem *Problem) {
	scope, err := p.guard.config.Scope(r)
	switch {
	case errors.Is(err, ErrUnauthenticated) || err == nil && scope == "":
		return "", "", unauthenticated(err, "nothing was executed")
	case err != nil:
		p.guard.storeFailed(r.Context(), cmp.Or(p.operation(r), r.Method), "scope", err)
		return "", "", problemUnavailable.detailed("the caller could not be identified; nothing was executed")
	}
	if p.settings.session != nil {
		if session = p.settings.session(r); session == "" {
			problem = problemNoAuth.detailed("the request belongs to no session; nothing was executed")
			problem.Challenges = p.settings.challenges
			return "", "", problem
		}
	}
	return unique.Make(scope).Value(), session, nil
}

// refuseByHeader returns the problem of a request that can be refused without its body, or nil.
func (p *protected) refuseByHeader(r *http.Request) *Problem {
	switch {
	case upgrades(r.Header):
		return problemUpgrade.detailed("a switched connection cannot be replayed; send the request without Upgrade")
	case r.ContentLength > p.settings.bodyLimit:
		return tooLarge(p.settings.bodyLimit)
	default:
		return p.settings.firstSent.check(r.Header, time.Now())
	}
}

// upgrades reports whether a request asks to switch the protocol, other than to HTTP/2.
func upgrades(h http.Header) bool {
	offer := h.Get("Upgrade")
	return offer != "" && !strings.EqualFold(offer, "h2c") && listed(h["Connection"], "Upgrade")
}

func tooLarge(limit int64) *Problem {
	return problemBodyTooLarge.detailed(fmt.Sprintf("the limit is %d bytes; nothing was executed", limit))
}

// reject answers a request before any reservation. Nothing of the request is stored (rule A7).
func (p *protected) reject(w http.ResponseWriter, r *http.Request, operation string, problem *Problem) {
	now := p.guard.occurrence(problem)
	operation = cmp.Or(operation, r.Method)
	p.guard.logProblem(r.Context(), operation, now)
	p.guard.observe(r.Context(), RejectedEvent{Operation: operation, Code: now.Code, Instance: now.Instance})
	p.guard.writeProblem(w, now)
}

// httpExecution is the execution of an HTTP request.
type httpExecution struct {
	execution
	route    *protected
	request  *http.Request
	session  string
	body     *requestBody // the body of the current run; recorder belongs to it too
	recorder *recorder
	panicked any
	problem  *Problem // Onceward's own answer in place of the handler's
	sendOwn  bool     // the handler's own answer is sent for an unknown outcome
	wrote    bool     // a run, which may have been undone, wrote an answer
	notRerun bool     // the handler did not run again after it was undone
	bypassed bool     // the client got an answer that bypassed the recorder

	firstRequest  http.Request
	firstBody     requestBody
	firstRecorder recorder
}

func newHTTPExecution(p *protected, w http.ResponseWriter, r *http.Request) *httpExecution {
	x := &httpExecution{route: p, request: r}
	x.firstRecorder.real, x.firstRecorder.settings, x.firstRecorder.late = w, p.settings, x
	x.body, x.recorder = &x.firstBody, &x.firstRecorder
	return x
}

// serve reads the request, executes it, and answers.
func (x *httpExecution) serve() {
	in, out := newBuffer(), newBuffer()
	x.recorder.body = *out
	defer func() {
		x.body.close()
		*out = x.firstRecorder.close()
		freeBuffer(out)
		freeBuffer(in)
	}()
	if problem := x.read(in); problem != nil {
		x.route.reject(x.recorder.real, x.request, x.op.name, problem)
		return
	}
	res := x.run(x)
	x.answer(&res)
}

// read reads the body and computes the fingerprint. These are the last checks before the store is called.
func (x *httpExecution) read(buffer *[]byte) *Problem {
	if problem := x.body.read(x.request, buffer, x.settings.bodyLimit); problem != nil {
		return problem
	}
	if x.request.ContentLength < 0 && x.request.Body != http.NoBody && len(x.body.content) == 0 {
		x.logMistake(mistakeNoBody)
	}
	e := newEncoder()
	defer e.free()
	if err := e.request(x.request, x.op.name, x.body.content, &x.settings.fingerprint); err != nil {
		return problemBadRequest.detailed(err.Error())
	}
	scope := x.reservation.Scope
	x.reservation.Fingerprints = e.fingerprints(x.prints[:0], x.guard.secrets, scope, x.session)
	return nil
}

// work runs the handler. It implements [runner].
func (x *httpExecution) work(ctx context.Context, op *Operation) outcome {
	x.panicked, x.problem, x.sendOwn, x.notRerun, x.passedOn = nil, nil, false, false, false
	op.restart()
	if x.recorder.hasEnded() {
		// The store undid an earlier run. Nothing of that run may reach this one.
		x.body.close()
		x.body, x.recorder = &requestBody{content: x.body.content}, x.recorder.renewed()
	}
	x.recorder.start(ctx)
	x.recorder.op, x.recorder.head = op, x.request.Method == http.MethodHead
	if x.settings.mode == modeReserved {
		x.recorder.stream = x
	}
	started := time.Now()
	x.handle(ctx)
	end := x.outcome(ctx, op)
	x.hasRun(started, end.kind, x.recorder.status, x.panicked != nil, false)
	return end
}

// handle calls the handler and keeps its panic until after the result (rule E8).
func (x *httpExecution) handle(ctx context.Context) {
	request := x.handlerRequest(ctx)
	defer func() {
		x.panicked = recover()
		x.recorder.end()
		if request.MultipartForm != nil {
			_ = request.MultipartForm.RemoveAll() // the server knows only its own request
		}
	}()
	x.route.next.ServeHTTP(x.recorder, request)
	x.recorder.gatherTrailers()
}

// handlerRequest returns the request that the handler gets. A handler's changes to its request must not reach the next
// run of its transaction. In reserved mode the request is part of the execution, and costs no allocation.
func (x *httpExecution) handlerRequest(ctx context.Context) *http.Request {
	var request *http.Request
	if x.settings.mode == modeTransactional {
		request = x.request.Clone(ctx)
	} else {
		request = &x.firstRequest
		*request = *x.request.WithContext(ctx)
	}
	request.Body = x.body
	request.ContentLength = int64(len(x.body.content))
	request.TransferEncoding = nil
	return request
}

// markStreaming implements [streamMarker] (rule A4: a streamed answer cannot be replayed).
func (x *httpExecution) markStreaming() error {
	return x.persist("checkpoint", func(ctx context.Context) error {
		return x.guard.store.Checkpoint(ctx, x.claim(), store.Checkpoint{NotReplayable: true})
	})
}
