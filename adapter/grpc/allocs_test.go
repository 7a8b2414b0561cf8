package oncewardgrpc_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/racing"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store/memory"
)

// TestAllocations: what protection allocates over the bare call is within 4 of what it does over net/http, which is 20
// for a first call and 8 for a replay, counted in the same way on the same store. The race detector adds some of its
// own.
func TestAllocations(t *testing.T) {
	protect := protection(t, memory.New(), onceward.Reserved(onceward.FailureStore))
	const runs = 1000
	receipt := &paymentpb.Receipt{Status: 201}
	handler := func(context.Context, any) (any, error) { return receipt, nil }
	info := &grpc.UnaryServerInfo{FullMethod: create}
	request := &paymentpb.Payment{Account: "a", Amount: 7}
	contexts := make([]context.Context, runs+2)
	for i := range contexts {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("idempotency-key", fmt.Sprint("key-", i)))
		contexts[i] = grpc.NewContextWithServerTransportStream(ctx, silent{})
	}
	next := 0
	want := func(what string, most float64, call func()) {
		t.Helper()
		got := testing.AllocsPerRun(runs, call)
		t.Logf("%s: %v allocations", what, got)
		if got > most && !racing.Enabled {
			t.Errorf("%s: %v allocations, and %v are enough", what, got, most)
		}
	}
	send := func(ctx context.Context) {
		if _, err := protect.Unary(ctx, request, info, handler); err != nil {
			t.Error(err)
		}
	}
	want("first", 20+4, func() { send(contexts[next]); next++ })
	want("replay", 8+4, func() { send(contexts[0]) })
}

// silent is a stream that allocates nothing of its own.
type silent struct{}

func (silent) Method() string               { return create }
func (silent) SetHeader(metadata.MD) error  { return nil }
func (silent) SendHeader(metadata.MD) error { return nil }
func (silent) SetTrailer(metadata.MD) error { return nil }
