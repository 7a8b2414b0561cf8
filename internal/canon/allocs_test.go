package canon_test

import (
	"testing"

	"github.com/onceward/onceward/internal/canon"
	"github.com/onceward/onceward/internal/racing"
)

// TestAppendDoesNotAllocate counts where the race detector is off, which makes pools forget at random.
// Not parallel: allocations of other tests would count.
func TestAppendDoesNotAllocate(t *testing.T) {
	docs := documents()
	for _, name := range []string{"small", "order", "sorted", "pretty"} {
		doc := docs[name]
		var dst []byte
		allocs := testing.AllocsPerRun(100, func() {
			dst, _ = canon.Append(dst[:0], doc, nil)
		})
		if allocs != 0 && !racing.Enabled {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}
