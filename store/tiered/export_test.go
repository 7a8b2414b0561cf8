package tiered

import "maps"

// Untold counts what the front has missed.
func Untold(s *Store) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending)
}

// Tombstones counts the tombstones that a front keeps.
func Tombstones(m *Memory) int { return len(m.tombstones) }

// Bytes is the size of what a front holds.
func Bytes(m *Memory) int { return m.bytes }

// Restore makes the front hold what another one, which is a snapshot of it, does.
func (m *Memory) Restore(snapshot *Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recent.Init()
	m.bytes = 0
	clear(m.entries)
	for element := snapshot.recent.Back(); element != nil; element = element.Prev() {
		held := *element.Value.(*memoryEntry)
		m.entries[held.id] = m.recent.PushFront(&held)
		m.bytes += held.size()
	}
	m.tombstones, m.shut = maps.Clone(snapshot.tombstones), snapshot.shut
	for id := range m.tombstones {
		m.bytes += tombstoneSize(id)
	}
}

// Snapshot is a copy of what the front holds.
func (m *Memory) Snapshot() *Memory {
	snapshot := NewMemory(m.config)
	m.mu.Lock()
	defer m.mu.Unlock()
	snapshot.Restore(m)
	return snapshot
}
