package page

import (
	"context"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/telemetry"
)

var (
	ctx      context.Context
	db       *postgres.Store
	tracers  trace.TracerProvider
	tenant   onceward.ScopeFunc
	secret   []byte
	inside   *http.ServeMux
	cleaner  *janitor.Janitor
	server   *http.Server
	listener net.Listener
	grace    time.Duration
)
