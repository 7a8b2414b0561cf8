package postgres

import "github.com/onceward/onceward/store"

// LockKey is the key of the advisory lock that the record of an ID has.
func (s *Store) LockKey(id store.ID) int64 { return s.lockKey(s.hash(id)) }

// PreferPrimary is what PoolConfig does to a URL.
var PreferPrimary = preferPrimary
