package postgres

import (
	"cmp"
	"io/fs"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// LockKey is the key of the advisory lock that the record of an ID has.
func (s *Store) LockKey(id store.ID) int64 { return s.lockKey(s.hash(id)) }

// PreferPrimary is what PoolConfig does to a URL.
var PreferPrimary = preferPrimary

// MostConnections is how many connections the pools of a store's own may have: the one that settles, the one that asks
// what became of commits, and the one that finds out where the address leads.
func (s *Store) MostConnections() (settling, asking, scouting int32) {
	return s.own.Config().MaxConns, s.asking.Config().MaxConns, s.scout.pool.Config().MaxConns
}

// SightTimeout is how long a connection that finds out where the address leads may take to be made.
func (s *Store) SightTimeout() time.Duration { return s.scout.pool.Config().ConnConfig.ConnectTimeout }

// PromoteFailures is how many promotions of messages failed of late.
func (s *Store) PromoteFailures() int { return int(s.promoteFailures.Load()) }

// Awaited reports whether the store knows that another process waits for the record of an ID.
func (s *Store) Awaited(id store.ID) bool {
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	_, awaited := s.waits.awaited[s.hash(id)]
	return awaited
}

// WithMigrations has the tables made by other files than those of this program, as a later program does.
func WithMigrations(files fs.FS) Option {
	return func(o *options) { o.migrations = sqltx.NewMigrations(files) }
}

// PlainSQLOf is [PlainSQL] for other files than those of this program.
func PlainSQLOf(files fs.FS, schema, prefix string, from int) (string, error) {
	all := sqltx.NewMigrations(files)
	return plainScript(&all, names{schema: schema, prefix: cmp.Or(prefix, sqltx.DefaultPrefix)}, from)
}
