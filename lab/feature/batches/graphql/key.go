package mutations

import (
	"github.com/graphql-go/graphql"
	"github.com/graphql-go/graphql/language/ast"
	"github.com/onceward/onceward"
)

// idempotent is the directive @idempotent(key: "…") of a mutation.
var idempotent = graphql.NewDirective(graphql.DirectiveConfig{
	Name: "idempotent", Locations: []string{graphql.DirectiveLocationField},
	Args: graphql.FieldConfigArgument{"key": {Type: graphql.NewNonNull(graphql.String)}},
})

// keyOf finds the key of a mutation: in its directive, in its argument, or in the header of the request. One in the
// header stands for all mutations of the request, which differ by their names in the answer. A field that the query
// names more than once is one mutation, and has one key.
func (m Mutations) keyOf(p graphql.ResolveParams) (string, error) {
	key, _ := p.Args["key"].(string)
	for _, field := range p.Info.FieldASTs {
		for _, directive := range field.Directives {
			if directive.Name.Value != idempotent.Name || len(directive.Arguments) != 1 {
				continue
			}
			next, _ := directive.Arguments[0].Value.GetValue().(string)
			if variable, ok := directive.Arguments[0].Value.(*ast.Variable); ok {
				next, _ = p.Info.VariableValues[variable.Name.Value].(string)
			}
			if key != "" && key != next {
				return "", onceward.ErrBadKey
			}
			key = next
		}
	}
	if key != "" {
		return key, nil // which the procedure checks
	}
	line := requestOf(p).Header.Get(onceward.DefaultKeyHeader)
	if line == "" {
		return "", onceward.ErrNoKey
	}
	key, err := m.ParseKey(line)
	return key + ":" + p.Info.Path.Key.(string), err
}
