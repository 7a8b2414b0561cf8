package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/onceward/onceward"
)

// serve runs one call. Its key is the member idempotencyKey of its params; a single call may have it in the header.
func (s Server) serve(r *http.Request, scope string, c call, single bool) *reply {
	method := s.Methods[c.Method]
	switch {
	case c.Version != "2.0":
		return &reply{Error: &Error{Code: -32600, Message: "not a call of JSON-RPC 2.0"}}
	case method == nil:
		return c.reply(&reply{Error: &Error{Code: -32601, Message: "no such method"}})
	}
	header := r.Header.Clone()
	if !single {
		header.Del("Idempotency-Key") // a key of the batch is none of its calls
	}
	var params struct{ IdempotencyKey string }
	if json.Unmarshal(c.Params, &params) == nil && params.IdempotencyKey != "" {
		header.Set("Idempotency-Key", params.IdempotencyKey)
	}
	call := onceward.Call{Scope: scope, Operation: c.Method, Payload: canonical(c.Params), Header: header}
	served, err := s.Serve(r.Context(), call, func(ctx context.Context) onceward.Answer {
		return answer(method(ctx, c.Params))
	})
	if problem := (*onceward.Problem)(nil); errors.As(err, &problem) {
		return c.reply(&reply{Error: &Error{Code: -32000, Message: problem.Title, Data: map[string]any{
			"code": problem.Code, "retryable": problem.Retryable, "retryAfter": problem.RetryAfter.Seconds(),
		}}})
	}
	stored := new(reply)
	if err := json.Unmarshal(served.Body, stored); err != nil {
		stored.Error = &Error{Code: -32603, Message: "the stored answer cannot be read"}
	}
	return c.reply(stored)
}
