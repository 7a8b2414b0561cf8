package mysql

import (
	"cmp"
	"io/fs"
	"strconv"

	"github.com/onceward/onceward/internal/sqltx"
)

// WithMigrations has the tables made by other files than those of this program, as a later program does.
func WithMigrations(files fs.FS) Option {
	return func(o *options) { o.migrations = sqltx.NewMigrations(files) }
}

// PlainSQLOf is [PlainSQL] for other files than those of this program.
func PlainSQLOf(files fs.FS, prefix string, from int) (string, error) {
	all := sqltx.NewMigrations(files)
	return plainScript(&all, names{prefix: cmp.Or(prefix, sqltx.DefaultPrefix)}, from)
}

// Spread makes each call use a connection of its own, to each host of the URL in turn.
func Spread(o *options) { o.spread = true }

// SetTime makes the clock of a store stand still at a moment, in microseconds since 1970.
func (s *Store) SetTime(at int64) { s.setClock(strconv.FormatInt(at, 10)) }
