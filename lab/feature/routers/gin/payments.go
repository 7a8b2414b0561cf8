// Package payments serves payments under gin: a recipe of docs/routers.md.
package payments

import (
	"crypto/rand"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/onceward/onceward"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
)

// NewRouter serves payments.
func NewRouter(guard *onceward.Guard) (http.Handler, error) {
	engine := gin.New()
	accounts := engine.Group("/accounts/:account")
	accounts.POST("/payments", oncewardgin.Handler(guard, createPayment, onceward.Transactional()))
	return engine, oncewardgin.Audit(engine)
}

func createPayment(c *gin.Context) {
	var order struct{ Amount int64 }
	if err := c.ShouldBindJSON(&order); err != nil {
		onceward.FromContext(c.Request.Context()).Reject() // the corrected request may use the same key
		c.JSON(http.StatusBadRequest, gin.H{"error": "not a payment"})
		return
	}
	ctx, id := c.Request.Context(), rand.Text()
	if _, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`,
		id, c.Param("account"), order.Amount); err != nil {
		c.JSON(http.StatusInternalServerError, gin.H{"error": "not written"})
		return
	}
	c.JSON(http.StatusCreated, gin.H{"id": id})
}
