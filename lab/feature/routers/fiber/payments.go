// Package payments serves payments under fiber: a recipe of docs/routers.md.
package payments

import (
	"crypto/rand"
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/onceward/onceward"
	oncewardfiber "github.com/onceward/onceward/adapter/fiber"
)

// NewApp serves payments.
func NewApp(guard *onceward.Guard) (*fiber.App, error) {
	app := fiber.New()
	accounts := app.Group("/accounts/:account")
	accounts.Post("/payments", oncewardfiber.Handler(guard, createPayment, onceward.Transactional()))
	return app, oncewardfiber.Audit(app)
}

func createPayment(c fiber.Ctx) error {
	var order struct{ Amount int64 }
	if err := c.Bind().JSON(&order); err != nil {
		onceward.FromContext(c.Context()).Reject() // the corrected request may use the same key
		return fiber.NewError(http.StatusBadRequest, "not a payment")
	}
	ctx, id := c.Context(), rand.Text()
	if _, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`,
		id, c.Params("account"), order.Amount); err != nil {
		return err
	}
	return c.Status(http.StatusCreated).JSON(fiber.Map{"id": id})
}
