package oncewardgin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/onceward/onceward"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
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
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		payments++
		c.String(http.StatusCreated, "payment %d", payments)
	}, onceward.Reserved(onceward.FailureUnknown)))
	if err := oncewardgin.Audit(engine); err != nil {
		panic(err)
	}
	for range 2 {
		w := httptest.NewRecorder()
		engine.ServeHTTP(w, request())
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
