package oncewardgrpc_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/onceward/onceward"
	oncewardgrpc "github.com/onceward/onceward/adapter/grpc"
	"github.com/onceward/onceward/store/memory"
)

func ExampleNew() {
	// In production: postgres.Open or sqlite.Open, and Transactional().
	guard, err := onceward.New(memory.New(), onceward.Config{Secret: []byte("read it from a secret store")})
	if err != nil {
		log.Fatal(err)
	}
	protect, err := oncewardgrpc.New(guard, oncewardgrpc.Config{
		Scope: func(ctx context.Context, _ string) (string, error) {
			tenant := metadata.ValueFromIncomingContext(ctx, "x-tenant") // which authentication has set
			if len(tenant) != 1 {
				return "", onceward.ErrUnauthenticated
			}
			return tenant[0], nil
		},
		Methods: map[string]oncewardgrpc.Method{
			"/onceward.test.Payments/Create": {
				Options:   []onceward.Option{onceward.Reserved(onceward.FailureUnknown)},
				RequestID: "request_id",
			},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(protect.Unary))
	fmt.Println("not protected:", protect.Audit(server.GetServiceInfo()))
	// Output: not protected: []
}
