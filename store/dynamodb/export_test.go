package dynamodb

import "time"

// SetClock makes a store take its time from a function.
func (s *Store) SetClock(now func() time.Time) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	s.clock.set = now
}

// SetMargin sets for how long a store whose time is set leaves a lease alone that is over.
func (s *Store) SetMargin(d time.Duration) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	s.clock.setMargin = d
}

// ContinueFrom makes a store that was opened again continue with the numbers of the one before it: a clock that stands
// still would give them out a second time.
func (s *Store) ContinueFrom(before *Store) { s.clock.lastUnique = before.clock.lastUnique }

// Held is how many records a store remembers for their owners.
func (s *Store) Held() int {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	return len(s.held.values)
}

// SizeOf is what an item takes.
var SizeOf = sizeOf
