package redis

import (
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

// buckets is how many parts the keys are spread over. Each has its own hash tag: a record, its indexes and the items
// kept beside it are in one slot of a cluster, and one script changes them together.
const buckets = 1024

// These are the kinds of keys of a bucket. Their names are stored and never change.
const (
	kindRecord   = "h" // one for each ID, by its hash: the record
	kindOpen     = "o" // sorted set: records in progress, by the end of their lease
	kindUnknown  = "u" // sorted set: unknown records, dead letters too, by when they are due
	kindProvider = "i" // one for each provider's id: sorted set of the hashes of records, by how long they are kept
)

// These are the kinds of keys of the items beside the records.
const (
	kindLate     = "l" // one for each ID: list of late completions
	kindEvent    = "e" // one for each external event: the event
	kindReceived = "x" // sorted set: the keys of external events, by when they were received
	kindSubject  = "s" // one for each subject: sorted set of the keys of external events about it
	kindAudit    = "a" // one for each ID: sorted set of entries, by when they were written
	kindWritten  = "w" // sorted set: the keys of audits, by when their oldest entry was written
	kindRequests = "y" // sorted set: the audited requests of all IDs of the bucket, by when they were written
	kindLogged   = "z" // sorted set: the key of the audited requests, by when the oldest was written
)

// These are the numbers of the indexes, as scripts use them.
const (
	indexNone = iota
	indexOpen
	indexUnknown
	indexes
)

// bucket contains the names of the keys of one bucket.
type bucket struct {
	number int
	// base is the beginning of all names; a kind follows.
	base  string
	index [indexes]string
}

// names makes the names of keys.
type names struct {
	prefix  string
	cluster bool
	buckets [buckets]bucket
}

// newNames returns the names of a store. In a cluster each bucket has an index of records in progress. On a single
// server the first bucket's serves all, so that one command enters all records of a batch.
func newNames(prefix string, cluster bool) *names {
	n := &names{prefix: prefix, cluster: cluster}
	for i := range n.buckets {
		base := fmt.Sprintf("%s:{%03x}:", prefix, i)
		n.buckets[i] = bucket{number: i, base: base, index: [indexes]string{
			indexOpen: base + kindOpen, indexUnknown: base + kindUnknown,
		}}
		if !cluster {
			n.buckets[i].index[indexOpen] = n.buckets[0].index[indexOpen]
		}
	}
	return n
}

// holding returns the buckets that together contain an index.
func (n *names) holding(index int) []bucket {
	if index == indexOpen && !n.cluster {
		return n.buckets[:1]
	}
	return n.buckets[:]
}

// bucketOf returns the bucket of some bytes. The result never changes.
func (n *names) bucketOf(b []byte) *bucket {
	return &n.buckets[crc32.ChecksumIEEE(b)%buckets]
}

// place is where a record is.
type place struct {
	*bucket
	key string // of the record
	// id is the record's ID, if it is known: a place that was found by its key gets its ID from the stored record.
	id    store.ID
	known bool
}

// hashSize is how many bytes of a key are the hash of the ID.
const hashSize = 16

// named returns the key of a kind for some bytes, and the bucket that it is in.
func (n *names) named(kind string, b []byte) (string, *bucket) {
	in := n.bucketOf(b)
	return in.base + kind + ":" + string(b), in
}

// leased returns the keys that change with a lease: the record and the index of records in progress.
func (p *place) leased() []string { return []string{p.key, p.index[indexOpen]} }

// place returns the place of an ID's record.
func (n *names) place(id store.ID) place {
	at := n.placeOfHash(id.HashBytes())
	at.id, at.known = id, true
	return at
}

// placeOfHash returns the place of the record whose ID has that hash.
func (n *names) placeOfHash(hash [hashSize]byte) place {
	in := n.bucketOf(hash[:])
	b := make([]byte, 0, len(in.base)+len(kindRecord+":")+hashSize)
	b = append(append(append(b, in.base...), kindRecord+":"...), hash[:]...)
	return place{bucket: in, key: rueidis.BinaryString(b)}
}

// placeOf returns the place whose record has that key.
func (n *names) placeOf(key string) (place, error) {
	b, ok := strings.CutPrefix(key, n.prefix+":{")
	if !ok || len(b) != len("000}:h:")+hashSize || b[3:7] != "}:"+kindRecord+":" {
		return place{}, fmt.Errorf("redis: %q is not the key of a record", key)
	}
	at := n.placeOfHash([hashSize]byte([]byte(b[7:])))
	if at.key != key {
		return place{}, fmt.Errorf("redis: %q is not where the store keeps that record", key)
	}
	return at, nil
}

// idOf returns the ID in a key of a kind.
func (n *names) idOf(kind, key string) (store.ID, error) {
	b, ok := strings.CutPrefix(key, n.prefix+":{")
	if !ok || len(b) < len("000}:a:") || b[3:7] != "}:"+kind+":" {
		return store.ID{}, fmt.Errorf("redis: %q is not a key of kind %s", key, kind)
	}
	return store.ParseID([]byte(b[7:]))
}

// hash returns the hash that names the record of a place.
func (p *place) hash() string { return p.key[len(p.key)-hashSize:] }

// holds reports whether the value stored at a place is the record of its ID. Another key may have the same hash.
func (p *place) holds(v *value) bool {
	if p.known || v.State == store.StateNone {
		return p.id == v.ID || v.State == store.StateNone
	}
	hash := v.HashBytes()
	return string(hash[:]) == p.hash()
}

// indexOf returns the number of the index that a record belongs to.
func indexOf(rec *store.Record) int {
	switch rec.State {
	case store.StateInProgress:
		return indexOpen
	case store.StateUnknown:
		return indexUnknown
	default:
		return indexNone
	}
}
