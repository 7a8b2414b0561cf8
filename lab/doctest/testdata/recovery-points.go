package page

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

type charge struct{ ID string }

var (
	ctx   context.Context
	guard *onceward.Guard
	db    *postgres.Store
	mux   *onceward.Mux
	bank  struct {
		Charge func(ctx context.Context, key string, amount int64) (charge, error)
		Find   func(ctx context.Context, key string) (charge, bool, error)
	}
	rec         *store.Record
	answer      reconcile.Answer
	readBooking func(r *http.Request) (*Booking, error)
	confirm     func(ctx context.Context, b *Booking) error
)
