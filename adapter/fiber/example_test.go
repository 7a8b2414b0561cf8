package oncewardfiber_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/onceward/onceward"
	oncewardfiber "github.com/onceward/onceward/adapter/fiber"
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
	app := fiber.New()
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		payments++
		return c.Status(http.StatusCreated).SendString(fmt.Sprint("payment ", payments))
	}, onceward.Reserved(onceward.FailureUnknown)))
	if err := oncewardfiber.Audit(app); err != nil {
		panic(err)
	}
	for range 2 {
		response, err := app.Test(request())
		if err != nil {
			panic(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			panic(err)
		}
		fmt.Println(response.StatusCode, string(body), response.Header.Get("Idempotent-Replayed") == "true")
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
