package page

import (
	"context"
	"net/http"

	"github.com/onceward/onceward"
)

var (
	guard *onceward.Guard
	mux   *onceward.Mux
	bank  struct {
		Transfer func(ctx context.Context, key string) error
	}
)

var _ http.Handler
