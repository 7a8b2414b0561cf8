package consuming

import "sync"

// maxFailing is how many messages have their failures remembered. One that fails here and is applied elsewhere is never
// forgotten otherwise; when there are too many, counting begins again.
const maxFailing = 10_000

// Failures remembers how often messages have failed in this process. It is safe for concurrent use.
type Failures[K comparable] struct {
	mu sync.Mutex
	of map[K]failure
}

// failure is how often a message has failed for a reason of its own, and how often for any.
type failure struct{ tries, all int }

// Add notes a failure, and whether it counts as a try. It returns how many tries there were with this one, and how many
// failures of any kind.
func (f *Failures[K]) Add(key K, counts bool) (tries, failures int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.of[key]; f.of == nil || !known && len(f.of) >= maxFailing {
		f.of = make(map[K]failure)
	}
	failed := f.of[key]
	failed.all++
	if counts {
		failed.tries++
	}
	f.of[key] = failed
	return failed.tries, failed.all
}

// Forget forgets a message that will not come again.
func (f *Failures[K]) Forget(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, key)
}
