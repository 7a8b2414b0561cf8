package payments

import (
	"context"
	"crypto/rand"
	"net/http"

	"github.com/onceward/onceward"
)

type item struct {
	Key string `json:"key"`
	payment
}

type payment struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

func (p payment) pay(ctx context.Context) onceward.Answer {
	if p.Amount <= 0 {
		onceward.FromContext(ctx).Reject() // nothing is kept: the corrected item may use the same key
		return onceward.Answer{Status: http.StatusUnprocessableEntity, Body: []byte(`{"error":"an amount above zero"}`)}
	}
	if p.Account == "closed" { // kept: the same question gets the same answer
		return onceward.Answer{Status: http.StatusUnprocessableEntity, Body: []byte(`{"error":"the account is closed"}`)}
	}
	id := rand.Text()
	if _, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`,
		id, p.Account, p.Amount); err != nil {
		return onceward.Answer{Status: http.StatusInternalServerError, Body: []byte(`{"error":"try again"}`)} // undone
	}
	return onceward.Answer{Status: http.StatusCreated, Body: []byte(`{"id":"` + id + `"}`)}
}
