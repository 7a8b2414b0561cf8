// Package jsonrpc is the recipe of docs/batches.md for JSON-RPC 2.0.
package jsonrpc

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
)

const maxCalls = 100

// Server runs each call at most once for its key.
type Server struct {
	*onceward.Procedure
	Scope   onceward.ScopeFunc
	Methods map[string]func(ctx context.Context, params json.RawMessage) (result any, err *Error)
}

// ServeHTTP answers a call, or a batch of calls, one after the other.
func (s Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scope, err := s.Scope(r)
	if err != nil {
		s.Refuse(r.Context(), "jsonrpc", err).Write(w)
		return
	}
	calls, single, failed := read(http.MaxBytesReader(w, r.Body, 1<<20))
	if failed != nil {
		write(w, []*reply{{Error: failed}}, true)
		return
	}
	replies := make([]*reply, len(calls))
	for i, c := range calls {
		replies[i] = s.serve(r, scope, c, single)
	}
	write(w, replies, single)
}
