package tiered

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// DefaultMemoryBytes is the default of [MemoryConfig].MaxBytes.
const DefaultMemoryBytes = 64 << 20

// MemoryConfig configures a [Memory]. The zero value is ready to use.
type MemoryConfig struct {
	// MaxBytes is the largest size of the content; the least recently used values are removed first. If the tombstones
	// alone are larger, which takes a bust for each 300 bytes, the front holds nothing until they have ended. Default:
	// [DefaultMemoryBytes].
	MaxBytes int
	// Clock is the clock of the front. Default: [time.Now].
	Clock func() time.Time
}

// Memory is a [Front] in this process. It is not shared: if several processes use one durable store, a record that one
// process busts can still be seen in the other processes for MaxAge, and no error reports this.
type Memory struct {
	config MemoryConfig

	mu      sync.Mutex
	entries map[store.ID]*list.Element
	recent  list.List // of *memoryEntry, the most recently used first
	// bytes is the size of all entries and tombstones.
	bytes int
	// tombstones holds the end of each tombstone. Tombstones are not evicted for entries: ended ones are pruned when
	// there are prune of them, and to make room.
	tombstones map[store.ID]time.Time
	prune      int
	pruned     time.Time
	// shut is the end of the last tombstone for which there was no room: nothing is added until then.
	shut time.Time
}

type memoryEntry struct {
	id    store.ID
	value []byte
	end   time.Time
}

// memoryOverhead is the approximate size of an entry without its value and its ID.
const memoryOverhead = 256

func (e *memoryEntry) size() int { return len(e.value) + tombstoneSize(e.id) }

func tombstoneSize(id store.ID) int { return len(id.Scope) + len(id.Key) + memoryOverhead }

// leastPrune is the smallest number of tombstones at which ended tombstones are pruned.
const leastPrune = 64

// pruneInterval is the least time between two scans of all tombstones to make room.
const pruneInterval = time.Second

// NewMemory returns an empty front in this process.
func NewMemory(config MemoryConfig) *Memory {
	if config.MaxBytes <= 0 {
		config.MaxBytes = DefaultMemoryBytes
	}
	if config.Clock == nil {
		config.Clock = time.Now
	}
	return &Memory{
		config: config, entries: make(map[store.ID]*list.Element),
		tombstones: make(map[store.ID]time.Time), prune: leastPrune,
	}
}

// Now implements [Front].
func (m *Memory) Now() time.Time { return m.config.Clock() }

// Get implements [Front].
func (m *Memory) Get(_ context.Context, id store.ID) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if held := m.live(id); held != nil {
		m.recent.MoveToFront(m.entries[id])
		return held.value, nil
	}
	return nil, nil
}

// live returns the entry of an ID, if it has not ended. The caller holds the lock.
func (m *Memory) live(id store.ID) *memoryEntry {
	element := m.entries[id]
	if element == nil {
		return nil
	}
	held := element.Value.(*memoryEntry)
	if !m.config.Clock().Before(held.end) {
		m.remove(element)
		return nil
	}
	return held
}

// Add implements [Front].
func (m *Memory) Add(_ context.Context, id store.ID, value []byte, end time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.config.Clock()
	added := &memoryEntry{id: id, value: value, end: end}
	if m.live(id) != nil || now.Before(m.tombstones[id]) || now.Before(m.shut) || !now.Before(end) ||
		added.size() > m.config.MaxBytes {
		return nil
	}
	m.entries[id] = m.recent.PushFront(added)
	m.bytes += added.size()
	m.makeRoom(now)
	return nil
}

// makeRoom removes ended tombstones, and then the least recently used entries, while the content is too large. The
// caller holds the lock.
func (m *Memory) makeRoom(now time.Time) {
	if m.bytes > m.config.MaxBytes && now.Sub(m.pruned) >= pruneInterval {
		m.pruneTombstones(now)
	}
	for m.bytes > m.config.MaxBytes && m.recent.Len() > 0 {
		m.remove(m.recent.Back())
	}
}

// Invalidate implements [Front].
func (m *Memory) Invalidate(_ context.Context, id store.ID, lasting time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if element := m.entries[id]; element != nil {
		m.remove(element)
	}
	now := m.config.Clock()
	if len(m.tombstones) >= m.prune {
		m.pruneTombstones(now)
	}
	if _, there := m.tombstones[id]; !there {
		m.bytes += tombstoneSize(id)
	}
	if end := now.Add(lasting); end.After(m.tombstones[id]) {
		m.tombstones[id] = end
	}
	if m.makeRoom(now); m.bytes > m.config.MaxBytes {
		m.shutUntilTheyEnd()
	}
	return nil
}

// pruneTombstones removes the ended tombstones.
func (m *Memory) pruneTombstones(now time.Time) {
	for id, end := range m.tombstones {
		if !now.Before(end) {
			delete(m.tombstones, id)
			m.bytes -= tombstoneSize(id)
		}
	}
	m.prune, m.pruned = max(leastPrune, 2*len(m.tombstones)), now
}

// shutUntilTheyEnd removes the tombstones, which are the whole content, and refuses all additions until they would have
// ended.
func (m *Memory) shutUntilTheyEnd() {
	for _, end := range m.tombstones {
		if end.After(m.shut) {
			m.shut = end
		}
	}
	m.tombstones, m.prune, m.bytes = make(map[store.ID]time.Time), leastPrune, 0
}

func (m *Memory) remove(element *list.Element) {
	held := m.recent.Remove(element).(*memoryEntry)
	delete(m.entries, held.id)
	m.bytes -= held.size()
}
