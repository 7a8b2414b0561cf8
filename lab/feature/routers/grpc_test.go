package routers_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/onceward/onceward"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/lab/feature/suite"
)

const (
	createMethod = "/onceward.test.Payments/Create"
	refundMethod = "/onceward.test.Payments/Refund"
)

func TestGRPC(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "gRPC", Operation: createMethod, Serve: serveGRPC,
		Features: suite.Features{Headers: true, KeyLines: true, FirstSent: true, Refusals: true, Errors: true},
	})
}

func serveGRPC(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	method := oncewardgrpc.Method{Options: options, RequestID: "request_id"}
	protect := grpcProtection(t, guard, map[string]oncewardgrpc.Method{createMethod: method, refundMethod: method})
	server := startGRPC(t, handlerOfGRPC(work), grpc.ChainUnaryInterceptor(recovers, protect.Unary))
	return grpcCaller{dialGRPC(t, server)}
}

func grpcProtection(
	t *testing.T, guard *onceward.Guard, methods map[string]oncewardgrpc.Method,
) *oncewardgrpc.Interceptor {
	t.Helper()
	protect, err := oncewardgrpc.New(guard, oncewardgrpc.Config{Scope: grpcTenant, Methods: methods})
	if err != nil {
		t.Fatal(err)
	}
	return protect
}

// grpcTenant takes the scope from the metadata, as a service with authentication would.
func grpcTenant(ctx context.Context, _ string) (string, error) {
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) == 1 {
		return values[0], nil
	}
	return "", onceward.Unauthenticated(`Bearer realm="payments"`)
}

// recovers is what keeps a server of gRPC alive when a handler panics.
func recovers(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Error(codes.Internal, fmt.Sprint("recovered: ", p))
		}
	}()
	return handler(ctx, request)
}

// grpcHandler is one for all methods of the service.
type grpcHandler func(ctx context.Context, p *paymentpb.Payment) (*paymentpb.Receipt, error)

// description is what the code generator for services would write.
func description(h grpcHandler) *grpc.ServiceDesc {
	unary := func(name string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(
			srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
		) (any, error) {
			request := new(paymentpb.Payment)
			if err := decode(request); err != nil {
				return nil, err
			}
			info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/onceward.test.Payments/" + name}
			return intercept(ctx, request, info, func(ctx context.Context, request any) (any, error) {
				receipt, err := h(ctx, request.(*paymentpb.Payment))
				if err != nil {
					return nil, err
				}
				return receipt, nil
			})
		}}
	}
	return &grpc.ServiceDesc{
		ServiceName: "onceward.test.Payments", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{unary("Create"), unary("Refund"), unary("Get")},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true}},
	}
}

// startGRPC serves on loopback until the test ends, and returns the address.
func startGRPC(t *testing.T, h grpcHandler, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	server.RegisterService(description(h), nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func dialGRPC(t *testing.T, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// handlerOfGRPC is the work as a handler of gRPC has it. The status of a refusal goes along as a detail.
func handlerOfGRPC(work suite.Work) grpcHandler {
	return func(ctx context.Context, p *paymentpb.Payment) (*paymentpb.Receipt, error) {
		reply := work(ctx, suite.Payment{Account: p.GetAccount(), Amount: p.GetAmount(), Memo: p.GetMemo()})
		header := make(metadata.MD)
		for name, value := range reply.Header {
			header.Set(name, value)
		}
		if err := grpc.SetHeader(ctx, header); err != nil {
			return nil, err
		}
		if reply.Status == 0 {
			return nil, ctx.Err()
		}
		if reply.Status >= http.StatusBadRequest {
			s, err := status.New(codeOfGRPC(reply.Status), reply.Body).WithDetails(wrapperspb.Int32(int32(reply.Status)))
			if err != nil {
				return nil, err
			}
			return nil, s.Err()
		}
		return &paymentpb.Receipt{Status: int32(reply.Status), Body: []byte(reply.Body)}, nil
	}
}

func codeOfGRPC(httpStatus int) codes.Code {
	switch httpStatus {
	case http.StatusBadRequest:
		return codes.InvalidArgument
	case http.StatusServiceUnavailable:
		return codes.Unavailable
	case http.StatusInternalServerError:
		return codes.Internal
	default:
		return codes.FailedPrecondition
	}
}

// grpcCaller is a client of gRPC.
type grpcCaller struct{ conn grpc.ClientConnInterface }

// Call implements [suite.Caller].
func (c grpcCaller) Call(ctx context.Context, r suite.Request) (suite.Answer, error) {
	sent := make(metadata.MD)
	if r.Key != "" {
		sent.Set("idempotency-key", r.Key)
	}
	if r.Keys != nil {
		sent["idempotency-key"] = r.Keys
	}
	if r.Tenant != "" {
		sent.Set("authorization", r.Tenant)
	}
	if r.FirstSent != "" {
		sent.Set(onceward.FirstSentHeader, r.FirstSent)
	}
	method := createMethod
	if r.Refund {
		method = refundMethod
	}
	var header, trailer metadata.MD
	receipt := new(paymentpb.Receipt)
	err := c.conn.Invoke(metadata.NewOutgoingContext(ctx, sent), method,
		&paymentpb.Payment{Account: r.Account, Amount: r.Amount, Memo: r.Memo}, receipt,
		grpc.Header(&header), grpc.Trailer(&trailer))
	if ctx.Err() != nil {
		return suite.Answer{}, ctx.Err()
	}
	answer := suite.Answer{Header: make(http.Header)}
	for name, values := range header {
		answer.Header[http.CanonicalHeaderKey(name)] = values
	}
	answer.Replayed = answer.Header.Get("Idempotent-Replayed") == "true"
	if expires := answer.Header.Get("Idempotency-Key-Expires"); expires != "" {
		if answer.Expires, _ = http.ParseTime(expires); answer.Expires.IsZero() {
			return answer, fmt.Errorf("not a date: %q", expires)
		}
	}
	if err != nil {
		return answer, readErrorGRPC(&answer, status.Convert(err))
	}
	answer.Status, answer.Body = int(receipt.GetStatus()), string(receipt.GetBody())
	return answer, nil
}

// readErrorGRPC reads what a status says: of the guard's, or the handler's.
func readErrorGRPC(answer *suite.Answer, s *status.Status) (err error) {
	answer.Body, answer.Status = s.Message(), http.StatusInternalServerError
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *wrapperspb.Int32Value:
			answer.Status = int(d.GetValue())
		case *errdetails.ErrorInfo:
			answer.Code, answer.Retryable = d.GetMetadata()["code"], d.GetMetadata()["retryable"] == "true"
			answer.Status, err = strconv.Atoi(d.GetMetadata()["status"])
		case *errdetails.RetryInfo:
			answer.RetryAfter = d.GetRetryDelay().AsDuration().Round(time.Millisecond)
		default:
			err = fmt.Errorf("a detail that is not known: %T", d)
		}
	}
	return err
}
