package tiered

import (
	"hash/maphash"
	"math/rand/v2"
	"sync/atomic"
)

// worth estimates whether look-ups are worthwhile. If nearly all requests are first executions, a look-up costs each of
// them a round trip and spares the durable store almost nothing: then only a sample of look-ups is made, which detects
// a change. The choice of the requests does not matter, as long as no client can detect it: the durable store can
// answer all of them.
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
	// hitPoints is how many misses a hit outweighs: all look-ups are made while at least one of so many hits.
	hitPoints = 16
	// maxPoints bounds how long past look-ups count.
	maxPoints = 256
	// sampleOf is the number of look-ups of which one is made if they are not worthwhile.
	sampleOf = 16
)

// sample reports whether to make a look-up.
func (w *worth) sample() bool { return w.points.Load() > 0 || rand.Uint32N(sampleOf) == 0 }

// count counts the result of a look-up. Of concurrent results one may be lost, because it is only an estimate.
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
