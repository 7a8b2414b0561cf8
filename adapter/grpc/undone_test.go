package oncewardgrpc_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// undoing is a store that undoes the first run of each transaction, as a database does that found a conflict.
type undoing struct{ *memory.Store }

func (s undoing) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	v, err := s.Reserve(ctx, r)
	if err != nil || v.Decision != store.DecisionExecute {
		return v, err
	}
	work(ctx, v)
	end := work(ctx, v)
	v.Record.ExpiresAt, err = s.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, &end.Completion)
	return v, err
}

func (undoing) LongestWork(time.Duration) time.Duration { return time.Minute }
func (undoing) InFlight(store.ID) bool                  { return false }

// TestRequestOfASecondRun: a handler that changes its request, and is run again because a database undid what it did,
// is given the request that came.
func TestRequestOfASecondRun(t *testing.T) {
	t.Parallel()
	protect := protection(t, undoing{memory.New()}, onceward.Transactional())
	sent := &paymentpb.Payment{
		Amount: 100, RequestId: "8E03978E-40D5-43DD-BC93-6894A57F9324", Parts: []*paymentpb.Payment{{Amount: 60}},
	}
	var seen []proto.Message
	ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{})
	_, err := protect.Unary(ctx, proto.Clone(sent), &grpc.UnaryServerInfo{FullMethod: create},
		func(_ context.Context, request any) (any, error) {
			payment := request.(*paymentpb.Payment)
			seen = append(seen, proto.Clone(payment))
			payment.Amount -= 3 // the fee
			payment.RequestId, payment.Parts[0].Amount, payment.Memo = "", 0, "seen"
			return &paymentpb.Receipt{}, nil
		})
	if err != nil || len(seen) != 2 || !proto.Equal(seen[0], sent) || !proto.Equal(seen[1], sent) {
		t.Errorf("got %v, error %v; want twice %v", seen, err, sent)
	}
}
