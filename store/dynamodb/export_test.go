package dynamodb

import "time"

// SetClock makes a store take its time from a function.
func (s *Store) SetClock(now func() time.Time) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	s.clock.set = now
}
