package client

import (
	"sync"
	"time"
)

// Budget limits the retries of all operations that share it. Each operation adds a fraction of
// a retry, and each second adds a fixed floor, so that a caller with little traffic can retry
// too. In an outage the traffic grows by the fraction and not by the number of attempts.
type Budget struct {
	ratio, floor float64

	mu     sync.Mutex
	tokens float64
	filled time.Time
}

// budgetSeconds is how many seconds of the floor a new budget contains, which is also the most that it can save up.
const budgetSeconds = 10

// NewBudget returns a budget that allows ratio retries for each operation and, in addition, floor retries per second.
func NewBudget(ratio, floor float64) (*Budget, error) {
	if !(ratio >= 0 && ratio <= 10) || !(floor >= 0 && floor <= 1e6) {
		return nil, misconfigured("a budget of %v retries for each operation and %v a second", ratio, floor)
	}
	return &Budget{ratio: ratio, floor: floor, tokens: budgetSeconds * floor, filled: time.Now()}, nil
}

// begin counts an operation.
func (b *Budget) begin() { b.add(b.ratio) }

// withdraw takes a retry from the budget and reports whether there was one.
func (b *Budget) withdraw() bool { return b.add(-1) }

// add fills the budget for the time that has passed and applies the change. It
// reports false, and applies nothing, if the budget is too small for the change.
func (b *Budget) add(change float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	most := max(budgetSeconds*b.floor, 1+budgetSeconds*b.ratio)
	b.tokens = min(most, b.tokens+b.floor*now.Sub(b.filled).Seconds())
	b.filled = now
	if b.tokens+change < 0 {
		return false
	}
	b.tokens = min(most, b.tokens+change)
	return true
}
