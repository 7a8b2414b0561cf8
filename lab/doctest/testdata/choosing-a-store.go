package page

import (
	"context"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/sealed"
	"github.com/onceward/onceward/store/tiered"
)

var (
	ctx      context.Context
	database store.Store
	url      string
	key      []byte
)
