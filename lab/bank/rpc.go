package bank

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onceward/onceward"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	"github.com/onceward/onceward/lab/bank/bankpb"
	"github.com/onceward/onceward/lab/bank/db"
)

// service answers calls by gRPC, and by HTTP behind grpc-gateway.
type service struct {
	bankpb.UnimplementedBankServer
	store  *accounts
	tokens tokens
	shield *oncewardgrpc.Interceptor
}

func newService(store *accounts, tokens tokens, guard *onceward.Guard) (*service, error) {
	s := &service{store: store, tokens: tokens}
	var err error
	s.shield, err = oncewardgrpc.New(guard, oncewardgrpc.Config{
		Scope: func(ctx context.Context, _ string) (string, error) {
			user, err := s.caller(ctx)
			return "user " + user, err
		},
		Methods: map[string]oncewardgrpc.Method{
			"/bank.v1.Bank/CreateTransfer": {Options: []onceward.Option{onceward.Transactional(), onceward.KeyOptional()}},
		},
	})
	return s, err
}

// GRPC returns a server of gRPC.
func (s *service) GRPC() *grpc.Server {
	server := grpc.NewServer(grpc.UnaryInterceptor(s.shield.Unary))
	bankpb.RegisterBankServer(server, s)
	return server
}

// Gateway returns the service over HTTP, in this process.
func (s *service) Gateway(ctx context.Context) (http.Handler, error) {
	mux, local := newMux(), s.shield.InProcess()
	bankpb.RegisterBankServer(local, s)
	return mux, bankpb.RegisterBankHandlerClient(ctx, mux, bankpb.NewBankClient(local))
}

func newMux() *runtime.ServeMux {
	return runtime.NewServeMux(
		runtime.WithIncomingHeaderMatcher(oncewardgrpc.IncomingHeader(runtime.DefaultHeaderMatcher)),
		runtime.WithOutgoingHeaderMatcher(oncewardgrpc.OutgoingHeader(nil)),
		runtime.WithErrorHandler(oncewardgrpc.ErrorHandler(runtime.DefaultHTTPErrorHandler)),
	)
}

// Gateway returns the service over HTTP, for a server of gRPC at an address.
func Gateway(ctx context.Context, address string) (http.Handler, error) {
	mux := newMux()
	return mux, bankpb.RegisterBankHandlerFromEndpoint(ctx, mux, address,
		[]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())})
}

// caller returns who calls, by the token in the metadata.
func (s *service) caller(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	user, err := s.tokens.user(strings.TrimPrefix(strings.Join(md.Get("authorization"), ""), "Bearer "))
	if err != nil {
		return "", status.Error(codes.Unauthenticated, err.Error())
	}
	return user, nil
}

// CreateTransfer implements [bankpb.BankServer].
func (s *service) CreateTransfer(
	ctx context.Context, request *bankpb.CreateTransferRequest,
) (*bankpb.CreateTransferResponse, error) {
	user, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if request.GetAmount() <= 0 {
		return nil, status.Error(codes.InvalidArgument, "the amount is not above zero")
	}
	result, err := s.store.transfer(ctx, user, db.CreateTransferParams{
		FromAccountID: request.GetFromAccountId(), ToAccountID: request.GetToAccountId(), Amount: request.GetAmount(),
	}, request.GetCurrency())
	if err != nil {
		return nil, status.Error(codeOf(err), err.Error())
	}
	return &bankpb.CreateTransferResponse{TransferId: result.Transfer.ID, Balance: result.From.Balance}, nil
}

// codeOf returns the code of an error.
func codeOf(err error) codes.Code {
	switch {
	case errors.Is(err, errNotFound):
		return codes.NotFound
	case errors.Is(err, errNotOwner):
		return codes.PermissionDenied
	case errors.Is(err, errCurrency), errors.Is(err, errInsufficient):
		return codes.FailedPrecondition
	}
	return codes.Internal
}
