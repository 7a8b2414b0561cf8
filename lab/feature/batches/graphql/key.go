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
// header stands for all mutations of the request, which differ by their names in the answer.
func (m Mutations) keyOf(p graphql.ResolveParams) (string, error) {
	key, _ := p.Args["key"].(string)
	for _, directive := range p.Info.FieldASTs[0].Directives {
		if directive.Name.Value == idempotent.Name && len(directive.Arguments) == 1 {
			switch value := directive.Arguments[0].Value.(type) {
			case *ast.StringValue:
				key = value.Value
			case *ast.Variable:
				key, _ = p.Info.VariableValues[value.Name.Value].(string)
			}
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
