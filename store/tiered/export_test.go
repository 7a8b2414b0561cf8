package tiered

import "maps"

// Tombstones counts the tombstones that a front keeps.
func Tombstones(m *Memory) int { return len(m.tombstones) }

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
	m.tombstones = maps.Clone(snapshot.tombstones)
}

// Snapshot is a copy of what the front holds.
func (m *Memory) Snapshot() *Memory {
	snapshot := NewMemory(m.config)
	m.mu.Lock()
	defer m.mu.Unlock()
	snapshot.Restore(m)
	return snapshot
}
