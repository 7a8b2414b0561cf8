package page

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

var (
	ctx   context.Context
	guard *onceward.Guard
	mux   *onceward.Mux
	db    *postgres.Store

	tenant onceward.ScopeFunc
	secret []byte
	amount int64
	order  any
	bank   struct {
		ErrRejected, ErrNeverSent error
		Transfer                  func(ctx context.Context, order any, key string) (struct{ ID string }, error)
	}
	message struct {
		ID   string
		Body []byte
	}

	newID              func() string
	readPayment        func(r *http.Request) (int64, error)
	makeReport, signUp http.HandlerFunc
	sendInvoice        func(ctx context.Context, key string, message any) ([]byte, error)
	findInvoice        func(ctx context.Context, key string) (value []byte, found bool, err error)
)
