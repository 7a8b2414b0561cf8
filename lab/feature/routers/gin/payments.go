// Package payments serves payments under gin: a recipe of docs/routers.md.
package payments

import (
	"crypto/rand"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/onceward/onceward"
)

// NewRouter serves payments.
func NewRouter(guard *onceward.Guard) http.Handler {
	engine := gin.New()
	engine.POST("/accounts/:account/payments", protect(engine, guard, createPayment, onceward.Transactional()))
	return engine
}

// protect runs a gin handler inside of the guard. It calls the handler itself, not c.Next: the guard runs it again if
// the database undid its transaction, and not at all if there is an answer to replay.
func protect(e *gin.Engine, guard *onceward.Guard, next gin.HandlerFunc, options ...onceward.Option) gin.HandlerFunc {
	middleware := guard.Middleware(options...)
	return func(c *gin.Context) {
		writer, request := c.Writer, c.Request
		defer func() { c.Writer, c.Request = writer, request }()
		request.Pattern = c.FullPath() // names the operation
		middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// The one function with which gin puts its own kind of writer around that of the guard.
			c.Writer, c.Request = gin.CreateTestContextOnly(w, e).Writer, r
			next(c)
			c.Writer.WriteHeaderNow()
		})).ServeHTTP(writer, request)
	}
}

func createPayment(c *gin.Context) {
	var order struct{ Amount int64 }
	if err := c.ShouldBindJSON(&order); err != nil {
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
