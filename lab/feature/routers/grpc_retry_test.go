package routers_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onceward/onceward"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store/sqlite"
)

// retryPolicy is that of a service config as clients have it.
const retryPolicy = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.05s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// shop is a server whose connections can be cut, with payments in a database.
type shop struct {
	*testing.T
	store    *sqlite.Store
	conn     *grpc.ClientConn // with retries, and keys by the interceptor
	observed chan onceward.ObserverEvent

	mu    sync.Mutex
	conns []net.Conn
}

// openShop serves with interceptors in front of the guard's.
func openShop(t *testing.T, h grpcHandler, option onceward.Option, before ...grpc.UnaryServerInterceptor) *shop {
	t.Helper()
	s := &shop{T: t, observed: make(chan onceward.ObserverEvent, 1000)}
	var err error
	if s.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.store.Close() })
	if err := s.store.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `CREATE TABLE payment (key TEXT)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	guard, err := onceward.New(s.store, onceward.Config{
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, Logger: quiet,
		Observer: onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) { s.observed <- e }),
	})
	if err != nil {
		t.Fatal(err)
	}
	protect := grpcProtection(t, guard, map[string]oncewardgrpc.Method{createMethod: {
		Options:   []onceward.Option{option, onceward.RequireFirstSent(time.Hour, time.Minute)},
		RequestID: "request_id",
	}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(append(before, protect.Unary)...))
	server.RegisterService(description(h), nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(&keeping{listener, s}) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	s.conn = dialGRPC(t, listener.Addr().String(), grpc.WithDefaultServiceConfig(retryPolicy),
		grpc.WithUnaryInterceptor(oncewardgrpc.UnaryClientInterceptor))
	return s
}

// keeping is a listener that keeps what it accepts.
type keeping struct {
	net.Listener
	shop *shop
}

func (k *keeping) Accept() (net.Conn, error) {
	conn, err := k.Listener.Accept()
	if err == nil {
		k.shop.mu.Lock()
		defer k.shop.mu.Unlock()
		k.shop.conns = append(k.shop.conns, conn)
	}
	return conn, err
}

// cut closes all connections.
func (s *shop) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	s.conns = nil
}

func (s *shop) wantPayments(want int) {
	s.Helper()
	var got int
	err := s.store.DB().QueryRowContext(s.Context(), `SELECT count(*) FROM payment`).Scan(&got)
	if err != nil || got != want {
		s.Errorf("%d payments, error %v; want %d", got, err, want)
	}
}

func (s *shop) pay(ctx context.Context, p *paymentpb.Payment) (*paymentpb.Receipt, metadata.MD, error) {
	var header metadata.MD
	receipt := new(paymentpb.Receipt)
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "alice")
	err := s.conn.Invoke(ctx, createMethod, p, receipt, grpc.Header(&header))
	return receipt, header, err
}

// insert is a handler that makes the payment in its transaction.
func insert(ctx context.Context, p *paymentpb.Payment) (*paymentpb.Receipt, error) {
	key := onceward.FromContext(ctx).Key()
	if _, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (key) VALUES ($1)`, key); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &paymentpb.Receipt{Body: []byte(fmt.Sprint(key, " paid ", p.GetAmount()))}, nil
}

// TestRetriesOfTheLibrary: the connection breaks after each commit, before the reply is sent. The client's library
// retries by its policy, with the key that its interceptor gave the call, and is given the answer: one effect for each.
func TestRetriesOfTheLibrary(t *testing.T) {
	t.Parallel()
	var s *shop
	var calls, cuts atomic.Int64
	s = openShop(t, insert, onceward.Transactional(), func(
		ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (any, error) {
		reply, err := handler(ctx, request)
		if calls.Add(1)%2 == 1 {
			cuts.Add(1)
			s.cut()
		}
		return reply, err
	})
	const payments = 20
	for i := range payments {
		receipt, header, err := s.pay(t.Context(), &paymentpb.Payment{Amount: int64(i)})
		if err != nil {
			t.Fatal(err)
		}
		if len(header.Get("idempotent-replayed")) != 1 {
			t.Errorf("payment %d is answered with %v, %v: no replay", i, receipt, header)
		}
	}
	if cuts.Load() < payments {
		t.Errorf("%d replies were lost, want each", cuts.Load())
	}
	s.wantPayments(payments)
}

// TestRetryWhileInFlight: the connection breaks while the handler works, which goes on. The retry is told that the
// first call is in flight, and when to come again, by means that the library knows: it comes, and is given the answer.
func TestRetryWhileInFlight(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	s := openShop(t, func(ctx context.Context, _ *paymentpb.Payment) (*paymentpb.Receipt, error) {
		close(started) // which a second run would not survive
		<-release
		return &paymentpb.Receipt{Body: []byte("paid")}, ctx.Err()
	}, onceward.Reserved(onceward.FailureUnknown))
	go func() {
		<-started
		s.cut()
		for e := range s.observed {
			if problem, ok := e.(onceward.ProblemEvent); ok && problem.Code == "in-progress" {
				break
			}
		}
		close(release)
	}()
	receipt, header, err := s.pay(t.Context(), &paymentpb.Payment{})
	if err != nil || string(receipt.GetBody()) != "paid" || len(header.Get("idempotent-replayed")) != 1 {
		t.Errorf("got %v, %v, error %v", receipt, header, err)
	}
}

// TestNoRetries: what must not be sent again is not, whatever the policy of a client says.
func TestNoRetries(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	s := openShop(t, insert, onceward.Transactional(), func(
		ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (any, error) {
		calls.Add(1)
		reply, err := handler(ctx, request)
		if status.Code(err) == codes.FailedPrecondition { // as a gateway that knows no better
			return nil, status.Error(codes.Unavailable, status.Convert(err).Message())
		}
		return reply, err
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k",
		"idempotency-first-sent", time.Now().UTC().Format(http.TimeFormat))
	if _, _, err := s.pay(ctx, &paymentpb.Payment{Amount: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.pay(ctx, &paymentpb.Payment{Amount: 2}); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	if got := calls.Load(); got != 2 {
		t.Errorf("%d calls, want 2: a mismatch was sent again", got)
	}
	s.wantPayments(1)
}

// TestRequestID: a key in the request is one in the metadata, and counts among nothing else.
func TestRequestID(t *testing.T) {
	t.Parallel()
	s := openShop(t, insert, onceward.Transactional())
	conn := dialGRPC(t, s.conn.Target())
	const id, other = "8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9325"
	for _, test := range []struct {
		id, key, replayed string
		want              codes.Code
	}{
		{id, "", "", codes.OK},
		{id, "", "true", codes.OK},
		{"", id, "true", codes.OK},
		{id, id, "true", codes.OK},
		{id, other, "", codes.InvalidArgument},
		{"seven", "", "", codes.InvalidArgument},
		{"", "", "", codes.InvalidArgument},
		{other, "", "", codes.OK},
	} {
		sent := metadata.Pairs("authorization", "alice",
			"idempotency-first-sent", time.Now().UTC().Format(http.TimeFormat))
		if test.key != "" {
			sent.Set("idempotency-key", test.key)
		}
		var header metadata.MD
		err := conn.Invoke(metadata.NewOutgoingContext(t.Context(), sent), createMethod,
			&paymentpb.Payment{Amount: 7, RequestId: test.id}, new(paymentpb.Receipt), grpc.Header(&header))
		replayed := ""
		if values := header.Get("idempotent-replayed"); len(values) == 1 {
			replayed = values[0]
		}
		if status.Code(err) != test.want || replayed != test.replayed {
			t.Errorf("%+v: got %v, %v", test, err, header)
		}
	}
	s.wantPayments(2)
}
