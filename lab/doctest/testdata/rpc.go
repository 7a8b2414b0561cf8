package page

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/grpc"

	"github.com/onceward/onceward"
	oncewardconnect "github.com/onceward/onceward/adapter/connect"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	paymentsv1 "github.com/onceward/onceward/internal/rpc/paymentpb"
)

var (
	guard        *onceward.Guard
	tenantFrom   func(ctx context.Context) (string, error)
	recovery     grpc.UnaryServerInterceptor
	authenticate grpc.UnaryServerInterceptor
	create       func(context.Context, *connect.Request[paymentsv1.Payment]) (*connect.Response[paymentsv1.Receipt], error)
	protect      *oncewardgrpc.Interceptor
	server       *grpc.Server
	target       string
	credentials  grpc.DialOption
)
