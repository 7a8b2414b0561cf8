package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/onceward/onceward/store"
)

// hash names the record of an ID: by the hash that logs show.
func (s *Store) hash(id store.ID) [16]byte { return id.HashBytes() }

// lockSalt keeps the locks of these tables apart from the locks of other tables in the same database, whose records
// have the same names.
func lockSalt(tables string) int64 {
	sum := sha256.Sum256([]byte(tables))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// lockKey is the key of the advisory lock of a record. Two records may share it: while one is in flight, a request for
// the other is answered as one that is in progress.
func (s *Store) lockKey(hash [16]byte) int64 {
	return int64(binary.BigEndian.Uint64(hash[:8])) ^ s.salt
}

// RecordID returns the value of the column id in the table of records for an ID, as a UUID in its text form: its digits
// are those of [store.ID.Hash]. A table of the application may refer to it; see the guide on PostgreSQL.
func (s *Store) RecordID(id store.ID) string {
	h := s.hash(id)
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:])
}
