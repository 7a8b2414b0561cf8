package fair

// Held counts the records that wait in memory or are under way.
func (p *Pool) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}

// Shares counts the operations and scopes that have places at the moment.
func (p *Pool) Shares() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.shares)
}
