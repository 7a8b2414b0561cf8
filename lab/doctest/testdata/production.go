package page

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/postgres"
)

var (
	ctx   context.Context
	guard *onceward.Guard
	db    *postgres.Store

	probes, server              *http.Server
	adminListener, listener     net.Listener
	cleaner, poller, deliveries onceward.Worker

	transfer      http.Handler
	userFromToken func(r *http.Request) string

	add func(name, operation, outcome string, n int)
)
