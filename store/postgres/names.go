package postgres

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// defaultPrefix is what the names of tables and functions begin with in the migrations.
const defaultPrefix = "onceward_"

// names says where the tables are.
type names struct {
	schema string
	prefix string
}

var prefixPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,29}$`)

func (n names) check() error {
	if !prefixPattern.MatchString(n.prefix) {
		return fmt.Errorf("postgres: the table prefix %q is not made of at most 30 lower-case letters, digits and underscores", n.prefix)
	}
	if n.schema == "" {
		return fmt.Errorf("postgres: there is no schema to create the tables in: the search_path of this user names none that exists; use WithSchema")
	}
	return nil
}

var nameMark = regexp.MustCompile(`@[a-z_0-9]+`)

// render puts the names of the tables and functions into a statement: @record becomes "public"."onceward_record".
func (n names) render(statement string) string {
	return nameMark.ReplaceAllStringFunc(statement, func(mark string) string {
		return pgx.Identifier{n.schema, n.prefix + mark[1:]}.Sanitize()
	})
}

// migration gives a migration the prefix of the user's choice.
func (n names) migration(text string) string {
	return strings.ReplaceAll(text, defaultPrefix, n.prefix)
}

// channel is the one on which settled records are announced: one for each set of tables in a database.
func (n names) channel() string {
	return n.prefix + shortHash(n.schema+"\x00"+n.prefix)
}
