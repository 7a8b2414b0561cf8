package page

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

type charge struct{ ID string }

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

	secret    []byte
	tenant    onceward.ScopeFunc
	resolver  reconcile.Resolver
	answerFor func(charge) store.Response

	bankCharges, ownPayments ledger.Source
	bank                     struct {
		Find func(ctx context.Context, key string) (charge, bool, error)
	}
	tickets struct {
		Open func(ctx context.Context, id string, kind ledger.Kind, key string) error
	}
)
