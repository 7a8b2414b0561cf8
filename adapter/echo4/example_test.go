package oncewardecho4_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/onceward/onceward"
	oncewardecho4 "github.com/onceward/onceward/adapter/echo4"
	"github.com/onceward/onceward/store/memory"
)

func Example() {
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("at least 16 random bytes"),
	})
	if err != nil {
		panic(err)
	}
	payments := 0
	router := echo.New()
	routes := oncewardecho4.Watch(router)
	router.POST("/accounts/:account/payments", func(c echo.Context) error {
		payments++
		return c.String(http.StatusCreated, fmt.Sprint("payment ", payments))
	}, oncewardecho4.Middleware(guard, onceward.Reserved(onceward.FailureUnknown)))
	if err := routes.Audit(); err != nil {
		panic(err)
	}
	for range 2 {
		w := httptest.NewRecorder()
		router.ServeHTTP(w, request())
		fmt.Println(w.Code, w.Body, w.Header().Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// 201 payment 1 false
	// 201 payment 1 true
}

func request() *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/accounts/a/payments", strings.NewReader(`{"amount":7}`))
	r.Header.Set("Idempotency-Key", "a-key-of-the-client")
	return r
}
