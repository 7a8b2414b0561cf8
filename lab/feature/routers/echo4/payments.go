// Package payments serves payments under echo v4: a recipe of docs/routers.md.
package payments

import (
	"crypto/rand"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/onceward/onceward"
)

// NewRouter serves payments.
func NewRouter(guard *onceward.Guard) (http.Handler, error) {
	router, protect := echo.New(), Protector{}
	accounts := router.Group("/accounts/:account")
	protect.Handle(accounts.Add, http.MethodPost, "/payments", createPayment, guard, onceward.Transactional())
	return router, protect.Audit(router)
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
