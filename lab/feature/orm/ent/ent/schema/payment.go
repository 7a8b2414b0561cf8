// Package schema has the entities of the recipe for ent.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
)

// Payment is a row of the table of payments.
type Payment struct{ ent.Schema }

// Annotations names the table.
func (Payment) Annotations() []schema.Annotation { return []schema.Annotation{entsql.Table("payment")} }

// Fields are the columns.
func (Payment) Fields() []ent.Field {
	return []ent.Field{field.String("id"), field.Int64("amount")}
}
