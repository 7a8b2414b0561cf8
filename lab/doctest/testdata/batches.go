package page

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/graphql-go/graphql"

	"github.com/onceward/onceward"
	mutations "github.com/onceward/onceward/lab/feature/batches/graphql"
	"github.com/onceward/onceward/lab/feature/batches/jsonrpc"
	payments "github.com/onceward/onceward/lab/feature/batches/rest"
)

var (
	guard           *onceward.Guard
	mux             *onceward.Mux
	tenantFromToken func(r *http.Request) (string, error)
	methods         map[string]func(ctx context.Context, params json.RawMessage) (any, *jsonrpc.Error)
	schema          graphql.Schema
	procedure       *onceward.Procedure

	r     *http.Request
	scope string
	item  struct {
		Key     string
		payment any
		pay     func(ctx context.Context) onceward.Answer
	}
)
