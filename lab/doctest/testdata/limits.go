package page

import (
	"context"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/limit"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/breaker"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/redis"
)

var (
	mux    *http.ServeMux
	db     *postgres.Store
	shared *redis.Store
	tenant onceward.ScopeFunc
	secret []byte
	limits limit.Limits

	limiter *limit.Limiter
)
