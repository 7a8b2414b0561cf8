package page

import (
	"context"
	"net/http"
	"os"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/postgres"
)

var (
	ctx              context.Context
	secret           []byte
	customer, amount string
	params           struct{}
	tenantFromToken  onceward.ScopeFunc
	writeJSON        func(w http.ResponseWriter, status int, value any)
)

type payment struct{ ID string }

// payments is what sqlc generates.
var payments struct {
	New func(db any) *queries
}

type queries struct{}

func (*queries) CreatePayment(context.Context, any) (payment, error) { return payment{}, nil }
