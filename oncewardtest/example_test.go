package oncewardtest_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/oncewardtest"
)

// A handler that charges a card, and states that a failure did nothing: but the provider's answer may have been lost.
func Example() {
	world := func(t oncewardtest.TestingT) oncewardtest.Config {
		store, clock := oncewardtest.NewStore(t)
		provider := oncewardtest.NewProvider(t, oncewardtest.ProviderConfig{})
		return oncewardtest.Config{
			Store: store, Clock: clock, Providers: []*oncewardtest.Provider{provider},
			Service: func(guard *onceward.Guard) http.Handler {
				mux := http.NewServeMux()
				mux.Handle("POST /charges", guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					key := onceward.FromContext(r.Context()).DownstreamKey("charge")
					if _, err := provider.Call(r.Context(), "/charges", key, `{}`); err != nil {
						http.Error(w, "try again", http.StatusInternalServerError)
						return
					}
					w.WriteHeader(http.StatusCreated)
				}, onceward.Reserved(onceward.FailureRetry))) // FailureUnknown would be right
				return mux
			},
		}
	}

	t := &recorder{ctx: context.Background()} // in a test, its *testing.T
	for _, found := range oncewardtest.Find(t, world, oncewardtest.Post("/charges", `{"amount": 1200}`)) {
		fmt.Println(found.Kind, "-", found.Detail)
		fmt.Println("when", found.Run)
	}
	// Output:
	// ran twice - effects at the provider: 2, want 1
	// when the provider's answer is lost at call 1 to the provider
}

// One story: the process crashes before its commit, and the retry makes the payment.
func ExampleKit() {
	t := &recorder{ctx: context.Background()} // in a test, its *testing.T
	kit := oncewardtest.New(t, paying(t))
	kit.Faults().CrashAt(oncewardtest.Before("commit"))
	fmt.Println(kit.Post("/payments", "key-1", `{"amount": 1200}`))
	kit.Restart()
	first := kit.Post("/payments", "key-1", `{"amount": 1200}`).Executed(http.StatusCreated)
	fmt.Println(first)
	fmt.Println(kit.Post("/payments", "key-1", `{"amount": 1200}`).Replayed(first))
	kit.ExecutedOnce()
	fmt.Println(len(t.failures), "failures")
	// Output:
	// no answer
	// 201
	// 201, replayed
	// 0 failures
}
