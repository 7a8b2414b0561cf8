package client_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/onceward/onceward/client"
)

// A payment whose first answer is lost is sent again with the same key, and made once.
func Example() {
	payments := make(map[string]bool) // by key, as the service remembers them
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if !payments[key] {
			payments[key] = true
			panic(http.ErrAbortHandler) // it is made, and the answer is lost
		}
		w.Header().Set("Idempotent-Replayed", "true")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "paid")
	}))
	defer service.Close()

	c, err := client.NewClient(client.Config{AttemptTimeout: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := c.Post(service.URL+"/payments", "application/json", strings.NewReader(`{"amount":1}`))
	if unfinished := (*client.UnfinishedError)(nil); errors.As(err, &unfinished) {
		fmt.Println("keep this key:", unfinished.Key)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	fmt.Println(string(answer), err, client.Classify(resp, nil), len(payments))
	// Output: paid <nil> answered 1
}
