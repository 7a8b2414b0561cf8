package redis

import (
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

// buckets is how many parts the keys are spread over. Each has a hash tag of its own: a record, the indexes that it may
// be in and what is kept beside it are in one slot of a cluster, and one script changes them together.
const buckets = 1024

// The kinds of keys of a bucket. Their names are stored and never change.
const (
	kindRecord  = "r" // one for each ID: the record
	kindOpen    = "p" // sorted set: records in progress, by the end of their lease
	kindUnknown = "u" // sorted set: unknown records, dead letters too, by when they are due
)

// The kinds of keys of what is kept beside the records.
const (
	kindLate     = "l" // one for each ID: list of completions that came too late
	kindEvent    = "e" // one for each external event: the event
	kindReceived = "x" // sorted set: the keys of external events, by when they were received
	kindSubject  = "s" // one for each subject: sorted set of the keys of external events about it
	kindAudit    = "a" // one for each ID: sorted set of entries, by when they were written
	kindWritten  = "w" // sorted set: the keys of audits, by when their oldest entry was written
	kindRequests = "y" // sorted set: the audited requests of all IDs of the bucket, by when they were written
	kindLogged   = "z" // sorted set: the key of the audited requests, by when the oldest was written
)

// The numbers of the indexes, as scripts count them.
const (
	indexNone = iota
	indexOpen
	indexUnknown
	indexes
)

// bucket holds the names of the keys of one bucket.
type bucket struct {
	number int
	// base is the beginning of all names; a kind follows.
	base  string
	index [indexes]string
}

// names knows how keys are called.
type names struct {
	prefix  string
	cluster bool
	buckets [buckets]bucket
}

// newNames returns the names of a store. In a cluster each bucket has an index of what is in progress. On a single server
// that of the first bucket serves all, so that one command enters all records of a batch.
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

// holding returns the buckets that together hold an index.
func (n *names) holding(index int) []bucket {
	if index == indexOpen && !n.cluster {
		return n.buckets[:1]
	}
	return n.buckets[:]
}

// bucketOf returns the bucket of some bytes, for ever the same.
func (n *names) bucketOf(b []byte) *bucket {
	return &n.buckets[crc32.ChecksumIEEE(b)%buckets]
}

// place is where an ID is.
type place struct {
	*bucket
	id  store.ID
	key string // of the record
}

// named returns the key of a kind for some bytes, and the bucket that it is in.
func (n *names) named(kind string, b []byte) (string, *bucket) {
	in := n.bucketOf(b)
	return in.base + kind + ":" + string(b), in
}

// leased are the keys that change with a lease: the record and the index of what is in progress.
func (p *place) leased() []string { return []string{p.key, p.index[indexOpen]} }

func (n *names) place(id store.ID) place {
	// All bases are of one length: the name is made in one piece, with the base put in when the bucket is known.
	front := len(n.buckets[0].base) + len(kindRecord+":")
	b := make([]byte, front, front+len(id.Scope)+len(id.Key)+8)
	b = id.AppendBinary(b)
	in := n.bucketOf(b[front:])
	copy(b[copy(b, in.base):], kindRecord+":")
	return place{bucket: in, id: id, key: rueidis.BinaryString(b)}
}

// placeOf returns the place whose record has that key.
func (n *names) placeOf(key string) (place, error) {
	b, ok := strings.CutPrefix(key, n.prefix+":{")
	if !ok || len(b) < len("000}:r:") || b[3:7] != "}:"+kindRecord+":" {
		return place{}, fmt.Errorf("redis: %q is not the key of a record", key)
	}
	id, err := store.ParseID([]byte(b[7:]))
	if err != nil {
		return place{}, err
	}
	at := n.place(id)
	if at.key != key {
		return place{}, fmt.Errorf("redis: %q is not where the store keeps that record", key)
	}
	return at, nil
}

// idOf returns the ID whose key of a kind that is.
func (n *names) idOf(kind, key string) (store.ID, error) {
	b, ok := strings.CutPrefix(key, n.prefix+":{")
	if !ok || len(b) < len("000}:a:") || b[3:7] != "}:"+kind+":" {
		return store.ID{}, fmt.Errorf("redis: %q is not a key of kind %s", key, kind)
	}
	return store.ParseID([]byte(b[7:]))
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
