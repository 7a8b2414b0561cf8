package oncewardconnect_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/onceward/onceward"
	oncewardconnect "github.com/onceward/onceward/adapter/connect"
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
	guard, err := onceward.New(undoing{memory.New()}, onceward.Config{
		Secret: []byte("the secret of the tests"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	protect, err := oncewardconnect.New(guard, oncewardconnect.Config{
		Scope: scope, Methods: map[string]oncewardconnect.Method{create: {
			Options: []onceward.Option{onceward.Transactional()}, Response: oncewardconnect.Response[paymentpb.Receipt](),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var seen []proto.Message
	server := httptest.NewServer(connect.NewUnaryHandler(create, func(_ context.Context, r *request) (*response, error) {
		seen = append(seen, proto.Clone(r.Msg))
		r.Msg.Amount -= 3 // the fee
		return connect.NewResponse(&paymentpb.Receipt{}), nil
	}, connect.WithInterceptors(protect)))
	defer server.Close()
	client := connect.NewClient[paymentpb.Payment, paymentpb.Receipt](server.Client(), server.URL+create)
	sent := &paymentpb.Payment{Amount: 100, Memo: "rent"}
	r := connect.NewRequest(sent)
	r.Header().Set("Idempotency-Key", "k")
	if _, err := client.CallUnary(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 2 || !proto.Equal(seen[0], sent) || !proto.Equal(seen[1], sent) {
		t.Errorf("got %v, want twice %v", seen, sent)
	}
}
