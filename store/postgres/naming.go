package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/onceward/onceward/store"
)

// hash returns the name of a record in the tables, which is the hash of its ID that logs show.
func (s *Store) hash(id store.ID) [16]byte { return id.HashBytes() }

// lockSalt returns a number that keeps the locks of these tables apart from the locks of other tables in the same
// database, whose records have the same names.
func lockSalt(tables string) int64 {
	sum := sha256.Sum256([]byte(tables))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// lockKey returns the key of the advisory lock of a record. Two records may share a key: while one of them is in
// flight, a request for the other is answered as if its own key were in progress.
func (s *Store) lockKey(hash [16]byte) int64 {
	return int64(binary.BigEndian.Uint64(hash[:8])) ^ s.salt
}

// RecordID returns the value of the column id in the table of records for an ID, as a UUID in its text form: it has the
// digits of [store.ID.Hash]. A table of the application may refer to it: see the guide on PostgreSQL.
func (s *Store) RecordID(id store.ID) string {
	h := s.hash(id)
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:])
}
