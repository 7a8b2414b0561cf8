package routers_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/onceward/onceward"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store/memory"
)

// TestStop: a server that is stopped in the middle of a call leaves its handler running. The guard waits for it, and
// the next server has its answer.
func TestStop(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Secret: []byte("the secret of the tests"), Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	protect := grpcProtection(t, guard, map[string]oncewardgrpc.Method{
		createMethod: {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}},
	})
	started, release := make(chan struct{}), make(chan struct{})
	pay := func(ctx context.Context, _ *paymentpb.Payment) (*paymentpb.Receipt, error) {
		close(started) // which a second run would not survive
		<-release
		return &paymentpb.Receipt{Status: 201}, ctx.Err()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(protect.Unary))
	server.RegisterService(description(pay), nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "alice", "idempotency-key", "k")
	lost := make(chan error, 1)
	conn := dialGRPC(t, listener.Addr().String())
	go func() { lost <- conn.Invoke(ctx, createMethod, &paymentpb.Payment{}, new(paymentpb.Receipt)) }()
	<-started
	server.Stop()
	if err := <-lost; err == nil {
		t.Error("the client was answered")
	}
	<-served
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := guard.Wait(short); err == nil {
		t.Error("the guard did not wait for the handler")
	}
	close(release)
	if err := guard.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	receipt := new(paymentpb.Receipt)
	next := dialGRPC(t, startGRPC(t, pay, grpc.UnaryInterceptor(protect.Unary)))
	if err := next.Invoke(ctx, createMethod, &paymentpb.Payment{}, receipt); err != nil || receipt.GetStatus() != 201 {
		t.Errorf("the retry got %v, error %v", receipt, err)
	}
}
