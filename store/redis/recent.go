package redis

import (
	"hash/maphash"
	"sync/atomic"
)

// recent remembers some of the keys whose records this process has seen settled. A reservation of such a key is
// probably answered by the stored record, so the key is looked up first, which is cheaper than the script that can also
// make a record. It decides nothing: a forgotten key, or a key whose record is gone, takes the script.
type recent struct {
	seed   maphash.Seed
	hashes [recentKeys]atomic.Uint64
}

const recentKeys = 1 << 16

func newRecent() *recent { return &recent{seed: maphash.MakeSeed()} }

func (r *recent) add(key string) {
	h := maphash.String(r.seed, key)
	if slot := &r.hashes[h%recentKeys]; slot.Load() != h {
		slot.Store(h)
	}
}

func (r *recent) has(key string) bool {
	h := maphash.String(r.seed, key)
	return h != 0 && r.hashes[h%recentKeys].Load() == h
}
