// Package oncewardconnect protects unary methods of a Connect server, for clients of each protocol (Connect, gRPC or
// gRPC-Web): each call with a key runs at most once, by the same rules as handlers of net/http, and its retries get the
// answer of the first call.
//
//	protect, err := oncewardconnect.New(guard, oncewardconnect.Config{
//		Scope: tenantOf, // from what an interceptor in front of this one has authenticated
//		Methods: map[string]oncewardconnect.Method{
//			paymentsv1connect.PaymentsCreateProcedure: {
//				Options:  []onceward.Option{onceward.Transactional()},
//				Response: oncewardconnect.Response[paymentsv1.Receipt](),
//			},
//		},
//	})
//	…
//	path, handler := paymentsv1connect.NewPaymentsHandler(service, connect.WithInterceptors(authenticate, protect))
//
// The key is in the header Idempotency-Key, or in a field of the request as AIP-155 specifies. docs/rpc.md describes
// what each code means for the guard, and which codes the guard itself returns.
package oncewardconnect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/rpc"
)

// Config configures an [Interceptor].
type Config struct {
	// Scope returns the security boundary of the key of a call, derived from authentication: a tenant, an account. It
	// must not read the message. An error that wraps [onceward.ErrUnauthenticated], or an empty scope, is answered with
	// unauthenticated. An error with the code unauthenticated or permission_denied is returned unchanged. Any other
	// error is answered with unavailable. In all these cases nothing is executed. Required.
	Scope func(ctx context.Context, request connect.AnyRequest) (string, error)
	// Actor returns the name of the caller, for the audit of executions: see [onceward.AuditExecutions]. Default: the
	// scope.
	Actor func(ctx context.Context, request connect.AnyRequest) string
	// Methods are the protected methods by procedure name, such as /acme.payments.v1.Payments/Create. Other methods are
	// not protected: [Interceptor.Audit] lists them. At least one is required.
	Methods map[string]Method
}

// Method is the protection of a method.
type Method struct {
	// Options are the same options as for a route: at least [onceward.Transactional] or [onceward.Reserved]. Default:
	// [onceward.Config].Defaults.
	Options []onceward.Option
	// Response is the type of the method's response, made by [Response]: a replay must have the type that other
	// interceptors expect. Required.
	Response ResponseType
	// RequestID is the name of a string field of the request that may carry the key, as AIP-155 specifies: a UUID of
	// version 4. The field is not part of the request's fingerprint. If the header also has a key, the two must be
	// equal. Default: none.
	RequestID string
}

// ResponseType is the type of a response. See [Response].
type ResponseType struct {
	wrap func(proto.Message) (response connect.AnyResponse, ok bool)
}

// Response returns the type of a method's response, as in Response[paymentsv1.Receipt]().
func Response[T any, P interface {
	*T
	proto.Message
}]() ResponseType {
	return ResponseType{wrap: func(message proto.Message) (connect.AnyResponse, bool) {
		typed, ok := message.(P)
		return connect.NewResponse((*T)(typed)), ok
	}}
}

// Interceptor protects methods of a server.
type Interceptor struct {
	scope   func(ctx context.Context, request connect.AnyRequest) (string, error)
	actor   func(ctx context.Context, request connect.AnyRequest) string // nil means the scope
	methods map[string]*method
}

var _ connect.Interceptor = (*Interceptor)(nil)

// method is a method with the type of its response.
type method struct {
	*rpc.Method
	response ResponseType
}

// New returns an interceptor, or an error if the configuration is invalid, for example because a method streams.
func New(guard *onceward.Guard, config Config) (*Interceptor, error) {
	switch {
	case config.Scope == nil:
		return nil, errors.New("oncewardconnect: Config.Scope is missing: it says whose key it is")
	case len(config.Methods) == 0:
		return nil, errors.New("oncewardconnect: Config.Methods is empty: nothing would be protected")
	}
	i := &Interceptor{scope: config.Scope, actor: config.Actor, methods: make(map[string]*method, len(config.Methods))}
	for name, m := range config.Methods {
		found, err := rpc.NewMethod(guard, name, m.RequestID, m.Options)
		if err != nil {
			return nil, err
		}
		output := found.Output.Descriptor()
		if m.Response.wrap == nil {
			return nil, fmt.Errorf("oncewardconnect: the Response of %s is missing: it is a %s", name, output.FullName())
		}
		if _, ok := m.Response.wrap(found.Output.Zero().Interface()); !ok {
			return nil, fmt.Errorf("oncewardconnect: the Response of %s is a %s", name, output.FullName())
		}
		i.methods[name] = &method{Method: found, response: m.Response}
	}
	return i, nil
}

// Audit returns the sorted procedure names of the methods of services, including streams (L6), that may change state
// and are not protected. It omits the procedures in exempt, and methods whose schema declares an idempotency_level:
// they have no side effects, or may be repeated without protection. The services are the services of a file, such as
// paymentsv1.File_….Services().
func (i *Interceptor) Audit(services protoreflect.ServiceDescriptors, exempt ...string) (unprotected []string) {
	for s := range services.Len() {
		service := services.Get(s)
		for m := range service.Methods().Len() {
			name := fmt.Sprintf("/%s/%s", service.FullName(), service.Methods().Get(m).Name())
			if i.methods[name] == nil && !slices.Contains(exempt, name) && rpc.ChangesState(name) {
				unprotected = append(unprotected, name)
			}
		}
	}
	slices.Sort(unprotected)
	return unprotected
}

// WrapUnary implements [connect.Interceptor]. Interceptors that authenticate come before this one. Interceptors after
// it run only when the handler runs. The calls of a client are not changed.
func (i *Interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		spec := request.Spec()
		if m := i.methods[spec.Procedure]; m != nil && !spec.IsClient {
			return i.serve(ctx, m, request, next)
		}
		return next(ctx, request)
	}
}

// WrapStreamingClient implements [connect.Interceptor]. It does not change streams.
func (i *Interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements [connect.Interceptor]. It does not change streams.
func (i *Interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (i *Interceptor) serve(
	ctx context.Context, m *method, request connect.AnyRequest, next connect.UnaryFunc,
) (connect.AnyResponse, error) {
	message, err := rpc.Message(request.Any())
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	scope, err := i.scope(ctx, request)
	if err != nil {
		return nil, refuseCaller(ctx, m, err)
	}
	x := newExecution(ctx, m, request, next)
	if x.call, err = m.Call(scope, request.Header(), message, x.room[:0]); err != nil {
		return nil, problemError(m.Refuse(ctx, m.Operation(), err))
	}
	if i.actor != nil {
		x.call.Actor = i.actor(ctx, request)
	}
	served, err := m.Serve(ctx, x.call.Call, x.run)
	switch {
	case err != nil:
		x.forget()
		x.err = failed(err)
	case served.Replayed:
		x.replay(ctx, served.Answer)
	}
	x.addFields(&served)
	return x.response, x.err
}

// refuseCaller answers a call whose scope is unknown. The service's own answer to an unauthorized caller stays
// unchanged.
func refuseCaller(ctx context.Context, m *method, err error) error {
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		m.Refuse(ctx, m.Operation(), onceward.ErrUnauthenticated)
		return err
	default:
		return problemError(m.Refuse(ctx, m.Operation(), err))
	}
}

// failed returns the error for a problem of the guard, and other errors unchanged.
func failed(err error) error {
	if problem := (*onceward.Problem)(nil); errors.As(err, &problem) {
		return problemError(problem)
	}
	return err
}
