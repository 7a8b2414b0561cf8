// Package payments serves payments under echo v4: a recipe of docs/routers.md.
package payments

import (
	"crypto/rand"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/onceward/onceward"
)

// NewRouter serves payments.
func NewRouter(guard *onceward.Guard) http.Handler {
	router := echo.New()
	router.POST("/accounts/:account/payments", func(c echo.Context) error {
		var order struct{ Amount int64 }
		if err := c.Bind(&order); err != nil {
			return echo.NewHTTPError(http.StatusBadRequest, "not a payment")
		}
		ctx, id := c.Request().Context(), rand.Text()
		if _, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`,
			id, c.Param("account"), order.Amount); err != nil {
			return err
		}
		return c.JSON(http.StatusCreated, map[string]string{"id": id})
	}, protect(guard, onceward.Transactional()))
	return router
}

// protect runs what is behind it inside of the guard, and makes the answer to an error there too, so that it is stored.
func protect(guard *onceward.Guard, options ...onceward.Option) echo.MiddlewareFunc {
	wrap := echo.WrapMiddleware(guard.Middleware(options...))
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		guarded := wrap(func(c echo.Context) error {
			if err := next(c); err != nil {
				c.Error(err)
			}
			return nil
		})
		return func(c echo.Context) error {
			c.Request().Pattern = c.Path() // names the operation
			defer c.SetRequest(c.Request())
			defer c.SetResponse(c.Response())
			return guarded(c)
		}
	}
}
