// Package mutations is the recipe of docs/batches.md for GraphQL.
package mutations

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/graphql-go/graphql"
	"github.com/onceward/onceward"
)

// Mutations run at most once for their keys.
type Mutations struct {
	*onceward.Procedure
	Scope onceward.ScopeFunc
}

// Once makes a resolver of a function that runs inside of the guard.
func (m Mutations) Once(f func(ctx context.Context, args map[string]any) (any, error)) graphql.FieldResolveFn {
	return func(p graphql.ResolveParams) (any, error) {
		r := requestOf(p)
		call := onceward.Call{Operation: "mutation " + p.Info.FieldName, Header: r.Header}
		if r.mutations++; r.mutations > 100 {
			return nil, failure{&onceward.Problem{Code: "too-many", Title: "100 mutations at most; this one was not executed"}}
		}
		var err error
		if call.Scope, err = m.Scope(r.Request); err != nil {
			return nil, failure{m.Refuse(r.Context(), call.Operation, err)}
		}
		if call.Key, err = m.keyOf(p); err != nil {
			return nil, failure{m.Refuse(r.Context(), call.Operation, err)}
		}
		if call.Payload, err = json.Marshal(p.Args); err != nil { // as coerced: the text of the query may change
			return nil, err
		}
		served, err := m.Serve(r.Context(), call, func(ctx context.Context) onceward.Answer { return answer(f(ctx, p.Args)) })
		problem := new(onceward.Problem)
		if errors.As(err, &problem) || served.Status >= 400 && json.Unmarshal(served.Body, problem) == nil {
			return nil, failure{problem}
		}
		var result any // the whole of it: a retry may select other fields
		err = json.Unmarshal(served.Body, &result)
		return result, err
	}
}
