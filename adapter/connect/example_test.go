package oncewardconnect_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"connectrpc.com/connect"

	"github.com/onceward/onceward"
	oncewardconnect "github.com/onceward/onceward/adapter/connect"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
	"github.com/onceward/onceward/store/memory"
)

func ExampleNew() {
	// In production: postgres.Open or sqlite.Open, and Transactional().
	guard, err := onceward.New(memory.New(), onceward.Config{Secret: []byte("read it from a secret store")})
	if err != nil {
		log.Fatal(err)
	}
	protect, err := oncewardconnect.New(guard, oncewardconnect.Config{
		Scope: func(_ context.Context, r connect.AnyRequest) (string, error) {
			tenant := r.Header().Get("X-Tenant") // which authentication has set
			if tenant == "" {
				return "", onceward.ErrUnauthenticated
			}
			return tenant, nil
		},
		Methods: map[string]oncewardconnect.Method{
			"/onceward.test.Payments/Create": {
				Options:  []onceward.Option{onceward.Reserved(onceward.FailureUnknown)},
				Response: oncewardconnect.Response[paymentpb.Receipt](),
			},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/onceward.test.Payments/Create", connect.NewUnaryHandler("/onceward.test.Payments/Create",
		func(context.Context, *connect.Request[paymentpb.Payment]) (*connect.Response[paymentpb.Receipt], error) {
			return connect.NewResponse(&paymentpb.Receipt{Status: 201}), nil
		}, connect.WithInterceptors(protect)))
	fmt.Println("not protected:", protect.Audit(paymentpb.File_payment_proto.Services()))
	// Output: not protected: [/onceward.test.Payments/Refund /onceward.test.Payments/Watch]
}
