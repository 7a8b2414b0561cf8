package sqltx

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// DefaultPrefix is the prefix of the names of tables and functions in the migrations.
const DefaultPrefix = "onceward_"

// Migrations holds the SQL files that create and update the tables, in their order. The first file
// makes version 1 of the tables.
type Migrations struct {
	files fs.FS
	// Names are the names of the files.
	Names []string
}

// NewMigrations returns the migrations among files.
func NewMigrations(files fs.FS) Migrations {
	found, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic(err) // the pattern is valid
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

// After returns the files that update tables of a version to the newest version.
func (m *Migrations) After(version int) []string { return m.Names[min(version, len(m.Names)):] }

var gooseMark = regexp.MustCompile(`(?m)^-- \+goose .*\n`)

// Text returns the SQL of a file, for tables with a prefix.
func (m *Migrations) Text(file, prefix string) (string, error) {
	text, err := fs.ReadFile(m.files, file)
	return strings.ReplaceAll(gooseMark.ReplaceAllString(string(text), ""), DefaultPrefix, prefix), err
}

var prefixPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,29}$`)

// CheckPrefix returns an error for a prefix that table names cannot have. The error names the engine.
func CheckPrefix(engine, prefix string) error {
	if !prefixPattern.MatchString(prefix) {
		return fmt.Errorf("%s: the table prefix %q is not made of at most 30 lower-case letters, digits and underscores",
			engine, prefix)
	}
	return nil
}
