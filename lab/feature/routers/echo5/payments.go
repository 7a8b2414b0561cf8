// Package payments serves payments under echo v5: a recipe of docs/routers.md.
package payments

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/onceward/onceward"
	oncewardecho5 "github.com/onceward/onceward/adapter/echo5"
)

// Charge asks a bank for money. The bank recognises a repetition by the key.
type Charge func(ctx context.Context, key, account string, amount int64) (id string, err error)

// NewRouter serves payments.
func NewRouter(guard *onceward.Guard, charge Charge) (http.Handler, error) {
	router := echo.New()
	routes := oncewardecho5.Watch(router)
	router.POST("/accounts/:account/payments", func(c *echo.Context) error {
		var order struct{ Amount int64 }
		if err := c.Bind(&order); err != nil {
			onceward.FromContext(c.Request().Context()).Reject() // the corrected request may use the same key
			return echo.NewHTTPError(http.StatusBadRequest, "not a payment")
		}
		ctx := c.Request().Context()
		id, err := charge(ctx, onceward.FromContext(ctx).DownstreamKey("charge"), c.Param("account"), order.Amount)
		if err != nil {
			return echo.NewHTTPError(http.StatusBadGateway, "the bank did not answer")
		}
		return c.JSON(http.StatusCreated, map[string]string{"id": id})
	}, oncewardecho5.Middleware(guard, onceward.Reserved(onceward.FailureUnknown)))
	return router, routes.Audit()
}
