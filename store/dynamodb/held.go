package dynamodb

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/onceward/onceward/store"
)

// held remembers the records of attempts that were granted to this process, so that their owners write without reading
// first. It decides nothing: each write is made on condition that the record is as remembered.
type held struct {
	mu     sync.Mutex
	values map[store.ID]*value
}

// mostHeld bounds the remembered records; the owners of other records read before they write.
const mostHeld = 1 << 14

// hold remembers a record while an attempt of this process owns it.
func (s *Store) hold(id store.ID, v *value) {
	owned := v.State == store.StateInProgress && v.Nonce != store.Nonce{}
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	if !owned {
		delete(s.held.values, id)
		return
	}
	if len(s.held.values) >= mostHeld {
		for other := range s.held.values {
			delete(s.held.values, other)
			break
		}
	}
	s.held.values[id] = v
}

// drop forgets a record that is no longer the stored one: its owner may never write again.
func (h *held) drop(id store.ID, v *value) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.values[id] == v {
		delete(h.values, id)
	}
}

// owned returns the guess that an owner's record is as this process last wrote it.
func (s *Store) owned(c store.Claim) sight {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	if v := s.held.values[c.ID]; v != nil && v.Attempt == c.Attempt {
		return sight{value: v, guessed: true}
	}
	return sight{}
}

// recent remembers some of the keys whose records this process has seen settled. A reservation of such a key is
// probably answered by the stored record, so the record is read first: a read costs less than a write whose condition
// is not met. It decides nothing: a forgotten key, or a key whose record is gone, takes the write.
type recent struct {
	seed   maphash.Seed
	hashes [recentKeys]atomic.Uint64
}

const recentKeys = 1 << 16

func newRecent() *recent { return &recent{seed: maphash.MakeSeed()} }

func (r *recent) add(id store.ID) {
	h := maphash.Comparable(r.seed, id)
	if slot := &r.hashes[h%recentKeys]; slot.Load() != h {
		slot.Store(h)
	}
}

func (r *recent) has(id store.ID) bool {
	h := maphash.Comparable(r.seed, id)
	return h != 0 && r.hashes[h%recentKeys].Load() == h
}
