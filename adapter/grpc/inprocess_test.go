package oncewardgrpc_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onceward/onceward"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store/memory"
)

// local registers a handler of the method Create, as generated code does.
func local(protect *oncewardgrpc.Interceptor, handler grpc.UnaryHandler) *oncewardgrpc.InProcess {
	conn := protect.InProcess()
	conn.RegisterService(&grpc.ServiceDesc{ServiceName: "onceward.test.Payments", Methods: []grpc.MethodDesc{{
		MethodName: "Create", Handler: func(
			srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
		) (any, error) {
			request := new(paymentpb.Payment)
			if err := decode(request); err != nil {
				return nil, err
			}
			return intercept(ctx, request, &grpc.UnaryServerInfo{Server: srv, FullMethod: create}, handler)
		},
	}}}, nil)
	return conn
}

// TestInProcessKeepsSidesApart: what a handler changes or calls does not depend on what its caller has sent.
func TestInProcessKeepsSidesApart(t *testing.T) {
	t.Parallel()
	type user struct{}
	protect := protection(t, memory.New(), onceward.Reserved(onceward.FailureUnknown))
	conn := local(protect, func(ctx context.Context, request any) (any, error) {
		if sent, _ := metadata.FromOutgoingContext(ctx); len(sent) > 0 {
			t.Errorf("the calls of the handler carry the metadata of its own call: %v", sent)
		}
		if ctx.Value(user{}) != "alice" {
			t.Error("a value of the context is lost")
		}
		request.(*paymentpb.Payment).Amount = 0
		return &paymentpb.Receipt{Status: 201}, nil
	})
	request := &paymentpb.Payment{Amount: 7}
	ctx := metadata.AppendToOutgoingContext(context.WithValue(t.Context(), user{}, "alice"), "idempotency-key", "k")
	for i := range 2 {
		reply := &paymentpb.Receipt{Body: []byte("of before")}
		var header metadata.MD
		if err := conn.Invoke(ctx, create, request, reply, grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
		if request.GetAmount() != 7 || reply.GetStatus() != 201 || reply.GetBody() != nil {
			t.Errorf("the request is %v, the reply %v", request, reply)
		}
		if len(header.Get("idempotent-replayed")) != i {
			t.Errorf("call %d: the header is %v", i, header)
		}
	}
}

// TestInProcessFails: errors are those that a connection to a server returns.
func TestInProcessFails(t *testing.T) {
	t.Parallel()
	protect := protection(t, memory.New(), onceward.Reserved(onceward.FailureStore))
	conn := local(protect, func(context.Context, any) (any, error) { return nil, errors.New("why") })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k")
	want := func(what string, err error, code codes.Code) {
		t.Helper()
		if s, ok := err.(interface{ GRPCStatus() *status.Status }); !ok || s.GRPCStatus().Code() != code {
			t.Errorf("%s: got %v, want %s", what, err, code)
		}
	}
	want("an error of the handler", conn.Invoke(ctx, create, new(paymentpb.Payment), new(paymentpb.Receipt)), codes.Unknown)
	want("another request", conn.Invoke(ctx, create, new(paymentpb.Receipt), new(paymentpb.Receipt)), codes.Internal)
	want("no such method", conn.Invoke(ctx, "/a.B/C", new(paymentpb.Payment), new(paymentpb.Receipt)), codes.Unimplemented)
	_, err := conn.NewStream(ctx, new(grpc.StreamDesc), "/onceward.test.Payments/Watch")
	want("a stream", err, codes.Unimplemented)
}
