package tiered

import (
	"hash/maphash"
	"math/rand/v2"
	"sync/atomic"
)

// worth estimates whether look-ups are worthwhile. If nearly all requests are first executions, a look-up costs each
// request a round trip and saves the durable store almost no work: then only a sample of look-ups is made, which
// detects a change. The choice of the requests does not matter, as long as no client can detect it: the durable store
// can answer all of them.
type worth struct {
	// points increase with hits and decrease with misses. At zero, look-ups are not worthwhile.
	points atomic.Int32
}

// worths has an estimate for each part of the scopes, so that a scope with many new keys affects few others.
type worths struct {
	seed  maphash.Seed
	parts [64]worth
}

// of returns the estimate for a scope.
func (w *worths) of(scope string) *worth {
	return &w.parts[maphash.String(w.seed, scope)%uint64(len(w.parts))]
}

// assume treats look-ups as worthwhile until they prove not to be.
func (w *worths) assume() {
	for i := range w.parts {
		w.parts[i].points.Store(maxPoints)
	}
}

const (
	// hitPoints is the number of misses that a hit outweighs: all look-ups are made while at least one of this many
	// look-ups hits.
	hitPoints = 16
	// maxPoints bounds the influence of past look-ups.
	maxPoints = 256
	// sampleOf is the sampling rate: one of this many look-ups is made if look-ups are not worthwhile.
	sampleOf = 16
)

// sample reports whether to make a look-up.
func (w *worth) sample() bool { return w.points.Load() > 0 || rand.Uint32N(sampleOf) == 0 }

// count counts the result of a look-up. One of two concurrent results may be lost, which is acceptable for an estimate.
func (w *worth) count(hit bool) {
	points := w.points.Load()
	next := max(points-1, 0)
	if hit {
		next = min(points+hitPoints, maxPoints)
	}
	if next != points {
		w.points.Store(next)
	}
}
