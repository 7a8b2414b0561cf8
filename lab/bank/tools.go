package bank

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/lab/bank/db"
)

type transferArguments struct {
	From     int64  `json:"from_account_id"`
	To       int64  `json:"to_account_id"`
	Amount   int64  `json:"amount" jsonschema:"in cents, above zero"`
	Currency string `json:"currency"`
}

type transferOutput struct {
	Transfer int64 `json:"transfer_id"`
	Balance  int64 `json:"balance"`
}

// Tools returns a server of tools with which a language model acts for a user.
func (b *Bank) Tools(user string) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "bank", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "transfer", Description: "Moves money between accounts."}, func(
		ctx context.Context, _ *mcp.CallToolRequest, in transferArguments,
	) (*mcp.CallToolResult, transferOutput, error) {
		result, err := b.store.transfer(ctx, user, db.CreateTransferParams{
			FromAccountID: in.From, ToAccountID: in.To, Amount: in.Amount,
		}, in.Currency)
		return nil, transferOutput{result.Transfer.ID, result.From.Balance}, err
	})
	once, err := oncewardmcp.New(b.guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("user " + user),
		Tools: map[string]oncewardmcp.Tool{"transfer": {
			Options:     []onceward.Option{onceward.Transactional(), onceward.KeyOptional()},
			KeyArgument: "idempotency_key",
		}},
	})
	if err != nil {
		return nil, err
	}
	server.AddReceivingMiddleware(once.Middleware)
	return server, once.Audit(context.Background(), server)
}
