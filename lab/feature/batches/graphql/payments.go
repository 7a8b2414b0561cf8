package mutations

import (
	"context"
	"crypto/rand"

	"github.com/graphql-go/graphql"
	"github.com/onceward/onceward"
)

// NewSchema has one mutation. Its type may be null, so that the failure of one leaves the results of the others.
func NewSchema(m Mutations) (graphql.Schema, error) {
	text, id := graphql.NewNonNull(graphql.String), graphql.NewNonNull(graphql.ID)
	amount := graphql.NewNonNull(graphql.Int)
	payment := graphql.NewObject(graphql.ObjectConfig{Name: "Payment", Fields: graphql.Fields{
		"id": {Type: id}, "account": {Type: text}, "amount": {Type: amount},
	}})
	return graphql.NewSchema(graphql.SchemaConfig{
		Directives: append([]*graphql.Directive{idempotent}, graphql.SpecifiedDirectives...),
		Query: graphql.NewObject(graphql.ObjectConfig{Name: "Query", Fields: graphql.Fields{
			"shop": {Type: graphql.String},
		}}),
		Mutation: graphql.NewObject(graphql.ObjectConfig{Name: "Mutation", Fields: graphql.Fields{"pay": {
			Type: payment, Resolve: m.Once(pay),
			Args: graphql.FieldConfigArgument{"account": {Type: text}, "amount": {Type: amount}, "key": {Type: graphql.String}},
		}}}),
	})
}

func pay(ctx context.Context, args map[string]any) (any, error) {
	if args["amount"].(int) <= 0 {
		onceward.FromContext(ctx).Reject() // nothing is kept: the corrected mutation may use the same key
		return nil, &onceward.Problem{Status: 422, Code: "bad-amount", Title: "an amount above zero, please"}
	}
	if args["account"] == "closed" { // kept: the same question gets the same answer
		return nil, &onceward.Problem{Status: 422, Code: "account-closed", Title: "the account is closed"}
	}
	id := rand.Text()
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`,
		id, args["account"], args["amount"])
	return map[string]any{"id": id, "account": args["account"], "amount": args["amount"]}, err
}
