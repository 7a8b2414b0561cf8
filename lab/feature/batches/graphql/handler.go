package mutations

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/graphql-go/graphql"
)

type requestKey struct{}

// request is what the mutations of one request have in common. They run one after the other.
type request struct {
	*http.Request
	mutations int
}

func requestOf(p graphql.ResolveParams) *request { return p.Context.Value(requestKey{}).(*request) }

// Handler serves a schema.
func Handler(schema graphql.Schema) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Query, OperationName string
			Variables            map[string]any
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body); err != nil || !small(body.Query) {
			http.Error(w, "not a request of GraphQL, or too large a one; nothing was executed", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		// The mutations are told when the client leaves; the library would return at once, while one runs.
		ctx := context.WithValue(context.WithoutCancel(r.Context()), requestKey{}, &request{Request: r})
		_ = json.NewEncoder(w).Encode(graphql.Do(graphql.Params{
			Schema: schema, RequestString: body.Query, OperationName: body.OperationName, VariableValues: body.Variables,
			Context: ctx,
		}))
	}
}
