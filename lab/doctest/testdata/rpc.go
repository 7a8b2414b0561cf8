package page

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
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
	ctx          context.Context
	payments     any

	paymentspb struct {
		RegisterPaymentsServer        func(grpc.ServiceRegistrar, any)
		NewPaymentsClient             func(grpc.ClientConnInterface) any
		RegisterPaymentsHandlerClient func(context.Context, *runtime.ServeMux, any) error
	}
)
