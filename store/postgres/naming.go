package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/onceward/onceward/store"
)

// naming is how records, locks and lanes get their numbers.
type naming struct {
	// secret keys the names of records, in tables of an earlier version. In others it is empty, and a record is named by
	// the hash of its ID.
	secret []byte
	// ordered says that a name begins with the time of its key, if that tells one.
	ordered bool
	// tables tells these tables from others in the same database, whose records have the same names and which share the
	// locks. It is empty where the secret does that.
	tables string
	// salt is the same for the keys of locks.
	salt int64
}

// newNaming returns how those tables name things.
func newNaming(secret []byte, f form, tables string) *naming {
	n := &naming{secret: secret, ordered: f.has(formOrdered)}
	if len(secret) == 0 {
		sum := sha256.Sum256([]byte(tables))
		n.tables, n.salt = tables, int64(binary.BigEndian.Uint64(sum[:8]))
	}
	return n
}

// hash names the record of an ID: by the hash that logs show, of which the time of the key takes the first four bytes,
// if it tells one and the tables are of that form. Keys of one time are then together in the index, on pages that are
// in memory and in the log already, and within it they are spread, so that no page is the last one for everybody.
func (s *Store) hash(id store.ID) (hash [16]byte) {
	b := make([]byte, 0, 128)
	b = id.AppendBinary(append(b, s.naming.secret...))
	sum := sha256.Sum256(b)
	hash = [16]byte(sum[:16])
	if !s.naming.ordered {
		return hash
	}
	if at, ok := keyTime(id.Key); ok {
		binary.BigEndian.PutUint32(hash[:4], at)
	}
	return hash
}

// lockKey is the key of the advisory lock of a record. Two records may share it: while one is in flight the other is
// told to come again. Where names begin with a time it is made of their ends.
func (s *Store) lockKey(hash [16]byte) int64 {
	if s.naming.ordered {
		return int64(binary.BigEndian.Uint64(hash[8:])) ^ s.naming.salt
	}
	return int64(binary.BigEndian.Uint64(hash[:8])) ^ s.naming.salt
}

// RecordID returns what names the record of an ID in the column id of the table of records, as a UUID in its text form.
// Its digits are those of [store.ID.Hash], with two exceptions: of a key that tells its time, such as a UUIDv7, the
// first eight digits are that time, and tables of an earlier version may have a secret, which changes all of them. A
// table of the application may refer to it; see the guide on PostgreSQL.
func (s *Store) RecordID(id store.ID) string {
	h := s.hash(id)
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:])
}

// The times that names begin with, in units of 2^16 milliseconds since 1970: from November 2023 to January 2050. A key
// that tells another one is taken for one that tells none. They never change, and the function record_id of the sixth
// migration knows them too.
const (
	firstTime = 0x018c0000
	endOfTime = 0x024c0000
)

// keyTime is the time of a key that ends in a UUIDv7 or a ULID, which stands alone or behind something that is no
// letter or digit, as in a TypeID. What it takes for a time never changes, because names are stored; a key that only
// looks like one is named as well by it as by anything else.
func keyTime(key string) (at uint32, ok bool) {
	if last, found := lastPart(key, sizeOfUUID); found {
		at, ok = timeOfUUID(last)
	}
	if last, found := lastPart(key, sizeOfULID); found && !ok {
		at, ok = timeOfULID(last)
	}
	return at, ok && firstTime <= at && at < endOfTime
}

// How many characters they have.
const (
	sizeOfUUID = 36
	sizeOfULID = 26
)

// lastPart is the end of a key, of that size, if it is a part of its own.
func lastPart(key string, size int) (part string, ok bool) {
	at := len(key) - size
	if at < 0 || at > 0 && digit[key[at-1]] != noDigit {
		return "", false
	}
	return key[at:], true
}

// timeOfUUID reads the first eight digits of a UUIDv7, of either case, which are its time.
func timeOfUUID(text string) (at uint32, ok bool) {
	for i := range len(text) {
		value := digit[text[i]]
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if text[i] != '-' {
				return 0, false
			}
		case value > 15 || i == 14 && value != 7:
			return 0, false
		case i < 8:
			at = at<<4 | uint32(value)
		}
	}
	return at, true
}

// timeOfULID reads the first ten digits of a ULID, of either case, which are its time in milliseconds.
func timeOfULID(text string) (at uint32, ok bool) {
	var ms uint64
	for i := range len(text) {
		value := digit[text[i]]
		if value > 31 {
			return 0, false
		}
		if i < 10 {
			ms = ms<<5 | uint64(value)
		}
	}
	return uint32(ms >> 16), ms < 1<<48
}

// The values of characters that are no digits of a ULID: other letters, and what is neither letter nor digit.
const (
	otherLetter = 0xfe
	noDigit     = 0xff
)

// digit has the value of each character as a digit of Crockford's base 32, of either case. Up to fifteen it is the
// hexadecimal one.
var digit = func() (digit [256]byte) {
	for c := range digit {
		digit[c] = noDigit
	}
	for c := 'a'; c <= 'z'; c++ {
		digit[c], digit[c-'a'+'A'] = otherLetter, otherLetter
	}
	for value, c := range "0123456789abcdefghjkmnpqrstvwxyz" {
		digit[c] = byte(value)
		if c >= 'a' {
			digit[c-'a'+'A'] = byte(value)
		}
	}
	return digit
}()
