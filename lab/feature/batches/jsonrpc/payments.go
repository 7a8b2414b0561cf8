package jsonrpc

import (
	"context"
	"crypto/rand"
	"encoding/json"

	"github.com/onceward/onceward"
)

// Pay is a method: in the transaction of the guard, it makes a payment.
func Pay(ctx context.Context, params json.RawMessage) (any, *Error) {
	var payment struct {
		Account string
		Amount  int64
	}
	if err := json.Unmarshal(params, &payment); err != nil || payment.Amount <= 0 {
		onceward.FromContext(ctx).Reject() // nothing is kept: the corrected call may use the same key
		return nil, &Error{Code: -32602, Message: "an account and an amount above zero, please"}
	}
	if payment.Account == "closed" { // kept: the same question gets the same answer
		return nil, &Error{Code: 1, Message: "the account is closed"}
	}
	id := rand.Text()
	if _, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`,
		id, payment.Account, payment.Amount); err != nil {
		return nil, &Error{Code: -32603, Message: "try again"} // undone
	}
	return map[string]string{"id": id}, nil
}
