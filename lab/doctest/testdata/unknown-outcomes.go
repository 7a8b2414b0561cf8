package page

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

type charge struct{ ID string }

// Transfer is what the client asks for, and what the record carries.
type Transfer struct {
	To    string `json:"to"`
	Cents int64  `json:"cents"`
}

// Decision is the bank's answer about a transfer.
type Decision struct {
	ID       string
	Declined bool
}

type bankEvent struct {
	ID      string
	Created time.Time
	Data    struct {
		IdempotencyKey string
		Charge         charge
	}
}

var (
	ctx      context.Context
	guard    *onceward.Guard
	db       *postgres.Store
	mux      *onceward.Mux
	poller   *reconcile.Poller
	operator *reconcile.Operator

	secret          []byte
	tenant          onceward.ScopeFunc
	cleaner, server onceward.Worker

	answerFor func(charge) store.Response

	bank struct {
		Transfer     func(ctx context.Context, key string, t Transfer) (Decision, error)
		FindTransfer func(ctx context.Context, key string) (d Decision, found bool, err error)
	}
)
