package redis_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/store/redis"
)

func tenant(r *http.Request) (string, error) {
	if name := r.Header.Get("X-Tenant"); name != "" { // your authentication
		return name, nil
	}
	return "", onceward.ErrUnauthenticated
}

// A reservation is stored before the handler runs, and its answer before the client sees it.
func Example() {
	ctx := context.Background()
	store, err := redis.Open(ctx, os.Getenv("REDIS_URL")) // such as redis://localhost:6379
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	guard, err := onceward.New(store, onceward.Config{Scope: tenant, Secret: []byte(os.Getenv("ONCEWARD_SECRET"))})
	if err != nil {
		log.Fatal(err)
	}
	sweeper, err := janitor.New(store, janitor.Config{})
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = sweeper.Run(ctx) }()
	http.Handle("POST /transfers", guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintln(w, "transferred")
	}, onceward.Reserved(onceward.FailureUnknown)))
}

// With Sentinel, each write waits until a replica has it.
func ExampleWithReplicas() {
	store, err := redis.Open(context.Background(), "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/primary",
		redis.WithPrefix("payments"), redis.WithReplicas(1, 500*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
}
