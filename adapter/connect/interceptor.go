// Package oncewardconnect protects unary methods of a Connect server, whichever protocol a client speaks to it
// (Connect, gRPC or gRPC-Web): each call with a key runs at most once, by the rules that hold for handlers of net/http,
// and its retries get the answer of the first.
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
// The key comes in the header Idempotency-Key, or in a field of the request as AIP-155 has it. What a code means for
// the guard, and with which codes it answers itself, is in docs/rpc.md.
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
	// Scope names the security boundary that the key of a call lives in, from authentication: a tenant, an account. It
	// must not look at the message. An error that wraps [onceward.ErrUnauthenticated], or an empty scope, is answered
	// with unauthenticated, one with the code unauthenticated or permission_denied as it is, and any other with
	// unavailable; nothing is executed. It is required, and has no default.
	Scope func(ctx context.Context, request connect.AnyRequest) (string, error)
	// Actor names who calls, for the audit of executions: see [onceward.AuditExecutions]. Default: the scope.
	Actor func(ctx context.Context, request connect.AnyRequest) string
	// Methods are the methods that are protected, under the names of their procedures, such as
	// /acme.payments.v1.Payments/Create. Others pass straight through: [Interceptor.Audit] lists them. At least one is
	// required; there is no default.
	Methods map[string]Method
}

// Method says how a method is protected.
type Method struct {
	// Options are those of a route: [onceward.Transactional] or [onceward.Reserved] at least. Default: those of
	// [onceward.Config].Defaults.
	Options []onceward.Option
	// Response is the type of the method's response, made by [Response]: a replay has to be of the type that other
	// interceptors expect. It is required, and has no default.
	Response ResponseType
	// RequestID names a string field of the request that may carry the key, as AIP-155 has it: a UUID of version 4. It
	// is none of what the request means. If the header has a key too, it must be the same. Default: none.
	RequestID string
}

// ResponseType is the type of a response. See [Response].
type ResponseType struct {
	wrap func(proto.Message) (response connect.AnyResponse, ok bool)
}

// Response names the type of a method's response, as in Response[paymentsv1.Receipt]().
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
	actor   func(ctx context.Context, request connect.AnyRequest) string // nil for the scope
	methods map[string]*method
}

var _ connect.Interceptor = (*Interceptor)(nil)

// method is a method with the type of its response.
type method struct {
	*rpc.Method
	response ResponseType
}

// New returns an interceptor, or an error that says what cannot be right, such as a method that streams.
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

// Audit returns the procedures of services that may change state and are not protected, streams too (L6), in their
// order. It leaves out those in exempt, and those whose schema gives them an idempotency_level: they have no side
// effects, or may be repeated as they are. The services are those of a file, such as paymentsv1.File_….Services().
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

// WrapUnary implements [connect.Interceptor]. Interceptors that authenticate come before this one; those behind it run
// only when the handler does. The calls of a client pass.
func (i *Interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		spec := request.Spec()
		if m := i.methods[spec.Procedure]; m != nil && !spec.IsClient {
			return i.serve(ctx, m, request, next)
		}
		return next(ctx, request)
	}
}

// WrapStreamingClient implements [connect.Interceptor]. Streams pass.
func (i *Interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements [connect.Interceptor]. Streams pass.
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

// refuseCaller answers a call whose scope is not known. What the service says to those who may not call stays as it is.
func refuseCaller(ctx context.Context, m *method, err error) error {
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		m.Refuse(ctx, m.Operation(), onceward.ErrUnauthenticated)
		return err
	default:
		return problemError(m.Refuse(ctx, m.Operation(), err))
	}
}

// failed answers with the problem that the guard has.
func failed(err error) error {
	if problem := (*onceward.Problem)(nil); errors.As(err, &problem) {
		return problemError(problem)
	}
	return err
}
