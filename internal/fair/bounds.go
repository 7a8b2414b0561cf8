package fair

import "errors"

// Bounds say how many tasks may be under way at one time.
type Bounds struct {
	// Total is for all of them together.
	Total int
	// PerOperation is for those of one operation. One scope gets half of it at most.
	PerOperation int
}

// The defaults: seven operations that hang leave room for an eighth.
const (
	defaultTotal        = 64
	defaultPerOperation = 8
)

// WithDefaults fills in what is zero and refuses what is negative. By default one operation gets half of the total at
// most.
func (b Bounds) WithDefaults() (Bounds, error) {
	if b.Total < 0 || b.PerOperation < 0 {
		return b, errors.New("a negative Concurrency or PerOperation")
	}
	if b.Total == 0 {
		b.Total = max(defaultTotal, b.PerOperation)
	}
	if b.PerOperation == 0 {
		b.PerOperation = min(defaultPerOperation, half(b.Total))
	}
	b.PerOperation = min(b.PerOperation, b.Total)
	return b, nil
}

// half is rounded up, so that there is always one.
func half(n int) int { return (n + 1) / 2 }
