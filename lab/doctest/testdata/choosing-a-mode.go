package page

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/onceward/onceward"
)

var (
	ctx   context.Context
	guard *onceward.Guard
	mux   *onceward.Mux

	order any
	bank  struct {
		ErrRejected, ErrNeverSent error
		Transfer                  func(ctx context.Context, order any, key string) (struct{ ID string }, error)
	}
	message struct {
		ID   string
		Body []byte
	}

	sendInvoice func(ctx context.Context, key string, message any) ([]byte, error)
)
