package tiered

import (
	"hash/maphash"
	"math/rand/v2"
	"sync/atomic"
)

// worth estimates whether look-ups are worth their while. Where next to all requests are first executions, a look-up
// costs each of them a round trip and spares the durable store next to nothing: then only a sample is made, which finds
// out when that changes. Which requests those are does not matter, as long as no client can tell: the durable store
// answers all of them.
type worth struct {
	// points are gained by hits and lost by misses. Without any, look-ups are not worth it.
	points atomic.Int32
}

// worths has an estimate for each part of the scopes, so that one which sprays keys decides for few others.
type worths struct {
	seed  maphash.Seed
	parts [64]worth
}

// of returns the estimate for a scope.
func (w *worths) of(scope string) *worth {
	return &w.parts[maphash.String(w.seed, scope)%uint64(len(w.parts))]
}

// assume takes look-ups for worth it until they prove not to be.
func (w *worths) assume() {
	for i := range w.parts {
		w.parts[i].points.Store(maxPoints)
	}
}

const (
	// hitPoints is how many misses a hit makes up for: all look-ups are made while one of so many hits.
	hitPoints = 16
	// maxPoints bounds how long what was counts.
	maxPoints = 256
	// sampleOf is of how many look-ups that are not worth it one is made.
	sampleOf = 16
)

// ask reports whether a look-up is to be made.
func (w *worth) ask() bool { return w.points.Load() > 0 || rand.Uint32N(sampleOf) == 0 }

// learn counts what a look-up has found. Of several that do so at once one may be lost: it is an estimate.
func (w *worth) learn(hit bool) {
	points := w.points.Load()
	next := max(points-1, 0)
	if hit {
		next = min(points+hitPoints, maxPoints)
	}
	if next != points {
		w.points.Store(next)
	}
}
