package limit

// Scopes is how many scopes are remembered.
func (l *Limiter) Scopes() (n int) {
	for i := range l.local.shards {
		s := &l.local.shards[i]
		s.mu.Lock()
		n += len(s.scopes)
		s.mu.Unlock()
	}
	return n
}

// Portions is how many portions of shared counters are held.
func (l *Limiter) Portions() int {
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	return len(l.shared.portions)
}
