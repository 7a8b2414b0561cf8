package sqltx

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// DefaultPrefix is the beginning of the names of tables and functions in the migrations.
const DefaultPrefix = "onceward_"

// Migrations are the files that make the tables, in their order: the first makes version 1 of them.
type Migrations struct {
	files fs.FS
	// Names are the names of the files.
	Names []string
}

// NewMigrations returns the migrations among files.
func NewMigrations(files fs.FS) Migrations {
	found, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic(err) // the pattern is right
	}
	return Migrations{files, found}
}

// MigrationFiles returns the files of the directory migrations, which is compiled in.
func MigrationFiles(embedded fs.FS) fs.FS {
	sub, err := fs.Sub(embedded, "migrations")
	if err != nil {
		panic(err)
	}
	return sub
}

// Version returns the version of the tables that the program needs.
func (m *Migrations) Version() int { return len(m.Names) }

// After returns the files that bring tables of a version up to date.
func (m *Migrations) After(version int) []string { return m.Names[min(version, len(m.Names)):] }

var gooseMark = regexp.MustCompile(`(?m)^-- \+goose .*\n`)

// Text returns the SQL of a file, for tables of a prefix.
func (m *Migrations) Text(file, prefix string) (string, error) {
	text, err := fs.ReadFile(m.files, file)
	return strings.ReplaceAll(gooseMark.ReplaceAllString(string(text), ""), DefaultPrefix, prefix), err
}

var prefixPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,29}$`)

// CheckPrefix refuses a prefix that the names of tables cannot have. The engine is named in the error.
func CheckPrefix(engine, prefix string) error {
	if !prefixPattern.MatchString(prefix) {
		return fmt.Errorf("%s: the table prefix %q is not made of at most 30 lower-case letters, digits and underscores",
			engine, prefix)
	}
	return nil
}
