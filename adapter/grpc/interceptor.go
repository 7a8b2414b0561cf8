// Package oncewardgrpc protects unary methods of a gRPC server: each call with a key runs at most once, by the same
// rules as handlers of net/http, and its retries get the answer of the first call.
//
//	protect, err := oncewardgrpc.New(guard, oncewardgrpc.Config{
//		Scope: tenantOf, // from what an interceptor in front of this one has authenticated
//		Methods: map[string]oncewardgrpc.Method{
//			"/acme.payments.v1.Payments/Create": {Options: []onceward.Option{onceward.Transactional()}},
//		},
//	})
//	…
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, protect.Unary))
//
// The key is in the metadata as idempotency-key, or in a field of the request as AIP-155 specifies. docs/rpc.md
// describes what each code means for the guard, and which codes the guard itself returns.
//
// A gateway in the same process needs [Interceptor.InProcess].
package oncewardgrpc

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/rpc"
	"github.com/onceward/onceward/store"
)

// Config configures an [Interceptor].
type Config struct {
	// Scope returns the security boundary of the key of a call, derived from authentication: a tenant, an account. Its
	// argument method is the full name of the method. An error that wraps [onceward.ErrUnauthenticated], or an empty
	// scope, is answered with UNAUTHENTICATED. An error with the code UNAUTHENTICATED or PERMISSION_DENIED is returned
	// unchanged. Any other error is answered with UNAVAILABLE. In all these cases nothing is executed. Required.
	Scope func(ctx context.Context, method string) (string, error)
	// Actor returns the name of the caller, for the audit of executions: see [onceward.AuditExecutions]. Default: the
	// scope.
	Actor func(ctx context.Context, method string) string
	// Methods are the protected methods by full name, such as /acme.payments.v1.Payments/Create. Other methods are not
	// protected: [Interceptor.Audit] lists them. At least one is required.
	Methods map[string]Method
	// GatewaysDial means that no gateway in this process calls the implementation of a service directly, without the
	// interceptors, as grpc-gateway's RegisterXHandlerServer does. Default: false; [Interceptor.Audit] lists the
	// methods that a gateway may call in this way.
	GatewaysDial bool
}

// Method is the protection of a method.
type Method struct {
	// Options are the same options as for a route: at least [onceward.Transactional] or [onceward.Reserved]. Default:
	// [onceward.Config].Defaults.
	Options []onceward.Option
	// RequestID is the name of a string field of the request that may carry the key, as AIP-155 specifies: a UUID of
	// version 4. The field is not part of the request's fingerprint. If the metadata also has a key, the two must be
	// equal. Default: none.
	RequestID string
}

// Interceptor protects methods of a server.
type Interceptor struct {
	scope   func(ctx context.Context, method string) (string, error)
	actor   func(ctx context.Context, method string) string // nil means the scope
	methods map[string]*rpc.Method
	names   map[string]string // the guard's fields in lower case, as in metadata
	dialled bool              // Config.GatewaysDial

	inProcess sync.Map // names of the methods that are registered with an InProcess
}

// New returns an interceptor, or an error if the configuration is invalid, for example because a method streams.
func New(guard *onceward.Guard, config Config) (*Interceptor, error) {
	switch {
	case config.Scope == nil:
		return nil, errors.New("oncewardgrpc: Config.Scope is missing: it says whose key it is")
	case len(config.Methods) == 0:
		return nil, errors.New("oncewardgrpc: Config.Methods is empty: nothing would be protected")
	}
	i := &Interceptor{
		scope: config.Scope, actor: config.Actor, dialled: config.GatewaysDial,
		methods: make(map[string]*rpc.Method, len(config.Methods)), names: make(map[string]string),
	}
	for name, m := range config.Methods {
		method, err := rpc.NewMethod(guard, name, m.RequestID, m.Options)
		if err != nil {
			return nil, err
		}
		i.methods[name] = method
		for _, f := range method.AppendAnswerFields(nil, &onceward.Served{Replayed: true, ExpiresAt: time.Now()}) {
			i.names[f.Name] = strings.ToLower(f.Name)
		}
	}
	return i, nil
}

// PastInterceptor is the suffix that [Interceptor.Audit] adds to the name of a method that a gateway may call without
// the interceptor.
const PastInterceptor = " (by a gateway in the process)"

// Audit returns the sorted full names of a server's methods, including streams (L6), that may change state and are not
// protected. It omits the methods in exempt, and methods whose schema declares an idempotency_level: they have no side
// effects, or may be repeated without protection.
//
// A protected method is listed with the suffix [PastInterceptor] if its schema has an HTTP rule (google.api.http), it
// is not registered with an [InProcess], and [Config].GatewaysDial is not set: Audit cannot know whether a gateway in
// the process calls its implementation. Audit cannot see calls by other code of the program.
func (i *Interceptor) Audit(services map[string]grpc.ServiceInfo, exempt ...string) (unprotected []string) {
	for service, info := range services {
		for _, method := range info.Methods {
			name := "/" + service + "/" + method.Name
			listed := name
			if i.methods[name] != nil {
				if _, registered := i.inProcess.Load(name); registered || i.dialled || !rpc.HasHTTPRule(name) {
					continue
				}
				listed += PastInterceptor
			}
			if !slices.Contains(exempt, listed) && rpc.ChangesState(name) {
				unprotected = append(unprotected, listed)
			}
		}
	}
	slices.Sort(unprotected)
	return unprotected
}

// Unary is a [grpc.UnaryServerInterceptor]. Interceptors that authenticate, or recover from panics, come before it.
// Interceptors after it run only when the handler runs.
func (i *Interceptor) Unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	m := i.methods[info.FullMethod]
	if m == nil {
		return handler(ctx, request)
	}
	message, err := rpc.Message(request)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	scope, err := i.scope(ctx, m.Name)
	if err != nil {
		return nil, refuseCaller(ctx, m, err)
	}
	x := &execution{method: m, request: request, handler: handler}
	if x.call, err = m.Call(scope, header(ctx, m), message, x.room[:0]); err != nil {
		return nil, refuse(ctx, m.Refuse(ctx, m.Operation(), err))
	}
	if i.actor != nil {
		x.call.Actor = i.actor(ctx, m.Name)
	}
	served, err := m.Serve(ctx, x.call.Call, x.run)
	i.addFields(ctx, x, &served)
	switch {
	case err != nil:
		return nil, failed(ctx, err)
	case served.Replayed:
		return replay(ctx, m, served.Answer)
	default:
		x.send(ctx)
		return x.reply, x.err
	}
}

// failed returns the error for a problem of the guard, and other errors unchanged.
func failed(ctx context.Context, err error) error {
	if problem := (*onceward.Problem)(nil); errors.As(err, &problem) {
		return refuse(ctx, problem)
	}
	return err
}

// addFields adds the guard's fields to the header of the answer.
func (i *Interceptor) addFields(ctx context.Context, x *execution, served *onceward.Served) {
	var room [len(x.values)]store.HeaderField
	fields := x.method.AppendAnswerFields(room[:0], served)
	if len(fields) == 0 {
		return
	}
	md, values := make(metadata.MD, len(fields)), x.values[:0]
	for n, f := range fields {
		values = append(values, f.Value)
		md[i.lower(f.Name)] = values[n : n+1 : n+1]
	}
	setFields(ctx, md, nil)
}

// lower returns the name of a field in lower case, as in metadata.
func (i *Interceptor) lower(name string) string {
	if known, ok := i.names[name]; ok {
		return known
	}
	return strings.ToLower(name)
}

// header returns the metadata that the guard reads.
func header(ctx context.Context, m *rpc.Method) http.Header {
	h := make(http.Header, len(m.Fields))
	for _, name := range m.Fields {
		if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
			h[name] = values
		}
	}
	return h
}

// refuseCaller answers a call whose scope is unknown. The service's own answer to an unauthorized caller stays
// unchanged.
func refuseCaller(ctx context.Context, m *rpc.Method, err error) error {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		m.Refuse(ctx, m.Operation(), onceward.ErrUnauthenticated)
		return err
	default:
		return refuse(ctx, m.Refuse(ctx, m.Operation(), err))
	}
}

// refuse answers with a problem. A trailer field has the time after which a client may retry automatically, or forbids
// retries.
func refuse(ctx context.Context, p *onceward.Problem) error {
	if p.OwnCode() == "missing-key" {
		p.Detail = missingKey
	}
	// SetHeader and SetTrailer fail only if nothing can be sent any more.
	for name, values := range rpc.ProblemFields(p) {
		_ = grpc.SetHeader(ctx, metadata.MD{strings.ToLower(name): values})
	}
	switch {
	case !p.Retryable:
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, "-1"))
	case p.RetryAfter > 0:
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, strconv.FormatInt(p.RetryAfter.Milliseconds(), 10)))
	}
	return status.FromProto(rpc.ProblemStatus(p)).Err()
}

// missingKey is the detail of the problem for a missing key: a gateway may have dropped the key.
const missingKey = "send the metadata idempotency-key with a value that is unique to this operation, and the same value " +
	"on every retry; grpc-gateway drops the header Idempotency-Key unless it has the header matcher " +
	"oncewardgrpc.IncomingHeader"

// pushback is the trailer field that controls the retries of gRPC client libraries: a delay in milliseconds, or a
// negative number to forbid retries.
const pushback = "grpc-retry-pushback-ms"
