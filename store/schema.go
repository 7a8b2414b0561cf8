package store

import (
	"errors"
	"fmt"
	"strings"
)

// These errors are returned by a store that does not migrate its tables and cannot use them.
var (
	// ErrSchemaMissing is returned when there are no tables.
	ErrSchemaMissing = errors.New("onceward: there are no tables")
	// ErrSchemaOlder is returned when migrations have to be applied first.
	ErrSchemaOlder = errors.New("onceward: the tables are of an older version")
	// ErrSchemaNewer is returned when a newer program has created or migrated the tables.
	ErrSchemaNewer = errors.New("onceward: the tables are of a newer version")
)

// SchemaStatus compares the tables of a store with what this program needs.
type SchemaStatus struct {
	// Place is where the tables are: a schema and the prefix of their names, or a file.
	Place string
	// Absent means that Place is a file that does not exist.
	Absent bool
	// Version is the version of the tables; zero if there are none.
	Version int
	// Wanted is the version that this program needs.
	Wanted int
	// Pending are the names of the migrations that have not been applied, in their order.
	Pending []string
}

// Err returns an error with the problem of the tables and its remedy, or nil if this program can use them.
func (s *SchemaStatus) Err() error {
	switch {
	case s.Version > s.Wanted:
		return fmt.Errorf("%w: those in %s are of version %d, and this program knows version %d: use a newer program",
			ErrSchemaNewer, s.Place, s.Version, s.Wanted)
	case s.Absent:
		return fmt.Errorf("%w: the file %s does not exist; if that is its name, this program needs version %d: %s",
			ErrSchemaMissing, s.Place, s.Wanted, s.remedy())
	case s.Version == 0:
		return fmt.Errorf("%w in %s, and this program needs version %d: %s", ErrSchemaMissing, s.Place, s.Wanted, s.remedy())
	case s.Version < s.Wanted:
		return fmt.Errorf("%w: those in %s are of version %d, and this program needs version %d: %s", ErrSchemaOlder,
			s.Place, s.Version, s.Wanted, s.remedy())
	default:
		return nil
	}
}

func (s *SchemaStatus) remedy() string {
	return "apply " + strings.Join(s.Pending, ", ") + ", by \"onceward migrate up\", the function Migrate of the store, " +
		"or as plain SQL from \"onceward migrate print\""
}
