package oncewardgrpc

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/onceward/onceward/internal/rpc"
)

// InProcess is a connection to services of the same process, through the interceptors of a server. It is for
// grpc-gateway, whose RegisterXHandlerServer calls the implementation of a service without any interceptor. Services
// must be registered before the first call.
//
//	local := protect.InProcess(authenticate)
//	paymentspb.RegisterPaymentsServer(local, payments)
//	err := paymentspb.RegisterPaymentsHandlerClient(ctx, mux, paymentspb.NewPaymentsClient(local))
//
// It supports unary calls only. The interceptors and the handler see the values of the call's context, except the
// outgoing metadata, which becomes the incoming metadata. A call returns when the work has ended, even if its context
// ended earlier, like a handler of net/http.
type InProcess struct {
	interceptors []grpc.UnaryServerInterceptor
	served       func(method string)
	methods      map[string]inProcessMethod
}

type inProcessMethod struct {
	implementation any
	grpc.MethodDesc
}

var (
	_ grpc.ServiceRegistrar    = (*InProcess)(nil)
	_ grpc.ClientConnInterface = (*InProcess)(nil)
)

// InProcess returns a connection whose calls run through the interceptors in before, in order, and then through
// [Interceptor.Unary].
func (i *Interceptor) InProcess(before ...grpc.UnaryServerInterceptor) *InProcess {
	return &InProcess{
		interceptors: append(slices.Clone(before), i.Unary), methods: make(map[string]inProcessMethod),
		served: func(method string) { i.inProcess.Store(method, true) },
	}
}

// RegisterService implements [grpc.ServiceRegistrar]. The generated registration functions call it.
func (p *InProcess) RegisterService(service *grpc.ServiceDesc, implementation any) {
	for _, method := range service.Methods {
		name := "/" + service.ServiceName + "/" + method.MethodName
		p.methods[name] = inProcessMethod{implementation, method}
		p.served(name)
	}
}

// Invoke implements [grpc.ClientConnInterface].
func (p *InProcess) Invoke(ctx context.Context, name string, request, reply any, options ...grpc.CallOption) error {
	method, ok := p.methods[name]
	if !ok {
		return status.Errorf(codes.Unimplemented, "oncewardgrpc: %s is not registered in the process", name)
	}
	sent := &inProcessStream{method: name}
	md, _ := metadata.FromOutgoingContext(ctx)
	called := metadata.NewIncomingContext(metadata.NewOutgoingContext(ctx, nil), md)
	called = grpc.NewContextWithServerTransportStream(called, sent)
	answer, err := method.Handler(method.implementation, called, func(in any) error { return copyMessage(in, request) }, p.chain)
	sent.report(options)
	if err != nil {
		return statusOf(err).Err()
	}
	return copyMessage(reply, answer)
}

// chain calls the handler through the interceptors.
func (p *InProcess) chain(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	for _, interceptor := range slices.Backward(p.interceptors) {
		next := handler
		handler = func(ctx context.Context, request any) (any, error) { return interceptor(ctx, request, info, next) }
	}
	return handler(ctx, request)
}

// NewStream implements [grpc.ClientConnInterface]. It returns an error, because streams are not supported.
func (p *InProcess) NewStream(
	_ context.Context, _ *grpc.StreamDesc, name string, _ ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return nil, status.Errorf(codes.Unimplemented, "oncewardgrpc: %s streams: call it by a connection to the server", name)
}

// copyMessage copies a message, so that neither side of a call sees later changes of the other side.
func copyMessage(into, from any) error {
	source, err := rpc.Message(from)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	target, ok := into.(proto.Message)
	if !ok || target.ProtoReflect().Descriptor() != source.ProtoReflect().Descriptor() {
		return status.Error(codes.Internal, fmt.Sprintf("oncewardgrpc: %T is not a message as %T", into, from))
	}
	proto.Reset(target)
	proto.Merge(target, source)
	return nil
}

// inProcessStream keeps the header and the trailer of a call.
type inProcessStream struct {
	method string

	mu              sync.Mutex // a goroutine that the handler left behind may still call
	header, trailer metadata.MD
}

var _ grpc.ServerTransportStream = (*inProcessStream)(nil)

// Method implements [grpc.ServerTransportStream].
func (s *inProcessStream) Method() string { return s.method }

// SetHeader implements [grpc.ServerTransportStream].
func (s *inProcessStream) SetHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.header = metadata.Join(s.header, md)
	return nil
}

// SendHeader implements [grpc.ServerTransportStream].
func (s *inProcessStream) SendHeader(md metadata.MD) error { return s.SetHeader(md) }

// SetTrailer implements [grpc.ServerTransportStream].
func (s *inProcessStream) SetTrailer(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailer = metadata.Join(s.trailer, md)
	return nil
}

// report sets the header and the trailer in the call options that request them.
func (s *inProcessStream) report(options []grpc.CallOption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, option := range options {
		switch o := option.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = s.header
		case grpc.TrailerCallOption:
			*o.TrailerAddr = s.trailer
		}
	}
}
