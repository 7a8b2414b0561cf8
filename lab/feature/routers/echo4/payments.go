// Package payments serves payments under echo v4: a recipe of docs/routers.md.
package payments

import (
	"crypto/rand"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/onceward/onceward"
	oncewardecho4 "github.com/onceward/onceward/adapter/echo4"
)

// NewRouter serves payments.
func NewRouter(guard *onceward.Guard) (http.Handler, error) {
	router := echo.New()
	routes := oncewardecho4.Watch(router)
	accounts := router.Group("/accounts/:account")
	accounts.POST("/payments", createPayment, oncewardecho4.Middleware(guard, onceward.Transactional()))
	return router, routes.Audit()
}

func createPayment(c echo.Context) error {
	var order struct{ Amount int64 }
	if err := c.Bind(&order); err != nil {
		onceward.FromContext(c.Request().Context()).Reject() // the corrected request may use the same key
		return echo.NewHTTPError(http.StatusBadRequest, "not a payment")
	}
	ctx, id := c.Request().Context(), rand.Text()
	if _, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`,
		id, c.Param("account"), order.Amount); err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, map[string]string{"id": id})
}
